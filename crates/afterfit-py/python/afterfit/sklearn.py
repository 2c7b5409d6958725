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

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import expit, log_softmax, softmax
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MultiOutputMixin,
    RegressorMixin,
    is_classifier,
)
from sklearn.metrics import check_scoring, d2_tweedie_score
from sklearn.metrics._scorer import _BaseScorer
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.metadata_routing import (
    UNUSED,
    MetadataRequest,
    MetadataRouter,
    MethodMapping,
    _raise_for_params,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_method_params,
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from ._afterfit import Learned, Path, choose, folds, kernel_matrix, learn, mean_and_error, strengths
from ._progress import bar

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

Array: TypeAlias = npt.NDArray[np.float64]
#: A range ``(from, to)`` in a tuple, a list, a count, or a text as the command takes it (``"1e-5..1e2:50"``).
Range: TypeAlias = "tuple[float, float] | Sequence[float] | Array | int | str"
Select: TypeAlias = "Literal['min', '1se'] | Callable[[Array, Array], int]"

#: How many strengths a range without a count has, and where a count without a range lies: the command's.
_POINTS = 50
# The largest error of a model between the strengths that were fitted.
_OFFERED = 1e-2
_L2 = (1e-5, 1e2)
#: What float32 data can be solved to.
_SINGLE = 3e-6


def _grid(given: Any, default: tuple[float, float], name: str) -> Array:
    """The strengths that a setting means."""
    if isinstance(given, str):
        return np.array(strengths(given))
    if isinstance(given, Integral):
        given = (*default, int(given))
    elif isinstance(given, tuple) and len(given) == 2:
        given = (*given, _POINTS)
    else:
        try:
            values = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            values = np.empty(0)
        if values.ndim != 1 or not values.size:
            raise ValueError(f"{name} is a range (from, to), a list, or a count: {given!r} is none of them")
        wrong = values[~((values > 0) & np.isfinite(values))]
        if wrong.size:
            raise ValueError(f"{name} of {wrong[0]} is not possible: it must be above 0 and finite")
        return values
    return np.array(strengths(f"{float(given[0])!r}..{float(given[1])!r}:{given[2]}"))


def _arrays(X: Any) -> Any:
    """Features as Rust takes them: an array, or the parts of a CSR matrix."""
    if not sparse.issparse(X):
        return np.require(X, requirements="A")
    X = sparse.csr_array(X)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X.indptr.astype(np.int64), X.indices.astype(np.uint32), X.data, X.shape[1]


def _numbers_of(rows: Any, count: int) -> npt.NDArray[np.int64]:
    """Rows of a fold as numbers, also where they are a mask."""
    rows = np.asarray(rows)
    numbers: npt.NDArray[np.int64] = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if wrong.size:
        raise ValueError(f"cv names row {wrong[0]}: there are rows 0 to {count - 1}")
    return numbers


class Folds:
    """The folds of ``afterfit fit --cv``, for any ``cv=``.

    Parameters
    ----------
    n_splits : int
        How many.
    seed : int
        The same seed gives the same folds.
    stratify : bool
        Whether every fold gets its share of each class.

    Examples
    --------
    >>> from afterfit.sklearn import Folds
    >>> [len(held) for _, held in Folds(3, seed=1).split([[0.0]] * 7)]
    [2, 2, 3]
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0, stratify: bool = False) -> None:
        self.n_splits = n_splits
        self.seed = seed
        self.stratify = stratify

    def __repr__(self) -> str:
        return f"Folds({self.n_splits}, seed={self.seed}, stratify={self.stratify})"

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """How many folds there are."""
        return self.n_splits

    def get_metadata_routing(self) -> MetadataRequest:
        """That groups are taken, where there are any."""
        request = MetadataRequest(owner=type(self).__name__)
        request.split.add_request(param="groups", alias=True)
        return request

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Rows that train, and rows that are held out; rows of a group are held out together."""
        rows = X.shape[0] if hasattr(X, "shape") else len(X)
        strata = np.unique(y, return_inverse=True)[1].tolist() if self.stratify else None
        numbers: dict[Any, int] = {}
        of_groups = None if groups is None else [numbers.setdefault(group, len(numbers)) for group in groups]
        for held in folds(rows, self.n_splits, seed=self.seed, groups=of_groups, strata=strata):
            trains = np.ones(rows, dtype=bool)
            trains[held] = False
            yield np.flatnonzero(trains), held


class _Family(BaseEstimator):
    """One kind of model: what it learns from, in which units, and what it predicts."""

    _model: ClassVar[str]
    _unit: ClassVar[str] = "alpha"
    #: What negates a mean loss into scikit-learn's score of the same name.
    _scale: ClassVar[float]
    _dtypes: ClassVar[Any] = [np.float64, np.float32]
    coef_: Array
    intercept_: Any

    @staticmethod
    def _to_l2(strength: Any, total: float) -> Any:
        return strength / total

    def _given(self) -> dict[str, Any]:
        """Settings that Rust takes as they are."""
        return {"intercept": self._switch("fit_intercept"), "standardize": self._switch("standardize")}

    def _switch(self, name: str) -> bool:
        value = getattr(self, name)
        if not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} is {value!r}: it must be True or False")
        return bool(value)

    def _noted(self, notes: list[str]) -> list[str]:
        """The command's notes, in the names of this estimator's settings."""
        names = (("--l2", getattr(self, "_range", "l2")), ("--standardize", "standardize=True"), ("λ", "l2"))
        for theirs, ours in names:
            notes = [note.replace(theirs, ours) for note in notes]
        return notes

    def _validated(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Features and targets as arrays; what they say about the model is kept."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=self._dtypes, multi_output=self._several, y_numeric=True)
        self._flat = y.ndim == 1
        return X, np.asarray(y, dtype=np.float64)

    _several: ClassVar[bool] = False

    def _class_weight(self, y: Any, weights: Array | None) -> list[float] | None:
        return None

    def _rows(self, y: Any, sample_weight: Any, X: Any) -> tuple[Array | None, list[float] | None, float]:
        """How much rows and classes weigh, and the rows in all."""
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        classes = self._class_weight(y, weights)
        each = np.ones(len(y)) if weights is None else weights
        if classes is not None:
            each = each * np.asarray(classes)[y]
        return weights, classes, float(each.sum())

    def _learn(self, X: Any, y: Any, l2: Array, weights: Array | None, classes: list[float] | None, **settings: Any) -> Learned:
        target = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        given = self._given()
        if X.dtype == np.float32 and (given.get("tolerance") or 0.0) < _SINGLE:
            given.pop("tolerance", None)
        with bar(bool(self.verbose), type(self).__name__, "fit") as move:
            return learn(
                _arrays(X),
                np.ascontiguousarray(target),
                l2.tolist(),
                model=self._model,
                weights=weights,
                class_weight=classes,
                progress=move,
                **given,
                **settings,
            )

    def _shaped(self, weights: Array, biases: Array) -> tuple[Array, Any]:
        """Weights ``(…, outputs, features)`` and intercepts ``(…, outputs)`` in scikit-learn's shapes."""
        if self._flat:
            return weights[..., 0, :], biases[..., 0]
        return weights, biases

    def _set(self, weights: Array, biases: Array) -> None:
        coef, intercept = self._shaped(weights, biases)
        self.coef_ = coef
        self.intercept_ = (intercept if np.ndim(intercept) else float(intercept)) if self.fit_intercept else 0.0

    def _current(self) -> tuple[Array, Array]:
        return np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)

    def _checked(self, X: Any) -> Any:
        check_is_fitted(self)
        return validate_data(self, X, accept_sparse="csr", dtype=self._dtypes, reset=False)

    def _scores(self, X: Any, weights: Array, biases: Array) -> Array:
        """``(rows, outputs)``."""
        scores: Array = safe_sparse_dot(X, weights.T, dense_output=True) + biases
        return scores

    def _predicted(self, scores: Array) -> Any:
        return scores[:, 0] if self._flat else scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class _One(_Family):
    """An estimator of one strength."""

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        X, y = self._validated(X, y)
        weights, classes, total = self._rows(y, sample_weight, X)
        given = getattr(self, self._unit)
        name = self._unit if self.l2 is None else "l2"
        each = _grid(np.atleast_1d(given if self.l2 is None else self.l2), _L2, name)
        l2 = np.atleast_1d(self._to_l2(each, total) if self.l2 is None else each)
        outputs = 1 if self._flat or y.ndim == 1 else y.shape[1]
        if len(l2) not in {1, outputs}:
            raise ValueError(f"{len(l2)} strengths are given for {outputs} targets: one, or one for each")
        learned = self._learn(X, y, l2, weights, classes)
        of_all, biases = learned.path.weights, learned.path.biases
        place = range(of_all.shape[1]) if len(l2) > 1 else [0] * of_all.shape[1]
        chosen = list(zip(place, range(of_all.shape[1]), strict=True))
        self._remember(X)
        self._set(np.array([of_all[at, k] for at, k in chosen]), np.array([biases[at, k] for at, k in chosen]))
        self.notes_ = self._noted(learned.notes)
        return self

    def _remember(self, X: Any) -> None:
        """What predictions need besides the weights."""


