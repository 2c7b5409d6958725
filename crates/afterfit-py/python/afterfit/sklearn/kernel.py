"""Kernels."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import _safe_indexing

from .._afterfit import kernel_matrix
from .base import Array, Family, One, Range, Select, arrays
from .many import ByAlpha


class _KernelFamily(MultiOutputMixin, RegressorMixin, Family):
    _model = "kernel"
    _scale = 2.0
    _several = True
    _dtypes = np.float64
    dual_coef_: Array

    def _given(self) -> dict[str, Any]:
        gamma = 1.0 / self.n_features_in_ if self.gamma is None else float(self.gamma)
        self._kernel = (str(self.kernel), gamma, float(self.coef0), int(self.degree))
        return {"intercept": self._switch("fit_intercept"), "kernel": self._kernel}

    def _remember(self, X: Any) -> None:
        self.X_fit_ = X

    def _shaped(self, weights: Array, biases: Array) -> tuple[Array, Any]:
        """scikit-learn has a column of coefficients for each target."""
        if self._flat:
            return weights[..., 0, :], biases[..., 0]
        return np.swapaxes(weights, -1, -2), biases

    def _set(self, weights: Array, biases: Array) -> None:
        self.dual_coef_, intercept = self._shaped(weights, biases)
        self.intercept_ = (intercept if np.ndim(intercept) else float(intercept)) if self.fit_intercept else 0.0

    def _current(self) -> tuple[Array, Array]:
        dual = self.dual_coef_
        return (dual[None, :] if dual.ndim == 1 else dual.T), np.atleast_1d(self.intercept_)

    def _kernel_of(self, X: Any) -> Array:
        """That of each row with each training row."""
        return kernel_matrix(self._kernel, arrays(X), arrays(self.X_fit_))

    def _scores(self, X: Any, weights: Array, biases: Array) -> Array:
        return self._kernel_of(X) @ weights.T + biases


class KernelRidge(_KernelFamily, One):
    """Kernel ridge regression, as scikit-learn has it; with ``fit_intercept=True`` as ``afterfit fit`` has it.

    Parameters
    ----------
    alpha : float or array of shape (n_targets,)
        The strength, above 0: next to the sum of squares.
    l2 : float, optional
        The same next to half the mean squared error, instead of alpha: ``alpha = n * l2``.
    kernel : {"linear", "rbf", "polynomial", "laplacian"}
    gamma : float, optional
        Scale of the last three; 1 / n_features by default.
    degree, coef0
        Degree and constant of the polynomial kernel.
    fit_intercept : bool
        Whether to fit an intercept, which is never penalized.
    verbose : bool
        Show progress, where tqdm is installed.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n_samples,) or (n_samples, n_targets)
    X_fit_ : array or sparse matrix of shape (n_samples, n_features)
    intercept_ : float or ndarray of shape (n_targets,)
    notes_ : list of str

    Examples
    --------
    >>> from afterfit.sklearn import KernelRidge
    >>> model = KernelRidge(alpha=0.1, kernel="rbf").fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])
    >>> model.predict([[1.0]]).shape
    (1,)
    """

    def __init__(
        self,
        alpha: Any = 1.0,
        *,
        l2: float | None = None,
        kernel: str = "linear",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        fit_intercept: bool = False,
        verbose: bool = False,
    ) -> None:
        self.alpha = alpha
        self.l2 = l2
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.fit_intercept = fit_intercept
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to rows, which may be sparse and have weights."""
        return self._fit(X, y, sample_weight)

    def predict(self, X: Any) -> Any:
        """Predictions for rows."""
        X = self._checked(X)
        return self._predicted(self._scores(X, *self._current()))


class KernelRidgeCV(_KernelFamily, ByAlpha):
    """:class:`KernelRidge` at every strength of a range, one of them chosen by cross-validation.

    Parameters
    ----------
    alphas, l2, scoring, cv, select, store_cv_results
        As for :class:`RidgeCV`. Folds have coefficients of their own training rows, which ``store_cv_results`` requires to be
        equally many.
    kernel, gamma, degree, coef0, fit_intercept, verbose
        As for :class:`KernelRidge`.

    Attributes
    ----------
    alpha_, alpha_1se_, alphas_, intercepts_, scores_
        As for :class:`RidgeCV`.
    coefs_ : ndarray of shape (n_alphas, n_samples) or (n_alphas, n_samples, n_targets)
        The dual coefficients.

    Examples
    --------
    >>> import numpy as np
    >>> from afterfit.sklearn import KernelRidgeCV
    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> model = KernelRidgeCV(alphas=(1e-3, 1e1), kernel="rbf").fit(X, np.sin(X[:, 0]))
    >>> model.predict(X[:2], alpha=0.02).shape
    (2,)
    """

    _single = KernelRidge

    def __init__(
        self,
        alphas: Range = (1e-3, 1e3),
        *,
        l2: Range | None = None,
        kernel: str = "linear",
        gamma: float | None = None,
        degree: int = 3,
        coef0: float = 1.0,
        fit_intercept: bool = False,
        scoring: Any = None,
        cv: Any = None,
        select: Select = "min",
        store_cv_results: bool = False,
        verbose: bool = False,
    ) -> None:
        self.alphas = alphas
        self.l2 = l2
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.fit_intercept = fit_intercept
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

    def _of_fold(self, model: One, X: Any, training: Any) -> None:
        model.X_fit_ = _safe_indexing(X, training)
