"""What comes out of a dial: weights at a strength, a model judged at many, and batch norm measured anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import _afterfit
from .._status import Status


@dataclass(frozen=True)
class Reading:
    """The weights at one strength, and how far they can be trusted.

    Attributes
    ----------
    kind, value
        What was read: ``"l2"`` and λ, ``"ema"`` and a decay, and so on.
    error
        No weight is further than this from the average asked for: with ``every=N``, from that of the iterates kept, each with the
        mass of its neighbors; what thinning itself costs is not bounded.
    certificate
        The same as a share of the farthest any weight moved, rounding apart.
    unspent
        λ: the mass that no step has spent. Near 1, the training was too short for this λ.
    status
        Exact, approximation or heuristic, and why.
    """

    kind: str
    value: float
    error: float
    certificate: float
    unspent: float | None
    status: Status
    _tensors: dict[str, Tensor] = field(repr=False)

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors of the model, averaged where they were trained, under the names it has without wrappers."""
        return dict(self._tensors)


@dataclass(frozen=True)
class Sweep:
    """A model judged at many strengths.

    Attributes
    ----------
    l2, value, standard_error, error, unspent
        One entry a strength; ``standard_error`` is 0 where the evaluation gives none.
    best
        The λ of the best value (ties go to the stronger one).
    one_se
        The strongest λ within one standard error of the best.
    """

    l2: list[float]
    value: list[float]
    standard_error: list[float]
    error: list[float]
    unspent: list[float]
    best: float
    one_se: float

    def frame(self) -> Any:
        """A pandas DataFrame, a row a strength."""
        import pandas  # a friend that not everyone has

        columns = ("l2", "value", "standard_error", "error", "unspent")
        return pandas.DataFrame({name: getattr(self, name) for name in columns})

    def plot(self, ax: Any = None) -> Any:
        """Draw the values over λ into matplotlib axes, and return these."""
        import matplotlib.pyplot as plt

        ax = plt.subplots()[1] if ax is None else ax
        ax.errorbar(self.l2, self.value, yerr=self.standard_error, marker=".")
        ax.axvline(self.best, linestyle="--", label=f"best: {self.best:.3g}")
        ax.axvline(self.one_se, linestyle=":", label=f"one standard error: {self.one_se:.3g}")
        ax.set(xscale="log", xlabel="l2", ylabel="value")
        ax.legend()
        return ax


def refresh(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    call: Callable[[nn.Module, Any], object] | None = None,
    device: torch.device | str | None = None,
) -> None:
    """Measure batch-norm statistics anew, for the weights the model has now.

    Parameters
    ----------
    model
        Its batch-norm layers get the plain average over all batches; everything else stays as it is.
    loader
        Batches of **augmented** training data.
    call
        ``call(model, batch)`` runs the model. By default a mapping is passed as keywords, of a tuple or list the first item, and
        anything else as it is.
    device
        Where batches go before the call; by default where the model's first parameter is.
    """
    layers = [
        layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None
    ]
    if not layers:
        return
    if device is None:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    training = {module: module.training for module in model.modules()}
    momenta = {layer: layer.momentum for layer in layers}
    try:
        model.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.train()
            layer.momentum = None  # torch's word for the plain average
        with torch.no_grad():
            seen = False
            for batch in loader:
                seen = True
                batch = to_device(batch, device)
                if call is not None:
                    call(model, batch)
                elif isinstance(batch, Mapping):
                    model(**batch)
                else:
                    model(batch[0] if isinstance(batch, (tuple, list)) else batch)
        if not seen:
            raise ValueError(
                "there was no batch to measure batch-norm statistics with: give what can be gone through each time anew"
            )
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
        for module, mode in training.items():
            module.training = mode


def to_device(batch: Any, device: torch.device | str) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return [to_device(value, device) for value in batch]
    return batch


def judged(value: Any) -> tuple[float, float]:
    """A value and its standard error, of whatever an evaluation gave."""
    if isinstance(value, Tensor):
        value = value.detach().to("cpu", torch.float64).reshape(-1).tolist() if value.ndim else float(value)
    if isinstance(value, tuple):
        mean, error = value
        return float(mean), float(error)
    if isinstance(value, (int, float)) or not hasattr(value, "__len__"):
        return float(value), 0.0
    return _afterfit.mean_and_error([float(loss) for loss in value])
