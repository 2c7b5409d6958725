"""Classes."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.special import expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from .base import Array, Family, One, Range, Select, exactly
from .many import Many, path_of


class _LogisticFamily(ClassifierMixin, Family):
    _model = "softmax"
    _unit = "C"
    _range = "Cs"
    _scale = 1.0
    classes_: Any

    @staticmethod
    def _to_l2(strength: Any, total: float) -> Any:
        return 1.0 / (strength * total)

    @staticmethod
    def _from_l2(l2: Any, total: float) -> Any:
        return 1.0 / (l2 * total)

    def _default(self, total: float) -> tuple[float, float]:
        return 1e-4, 1e4

    def _given(self) -> dict[str, Any]:
        return {**super()._given(), **exactly(self)}

    def _validated(self, X: Any, y: Any) -> tuple[Any, Any]:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=self._dtypes)
        check_classification_targets(y)
        self.classes_, places = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"the target has only one class, {self.classes_[0]!r}: nothing can be told apart")
        self._flat = False
        return X, places

    def _labels(self, y: Any) -> Any:
        return self.classes_[y]

    def _class_weight(self, y: Any, weights: Array | None) -> list[float] | None:
        if self.class_weight is None:
            return None
        labels = self._labels(y)
        found = compute_class_weight(self.class_weight, classes=self.classes_, y=labels, sample_weight=weights)
        return [float(weight) for weight in found]

    def _set(self, weights: Array, biases: Array) -> None:
        self.coef_, self.intercept_ = weights, biases

    def _publish(self, own: Array, coefs: Array, intercepts: Array, best: float, one_se: float) -> None:
        self.Cs_, self.coefs_, self.intercepts_ = own, coefs, intercepts
        self.C_, self.C_1se_ = float(best), float(one_se)

    def _decided(self, scores: Array) -> Any:
        """scikit-learn's decision function: of two classes, one number a row."""
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def _probabilities(self, scores: Array) -> Any:
        if scores.shape[1] > 1:
            return softmax(scores, axis=1)
        return np.column_stack([expit(-scores[:, 0]), expit(scores[:, 0])])

    def _log_probabilities(self, scores: Array) -> Any:
        if scores.shape[1] > 1:
            return log_softmax(scores, axis=1)
        return -np.column_stack([np.logaddexp(0, scores[:, 0]), np.logaddexp(0, -scores[:, 0])])

    def _predicted(self, scores: Array) -> Any:
        place = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        return self.classes_[place]


