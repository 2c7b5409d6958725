"""A run of Ray Train whose process dies: the dial travels in the reported checkpoint, and its sums go on bit for bit.

pip install './crates/afterfit-py[torch,ray]' && python ray_run.py
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn

from afterfit.torch import Dial

EPOCHS = 5


def make() -> tuple[nn.Module, torch.optim.Optimizer, Dial]:
    """The model, its optimizer and the dial, as they start."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, Dial(model, optimizer, l2=(1e-3, 1.0), steps=EPOCHS * 8)


def epoch_of(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """An epoch, whose batches depend on its number alone."""
    generator = torch.Generator().manual_seed(1)
    x, directions = torch.randn(400, 20, generator=generator), torch.randn(20, 3, generator=generator)
    y = (x @ directions).argmax(1)
    loss = torch.zeros(())
    for batch in torch.randperm(400, generator=generator.manual_seed(number)).split(50):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    return loss.item()


def train(config: dict[str, Any]) -> None:
    """What each worker runs, from the beginning or from the last checkpoint that was reported."""
    parts = model, optimizer, dial = make()
    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder) / "run.pt", weights_only=True)
        for part, kept in zip(parts, state["parts"], strict=True):
            part.load_state_dict(kept)
        first = state["epoch"]
    for number in range(first, EPOCHS):
        loss = epoch_of(number, model, optimizer)
        with tempfile.TemporaryDirectory() as folder:
            state = {"epoch": number + 1, "parts": [part.state_dict() for part in parts]}
            torch.save(state, Path(folder) / "run.pt")
            dial.save(Path(folder) / "run.dial")  # (for whoever only reads it)
            ray.train.report({"loss": loss, "first": first}, checkpoint=Checkpoint.from_directory(folder))
        if number + 1 == config["dies_after"] and first == 0:
            os.kill(os.getpid(), 9)


def run(folder: Path) -> ray.train.Result:
    """A run that dies once, and is begun again where it was."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"dies_after": 3},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="run", storage_path=str(folder), failure_config=FailureConfig(max_failures=1)),
    )
    return trainer.fit()


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False)
    result = run(Path(tempfile.mkdtemp()))
    model, optimizer, dial = make()
    with result.checkpoint.as_directory() as folder:
        dial.load_state_dict(torch.load(Path(folder) / "run.pt", weights_only=True)["parts"][2])
    reading = dial.read(l2=0.05)
    print(f"resumed at epoch {result.metrics['first']}; l2 0.05: error {reading.error:.1e}, {reading.status}")
