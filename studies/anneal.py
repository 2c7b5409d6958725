"""Study 3: the decay of the rate, chosen after training.

A run at a constant rate; its last part averaged afterwards, by WSM's rule and by the weights that are exact on quadratics, beside
runs that really decayed from the same point. Once where the run overfits, once where it still improves.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from finetune import put, state
from loop import Clock, descend, optimizer_of, rounded, step_loss
from worlds import world

import afterfit
from afterfit.torch import refresh

SHAPES = {
    "linear": lambda t: 1 - t,
    "1-sqrt": lambda t: 1 - t**0.5,
    "cosine": lambda t: 0.5 * (1 + np.cos(np.pi * t)),
}


def merge_weights(steps: list[int], rate: float, optimizer: str) -> dict[str, list[float]]:
    """For each rule the weight of each snapshot. The command finds them from names and rates alone, so the files it is shown
    hold one number each."""
    adam = {"optimizer": "adam", "beta1": 0.9} if optimizer == "adam" else {"optimizer": "heavy-ball", "momentum": 0.9}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            np.savez(Path(folder) / f"step-{step:06d}.npz", w=np.zeros(1))
        for rule in ("anneal", "schedule"):
            for shape in SHAPES:
                rules = {rule: shape, "window": "100%", **adam}
                made = afterfit.average(folder, Path(folder) / "out.npz", rate=rate, dry_run=True, **rules)
                found[f"{rule} {shape}"] = [float(weight) for weight in made.weights[0]]
    return found


def run(size: dict[str, Any], piece: dict[str, Any], device: torch.device, clock: Clock, data: Path, work: Path) -> dict[str, Any]:
    here = world(size, piece["seed"], device, data)
    model = here.model()
    rate, steps, every = size["rate"], size["steps"], size["every"]
    options = {"weight_decay": size["decay"]}
    optimizer = optimizer_of(size["optimizer"], model, rate, **options)
    loss = step_loss(here, model)
    warm = max(1, steps // 20)
    starts = [round(steps * (1 - window)) // every * every for window in size["windows"]]  # the longest window first
    kept: dict[int, Any] = {}
    snapshots: dict[int, dict[str, torch.Tensor]] = {}
    path: list[list[Any]] = []
    batches = here.refreshing()

    def judge() -> list[float]:
        return here.judge(model, "old")[0]

    def judge_average() -> list[float]:
        """(Batch norm's statistics belong to other weights, so they are measured anew, and then put back.)"""
        if batches is None:
            return judge()
        own = {name: buffer.clone() for name, buffer in model.named_buffers()}
        refresh(model, batches)
        judged = judge()
        for name, buffer in model.named_buffers():
            buffer.copy_(own[name])
        return judged

    def look(step: int) -> None:
        if step % size["look"] == 0 or step in starts or step == steps:
            path.append([step, judge()])
        if step >= starts[0]:
            snapshots[step] = state(model)
        if step in starts:
            kept[step] = (copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()), here.draws.get_state())

    def up(step: int) -> float:
        return rate * min(1.0, (step + 1) / warm)

    descend(loss, optimizer, lambda: here.draw("old"), steps, clock, rate=up, every=every, look=look)
    found: dict[str, Any] = {"path": path, "windows": {}}
    for window, start in zip(size["windows"], starts, strict=True):
        inside = [step for step in snapshots if step >= start]
        row: dict[str, Any] = {"start": start, "decayed": {}, "averaged": {}}
        for name, weights in merge_weights(inside, rate, size["optimizer"]).items():
            put(model, mixed([snapshots[step] for step in inside], weights))
            row["averaged"][name] = judge_average()
        for half_life in (0.02, 0.05, 0.1, 0.2):  # of the window: EMAs, for comparison
            ages = np.array([(inside[-1] - step) / (inside[-1] - start) for step in inside])
            weights = 0.5 ** (ages / half_life)
            put(model, mixed([snapshots[step] for step in inside], list(weights / weights.sum())))
            row["averaged"][f"ema {half_life}"] = judge_average()
        found["windows"][str(window)] = row
    for window, start in zip(size["windows"], starts, strict=True):
        for shape, factor in SHAPES.items():
            weights, moments, draws = kept[start]
            model.load_state_dict(weights)
            optimizer.load_state_dict(copy.deepcopy(moments))
            here.draws.set_state(draws)  # the same batches as the run at the constant rate
            left = steps - start

            def decayed(step: int, factor: Any = factor, start: int = start, left: int = left) -> float:
                return float(rate * factor((step - start) / left))

            descend(loss, optimizer, lambda: here.draw("old"), steps, clock, first=start, rate=decayed)
            found["windows"][str(window)]["decayed"][shape] = judge()
    return rounded(found)


def mixed(snapshots: list[dict[str, torch.Tensor]], weights: list[float]) -> dict[str, torch.Tensor]:
    total = {name: torch.zeros_like(tensor) for name, tensor in snapshots[0].items()}
    for snapshot, weight in zip(snapshots, weights, strict=True):
        for name, tensor in snapshot.items():
            total[name].add_(tensor, alpha=weight)
    return total