class LogisticRegression(_LogisticFamily, One):
    """Logistic regression, of more than two classes the softmax: ``C · Σ log-loss + ½ ‖w‖²``.

    Parameters
    ----------
    C : float
        The inverse strength, above 0.
    l2 : float, optional
        The strength next to the mean log-loss, instead of C: ``C = 1 / (n * l2)``.
    fit_intercept, standardize, verbose : bool
        As for :class:`Ridge`.
    class_weight : dict, "balanced" or None
        How much each class counts in training.
    tol : float or None
        The excess loss that may be left, as a share of what the features gain there; the coefficients then have about half as
        many digits. ``None`` is the command's own: 1e-8 (1e-11 for a range). float32 data have 3e-6 at best.
    random_state : int, RandomState, Generator or None
        The order in which the rows of a fold are added up.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray of shape (1,) or (n_classes,)
    notes_ : list of str

    Examples
    --------
    >>> from afterfit.sklearn import LogisticRegression
    >>> LogisticRegression(C=10.0).fit([[0.0], [1.0], [2.0], [3.0]], ["a", "a", "b", "b"]).predict([[2.5]])
    array(['b'], dtype='<U1')
    """

    def __init__(
        self,
        C: float = 1.0,
        *,
        l2: float | None = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        class_weight: Any = None,
        tol: float | None = 1e-20,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.class_weight = class_weight
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to rows, which may be sparse and have weights."""
        return self._fit(X, y, sample_weight)

    def decision_function(self, X: Any) -> Any:
        """Scores; of two classes, the log-odds of the second."""
        X = self._checked(X)
        return self._decided(self._scores(X, *self._current()))

    def predict(self, X: Any) -> Any:
        """The likeliest class."""
        X = self._checked(X)
        return self._predicted(self._scores(X, *self._current()))

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class."""
        X = self._checked(X)
        return self._probabilities(self._scores(X, *self._current()))

    def predict_log_proba(self, X: Any) -> Any:
        """Its logarithm."""
        X = self._checked(X)
        return self._log_probabilities(self._scores(X, *self._current()))


class LogisticRegressionCV(_LogisticFamily, Many):
    """:class:`LogisticRegression` at every strength of a range, one of them chosen by cross-validation.

    Parameters
    ----------
    Cs : range, list or count
        A range ``(from, to)`` in a tuple, a list, or a count (so many from 1e-4 to 1e4).
    l2, scoring, cv, select, store_cv_results
        As for :class:`RidgeCV`; the default score is the negative log-loss.
    fit_intercept, standardize, verbose, class_weight, tol, random_state
        As for :class:`LogisticRegression`.

    Attributes
    ----------
    C_, C_1se_ : float
        The inverse strength that was selected, and the smallest within one standard error of the best.
    Cs_ : ndarray of shape (n_Cs,)
    coefs_ : ndarray of shape (n_Cs, 1 or n_classes, n_features)
    intercepts_ : ndarray of shape (n_Cs, 1 or n_classes)
    scores_ : ndarray of shape (n_folds, n_Cs)
    classes_, coef_, intercept_, notes_
        As for :class:`LogisticRegression`, at ``C_``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from afterfit.sklearn import LogisticRegressionCV
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegressionCV(Cs=(1e-2, 1e2)).fit(X, y)
    >>> model.predict_proba(X[:1], C=0.3).shape, model.coefs_.shape
    ((1, 3), (50, 3, 4))
    """

    _single = LogisticRegression

    def __init__(
        self,
        Cs: Range = (1e-4, 1e4),
        *,
        l2: Range | None = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        class_weight: Any = None,
        tol: float | None = 1e-20,
        scoring: Any = None,
        cv: Any = None,
        select: Select = "min",
        store_cv_results: bool = False,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.Cs = Cs
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.class_weight = class_weight
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

    def at(self, C: float | None = None, *, l2: float | None = None) -> Any:
        """The estimator of one strength, fitted: any of the range; the chosen one by default."""
        return self._at(C, l2)

    def error_(self, C: float | None = None, *, l2: float | None = None) -> float:
        """How far the coefficients can be from the exact minimizer's, as a share of their length."""
        return self._place(C, l2)[2]

    def decision_function(self, X: Any, C: float | None = None, *, l2: float | None = None) -> Any:
        """Scores at the chosen strength, or at any other of the range."""
        X = self._checked(X)
        return self._decided(self._scores(X, *self._read(C, l2)))

    def predict(self, X: Any, C: float | None = None, *, l2: float | None = None) -> Any:
        """The likeliest class at the chosen strength, or at any other of the range."""
        X = self._checked(X)
        return self._predicted(self._scores(X, *self._read(C, l2)))

    def predict_proba(self, X: Any, C: float | None = None, *, l2: float | None = None) -> Any:
        """The probability of each class at the chosen strength, or at any other of the range."""
        X = self._checked(X)
        return self._probabilities(self._scores(X, *self._read(C, l2)))

    def predict_log_proba(self, X: Any, C: float | None = None, *, l2: float | None = None) -> Any:
        """Its logarithm."""
        X = self._checked(X)
        return self._log_probabilities(self._scores(X, *self._read(C, l2)))


def logistic_path(
    X: Any,
    y: Any,
    *,
    Cs: Range = 100,
    l2: Range | None = None,
    fit_intercept: bool = True,
    standardize: bool = False,
    class_weight: Any = None,
    sample_weight: Any = None,
) -> tuple[Array, Array, Array]:
    """Logistic regression (of more than two classes, softmax) at every strength, in one fit.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_samples, n_features)
    y : array of shape (n_samples,)
    Cs, l2 : range, list or count
        As for :class:`LogisticRegressionCV`.
    fit_intercept, standardize, class_weight
        As for :class:`LogisticRegression`.
    sample_weight : array of shape (n_samples,), optional

    Returns
    -------
    Cs : ndarray of shape (n_Cs,)
    coefs : ndarray of shape (n_Cs, 1 or n_classes, n_features)
    intercepts : ndarray of shape (n_Cs, 1 or n_classes)

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from afterfit.sklearn import logistic_path
    >>> Cs, coefs, intercepts = logistic_path(*load_iris(return_X_y=True), Cs=10)
    >>> coefs.shape
    (10, 3, 4)
    """
    model = LogisticRegressionCV(Cs, l2=l2, fit_intercept=fit_intercept, standardize=standardize, class_weight=class_weight)
    return path_of(model, X, y, sample_weight)
