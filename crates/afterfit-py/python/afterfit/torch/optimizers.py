"""Optimizers as rows of afterfit's table, models without wrappers, and schedules run ahead."""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .._afterfit import HEURISTICS

_ADAM_LIKE = {"adam", "adamw", "nadam", "radam", "adamax", "soap", "shampoo", "distributedshampoo"}
_WITHOUT_MOMENTUM = {"rmsprop", "adagrad"}
_VARIANTS = re.compile(r"paged|fused|deepspeed|cpu|multitensor|8bit|4bit|fp8|32bit|_")


def momentum_of(group: Mapping[str, Any]) -> float:
    if "betas" in group:
        return float(group["betas"][0])
    return float(group.get("momentum") or 0.0)


def has_buffer(kind: str, group: Mapping[str, Any]) -> bool:
    """Whether the group says what stays of a momentum buffer at each step."""
    return kind in ("heavy-ball", "nesterov", "adam") and ("betas" in group or "momentum" in group)


def has_stepped(optimizer: Optimizer) -> bool:
    """Whether it holds more than what some (Adagrad) fill in when they are made."""
    states = (state for state in optimizer.state.values() if state)
    return any(not isinstance(state, Mapping) or "step" not in state or float(state["step"]) > 0 for state in states)


def recurrence_of(optimizer: Optimizer, group: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    """What afterfit calls this optimizer, and its constants: by the names of its class and those it is derived from."""
    for kind in type(optimizer).__mro__:
        name = _VARIANTS.sub("", kind.__name__.lower())
        if name == "sgd" and "lr" in group:
            momentum = momentum_of(group)
            if momentum == 0.0:
                return "sgd", {}
            if group.get("nesterov"):
                return "nesterov", {"momentum": momentum}
            return "heavy-ball", {"momentum": momentum, "dampening": float(group.get("dampening") or 0.0)}
        if name in _ADAM_LIKE and "betas" in group:
            decoupled = group.get("decoupled_weight_decay", "adamw" in name)
            decay = float(group.get("weight_decay") or 0.0) if decoupled else 0.0
            return "adam", {"beta1": momentum_of(group), "weight_decay": decay}
        if name in _WITHOUT_MOMENTUM and not group.get("momentum"):
            return "adam", {"beta1": 0.0}
        if name in HEURISTICS:
            return name, {}
    return type(optimizer).__name__, {}


#: The code of what torch puts around every class's ``step``: it calls the hooks.
_HOOKED = Optimizer.profile_hook_step(lambda *args: None).__code__


def is_inside(optimizer: Optimizer) -> bool:
    """Whether this step is part of another of the same optimizer: if a class's ``step`` calls that of the class it is derived
    from, torch calls the hooks for both."""
    steps, frame = 0, inspect.currentframe()
    while frame is not None:
        steps += frame.f_code is _HOOKED and frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return steps > 1


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose ``step`` moves the weights, inside those that wrap it (accelerate's)."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def unwrapped_model(model: nn.Module) -> nn.Module:
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while isinstance(model, wrappers):
        model = model.module
    return model


_WRAPPED = re.compile(r"(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


def clean(name: str) -> str:
    """A tensor's name without those of torch.compile's and other wrappers."""
    return _WRAPPED.sub("", name)


def check_schedule(schedule: Any, steps: int | None) -> None:
    """Refuses what does not say rates; which they are is seen when the first step is taken."""
    if schedule is None:
        return
    if isinstance(schedule, torch.optim.lr_scheduler.LRScheduler) or callable(schedule):
        if steps is None:
            kind = "function" if not isinstance(schedule, torch.optim.lr_scheduler.LRScheduler) else "scheduler"
            raise ValueError(f"a {kind} as schedule needs steps=, how many steps there will be")
        return
    try:
        rates = [float(rate) for rate in schedule]
    except (TypeError, ValueError):
        rates = []
    if not rates:
        raise ValueError(f"schedule is {schedule!r}: it must be a scheduler of torch, a function of the step, or a list of rates")


def foretold(
    schedule: Any, groups: list[dict[str, Any]], optimizer: Optimizer | None, steps: int | None
) -> tuple[list[list[float]], list[list[float] | None]]:
    """The rates, and momenta if they change, of every group and step that a schedule stands for."""
    if isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
        assert steps is not None  # (see check_schedule)
        # A copy of it runs on an optimizer of the same settings that has nothing to do.
        settings = [
            {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
            | {"params": [nn.Parameter(torch.zeros(()))]}
            for group in groups
        ]
        stand_in = torch.optim.SGD(settings, lr=0.0)
        memo = {id(schedule.optimizer): stand_in}
        runner = copy.deepcopy(schedule, memo)
        rates: list[list[float]] = [[] for _ in groups]
        momenta: list[list[float]] = [[] for _ in groups]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # (it runs ahead of optimizer.step)
            for _ in range(steps):
                for at, group in enumerate(stand_in.param_groups):
                    rates[at].append(float(group["lr"]))
                    momenta[at].append(momentum_of(group))
                runner.step()
        return rates, [list(of) for of in momenta]
    if callable(schedule):
        assert steps is not None
        schedule = [float(schedule(step)) for step in range(steps)]
    first = [float(rate) for rate in schedule]
    own = [float(group["lr"]) for group in groups]
    ratios = [rate / own[0] if own[0] > 0.0 else 1.0 for rate in own]
    return [[ratio * rate for rate in first] for ratio in ratios], [None] * len(groups)
