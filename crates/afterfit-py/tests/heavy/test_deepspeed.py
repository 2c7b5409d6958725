"""DeepSpeed's engine on two processes: pushed, the dial is that of the same steps taken by torch's own optimizers."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from afterfit.torch import Dial

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is installed apart: make test-python-heavy"
)

RATE, STEPS, HALVES = 0.05, 30, 2
RANGE = {"l2": (1e-2, 1.0), "nodes": 6, "block": 5}
MADE: dict[str, Any] = {
    "heavy-ball": (lambda of: torch.optim.SGD(of, lr=RATE, momentum=0.9), {"momentum": 0.9}),
    "adam": (lambda of: torch.optim.AdamW(of, lr=RATE, weight_decay=0.1), {"beta1": 0.9, "weight_decay": 0.1}),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))


def data(step: int, half: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + 10 * half + rank))


def expected(kind: str) -> dict[str, torch.Tensor]:
    model = net()
    optimizer = MADE[kind][0](model.parameters())
    dial = Dial(model, optimizer, **RANGE)
    for step in range(STEPS):
        optimizer.zero_grad()
        rows = torch.cat([data(step, half, rank) for half in range(HALVES) for rank in (0, 1)])
        model(rows).square().mean().backward()
        optimizer.step()
    return dial.read(0.1).state_dict()


def engine_of(model: nn.Module, stage: int, optimizer: torch.optim.Optimizer) -> Any:
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": HALVES,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine: Any, dial: Dial, rank: int, steps: int, *rate: float) -> None:
    for step in range(steps):
        for half in range(HALVES):
            engine.backward(engine(data(step, half, rank)).square().mean())
            if engine.is_gradient_accumulation_boundary():
                dial.push(*rate)
            engine.step()


def run(rank: int, folder: str) -> None:
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_SIZE="2")
    torch.set_num_threads(1)
    import deepspeed

    # (It would be compiled at this first use. Without it, gloo carries everything.)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    dist.init_process_group("gloo", store=dist.FileStore(os.path.join(folder, "store"), 2), rank=rank, world_size=2)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for stage in (0, 1, 2):
        for kind, (make, constants) in MADE.items():
            model = net()
            engine = engine_of(model, stage, make(model.parameters()))
            dial = Dial(model, recurrence=(kind, constants), **RANGE)
            train(engine, dial, rank, STEPS, RATE)
            assert dial.steps == STEPS
            if rank == 0:
                torch.save(dial.read(0.1).state_dict(), os.path.join(folder, f"{kind}-{stage}.pt"))
    # What would be wrong is refused: a step seen twice, an optimizer that moves shards, a model without weights.
    for stage, error, words in [
        (0, RuntimeError, "which the optimizer's hook sees, too"),
        (1, ValueError, "make the dial without it"),
        (2, ValueError, "make the dial without it"),
    ]:
        model = net()
        optimizer = MADE["heavy-ball"][0](model.parameters())
        dial = Dial(model, optimizer, **RANGE)
        with pytest.raises(error, match=words):
            train(engine_of(model, stage, optimizer), dial, rank, 1)
    model = net()
    engine = engine_of(model, 3, MADE["adam"][0](model.parameters()))
    with pytest.raises(ValueError, match="ZeRO-3 leaves no weights in the model"):
        train(engine, Dial(model, **RANGE), rank, 1, RATE)
    dist.barrier()
    # (See test_sharded.end.)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def test_pushed_under_deepspeed(tmp_path: Path) -> None:
    mp.start_processes(run, (str(tmp_path),), nprocs=2, start_method="spawn")
    for kind in MADE:
        own = expected(kind)
        for stage in (0, 1, 2):
            found = torch.load(tmp_path / f"{kind}-{stage}.pt")
            for name, tensor in own.items():
                torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5)
