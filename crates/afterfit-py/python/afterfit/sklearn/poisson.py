"""Counts."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from .base import L2, Array, Family, One, Range, Select, exactly
from .many import ByAlpha


class _PoissonFamily(RegressorMixin, Family):
    _model = "poisson"
    _scale = 2.0
    _unit_is_of_sum = False

    @staticmethod
    def _to_l2(strength: Any, total: float) -> Any:
        return strength

    @staticmethod
    def _from_l2(l2: Any, total: float) -> Any:
        return l2

    def _default(self, total: float) -> tuple[float, float]:
        return L2

    def _given(self) -> dict[str, Any]:
        return {**super()._given(), **exactly(self)}

    def _validated(self, X: Any, y: Any) -> tuple[Any, Any]:
        X, y = super()._validated(X, y)
        if (y < 0).any():
            raise ValueError(f"a count of {y.min()} is not possible: it must be at least 0")
        return X, y

    def _predicted(self, scores: Array) -> Any:
        return np.exp(scores[:, 0])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D², the share of the deviance explained."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


class PoissonRegressor(_PoissonFamily, One):
    """Counts, with a logarithmic link: half the mean deviance ``+ alpha/2 ‖w‖²``.

    Parameters
    ----------
    alpha : float
        The strength, above 0.
    l2 : float, optional
        The same: here the two units are one.
    fit_intercept, standardize, verbose : bool
        As for :class:`Ridge`.
    tol : float or None
        The excess loss that may be left, as a share of what the features gain there; the coefficients then have about half as
        many digits. ``None`` is the command's own: 1e-8 (1e-11 for a range). float32 data have 3e-6 at best.
    random_state : int, RandomState, Generator or None
        The order in which the rows of a fold are added up.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
    intercept_ : float
    notes_ : list of str

    Examples
    --------
    >>> from afterfit.sklearn import PoissonRegressor
    >>> PoissonRegressor(alpha=0.1).fit([[0.0], [1.0], [2.0]], [1, 2, 4]).predict([[1.0]]).round(2)
    array([2.04])
    """

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        l2: float | None = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        tol: float | None = 1e-20,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.alpha = alpha
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to rows, which may be sparse and have weights."""
        return self._fit(X, y, sample_weight)

    def predict(self, X: Any) -> Any:
        """Expected counts."""
        X = self._checked(X)
        return self._predicted(self._scores(X, *self._current()))


class PoissonRegressorCV(_PoissonFamily, ByAlpha):
    """:class:`PoissonRegressor` at every strength of a range, one of them chosen by cross-validation.

    Parameters
    ----------
    alphas, l2, scoring, cv, select, store_cv_results
        As for :class:`RidgeCV`; the default score is the negative mean Poisson deviance.
    fit_intercept, standardize, verbose, tol, random_state
        As for :class:`PoissonRegressor`.

    Attributes
    ----------
    alpha_, alpha_1se_, alphas_, coefs_, intercepts_, scores_
        As for :class:`RidgeCV`.

    Examples
    --------
    >>> import numpy as np
    >>> from afterfit.sklearn import PoissonRegressorCV
    >>> X = np.arange(40.0)[:, None] % 7
    >>> PoissonRegressorCV(alphas=(1e-4, 1e1)).fit(X, X[:, 0]).coefs_.shape
    (50, 1)
    """

    _single = PoissonRegressor

    def __init__(
        self,
        alphas: Range = (1e-5, 1e2),
        *,
        l2: Range | None = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        tol: float | None = 1e-20,
        scoring: Any = None,
        cv: Any = None,
        select: Select = "min",
        store_cv_results: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.alphas = alphas
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.tol = tol
        self.scoring = scoring
        self.cv = cv
        self.select = select
        self.store_cv_results = store_cv_results
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, **params: Any) -> Self:
        """Fit every strength to rows, which may be sparse, have weights, and be held out in groups.

        ``params`` go to the scorer and the splitter, as they request (scikit-learn's metadata routing).
        """
        return self._fit(X, y, sample_weight, groups, params)
