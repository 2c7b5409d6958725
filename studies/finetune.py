"""Study 1: fine-tune once, choose afterwards how much to forget.

A model that was pretrained on the old text (pictures) is tuned on a little of the new. One run with a dial, and what people do
instead: stop early, walk the line between the ends (WiSE-FT), average (EMA), train again with a pull (L2-SP), replay old data.
Everything is [old loss, new loss], each on the half to choose by and on the half to report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from loop import Clock, descend, optimizer_of, pull_to_start, rounded, step_loss, warm_cosine
from models import set_share, with_adapters, with_peft
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from worlds import Pictures, Texts, world

from afterfit.torch import Dial

BOTH = ("old", "new")


def pretrain(size: dict[str, Any], piece: dict[str, Any], here: Texts | Pictures, clock: Clock, file: Path) -> dict[str, Any]:
    model = here.model()
    optimizer = optimizer_of("adam", model, size["pretrain_rate"])
    steps = size["pretrain_steps"]
    schedule = warm_cosine(size["pretrain_rate"], steps, max(1, steps // 20))
    descend(step_loss(here, model), optimizer, lambda: here.draw("old"), steps, clock, rate=schedule)
    torch.save(model.state_dict(), file.with_suffix(".part"))
    file.with_suffix(".part").rename(file)
    return {"judged": here.judge(model, *BOTH)}


def prepared(size: dict[str, Any], piece: dict[str, Any], here: Texts | Pictures, file: Path) -> nn.Module:
    """The pretrained model, ready to be tuned."""
    model = here.model()
    model.load_state_dict(torch.load(file, map_location=here.device))
    model.eval()  # (batch norm keeps the statistics of the pretraining: averages then need no others)
    adapt = {"lora": with_adapters, "peft": with_peft}.get(piece["weights"])
    return model if adapt is None else adapt(model, size["rank"])


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


@torch.no_grad()
def put(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    for name, parameter in model.named_parameters():
        if name in weights:
            parameter.copy_(weights[name])


def tuned_with_dial(
    size: dict[str, Any], piece: dict[str, Any], here: Texts | Pictures, clock: Clock, file: Path
) -> dict[str, Any]:
    """One run, and all that can be had of it."""
    model = prepared(size, piece, here, file)
    optimizer = optimizer_of(piece["optimizer"], model, piece["rate"])
    rates = [piece["rate"]] * size["steps"]  # (said beforehand, momentum and Adam's bias correction are exact)
    dial = Dial(model, optimizer, l2=tuple(piece["l2"]), ema=(0.8, 0.998), steps=size["steps"], schedule=rates, tolerance=1e-3)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    start = state(model)
    best: dict[str, Any] = {"loss": float("inf")}
    stopping: list[list[Any]] = []
    averaging: list[list[Any]] = []

    def look(step: int) -> None:
        judged = here.judge(model, *BOTH)
        stopping.append([step, *judged])
        if judged[1][0] < best["loss"]:
            best.update(loss=judged[1][0], step=step, weights=state(model))
        if step % (2 * size["every"]) == 0:
            averaging.append([step, *here.judge(ema.module, *BOTH)])

    handle = optimizer.register_step_post_hook(lambda *_: ema.update_parameters(model))
    loss = step_loss(here, model)
    descend(loss, optimizer, lambda: here.draw("new"), size["steps"], clock, every=size["every"], look=look)
    handle.remove()

    readings, emas = [], []
    low, high = piece["l2"]
    for at in range(size["readings"]):
        l2 = low * (high / low) ** (at / (size["readings"] - 1))
        with dial.applied(l2) as reading:
            readings.append([l2, reading.unspent, reading.certificate, *here.judge(model, *BOTH)])
    for decay in (0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998):
        with dial.applied(ema=decay):
            emas.append([decay, *here.judge(model, *BOTH)])
    shares = [at / 20 for at in range(21)]
    line = []
    for share in shares:
        with dial.applied(dial.wise(share)):
            line.append([share, *here.judge(model, *BOTH)])
    found: dict[str, Any] = {"stopping": stopping, "dial": readings, "ema": emas, "ema-stopping": averaging, "wise": line}
    found["status"] = reading.status.standing
    end = state(model)
    if piece["weights"] != "full":  # the line of the products B A: what a serving system's "adapter scale" does
        found["scaled"] = []
        for share in shares:
            set_share(model, share)
            found["scaled"].append([share, *here.judge(model, *BOTH)])
        set_share(model, 1.0)
    found["wise-stopped"] = []
    for share in shares:
        put(model, {name: start[name].lerp(tensor, share) for name, tensor in best["weights"].items()})
        found["wise-stopped"].append([share, *here.judge(model, *BOTH)])
    put(model, end)
    found["stopped-at"] = best["step"]
    return found


def tuned_again(size: dict[str, Any], piece: dict[str, Any], here: Texts | Pictures, clock: Clock, file: Path) -> dict[str, Any]:
    """A run of its own for one strength of L2-SP, or one share of old data in each batch."""
    model = prepared(size, piece, here, file)
    optimizer = optimizer_of(piece["optimizer"], model, piece["rate"])
    pull = pull_to_start(optimizer, piece["strength"]) if piece["method"] == "l2sp" else None
    old = round(size["rows"] * piece.get("share", 0.0))

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        new = here.draw("new", size["rows"] - old)
        if not old:
            return new
        return tuple(torch.cat(pair) for pair in zip(new, here.draw("old", old), strict=True))  # type: ignore[return-value]

    stopping: list[list[Any]] = []
    loss = step_loss(here, model)
    descend(
        loss, optimizer, draw, size["steps"], clock, pull=pull, every=2 * size["every"],
        look=lambda step: stopping.append([step, *here.judge(model, *BOTH)]),
    )  # fmt: skip
    return {"stopping": stopping}


def run(size: dict[str, Any], piece: dict[str, Any], device: torch.device, clock: Clock, data: Path, work: Path) -> dict[str, Any]:
    here = world(size, piece["seed"], device, data)
    file = work / f"pretrained-{piece['model']}-{piece['seed']}.pt"
    method = {"pretrain": pretrain, "dial": tuned_with_dial}.get(piece["method"], tuned_again)
    return rounded(method(size, piece, here, clock, file))
