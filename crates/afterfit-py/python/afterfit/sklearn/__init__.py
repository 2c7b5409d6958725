"""scikit-learn's regularized estimators, with every strength of a range after one fit.

``RidgeCV``, ``LogisticRegressionCV``, ``PoissonRegressorCV`` and ``KernelRidgeCV`` fit the whole path at once; afterwards
``predict(X, alpha=…)`` and ``at(alpha)`` give **any** strength of the range, and ``error_(alpha)`` says how exact it is.
``Ridge``, ``LogisticRegression``, ``PoissonRegressor`` and ``KernelRidge`` have one strength. Strengths are scikit-learn's
(``alpha``, ``C``); ours, ``l2``, multiplies ½‖w‖² next to a **mean** loss, as in the command ``afterfit fit``:

==================  =====================================================
estimator           strength, on rows of total weight n
==================  =====================================================
Ridge, KernelRidge  ``alpha = n * l2``
LogisticRegression  ``C = 1 / (n * l2)``
PoissonRegressor    ``alpha = l2``
==================  =====================================================

What is named is what stays the same when folds train on fewer rows: ``alpha`` or ``C``, as in scikit-learn, or ``l2``.
"""

from .display import RegularizationPathDisplay
from .folds import Folds
from .kernel import KernelRidge, KernelRidgeCV
from .linear import Ridge, RidgeCV, ridge_path
from .logistic import LogisticRegression, LogisticRegressionCV, logistic_path
from .poisson import PoissonRegressor, PoissonRegressorCV

__all__ = [
    "Folds",
    "KernelRidge",
    "KernelRidgeCV",
    "LogisticRegression",
    "LogisticRegressionCV",
    "PoissonRegressor",
    "PoissonRegressorCV",
    "RegularizationPathDisplay",
    "Ridge",
    "RidgeCV",
    "logistic_path",
    "ridge_path",
]

# Pickles name classes by the module they are imported from, wherever they are written.
for _name in __all__:
    globals()[_name].__module__ = __name__
