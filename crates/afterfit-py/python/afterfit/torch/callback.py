"""What the trainers' callbacks have in common: readings of the dial they keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from .dial import Dial
from .reading import Reading, Sweep


class KeepsDial:
    """Something that has a dial once training has begun."""

    dial: Dial | None = None

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