class _Many(_Family):
    """An estimator of every strength of a range, one of them chosen by held-out rows."""

    _single: ClassVar[type[_One]]
    _range: ClassVar[str] = "alphas"
    _path: Path
    _rows_judged: str | None
    # (Groups are the splitter's: who routes them is not to be asked whether the estimator takes them, too.)
    __metadata_request__fit: ClassVar[dict[str, str]] = {"groups": UNUSED}

    def _default(self, total: float) -> tuple[float, float]:
        """The range of a count, in the estimator's own unit."""
        return _L2[0] * total, _L2[1] * total

    def _strengths(self, total: float) -> tuple[Array, Array]:
        """In the estimator's own unit, and as l2."""
        if self.l2 is not None:
            l2 = _grid(self.l2, _L2, "l2")
            return self._from_l2(l2, total), l2
        own = _grid(getattr(self, self._range), self._default(total), self._range)
        return own, self._to_l2(own, total)

    @staticmethod
    def _from_l2(l2: Any, total: float) -> Any:
        return l2 * total

    def _remember(self, X: Any) -> None:
        """What predictions need besides the weights."""

    def _scorer(self) -> Any:
        """What held-out rows are judged by; None for the loss itself."""
        if self.scoring is not None and not isinstance(self.scoring, str) and not callable(self.scoring):
            raise ValueError(f"scoring is {self.scoring!r}: it must be one name, or a function of estimator, X and y")
        return None if self.scoring is None else check_scoring(self._single(), scoring=self.scoring)

    def get_metadata_routing(self) -> MetadataRouter:
        """What ``fit`` takes, and what it passes on to the scorer and the splitter."""
        return (
            MetadataRouter(owner=type(self).__name__)
            .add_self_request(self)
            .add(scorer=self._scorer(), method_mapping=MethodMapping().add(caller="fit", callee="score"))
            .add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        )

    def _routed(
        self, scorer: Any, sample_weight: Any, groups: Any, params: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What the splitter and the scorer are given besides rows."""
        _raise_for_params(params, self, "fit")
        given = {name: value for name, value in (("sample_weight", sample_weight), ("groups", groups)) if value is not None}
        if _routing_enabled():
            routed = process_routing(self, "fit", **given, **params)
            return routed.splitter.split, routed.scorer.score
        # (Functions of three arguments know nothing of weights.)
        weighted = sample_weight is not None and isinstance(scorer, _BaseScorer)
        return {} if groups is None else {"groups": groups}, {"sample_weight": sample_weight} if weighted else {}

    def _fit(self, X: Any, y: Any, sample_weight: Any, groups: Any, params: dict[str, Any]) -> Self:
        if self.select not in ("min", "1se") and not callable(self.select):
            raise ValueError(f"select is 'min', '1se' or a function, not {self.select!r}")
        X, y = self._validated(X, y)
        weights, classes, total = self._rows(y, sample_weight, X)
        own, l2 = self._strengths(total)
        scorer = self._scorer()
        to_split, to_score = self._routed(scorer, weights, groups, params)
        found = check_cv(self.cv, y, classifier=is_classifier(self)).split(X, self._labels(y), **to_split)
        splits = [(_numbers_of(trains, len(y)), _numbers_of(held, len(y))) for trains, held in found]
        if not splits:
            raise ValueError(f"cv is {self.cv!r}: it gives no fold")
        learned = self._learn(
            X, y, l2, weights, classes,
            folds=splits, keep_path=True, keep_folds=scorer is not None or self.store_cv_results,
            sum_held=self.l2 is None and self._unit_is_of_sum,
        )  # fmt: skip
        self._path, self._rows_judged, self._total = learned.path, learned.judged, total
        self._remember(X)
        self.n_splits_ = len(splits)
        self.notes_ = self._noted(learned.notes)
        if scorer is None:
            losses = learned.losses
            outputs = learned.path.biases.shape[1] if self._model in ("linear", "kernel") else 1
            self.scores_ = -self._scale / outputs * losses
        else:
            self.scores_ = self._judged(scorer, learned, X, y, to_score, splits, l2)
            losses = -self.scores_
        unknown = np.isnan(losses).any(axis=0)
        if unknown.all():
            raise ValueError("the scores hold NaN at every strength: nothing can be chosen by them")
        if unknown.any():
            warnings.warn(f"the scores of {unknown.sum()} of {len(l2)} strengths hold NaN: none of these is chosen", stacklevel=3)
        means, errors = zip(*map(mean_and_error, np.where(unknown, np.inf, losses).T.tolist()), strict=True)
        best, one_se = choose(l2.tolist(), list(means), list(errors))
        at = int(self.select(own, self.scores_)) if callable(self.select) else {"min": best, "1se": one_se}[self.select]
        self._at_index = at
        coefs, intercepts = self._shaped(learned.path.weights, learned.path.biases)
        self._publish(own, coefs, intercepts, own[at], own[one_se])
        if self.store_cv_results:
            kept = [self._shaped(weights, biases) for weights, biases in learned.folds]
            self.coefs_paths_ = np.stack([coefs for coefs, _ in kept])
            self.intercepts_paths_ = np.stack([intercepts for _, intercepts in kept])
        self._set(learned.path.weights[at], learned.path.biases[at])
        return self

    _unit_is_of_sum: ClassVar[bool] = True

    def _labels(self, y: Any) -> Any:
        """Targets as their user knows them."""
        return y

    def _publish(self, own: Array, coefs: Array, intercepts: Array, best: float, one_se: float) -> None:
        self.alphas_, self.coefs_, self.intercepts_ = own, coefs, intercepts
        self.alpha_, self.alpha_1se_ = float(best), float(one_se)

    def _judged(self, scorer: Any, learned: Learned, X: Any, y: Any, params: dict[str, Any], splits: Any, l2: Array) -> Array:
        """What a scorer says of the models of every fold."""
        scores = np.empty((len(splits), len(l2)))
        labels = self._labels(y)
        for fold, ((_, held), (of_fold, biases)) in enumerate(zip(splits, learned.folds, strict=True)):
            rows, target = _safe_indexing(X, held), _safe_indexing(labels, held)
            extra = _check_method_params(X, params, held)
            for at in range(len(l2)):
                model = self._model_of(of_fold[at], biases[at], names=False)
                self._of_fold(model, X, splits[fold][0])
                scores[fold, at] = scorer(model, rows, target, **extra)
        return scores

    def _of_fold(self, model: _One, X: Any, training: Any) -> None:
        """What a fold's model has of its own besides weights."""

    def _model_of(self, weights: Array, biases: Array, strength: float | None = None, *, names: bool = True) -> _One:
        """A fitted estimator of one strength."""
        own = self.get_params(deep=False)
        model = self._single(**{name: own[name] for name in self._single().get_params() if name in own and name != "l2"})
        if strength is not None:
            model.set_params(**{self._unit: strength})
        for name in ("n_features_in_", "feature_names_in_", "classes_", "X_fit_", "_kernel", "_flat"):
            if hasattr(self, name) and (names or name != "feature_names_in_"):
                setattr(model, name, getattr(self, name))
        model._set(weights, biases)
        model.notes_ = []
        return model

    def _place(self, strength: float | None, l2: float | None) -> tuple[Array, Array, float, float]:
        """Weights, intercepts, error and strength of any strength of the range."""
        check_is_fitted(self)
        if strength is not None and l2 is not None:
            raise ValueError(f"{self._unit} and l2 name the same thing: give one of them")
        for name, given in ((self._unit, strength), ("l2", l2)):
            if given is not None and (isinstance(given, str) or np.ndim(given) != 0):
                raise TypeError(f"{name} is {given!r}: it must be one number (coefs_ has those of every strength)")
        own: Array = getattr(self, f"{self._range}_")
        if strength is None and l2 is None:
            at: int | None = self._at_index
        elif l2 is not None:
            strength = float(self._from_l2(l2, self._total))
            matches = np.flatnonzero(self._path.l2 == l2)
            at = int(matches[0]) if matches.size else None
        else:
            matches = np.flatnonzero(own == strength)
            at = int(matches[0]) if matches.size else None
        if at is not None:
            return self._path.weights[at], self._path.biases[at], float(self._path.errors[at]), float(own[at])
        assert strength is not None
        low, high = float(own.min()), float(own.max())
        if not self._path.continuous:
            raise ValueError(f"{self._unit} of {strength} is not possible: only the strengths that were fitted are held")
        if not low <= strength <= high:
            raise ValueError(f"{self._unit} of {strength} is not possible: from {low} to {high}, the range that was fitted")
        inside = np.clip(self._to_l2(strength, self._total) if l2 is None else l2, self._path.l2.min(), self._path.l2.max())
        weights, biases, error = self._path.at(float(inside))
        if not error <= _OFFERED:
            raise ValueError(
                f"{self._unit} of {strength} lies between the strengths that were fitted, and could be off by {error:.0e} of its "
                f"length (at most {_OFFERED:g} is let through): fit a narrower range, or name it in {self._range}"
            )
        return weights, biases, error, float(strength)

    def _at(self, strength: float | None, l2: float | None) -> Any:
        weights, biases, _, own = self._place(strength, l2)
        return self._model_of(weights, biases, own)

    def _read(self, strength: float | None, l2: float | None) -> tuple[Array, Array]:
        """Weights and intercepts; the chosen ones unless a strength is named."""
        if strength is None and l2 is None:
            return self._current()
        return self._place(strength, l2)[:2]


class _ByAlpha(_Many):
    """What estimators have whose strength is alpha."""

    def at(self, alpha: float | None = None, *, l2: float | None = None) -> Any:
        """The estimator of one strength, fitted.

        Parameters
        ----------
        alpha : float, optional
            Any strength of the range; the chosen one by default.
        l2 : float, optional
            The same in our unit.
        """
        return self._at(alpha, l2)

    def error_(self, alpha: float | None = None, *, l2: float | None = None) -> float:
        """How far the coefficients can be from the exact minimizer's, as a share of their length.

        A strength of the fit has its certificate; one between them adds what interpolation was off by at all of those.
        """
        return self._place(alpha, l2)[2]

    def predict(self, X: Any, alpha: float | None = None, *, l2: float | None = None) -> Any:
        """Predictions at the chosen strength, or at any other of the range."""
        X = self._checked(X)
        return self._predicted(self._scores(X, *self._read(alpha, l2)))


class _RidgeFamily(MultiOutputMixin, RegressorMixin, _Family):
    _model = "linear"
    _scale = 2.0
    _several = True


class Ridge(_RidgeFamily, _One):
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


class RidgeCV(_RidgeFamily, _ByAlpha):
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


class _PoissonFamily(RegressorMixin, _Family):
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
        return _L2

    def _given(self) -> dict[str, Any]:
        return {**super()._given(), **_exactly(self)}

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


def _exactly(model: Any) -> dict[str, Any]:
    """How exact to be, and in which order rows are added up (which moves last digits only)."""
    given = model.random_state
    if given is None:
        seed = 0
    elif isinstance(given, np.random.Generator):
        seed = int(given.integers(2**31))
    else:
        drawn = check_random_state(given)  # (refuses what is none)
        seed = int(given) if isinstance(given, Integral) else int(drawn.randint(2**31))
    if model.tol is not None and not 0.0 < model.tol < np.inf:
        raise ValueError(f"tol is {model.tol}: it must be above 0 and finite, or None")
    return {"tolerance": model.tol, "seed": seed}


class PoissonRegressor(_PoissonFamily, _One):
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
        The order in which rows are added up.

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


class PoissonRegressorCV(_PoissonFamily, _ByAlpha):
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


class _LogisticFamily(ClassifierMixin, _Family):
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
        return {**super()._given(), **_exactly(self)}

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


class LogisticRegression(_LogisticFamily, _One):
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
        The order in which rows are added up.

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


class LogisticRegressionCV(_LogisticFamily, _Many):
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


class _KernelFamily(MultiOutputMixin, RegressorMixin, _Family):
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
        return kernel_matrix(self._kernel, _arrays(X), _arrays(self.X_fit_))

    def _scores(self, X: Any, weights: Array, biases: Array) -> Array:
        return self._kernel_of(X) @ weights.T + biases


class KernelRidge(_KernelFamily, _One):
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


class KernelRidgeCV(_KernelFamily, _ByAlpha):
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

    def _of_fold(self, model: _One, X: Any, training: Any) -> None:
        model.X_fit_ = _safe_indexing(X, training)


def _path_of(model: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:
    X, y = model._validated(X, y)
    weights, classes, total = model._rows(y, sample_weight, X)
    own, l2 = model._strengths(total)
    learned = model._learn(X, y, l2, weights, classes)
    return own, *model._shaped(learned.path.weights, learned.path.biases)


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
    return _path_of(model, X, y, sample_weight)


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
    return _path_of(model, X, y, sample_weight)


class RegularizationPathDisplay:
    """A picture of a path: every coefficient over the strength, and above it what held-out rows say.

    Parameters
    ----------
    strengths : ndarray of shape (n_strengths,)
    coefs : ndarray of shape (n_strengths, n_coefficients)
    scores : ndarray of shape (n_folds, n_strengths) or None
    chosen, one_se : float or None
        Strengths to mark.
    name : str
        What the strength is called.
    feature_names : list of str or None

    Attributes
    ----------
    figure_ : matplotlib Figure
    ax_ : matplotlib Axes
        The coefficients.
    score_ax_ : matplotlib Axes or None
    lines_ : list of matplotlib Line2D

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from afterfit.sklearn import RegularizationPathDisplay, RidgeCV
    >>> model = RidgeCV().fit(*load_diabetes(return_X_y=True))
    >>> display = RegularizationPathDisplay.from_estimator(model)  # doctest: +SKIP
    """

    def __init__(
        self,
        strengths: Array,
        coefs: Array,
        *,
        scores: Array | None = None,
        chosen: float | None = None,
        one_se: float | None = None,
        name: str = "alpha",
        feature_names: Sequence[str] | None = None,
    ) -> None:
        self.strengths = strengths
        self.coefs = coefs
        self.scores = scores
        self.chosen = chosen
        self.one_se = one_se
        self.name = name
        self.feature_names = feature_names

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any = None, y: Any = None, *, ax: Any = None, feature_names: Sequence[str] | None = None
    ) -> RegularizationPathDisplay:
        """The picture of a CV estimator, which is fitted to ``X`` and ``y`` first if they are given."""
        if X is not None:
            estimator = estimator.fit(X, y)
        check_is_fitted(estimator)
        name = getattr(estimator, "_unit", "alpha")
        names = feature_names if feature_names is not None else getattr(estimator, "feature_names_in_", None)
        coefs = np.asarray(estimator.coefs_)
        return cls(
            getattr(estimator, f"{name}s_"),
            coefs.reshape(len(coefs), -1),
            scores=estimator.scores_,
            chosen=getattr(estimator, f"{name}_"),
            one_se=getattr(estimator, f"{name}_1se_"),
            name=name,
            feature_names=None if names is None or (coefs.ndim > 2 and coefs.shape[1] > 1) else list(names),
        ).plot(ax=ax)

    def plot(self, ax: Any = None) -> RegularizationPathDisplay:
        """Draw it, into ``ax`` if that is given (coefficients alone)."""
        import matplotlib.pyplot as plt

        order = np.argsort(self.strengths)
        at = self.strengths[order]
        self.score_ax_ = None
        if ax is None and self.scores is not None:
            self.figure_, (self.score_ax_, ax) = plt.subplots(2, sharex=True, height_ratios=[1, 2])
            mean = self.scores.mean(axis=0)[order]
            spread = self.scores.std(axis=0, ddof=min(1, len(self.scores) - 1))[order] / np.sqrt(len(self.scores))
            self.score_ax_.plot(at, mean, color="black")
            self.score_ax_.fill_between(at, mean - spread, mean + spread, alpha=0.2, color="black", linewidth=0)
            self.score_ax_.set_ylabel("score")
        elif ax is None:
            self.figure_, ax = plt.subplots()
        else:
            self.figure_ = ax.figure
        self.ax_ = ax
        self.lines_ = ax.plot(at, self.coefs[order])
        ax.set_xscale("log")
        ax.set_xlabel(self.name)
        ax.set_ylabel("coefficient")
        marks = [(self.chosen, "-", "chosen"), (self.one_se, ":", "1 SE")]
        for value, style, label in marks:
            if value is None:
                continue
            for axes in (ax, self.score_ax_):
                if axes is not None:
                    axes.axvline(value, color="gray", linestyle=style, linewidth=1, label=label)
        if self.feature_names is not None and len(self.feature_names) <= 12:
            for line, feature in zip(self.lines_, self.feature_names, strict=False):
                line.set_label(feature)
            ax.legend(fontsize="small")
        return self
