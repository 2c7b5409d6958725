"""scikit-learn's own checks of estimators, all of them: nothing is expected to fail."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from afterfit.sklearn import (
    KernelRidge,
    KernelRidgeCV,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    PoissonRegressorCV,
    Ridge,
    RidgeCV,
)

ESTIMATORS = [
    Ridge(),
    RidgeCV(),
    LogisticRegression(),
    LogisticRegressionCV(),
    PoissonRegressor(),
    PoissonRegressorCV(),
    KernelRidge(),
    KernelRidge(kernel="rbf", fit_intercept=True),
    KernelRidgeCV(),
]


@parametrize_with_checks(ESTIMATORS)
def test_check(estimator, check):
    check(estimator)
