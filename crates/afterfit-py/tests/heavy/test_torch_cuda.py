"""What only a GPU can show: sums elsewhere, rates and flags on the device, and that nothing waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from afterfit.torch import Dial

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
RANGE = (1e-2, 1.0)


def net(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to("cuda", dtype)


def losses(model: nn.Sequential, count: int) -> Iterator[torch.Tensor]:
    parameter = next(model.parameters())
    generator = torch.Generator("cuda").manual_seed(1)
    for _ in range(count):
        x = torch.randn(16, 5, generator=generator, device="cuda", dtype=parameter.dtype)
        yield model(x).square().mean()


def train(model: nn.Sequential, optimizer: torch.optim.Optimizer, count: int) -> None:
    for loss in losses(model, count):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def compare(one: Dial, two: Dial, rtol: float) -> None:
    assert one.steps == two.steps
    for target in ({"l2": 0.1}, {"ema": 0.95}):
        first, second = one.read(**target), two.read(**target)
        assert first.status == second.status and first.error == pytest.approx(second.error, rel=1e-3)
        expected = second.state_dict()
        for name, tensor in first.state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=rtol, atol=rtol)


def test_sums_on_the_cpu_are_those_on_the_device() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    settings = {"l2": RANGE, "ema": (0.9, 0.99), "nodes": 6, "block": 3}
    here, there = Dial(model, optimizer, **settings), Dial(model, optimizer, device="cpu", **settings)
    train(model, optimizer, 20)
    compare(there, here, 1e-12)
    (bank,) = there._courses[0].banks
    assert bank.sums.device.type == "cpu" and bank.current.is_pinned()
    assert {bank.sums.device.type for bank in here._courses[0].banks} == {"cuda"}


def test_capturable_optimizers_are_the_same() -> None:
    dials = []
    for settings in ({"lr": 0.02}, {"lr": torch.tensor(0.02, dtype=torch.float64, device="cuda"), "capturable": True}):
        model = net()
        optimizer = Adam(model.parameters(), **settings)
        dials.append(Dial(model, optimizer, l2=RANGE, ema=(0.9, 0.99), nodes=6, block=3))
        train(model, optimizer, 20)
    compare(dials[1], dials[0], 1e-9)


def test_skipped_fused_steps_are_none_and_nothing_waits() -> None:
    dials = []
    for fused in (False, True):
        model = net(torch.float32)
        optimizer = Adam(model.parameters(), lr=0.02, fused=fused, foreach=False if not fused else None)
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        dial = Dial(model, optimizer, l2=RANGE, ema=(0.9, 0.99), nodes=6, block=3)
        try:
            for step, loss in enumerate(losses(model, 20)):
                optimizer.zero_grad()
                scaler.scale(loss * float("inf") if step in (4, 11) else loss).backward()
                scaler.step(optimizer)
                scaler.update()
                # (States are made in the first step. Without fused kernels the scaler itself waits.)
                torch.cuda.set_sync_debug_mode("error" if fused else "default")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert dial.steps == 18
        dials.append(dial)
    compare(dials[1], dials[0], 1e-4)
