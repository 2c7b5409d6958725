"""The training loop of every study, as anyone would write it; and time, which runs out."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from models import Loss
from torch import Tensor, nn
from worlds import Pictures, Texts, autocast


class OutOfTime(Exception):
    """The machine goes back: what is not finished is not stored."""


class Clock:
    def __init__(self, deadline: float | None = None) -> None:
        self.deadline, self.steps = deadline, 0

    def tick(self) -> None:
        self.steps += 1
        if self.deadline is not None and time.time() > self.deadline:
            raise OutOfTime


def step_loss(world: Texts | Pictures, model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a batch. On a GPU forward and backward are recorded once as graphs: the loop stays what it is."""
    loss = Loss(model)
    if world.device.type == "cuda" and os.environ.get("STUDIES_GRAPHS") == "1":
        state = world.draws.get_state()
        sample = world.draw("old")
        world.draws.set_state(state)  # (recording takes a batch, and the run is to see the same ones)
        with autocast(world.device):
            loss = torch.cuda.make_graphed_callables(loss, sample)

    def of_batch(inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast(world.device):
            return loss(inputs, targets)

    return of_batch


def optimizer_of(kind: str, model: nn.Module, rate: float, **options: Any) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused = trained[0].is_cuda
    if kind == "adam":
        return torch.optim.AdamW(trained, lr=rate, **{"weight_decay": 0.0, "fused": fused, **options})
    return torch.optim.SGD(trained, lr=rate, momentum=0.9, fused=fused, **options)


def descend(
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    draw: Callable[[], tuple[Tensor, Tensor]],
    steps: int,
    clock: Clock,
    *,
    first: int = 0,
    rate: Callable[[int], float] | None = None,
    pull: Callable[[], None] | None = None,
    every: int = 10,
    look: Callable[[int], None] | None = None,
) -> None:
    """Steps `first` to `steps`; `look` sees the weights before every so many of them, and after the last."""
    for step in range(first, steps):
        clock.tick()
        if look is not None and step % every == 0:
            look(step)
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
        optimizer.zero_grad(set_to_none=True)
        loss(*draw()).backward()
        if pull is not None:
            pull()
        optimizer.step()
    if look is not None:
        look(steps)


def pull_to_start(optimizer: torch.optim.Optimizer, strength: float) -> Callable[[], None]:
    """L2-SP: toward where the weights are now. For Adam decoupled, as AdamW's decay is; for SGD in the gradient."""
    weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    starts = [parameter.detach().clone() for parameter in weights]

    @torch.no_grad()
    def decoupled() -> None:
        torch._foreach_lerp_(weights, starts, optimizer.param_groups[0]["lr"] * strength)

    @torch.no_grad()
    def in_gradient() -> None:
        slopes = [parameter.grad for parameter in weights]
        torch._foreach_add_(slopes, torch._foreach_sub(weights, starts), alpha=strength)

    return in_gradient if isinstance(optimizer, torch.optim.SGD) else decoupled


def warm_cosine(peak: float, steps: int, warm: int) -> Callable[[int], float]:
    """A schedule for pretraining: up in `warm` steps, down along a cosine."""
    return lambda step: peak * min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / steps)))


def rounded(numbers: Any) -> Any:
    """Five digits are more than the seeds agree on."""
    if isinstance(numbers, float):
        return float(f"{numbers:.5g}")
    if isinstance(numbers, list | tuple):
        return [rounded(number) for number in numbers]
    if isinstance(numbers, dict):
        return {name: rounded(number) for name, number in numbers.items()}
    return numbers
