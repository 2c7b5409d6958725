"""Plain torch loops, one for each schedule: `{"epoch", "model", "optimizer", "scheduler"}` after every epoch, by many names."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np
import torch
from torch.optim import SGD, Adam, Adamax, AdamW, Optimizer, RAdam
from torch.optim import lr_scheduler as schedulers

from .nets import EPOCHS, PER_EPOCH, Net, epochs, forward, fresh
from .record import recording
from .trial import CASES, Trial, case

STEPS = EPOCHS * PER_EPOCH

MakeOptimizer = Callable[[Net], Optimizer]
MakeScheduler = Callable[[Optimizer], object]


def sgd(**settings: object) -> MakeOptimizer:
    return lambda net: SGD(net.parameters(), **{"lr": 0.05, "momentum": 0.9} | settings)


def adam(net: Net) -> Optimizer:
    return Adam(net.parameters(), lr=2e-3)


def adamw(net: Net) -> Optimizer:
    return AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)


def warmed(then: MakeScheduler, warmup: int) -> MakeScheduler:
    """SequentialLR: a linear warm-up, then another."""
    return lambda o: schedulers.SequentialLR(o, [schedulers.LinearLR(o, 0.01, 1.0, warmup), then(o)], [warmup])


class Habit(NamedTuple):
    """How a file is called, what its parts are called, and whether its epochs count from 0 or from 1."""

    file: str
    model: str
    optimizer: str
    scheduler: str
    first: int


HABITS = [
    Habit("checkpoint_{}.pt", "model", "optimizer", "scheduler", 0),
    Habit("ckpt_epoch_{:03d}.pth", "model_state_dict", "optimizer_state_dict", "scheduler_state_dict", 1),
    Habit("epoch{}.pth.tar", "state_dict", "optimizer", "lr_scheduler", 1),
    Habit("net-{:02d}.tar", "net", "optim", "sched", 0),
]
LOADS = "`torch.load`, `load_state_dict`"


def loop(
    name: str,
    optimizer: MakeOptimizer,
    scheduler: MakeScheduler | None,
    each: str,
    *,
    norm: bool = False,
    late: bool = False,
    otherwise: tuple[object, ...] = (),
    rare: bool = False,
) -> None:
    """Registers a loop, with one habit after the other, whose scheduler steps each "step" or "epoch".

    `late`: it steps only after saving. `otherwise`: what a refusal may ask for. `rare`: it may ask for --rates."""
    habit = HABITS[sum(one.module == "torch_loops" for one in CASES) % len(HABITS)]

    def run(t: Trial) -> None:
        folder, net = fresh(t.folder / "run"), Net(norm)
        with recording() as record:
            made = optimizer(net)
            schedule = scheduler(made) if scheduler else None

            def step(loss: float | None = None) -> None:
                if isinstance(schedule, schedulers.ReduceLROnPlateau):
                    schedule.step(loss)
                else:
                    schedule.step()

            def save(epoch: int, loss: float) -> None:
                number = epoch + habit.first
                state = {"epoch": number, habit.model: net.state_dict(), habit.optimizer: made.state_dict(), "loss": loss}
                state |= {habit.scheduler: schedule.state_dict()} if schedule else {}
                torch.save(state, folder / habit.file.format(number))
                if late:
                    step(loss)

            often = {"every_step": step} if each == "step" else {"every_epoch": step} if each == "epoch" and not late else {}
            epochs(record, net, made, save, **often)
        assert not schedule or np.ptp(record.paths()[0][0].raw) > 0, "the schedule did nothing: this would prove nothing"
        way = ("--rates", t.rates(record)) if rare else otherwise
        used = t.weights("run", record, otherwise=way)
        expected = t.written("run", "average.pt", record, *used)
        found = torch.load(t.folder / "average.pt", weights_only=True)
        net.load_state_dict(found.get(habit.model, found))
        t.loaded(LOADS, net.state_dict(), expected)
        forward(net)

    run.__name__ = name
    case("torch")(run)


PER = ("--steps-per-epoch", PER_EPOCH)

# fmt: off
loop("adam_without_a_schedule", adam, None, "")
loop("sgd_without_a_schedule_or_steps", sgd(), None, "", otherwise=PER)
loop("sgd_whose_batch_norm_counts_batches", sgd(), None, "", norm=True, otherwise=PER)
loop("nesterov_whose_batch_norm_counts_batches", sgd(nesterov=True), lambda o: schedulers.CosineAnnealingLR(o, EPOCHS), "epoch", norm=True, otherwise=PER)
loop("one_cycle_sgd", sgd(), lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=STEPS), "step")
loop("one_cycle_sgd_longer_than_the_run", sgd(), lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=2 * STEPS, three_phase=True, anneal_strategy="linear"), "step")
loop("one_cycle_adamw", adamw, lambda o: schedulers.OneCycleLR(o, 4e-3, epochs=EPOCHS, steps_per_epoch=PER_EPOCH), "step")
loop("one_cycle_without_momentum", sgd(momentum=0), lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=STEPS, cycle_momentum=False), "step")
loop("cosine_each_step", adamw, lambda o: schedulers.CosineAnnealingLR(o, STEPS, eta_min=1e-5), "step")
loop("cosine_each_step_sgd", sgd(), lambda o: schedulers.CosineAnnealingLR(o, STEPS), "step")
loop("cosine_each_epoch", adamw, lambda o: schedulers.CosineAnnealingLR(o, EPOCHS), "epoch")
loop("cosine_each_epoch_sgd", sgd(), lambda o: schedulers.CosineAnnealingLR(o, EPOCHS), "epoch", otherwise=PER)
loop("cosine_each_epoch_stepped_after_saving", adam, lambda o: schedulers.CosineAnnealingLR(o, EPOCHS), "epoch", late=True, rare=True)
loop("warm_restarts_each_step", adam, lambda o: schedulers.CosineAnnealingWarmRestarts(o, 60, 2), "step", rare=True)
loop("warm_up_then_cosine_each_step", adamw, warmed(lambda o: schedulers.CosineAnnealingLR(o, STEPS - 30), 30), "step")
loop("warm_up_then_cosine_each_epoch", adamw, warmed(lambda o: schedulers.CosineAnnealingLR(o, EPOCHS - 3), 3), "epoch")
loop("warm_up_then_multistep_sgd", sgd(), warmed(lambda o: schedulers.MultiStepLR(o, [70, 130], 0.2), 25), "step")
loop("linear_each_step", sgd(nesterov=True), lambda o: schedulers.LinearLR(o, 1.0, 0.0, STEPS), "step")
loop("polynomial_each_step", adam, lambda o: schedulers.PolynomialLR(o, STEPS, 2.0), "step")
loop("exponential_each_step", sgd(), lambda o: schedulers.ExponentialLR(o, 0.98), "step")
loop("exponential_each_epoch", adam, lambda o: schedulers.ExponentialLR(o, 0.7), "epoch")
loop("steps_down_each_epoch", adam, lambda o: schedulers.StepLR(o, 3, 0.3), "epoch")
loop("steps_down_each_step", sgd(), lambda o: schedulers.StepLR(o, 50, 0.3), "step")
loop("multistep_each_epoch", adam, lambda o: schedulers.MultiStepLR(o, [4, 7], 0.1), "epoch")
loop("multistep_each_epoch_sgd", sgd(), lambda o: schedulers.MultiStepLR(o, [4, 7], 0.1), "epoch", otherwise=PER)
loop("plateau", adam, lambda o: schedulers.ReduceLROnPlateau(o, factor=0.2, patience=0, threshold=0.2), "epoch")
loop("plateau_sgd", sgd(), lambda o: schedulers.ReduceLROnPlateau(o, factor=0.2, patience=0, threshold=0.2), "epoch", otherwise=PER)
loop("lambda_each_step", adamw, lambda o: schedulers.LambdaLR(o, lambda k: sqrt(60 / (k + 60))), "step", rare=True)
loop("lambda_with_a_warm_up_before_the_first_file", adamw, lambda o: schedulers.LambdaLR(o, lambda k: min((k + 1) / 20, sqrt(20 / (k + 1)))), "step", rare=True)
loop("lambda_each_step_sgd", sgd(), lambda o: schedulers.LambdaLR(o, lambda k: 1 - k / STEPS), "step", rare=True)
loop("lambda_each_epoch", adam, lambda o: schedulers.LambdaLR(o, lambda epoch: 0.8**epoch), "epoch", rare=True)
loop("cyclic_each_step", sgd(), lambda o: schedulers.CyclicLR(o, 0.01, 0.1, step_size_up=25), "step", rare=True)
loop("chained_each_step", adam, lambda o: schedulers.ChainedScheduler([schedulers.ConstantLR(o, 0.1, 20), schedulers.ExponentialLR(o, 0.99)]), "step", rare=True)
loop("amsgrad", lambda n: Adam(n.parameters(), lr=2e-3, betas=(0.8, 0.99), amsgrad=True), lambda o: schedulers.CosineAnnealingLR(o, STEPS), "step")
loop("adamax", lambda n: Adamax(n.parameters(), lr=2e-3), lambda o: schedulers.StepLR(o, 4, 0.5), "epoch")
loop("radam", lambda n: RAdam(n.parameters(), lr=2e-3), lambda o: schedulers.ExponentialLR(o, 0.99), "step")
loop("a_rate_that_is_a_tensor", lambda n: Adam(n.parameters(), lr=torch.tensor(2e-3)), lambda o: schedulers.CosineAnnealingLR(o, EPOCHS), "epoch")
