"""Sums of vectors on a device, which know nothing of λ."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .shards import is_sharded, local_of


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Products in the sums' own precision, whatever the training allows itself (TF32, autocast)."""
    allowed = torch.get_float32_matmul_precision()
    if allowed != "highest":
        torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        if allowed != "highest":
            torch.set_float32_matmul_precision(allowed)


def farthest(tensor: Tensor) -> Tensor:
    """The largest absolute value, 0 of a tensor that is empty; NaN if there is one."""
    return torch.linalg.vector_norm(tensor, math.inf) if tensor.numel() else tensor.new_zeros(())


@dataclass
class Slot:
    """A parameter's stretch of a bank's vectors."""

    name: str
    parameter: Tensor
    group: int
    start: int
    stop: int

    def of(self, vector: Tensor) -> Tensor:
        """Its part of a vector, in its shape."""
        return self.shaped(vector[self.start : self.stop])

    def shaped(self, stretch: Tensor) -> Tensor:
        """A stretch of a vector in the parameter's shape, and in its layout: tensors of one layout are copied in one kernel."""
        parameter = local_of(self.parameter)
        for ndim, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
            if parameter.ndim == ndim and not parameter.is_contiguous() and parameter.is_contiguous(memory_format=layout):
                return stretch.as_strided(parameter.shape, parameter.stride(), stretch.storage_offset())
        return stretch.view(parameter.shape)


class Bank:
    """Sums of parameters of one mass sequence on one device, as rows of one matrix."""

    def __init__(
        self,
        sequence: int,
        members: list[tuple[str, Tensor, int]],
        sums: int,
        rows: int,
        dtype: torch.dtype,
        device: torch.device | None,
    ) -> None:
        self.sequence, self.rows = sequence, rows
        self.slots: list[Slot] = []
        length = 0
        for name, parameter, group in members:
            size = local_of(parameter).numel()
            self.slots.append(Slot(name, parameter, group, length, length + size))
            length += size
        self.parameters = [parameter for _, parameter, _ in members]
        self.sharded = any(is_sharded(parameter) for parameter in self.parameters)
        self.home = local_of(members[0][1]).device
        self.device = self.home if device is None else device
        self.pinned = self.device.type == "cpu" and self.home.type == "cuda"
        self.dtype = dtype
        make: dict[str, Any] = {"dtype": dtype, "device": self.device}
        self.center = torch.zeros(length, **make)
        self.sums = torch.zeros(sums, length, **make)
        self.reach = torch.zeros((), **make)
        self.current = self._block()
        # (Hundreds of views are made once, not at every step.)
        self.views = [self.cut(row) for row in self.current]
        self.older: Tensor | None = None
        self.older_views: list[list[Tensor]] = []
        if self.pinned:
            # Where weights are gathered before they leave the device, without keeping the next step waiting.
            self.gate = torch.zeros(length, dtype=dtype, device=self.home)
            self.gate_center = torch.zeros(length, dtype=dtype, device=self.home)
            self.stream = torch.cuda.Stream(self.home)  # type: ignore[no-untyped-call]
            self.gate_views = self.cut(self.gate)
        self.fill(self.center)
        if self.pinned:
            self.gate_center.copy_(self.center)

    def _block(self) -> Tensor:
        length = self.center.numel()
        return torch.zeros(self.rows, length, dtype=self.dtype, device=self.device, pin_memory=self.pinned)

    @torch.no_grad()
    def fill(self, vector: Tensor, views: list[Tensor] | None = None) -> None:
        """Copies the weights into a vector, or its parts."""
        views = self.cut(vector) if views is None else views
        torch._foreach_copy_(views, [local_of(each) for each in self.parameters] if self.sharded else self.parameters)

    def cut(self, vector: Tensor) -> list[Tensor]:
        """A vector's parts, in the shapes of the parameters."""
        return [slot.of(vector) for slot in self.slots]

    @torch.no_grad()
    def stage(self, row: int) -> None:
        """Keeps the weights, centered, as a row of the block."""
        if not self.pinned:
            vector = self.current[row]
            self.fill(vector, self.views[row])
            vector.sub_(self.center)
            return
        main = torch.cuda.current_stream(self.home)
        main.wait_stream(self.stream)  # the gate is free once its last content has left
        self.fill(self.gate, self.gate_views)
        self.gate.sub_(self.gate_center)
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream):
            self.current[row].copy_(self.gate, non_blocking=True)

    def swap(self) -> None:
        """Lays the full block aside."""
        older, older_views = self.set_up_older()
        self.older, self.older_views = self.current, self.views
        self.current, self.views = older, older_views

    def set_up_older(self) -> tuple[Tensor, list[list[Tensor]]]:
        if self.older is None:
            self.older = self._block()
            self.older_views = [self.cut(row) for row in self.older]
        return self.older, self.older_views

    def waited_for(self) -> None:
        if self.pinned:
            self.stream.synchronize()

    def add(self, block: Tensor, scales: Tensor, shares: Tensor) -> None:
        """``S ← scales S + shares block``."""
        self.waited_for()
        with full_precision(self.device):
            if bool((scales != 1.0).any()):
                self.sums.mul_(scales.to(self.dtype).to(self.device, non_blocking=True).unsqueeze(1))
            self.sums.addmm_(shares.to(self.dtype).to(self.device, non_blocking=True), block)
            self.reach = torch.maximum(self.reach, farthest(block))

    def mixed(self, vector: Tensor, matrix: Tensor, coefficients: list[float]) -> Tensor:
        """``vector + coefficients · matrix``, in place."""
        with full_precision(self.device):
            return vector.addmv_(matrix.t(), torch.tensor(coefficients, dtype=self.dtype, device=self.device))

    def waiting(self, older: int, staged: int) -> list[tuple[Tensor, slice]]:
        """The blocks with iterates that wait, and where these are among all that do."""
        self.waited_for()
        found = []
        if older and self.older is not None:
            found.append((self.older[:older], slice(0, older)))
        if staged:
            found.append((self.current[:staged], slice(older, older + staged)))
        return found
