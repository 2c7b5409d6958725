"""What the trainers' callbacks have in common: readings of the dial they keep."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from .course import NotFinite
from .dial import Dial
from .reading import Reading, Sweep


class KeepsDial:
    """Something that has a dial once training has begun."""

    dial: Dial | None = None
    options: dict[str, Any]
    _diverged = False

    def _set_options(self, **options: Any) -> None:
        """Keeps what the dial will be made with; a name that it does not know is refused at once, not when training begins."""
        known = inspect.signature(Dial).parameters
        for name in options:
            if name not in known or name in ("model", "optimizer"):
                raise TypeError(f"{type(self).__name__} got an unexpected keyword argument {name!r}")
        self.options = options

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items() if value is not None)
        return f"{type(self).__name__}({options})"

    def _unless_diverged(self, keep: Callable[[], Any], place: str) -> Any:
        """What `keep` gives; None, and a warning, of a dial whose weights were NaN: the trainer's own work goes on."""
        try:
            return keep()
        except NotFinite as error:
            if not self._diverged:
                warnings.warn(f"{error}, and the dial is not in {place}", stacklevel=3)
            self._diverged = True
            return None

    def _made(self) -> Dial:
        if self.dial is None:
            raise ValueError("this dial has seen no step yet: train first")
        return self.dial

    def read(self, l2: float | None = None, **target: Any) -> Reading:
        """The weights at a strength: see :meth:`afterfit.torch.Dial.read`."""
        return self._made().read(l2, **target)

    def applied(self, l2: float | Reading | None = None, **options: Any) -> Any:
        """A context in which the model has the weights at a strength: see :meth:`afterfit.torch.Dial.applied`."""
        return self._made().applied(l2, **options)

    def sweep(self, evaluate: Callable[[nn.Module], Any], **options: Any) -> Sweep:
        """The model judged at many strengths: see :meth:`afterfit.torch.Dial.sweep`."""
        return self._made().sweep(evaluate, **options)
