"""What all estimators have: units, shapes, settings, and one strength."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, ClassVar, Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from .._afterfit import Learned, learn, strengths
from .._progress import bar

Array: TypeAlias = npt.NDArray[np.float64]
#: A range ``(from, to)`` in a tuple, a list, a count, or a text as the command takes it (``"1e-5..1e2:50"``).
Range: TypeAlias = "tuple[float, float] | Sequence[float] | Array | int | str"
Select: TypeAlias = "Literal['min', '1se'] | Callable[[Array, Array], int]"

#: How many strengths a range without a count has, and where a count without a range lies: the command's.
_POINTS = 50
L2 = (1e-5, 1e2)
#: What float32 data can be solved to.
_SINGLE = 3e-6


def grid(given: Any, default: tuple[float, float], name: str) -> Array:
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


def arrays(X: Any) -> Any:
    """Features as Rust takes them: an array, or the parts of a CSR matrix."""
    if not sparse.issparse(X):
        return np.require(X, requirements="A")
    X = sparse.csr_array(X)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X.indptr.astype(np.int64), X.indices.astype(np.uint32), X.data, X.shape[1]


def exactly(model: Any) -> dict[str, Any]:
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


class Family(BaseEstimator):
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
                arrays(X),
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


class One(Family):
    """An estimator of one strength."""

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        X, y = self._validated(X, y)
        weights, classes, total = self._rows(y, sample_weight, X)
        given = getattr(self, self._unit)
        name = self._unit if self.l2 is None else "l2"
        each = grid(np.atleast_1d(given if self.l2 is None else self.l2), L2, name)
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
