"""A least-squares problem whose every regularized answer is known in closed form."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

STRENGTHS = [0.03, 0.07, 0.15, 0.4, 0.9]
RANGE = (0.02, 1.0)


class Problem:
    """½ mean (Xw − y)², with curvatures from 0.1 to 1: descent forgets its start within some hundred steps."""

    def __init__(self, features: int = 6, start: str = "random", seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        rows = 40
        basis, _ = torch.linalg.qr(torch.randn(rows, features, generator=generator, dtype=torch.float64))
        turn, _ = torch.linalg.qr(torch.randn(features, features, generator=generator, dtype=torch.float64))
        curvatures = torch.linspace(0.1, 1.0, features, dtype=torch.float64)
        self.x = rows**0.5 * basis @ torch.diag(curvatures.sqrt()) @ turn
        self.y = torch.randn(rows, generator=generator, dtype=torch.float64)
        self.hessian = self.x.T @ self.x / rows
        self.right = self.x.T @ self.y / rows
        self.start = torch.zeros(features, dtype=torch.float64)
        if start == "random":
            self.start = torch.randn(features, generator=generator, dtype=torch.float64)

    def model(self, split: int | None = None) -> nn.ParameterList:
        """The weights in one tensor, or in two."""
        cut = [self.start] if split is None else [self.start[:split], self.start[split:]]
        return nn.ParameterList([nn.Parameter(part.clone()) for part in cut])

    def loss(self, model: nn.ParameterList) -> Tensor:
        weights = torch.cat([part for part in model])
        return 0.5 * (self.x @ weights - self.y).square().mean()

    def ridge(self, l2: float | Tensor) -> Tensor:
        """The minimizer of the loss and ½ Σ l2_i (w_i − start_i)²."""
        penalty = torch.diag(torch.as_tensor(l2, dtype=torch.float64).expand(self.start.numel()))
        return torch.linalg.solve(self.hessian + penalty, self.right + penalty @ self.start)

    def train(
        self,
        model: nn.ParameterList,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        steps: int,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        each: Callable[[int], None] | None = None,
    ) -> None:
        optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else optimizer
        for step in range(steps):
            if each is not None:
                each(step)
            for one in optimizers:
                one.zero_grad()
            self.loss(model).backward()
            for one in optimizers:
                one.step()
            if scheduler is not None:
                scheduler.step()


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in sorted(tensors)])
