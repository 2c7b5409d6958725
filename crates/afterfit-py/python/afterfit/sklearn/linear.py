"""Least squares."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import MultiOutputMixin, RegressorMixin

from .base import Array, Family, One, Range, Select
from .many import ByAlpha, path_of


class _RidgeFamily(MultiOutputMixin, RegressorMixin, Family):
    _model = "linear"
    _scale = 2.0
    _several = True


class Ridge(_RidgeFamily, One):
    """Least squares with an ℓ2 penalty: ``‖y - Xw‖² + alpha ‖w‖²``.

    Parameters
    ----------
    alpha : float or array of shape (n_targets,)
        The strength, above 0.
    l2 : float, optional
        The same next to half the mean squared error, instead of alpha: ``alpha = n * l2``.
    fit_intercept : bool
        Whether to fit an intercept, which is never penalized.
    standardize : bool
        Whether every feature gets mean 0 and standard deviation 1 first; coefficients are of the features as they are.
    verbose : bool
        Show progress, where tqdm is installed.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
    intercept_ : float or ndarray of shape (n_targets,)
    notes_ : list of str
        How the numbers came about.

    Examples
    --------
    >>> import numpy as np
    >>> from afterfit.sklearn import Ridge
    >>> Ridge(alpha=1.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0]).coef_.round(6)
    array([0.666667])
    """

    def __init__(
        self,
        alpha: Any = 1.0,
        *,
        l2: float | None = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        verbose: bool = False,
    ) -> None:
        self.alpha = alpha
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to rows, which may be sparse and have weights."""
        return self._fit(X, y, sample_weight)

    def predict(self, X: Any) -> Any:
        """Predictions for rows."""
        X = self._checked(X)
        return self._predicted(self._scores(X, *self._current()))


class RidgeCV(_RidgeFamily, ByAlpha):
    """:class:`Ridge` at every strength of a range, one of them chosen by cross-validation.

    Parameters
    ----------
    alphas : range, list or count
        A range ``(from, to)`` in a tuple, a list, or a count (so many from 1e-5 to 1e2 times the number of rows).
    l2 : range, list or count, optional
        The same in our unit, instead of alphas; the strengths of ``afterfit fit --l2``.
    fit_intercept, standardize, verbose : bool
        As for :class:`Ridge`.
    scoring : str or callable, optional
        What held-out rows are judged by; the negative mean squared error by default.
    cv : int, splitter or iterable, optional
        As everywhere in scikit-learn; :class:`Folds` are those of the command.
    select : {"min", "1se"} or callable
        The best strength, the strongest within one standard error of it, or the place that a function of the strengths and
        ``scores_`` returns.
    store_cv_results : bool
        Whether to keep the coefficients of every fold, as ``coefs_paths_``.

    Attributes
    ----------
    alpha_, alpha_1se_ : float
        The strength that was selected, and the strongest within one standard error of the best.
    alphas_ : ndarray of shape (n_alphas,)
    coefs_ : ndarray of shape (n_alphas, n_features) or (n_alphas, n_targets, n_features)
    intercepts_ : ndarray of shape (n_alphas,) or (n_alphas, n_targets)
    scores_ : ndarray of shape (n_folds, n_alphas)
    coef_, intercept_, notes_
        As for :class:`Ridge`, at ``alpha_``.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from afterfit.sklearn import RidgeCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = RidgeCV(alphas=(1e-3, 1e3)).fit(X, y)
    >>> model.predict(X[:1], alpha=0.5).shape, model.at(0.5).coef_.shape
    ((1,), (10,))
    >>> model.error_(0.5) < 1e-4
    True
    """

    _single = Ridge

    def __init__(
        self,
        alphas: Range = (1e-3, 1e3),
        *,
        l2: Range | None = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        scoring: Any = None,
        cv: Any = None,
        select: Select = "min",
        store_cv_results: bool = False,
        verbose: bool = False,
    ) -> None:
        self.alphas = alphas
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.scoring = scoring
        self.cv = cv
        self.select = select
        self.store_cv_results = store_cv_results
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, **params: Any) -> Self:
        """Fit every strength to rows, which may be sparse, have weights, and be held out in groups.

        ``params`` go to the scorer and the splitter, as they request (scikit-learn's metadata routing).
        """
        return self._fit(X, y, sample_weight, groups, params)


def ridge_path(
    X: Any,
    y: Any,
    *,
    alphas: Range = 100,
    l2: Range | None = None,
    fit_intercept: bool = True,
    standardize: bool = False,
    sample_weight: Any = None,
) -> tuple[Array, Array, Array]:
    """Ridge regression at every strength, in one fit.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_samples, n_features)
    y : array of shape (n_samples,) or (n_samples, n_targets)
    alphas, l2 : range, list or count
        As for :class:`RidgeCV`.
    fit_intercept, standardize : bool
        As for :class:`Ridge`.
    sample_weight : array of shape (n_samples,), optional

    Returns
    -------
    alphas : ndarray of shape (n_alphas,)
    coefs : ndarray of shape (n_alphas, n_features) or (n_alphas, n_targets, n_features)
    intercepts : ndarray of shape (n_alphas,) or (n_alphas, n_targets)

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from afterfit.sklearn import ridge_path
    >>> alphas, coefs, intercepts = ridge_path(*load_diabetes(return_X_y=True), alphas=(1e-2, 1e2))
    >>> coefs.shape
    (50, 10)
    """
    model = RidgeCV(alphas, l2=l2, fit_intercept=fit_intercept, standardize=standardize)
    return path_of(model, X, y, sample_weight)
