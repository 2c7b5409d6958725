"""A picture of a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .base import Array


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
