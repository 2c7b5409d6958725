"""The λ dial in a notebook: turn it, and see the model itself change (tried in JupyterLab and marimo; needs anywidget)."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from . import _afterfit

__all__ = ["Dial"]

#: Rows that are shown.
_ROWS = 8


class Dial(anywidget.AnyWidget):
    """A slider over every strength of a fit or of a run, and what the model is at each.

    Parameters
    ----------
    source : estimator, path or afterfit.torch.Dial
        A fitted ``RidgeCV``, ``LogisticRegressionCV``, ``PoissonRegressorCV`` or ``KernelRidgeCV`` of :mod:`afterfit.sklearn`; the
        file of a dial; or the dial of a PyTorch run, as it is now.
    X, y : arrays, optional
        Rows to show, the first few, with what the model at hand says of them; their values can be edited.
    feature_names : sequence of str, optional
        Those that the estimator was fitted with by default.
    image : (height, width), optional
        Where rows are images: weights are then shown as pictures.
    title : str, optional

    Attributes
    ----------
    l2 : float
        λ, next to a mean loss: what the slider is at. It can be set, and observed.
    value : float
        The same in the estimator's own unit, ``alpha`` or ``C``.

    In marimo, ``mo.ui.anywidget(Dial(...))`` is what other cells follow: they read ``dial.l2``, and set ``dial.widget.l2``.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from afterfit.sklearn import RidgeCV
    >>> from afterfit.widget import Dial
    >>> data = load_diabetes()
    >>> dial = Dial(RidgeCV().fit(data.data, data.target), feature_names=data.feature_names)
    >>> dial.observe(lambda change: print(change.new), "value")
    """

    _esm = _afterfit.PAGE_MODULE
    _css = _afterfit.PAGE_STYLE
    page = traitlets.Unicode().tag(sync=True)
    l2 = traitlets.Float().tag(sync=True)
    value = traitlets.Float()

    def __init__(
        self,
        source: Any,
        *,
        X: Any = None,
        y: Any = None,
        feature_names: Sequence[str] | None = None,
        image: tuple[int, int] | None = None,
        title: str | None = None,
        **traits: Any,
    ) -> None:
        if isinstance(source, str | os.PathLike):
            page = json.loads(_afterfit.page_of_dial(source))
        elif hasattr(source, "_path"):
            page = json.loads(_of_estimator(source, X, y, feature_names, image))
        elif hasattr(source, "sweep") and hasattr(source, "save"):
            page = _of_run(source)
        else:
            raise TypeError(
                "a dial is made of a fitted CV estimator of afterfit.sklearn, a dial's file or an afterfit.torch.Dial, "
                f"not of {source!r}"
            )
        if title is not None:
            page["title"] = title
        rows = page["rows"]
        at = page["best"] if page["best"] is not None else len(rows) // 2
        unit = page["unit"] or {"scale": 1.0, "power": 1}
        self._unit: tuple[float, int] = unit["scale"], unit["power"]
        ends = [row["l2"] for row in rows]
        self._range: tuple[float, float] = min(ends), max(ends)
        super().__init__(page=json.dumps(page), l2=rows[at]["l2"], **traits)
        self.value = self._own(self.l2)

    def _own(self, l2: float) -> float:
        scale, power = self._unit
        return float(scale * l2**power)

    @traitlets.validate("l2")
    def _in_range(self, proposal: Any) -> float:
        low, high = self._range
        # (The ends, as a browser or a division may round them.)
        if not low * (1 - 1e-9) <= proposal.value <= high * (1 + 1e-9):
            raise traitlets.TraitError(f"l2 of {proposal.value} is not possible: it must be from {low} to {high}")
        return float(min(max(proposal.value, low), high))

    @traitlets.observe("l2")
    def _told(self, change: Any) -> None:
        if hasattr(self, "_unit"):
            self.value = self._own(change.new)

    @traitlets.observe("value")
    def _asked(self, change: Any) -> None:
        if not np.isclose(change.new, self._own(self.l2), rtol=1e-12, atol=0):
            scale, power = self._unit
            try:
                self.l2 = float((change.new / scale) ** power)
            except traitlets.TraitError:
                self.value = self._own(self.l2)
                raise


def _of_run(dial: Any) -> Any:
    """A dial of PyTorch, as it is now: by way of its file."""
    with tempfile.TemporaryDirectory() as folder:
        (file, *_) = dial.save(Path(folder) / "run.dial")
        page = json.loads(_afterfit.page_of_dial(file))
    page["title"] = "The dial of this run"
    # (The file is gone again.)
    page["command"] = ""
    return page


def _name(scoring: Any) -> str:
    return scoring if isinstance(scoring, str) else getattr(scoring, "__name__", type(scoring).__name__)


def _of_estimator(estimator: Any, X: Any, y: Any, names: Sequence[str] | None, image: tuple[int, int] | None) -> str:
    """What a page shows of a fitted estimator."""
    path, kernel = estimator._path, estimator._model == "kernel"
    width = int(estimator.n_features_in_)
    if names is None:
        names = getattr(estimator, "feature_names_in_", None)
    features = [f"feature {at + 1}" for at in range(width)] if names is None else [str(name) for name in names]
    if len(features) != width:
        raise ValueError(f"{len(features)} names are given for {width} features")
    if image is not None and image[0] * image[1] != width:
        raise ValueError(f"images of {image[0]} by {image[1]} have {image[0] * image[1]} pixels, and there are {width} features")
    if X is not None and len(np.atleast_2d(X[:1])[0]) != width:
        raise ValueError(f"rows of {len(np.atleast_2d(X[:1])[0])} features are given for {width}")
    # (Rows have the losses that were minimized, whatever a scorer says of them besides.)
    judged = json.loads(estimator._rows_judged)
    rows = judged["rows"]
    if estimator.scoring is not None:
        for row, scores in zip(rows, estimator.scores_.T.tolist(), strict=True):
            mean, _ = _afterfit.mean_and_error(scores)
            row["validation_score"] = mean if np.isfinite(mean) else None
    unit = estimator._unit
    one_se = getattr(estimator, f"{unit}_1se_")
    own = np.asarray(getattr(estimator, f"{unit}s_"))
    classes = getattr(estimator, "classes_", None)
    samples, similar = [], None
    if X is not None:
        shown = np.asarray(X[:_ROWS].toarray() if hasattr(X, "toarray") else X[:_ROWS], dtype=np.float64)
        truths = ["" if y is None else str(truth) for truth in (shown[:, 0] if y is None else y[:_ROWS])]
        samples = [
            {"row": at, "truth": truth, "features": row} for at, (row, truth) in enumerate(zip(shown.tolist(), truths, strict=True))
        ]
        similar = estimator._kernel_of(shown) if kernel else None
    # What the own unit is of l2: alpha = scale · l2, C = scale / l2.
    power = 1 if unit == "alpha" else -1
    scale = float(own[0] / path.l2[0] ** power)
    fields = {
        "title": type(estimator).__name__,
        "model": estimator._model,
        "classes": None if classes is None else [str(name) for name in classes],
        "features": [f"row {at + 1}" for at in range(len(estimator.dual_coef_))] if kernel else features,
        "image": image,
        "rows": rows,
        "best": int(estimator._at_index),
        "one_se": int(np.argmin(np.abs(np.log(own / one_se)))),
        "score": None if estimator.scoring is None else _name(estimator.scoring),
        "confusions": judged["confusions"],
        "columns": [{"name": name, "first": at, "kind": "number"} for at, name in enumerate(features)],
        "samples": samples,
        "samples_seen": True,
        "standing": "exact",
        "reason": "each strength has a certificate: how far its weights can be from the minimizer's",
        "notes": estimator.notes_,
        "unit": {"name": unit, "scale": scale, "power": power},
    }
    return _afterfit.page(path, json.dumps(fields), similar)
