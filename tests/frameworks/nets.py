"""A network small enough for hundreds of steps in a tenth of a second, and data for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from .record import Record

EPOCHS, PER_EPOCH = 10, 20


class Net(nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def batches(seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The class is which of the first three numbers is largest."""
    random = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(16, 4, generator=random)
        yield x, x[:, :3].argmax(1)


def learn(net: nn.Module, optimizer: torch.optim.Optimizer, data: Iterator) -> float:
    """One step."""
    x, y = next(data)
    loss = nn.functional.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def epochs(
    record: Record,
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    save: Callable[[int, float], object],
    *,
    every_step: Callable[[], object] | None = None,
    every_epoch: Callable[[float], object] | None = None,
    count: int = EPOCHS,
    per_epoch: int = PER_EPOCH,
) -> None:
    """The loop that everybody writes: steps, schedulers, then `save(epoch, loss)`, where epochs count from 0."""
    data = batches()
    for epoch in range(count):
        loss = 0.0
        for _ in range(per_epoch):
            loss = learn(net, optimizer, data)
            if every_step:
                every_step()
        if every_epoch:
            every_epoch(loss)
        record.keep(net)
        save(epoch, loss)


def forward(net: nn.Module) -> None:
    """It runs, and what comes out is finite."""
    with torch.no_grad():
        assert net.eval()(next(batches())[0]).isfinite().all()


def fresh(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
