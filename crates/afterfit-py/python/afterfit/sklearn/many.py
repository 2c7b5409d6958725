"""Every strength of a range, one of them chosen by rows that are held out."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.metrics import check_scoring
from sklearn.metrics._scorer import _BaseScorer
from sklearn.model_selection import check_cv
from sklearn.utils import _safe_indexing
from sklearn.utils.metadata_routing import (
    UNUSED,
    MetadataRouter,
    MethodMapping,
    _raise_for_params,
    _routing_enabled,
    process_routing,
)
from sklearn.utils.validation import _check_method_params, check_is_fitted

from .._afterfit import Learned, Path, choose, mean_and_error
from .base import L2, Array, Family, One, grid

#: The largest error of a model between the strengths that were fitted.
_OFFERED = 1e-2


def numbers_of(rows: Any, count: int) -> npt.NDArray[np.int64]:
    """Rows of a fold as numbers, also where they are a mask."""
    rows = np.asarray(rows)
    numbers: npt.NDArray[np.int64] = np.flatnonzero(rows) if rows.dtype == bool else rows.astype(np.int64)
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if wrong.size:
        raise ValueError(f"cv names row {wrong[0]}: there are rows 0 to {count - 1}")
    return numbers


class Many(Family):
    """An estimator of every strength of a range, one of them chosen by held-out rows."""

    _single: ClassVar[type[One]]
    _range: ClassVar[str] = "alphas"
    _path: Path
    _rows_judged: str | None
    # (Groups are the splitter's: who routes them is not to be asked whether the estimator takes them, too.)
    __metadata_request__fit: ClassVar[dict[str, str]] = {"groups": UNUSED}

    def _default(self, total: float) -> tuple[float, float]:
        """The range of a count, in the estimator's own unit."""
        return L2[0] * total, L2[1] * total

    def _strengths(self, total: float) -> tuple[Array, Array]:
        """In the estimator's own unit, and as l2."""
        if self.l2 is not None:
            l2 = grid(self.l2, L2, "l2")
            return self._from_l2(l2, total), l2
        own = grid(getattr(self, self._range), self._default(total), self._range)
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
        splits = [(numbers_of(trains, len(y)), numbers_of(held, len(y))) for trains, held in found]
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

    def _of_fold(self, model: One, X: Any, training: Any) -> None:
        """What a fold's model has of its own besides weights."""

    def _model_of(self, weights: Array, biases: Array, strength: float | None = None, *, names: bool = True) -> One:
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


class ByAlpha(Many):
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


def path_of(model: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:
    X, y = model._validated(X, y)
    weights, classes, total = model._rows(y, sample_weight, X)
    own, l2 = model._strengths(total)
    learned = model._learn(X, y, l2, weights, classes)
    return own, *model._shaped(learned.path.weights, learned.path.biases)
