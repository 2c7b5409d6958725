"""Study 2: AdamW's weight decay, chosen after training.

One run without decay and with a dial, beside runs with AdamW at many decays; early stopping and windows of that one run, too.
Everything is a loss (of pictures also the share of wrong answers) on the half to choose by and on the half to report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from finetune import put, state
from loop import Clock, descend, optimizer_of, pull_to_start, rounded, step_loss
from worlds import world

from afterfit.torch import Dial, refresh

WINDOW = 8  # snapshots


def run(size: dict[str, Any], piece: dict[str, Any], device: torch.device, clock: Clock, data: Path, work: Path) -> dict[str, Any]:
    here = world(size, piece["seed"], device, data)
    model = here.model()
    options = {"weight_decay": piece["decay"]} if piece["method"] == "adamw" else {}
    optimizer = optimizer_of("adam", model, size["rate"], **options)
    pull = pull_to_start(optimizer, piece["decay"]) if piece["method"] == "to-start" else None
    stopping: list[list[Any]] = []
    snapshots: list[dict[str, torch.Tensor]] = []
    dial = None
    if piece["method"] == "dial":
        rates = [size["rate"]] * size["steps"]
        dial = Dial(model, optimizer, l2=tuple(size["l2"]), steps=size["steps"], schedule=rates, tolerance=1e-3)

    def judge() -> list[float]:
        return here.judge(model, "old")[0]

    def look(step: int) -> None:
        stopping.append([step, judge()])
        if dial is not None:
            snapshots.append(state(model))

    loss = step_loss(here, model)
    descend(loss, optimizer, lambda: here.draw("old"), size["steps"], clock, pull=pull, every=size["every"], look=look)
    found: dict[str, Any] = {"stopping": stopping}
    if dial is None:
        return rounded(found)
    batches = here.refreshing()  # (batch norm's statistics belong to other weights; a text model has none)
    low, high = size["l2"]
    found["dial"] = []
    for at in range(size["readings"]):
        l2 = low * (high / low) ** (at / (size["readings"] - 1))
        with dial.applied(l2, refresh=batches) as reading:
            found["dial"].append([l2, reading.unspent, reading.certificate, judge()])
    found["status"] = reading.status.standing
    end = state(model)
    found["windows"] = []
    for last in range(WINDOW, len(snapshots) + 1):
        put(model, {name: sum(one[name] for one in snapshots[last - WINDOW : last]) / WINDOW for name in end})
        if batches is not None:
            refresh(model, batches)
        found["windows"].append([stopping[last - 1][0], judge()])
    return rounded(found)
