"""Rates that change between two files: placed by what the files say, or refused where nothing says it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim import lr_scheduler as schedulers

from .nets import EPOCHS, PER_EPOCH, Net, batches, fresh, learn
from .record import Record, recording
from .torch_loops import LOADS
from .trial import Trial, case

STEPS = EPOCHS * PER_EPOCH


def steady(net: Net) -> Optimizer:
    return SGD(net.parameters(), lr=0.05, momentum=0.9)


def trained(
    t: Trial,
    after_step: Callable[[Optimizer, int], object],
    make: Callable[[Net], Optimizer] = steady,
    every: int = PER_EPOCH,
    beside: Callable[[], dict] = dict,
    before_step: Callable[[Optimizer, int], object] | None = None,
) -> Record:
    """A loop that saves every so many steps, after what is done after each; steps count from 0."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    with recording() as record:
        optimizer = make(net)
        for step in range(STEPS):
            if before_step:
                before_step(optimizer, step)
            learn(net, optimizer, data)
            after_step(optimizer, step)
            if (step + 1) % every == 0:
                record.keep(net)
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "global_step": step + 1}
                torch.save(state | beside(), folder / f"step{step + 1}.pt")
    return record


def scheduled(t: Trial, make: Callable[[Optimizer], list], each: list[int], before: bool = False, saved: bool = True, every: int = PER_EPOCH, **settings) -> Record:
    """Schedulers that are stepped every so many steps, after the file is saved or before it, and saved or not."""
    made: list = []

    def step(optimizer: Optimizer, at: int) -> None:
        if not made:
            return
        for scheduler, per in zip(made, each):
            if (at + 1) % per == 0:
                scheduler.step()

    def optimizer_of(net: Net) -> Optimizer:
        optimizer = settings.get("optimizer", steady)(net)
        made.extend(make(optimizer))
        return optimizer

    state = lambda: {f"scheduler_{at}": one.state_dict() for at, one in enumerate(made)} if saved else {}
    nothing = lambda *_: None
    if before:
        # (What the loop does after saving is what it does before the next step.)
        return trained(t, nothing, optimizer_of, every, state, lambda optimizer, at: step(optimizer, at - 1) if at else None)
    return trained(t, step, optimizer_of, every, state)


def check(t: Trial, record: Record, refused: bool | None = None) -> None:
    """Right, or refused with --rates. `refused`: which of the two it must be."""
    used = t.weights("run", record, otherwise=("--rates", t.rates(record)))
    expected, net = t.written("run", "average.pt", record, *used), Net()
    net.load_state_dict(torch.load(t.folder / "average.pt", weights_only=True)["model"])
    t.loaded(LOADS, net.state_dict(), expected)
    assert refused is None or any("refused" in did for did in t.did) == refused, t.did


def divided(optimizer: Optimizer, step: int, at: int) -> None:
    if step + 1 == at:
        optimizer.param_groups[0]["lr"] /= 10


@case("torch")
def a_rate_divided_by_hand_in_the_middle_of_a_gap(t: Trial) -> None:
    """By ten, half-way between two of six files: no file says when."""
    check(t, trained(t, lambda optimizer, step: divided(optimizer, step, 100), every=40), refused=True)


@case("torch")
def a_rate_divided_by_hand_late_between_many_files(t: Trial) -> None:
    """Where it matters little, it is no reason to refuse."""
    check(t, trained(t, lambda optimizer, step: divided(optimizer, step, 185), every=5), refused=False)


@case("torch")
def steps_down_saved_before_the_scheduler_and_without_it(t: Trial) -> None:
    """The file's rate is that of the steps before it: nothing says so."""
    check(t, scheduled(t, lambda o: [schedulers.StepLR(o, 3, 0.1)], [PER_EPOCH], before=True, saved=False), refused=True)


@case("torch")
def the_way_on_of_a_refusal_of_stairs(t: Trial) -> None:
    """Where the rate begins with the file that has it, the refusal prints the flag to say so."""
    record = scheduled(t, lambda o: [schedulers.StepLR(o, 3, 0.1)], [PER_EPOCH], saved=False)
    said = t.refused("run", "--rates", "--rate 0.05,60:0.005,120:", flags=("--l2", ",".join(map(str, record.strengths()))))
    t.weights("run", record, "--rate", said.split("--rate ")[1].split()[0])


@case("torch")
def a_plateau_saved_every_second_epoch(t: Trial) -> None:
    made: list = []

    def make(net: Net) -> Optimizer:
        optimizer = Adam(net.parameters(), lr=2e-3)
        made.append(schedulers.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.0))
        return optimizer

    def step(_: Optimizer, at: int) -> None:
        if (at + 1) % PER_EPOCH == 0:
            # (Not better in the fifth epoch.)
            made[0].step(1.0 if at + 1 == 5 * PER_EPOCH else 1 / (at + 2))

    check(t, trained(t, step, make, 2 * PER_EPOCH, lambda: {"scheduler": made[0].state_dict()}))


@case("torch")
def a_schedule_of_epochs_saved_between_them(t: Trial) -> None:
    check(t, scheduled(t, lambda o: [schedulers.ExponentialLR(o, 0.7)], [PER_EPOCH], saved=False, every=30))


@case("torch")
def a_smooth_schedule_without_its_scheduler(t: Trial) -> None:
    """Nothing says that it did not warm up before the first file. Where next to nothing hangs on that it is interpolated, and said in
    numbers how much that can matter."""
    record = scheduled(t, lambda o: [schedulers.CosineAnnealingLR(o, STEPS)], [1], saved=False)
    check(t, record, refused=True)
    found = t.average("run", "-o", "never", "--dry-run", "--l2", f"{0.1 * record.strengths()[0]:.17g}")
    assert not isinstance(found, str), found
    assert all(0 < row["unplaced"] < 0.05 for row in found["outputs"]), found["outputs"]
    assert any("interpolated" in note for note in found["notes"]), found["notes"]


@case("torch", by="torch, in a loop like nanoGPT's")
def a_warm_up_and_a_cosine_set_by_hand(t: Trial) -> None:
    """`for group in optimizer.param_groups: group["lr"] = get_lr(step)`, the warm-up over before the first file: no scheduler to save."""

    def get_lr(step: int) -> float:
        return 0.05 * (step + 1) / 18 if step < 18 else 0.025 * (1 + math.cos(math.pi * (step - 18) / (STEPS - 18)))

    def before(optimizer: Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)

    check(t, trained(t, lambda *_: None, lambda net: SGD(net.parameters(), lr=0.05), before_step=before), refused=True)


@case("torch")
def the_other_way_on_of_a_refusal_of_stairs(t: Trial) -> None:
    """The rate set before an epoch whose end is saved with it, in files that count from 0: the refusal prints that flag, too."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    with recording() as record:
        optimizer = steady(net)
        for epoch in range(EPOCHS):
            optimizer.param_groups[0]["lr"] = 0.05 * 0.1 ** (epoch // 3)
            for _ in range(PER_EPOCH):
                learn(net, optimizer, data)
            record.keep(net)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, folder / f"checkpoint_{epoch:04d}.pth")
    strengths = ("--l2", ",".join(map(str, record.strengths())), "--steps-per-epoch", PER_EPOCH)
    said = t.refused("run", "--rate 0.05,3:0.005,6:", flags=strengths)
    t.weights("run", record, "--rate", said.split("--rate ")[2].split()[0], "--steps-per-epoch", PER_EPOCH)
    t.notes("run", record, "lies behind the run's last step", flags=("--rate", "0.05,400:0.005", "--steps-per-epoch", PER_EPOCH))


def lambdas(t: Trial, make: Callable[[Optimizer], object], optimizer: Callable[[Net], Optimizer]) -> Record:
    return scheduled(t, lambda o: [make(o)], [1], optimizer=optimizer)


def two_decays(net: Net) -> Optimizer:
    return torch.optim.AdamW([{"params": [p for p in net.parameters() if (p.ndim > 1) == wide], "weight_decay": 0.1 * wide} for wide in (True, False)], lr=3e-3)


@case("torch")
def a_cosine_of_transformers_that_warmed_up_before_the_first_file(t: Trial) -> None:
    """Its function is not saved: a cosine goes through every file, and the whole rate is where the warm-up ends."""
    from transformers import get_cosine_schedule_with_warmup

    check(t, lambdas(t, lambda o: get_cosine_schedule_with_warmup(o, 15, STEPS), two_decays), refused=False)
    assert t.did == ["weights right"], t.did


@case("torch")
def a_line_of_transformers_that_warmed_up_beyond_the_first_file(t: Trial) -> None:
    from transformers import get_linear_schedule_with_warmup

    check(t, lambdas(t, lambda o: get_linear_schedule_with_warmup(o, 30, STEPS), lambda net: Adam(net.parameters(), lr=2e-3)), refused=False)
    assert t.did == ["weights right"], t.did


@case("torch")
def a_level_rate_behind_a_warm_up_of_ones_own(t: Trial) -> None:
    """Every file says the same rate, and a function that was not saved made the steps before the first."""
    warm = lambda o: schedulers.LambdaLR(o, lambda step: min(1, (step + 1) / 15))
    check(t, lambdas(t, warm, lambda net: Adam(net.parameters(), lr=2e-3)), refused=True)


def restarts(t: Trial, before: bool, ahead: int = 0) -> Record:
    made: list = []

    def make(net: Net) -> Optimizer:
        optimizer = Adam(net.parameters(), lr=2e-3)
        made.append(schedulers.CosineAnnealingWarmRestarts(optimizer, 3, 2))
        return optimizer

    step = lambda _, at: made[0].step(at // PER_EPOCH + (at % PER_EPOCH + ahead) / PER_EPOCH)
    nothing = lambda *_: None
    return trained(t, nothing if before else step, make, beside=lambda: {"scheduler": made[0].state_dict()}, before_step=step if before else None)


@case("torch")
def warm_restarts_stepped_to_parts_of_an_epoch(t: Trial) -> None:
    """`scheduler.step(epoch + i / n)`, as its documentation has it."""
    check(t, restarts(t, before=False), refused=False)
    assert t.did == ["weights right"], t.did


@case("torch")
def warm_restarts_stepped_to_parts_before_each_step(t: Trial) -> None:
    check(t, restarts(t, before=True), refused=False)
    assert t.did == ["weights right"], t.did


@case("torch")
def warm_restarts_stepped_to_the_end_of_each_part(t: Trial) -> None:
    """`scheduler.step(epoch + (i + 1) / n)`: whole numbers at the end of every epoch, and yet no stairs."""
    check(t, restarts(t, before=False, ahead=1), refused=False)
    assert t.did == ["weights right"], t.did


def two(first: int, per: int = 1) -> Callable[[Optimizer], list]:
    """A warm-up and a cosine on one optimizer, in either order."""

    def make(optimizer: Optimizer) -> list:
        pair = [schedulers.LinearLR(optimizer, 0.01, 1.0, 18), schedulers.CosineAnnealingLR(optimizer, STEPS // per)]
        return pair if first == 0 else pair[::-1]

    return make


@case("torch")
def a_warm_up_and_a_cosine_chained_by_hand(t: Trial) -> None:
    """Both of one optimizer, both stepped: run again as a product."""
    check(t, scheduled(t, two(0), [1, 1]), refused=False)
    assert t.did == ["weights right"], t.did


@case("torch")
def a_cosine_and_a_warm_up_chained_by_hand(t: Trial) -> None:
    check(t, scheduled(t, two(1), [1, 1]), refused=False)
    assert t.did == ["weights right"], t.did


@case("torch")
def a_warm_up_each_step_and_a_cosine_each_epoch(t: Trial) -> None:
    check(t, scheduled(t, two(0, PER_EPOCH), [1, PER_EPOCH]))


@case("torch")
def a_scheduler_stepped_once_before_the_loop(t: Trial) -> None:
    """It is one tick ahead of the steps in every file."""

    def ahead(optimizer: Optimizer) -> list:
        made = schedulers.CosineAnnealingLR(optimizer, STEPS + 1)
        made.step()
        return [made]

    check(t, scheduled(t, ahead, [1]), refused=False)
    assert t.did == ["weights right"], t.did


@case("torch")
def a_scheduler_of_epochs_stepped_once_before_the_loop(t: Trial) -> None:
    def ahead(optimizer: Optimizer) -> list:
        made = schedulers.StepLR(optimizer, 3, 0.1)
        made.step()
        return [made]

    check(t, scheduled(t, ahead, [PER_EPOCH]), refused=False)
    assert t.did == ["weights right"], t.did


def every(name: str, per: int) -> None:
    """Registers a scheduler that is stepped every so many steps, in files at every 20: how often it was says how many, or nearly."""

    def run(t: Trial) -> None:
        # (Of four ticks or three, each file having seen as many by several distances.)
        check(t, scheduled(t, lambda o: [schedulers.CosineAnnealingLR(o, STEPS // per)], [per]), refused=False if per <= 30 else None)

    run.__name__ = name
    case("torch")(run)


every("a_scheduler_stepped_every_3_steps", 3)
every("a_scheduler_stepped_every_7_steps", 7)
every("a_scheduler_stepped_every_15_steps", 15)
every("a_scheduler_stepped_every_30_steps", 30)
every("a_scheduler_stepped_every_45_steps", 45)
every("a_scheduler_stepped_every_64_steps", 64)


@case("torch")
def a_scheduler_of_epochs_in_files_between_them(t: Trial) -> None:
    """Every 20 steps, or every 19: in files at every 30 the counts fit both, and the middle is close to either."""
    check(t, scheduled(t, lambda o: [schedulers.ExponentialLR(o, 0.8)], [PER_EPOCH], every=30), refused=False)


def resumed(t: Trial, make: Callable[[Net], Optimizer], at: int, again: int | None = None) -> Record:
    """A loop that resumes with a new optimizer (an empty state) after some steps, between two files or right behind one; steps go on."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    with recording() as record:
        optimizer = make(net)
        for step in range(STEPS):
            if step in (at, again):
                optimizer.state.clear()
            learn(net, optimizer, data)
            if (step + 1) % PER_EPOCH == 0:
                record.keep(net)
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "global_step": step + 1}, folder / f"step{step + 1}.pt")
    return record


@case("torch")
def adam_resumed_with_a_new_optimizer(t: Trial) -> None:
    """Its own counter begins anew: so do its moments and the correction of their bias."""
    check(t, resumed(t, lambda net: Adam(net.parameters(), lr=2e-3), 60), refused=False)
    assert t.did == ["weights right"], t.did


@case("torch")
def adam_made_anew_twice_between_files(t: Trial) -> None:
    check(t, resumed(t, lambda net: Adam(net.parameters(), lr=2e-3, betas=(0.95, 0.99)), 30, 55), refused=False)
    assert t.did == ["weights right"], t.did


def decays(first_wide: bool) -> Callable[[Net], Optimizer]:
    """AdamW as GPTs have it: decay on matrices, none on biases."""

    def make(net: Net) -> Optimizer:
        groups = [{"params": [p for p in net.parameters() if (p.ndim > 1) == wide], "weight_decay": 5.0 * wide} for wide in (True, False)]
        return torch.optim.AdamW(groups if first_wide else groups[::-1], lr=2e-3)

    return make


@case("torch")
def decay_on_matrices_alone(t: Trial) -> None:
    """Over a whole run it takes away as much as the weights are: a mass each."""
    check(t, scheduled(t, lambda o: [schedulers.CosineAnnealingLR(o, STEPS)], [1], optimizer=decays(True)), refused=False)


@case("torch")
def no_decay_on_biases_first(t: Trial) -> None:
    check(t, scheduled(t, lambda o: [schedulers.CosineAnnealingLR(o, STEPS)], [1], optimizer=decays(False)), refused=False)


def stated(t: Trial, make: Callable[[Net], Optimizer], change: Callable[[dict, int], object], before: Callable[[Optimizer, int], object] = lambda *_: None) -> Record:
    """A loop whose optimizer's state is saved as another program writes it."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    with recording() as record:
        optimizer = make(net)
        for step in range(STEPS):
            before(optimizer, step)
            learn(net, optimizer, data)
            if (step + 1) % PER_EPOCH == 0:
                record.keep(net)
                state = optimizer.state_dict()
                change(state["param_groups"][0], step + 1)
                torch.save({"model": net.state_dict(), "optimizer": state, "global_step": step + 1}, folder / f"step{step + 1}.pt")
    return record


@case("torch", by="torch, written as Prodigy does")
def steps_whose_scale_prodigy_finds(t: Trial) -> None:
    """The rate is 1 in every file, and a step d times that."""
    scale = lambda step: 1e-3 * min(1.0, (step + 20) / 100)

    def before(optimizer: Optimizer, step: int) -> None:
        optimizer.param_groups[0]["lr"] = scale(step)

    def change(group: dict, step: int) -> None:
        group |= {"lr": 1.0, "d": scale(step), "d0": 1e-6, "d_coef": 1.0}

    record = stated(t, lambda net: Adam(net.parameters(), lr=1.0), change, before)
    t.weights("run", record, otherwise=("--rates", t.rates(record)))


@case("torch", by="torch, written as it did before 2.7")
def adamw_of_an_older_torch(t: Trial) -> None:
    """Nothing in the files tells it from Adam: the note says how to."""
    record = stated(t, lambda net: torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=2.0), lambda group, _: group.pop("decoupled_weight_decay"))
    t.notes("run", record, "--optimizer adam --weight-decay 2")
    t.weights("run", record, "--optimizer", "adam", "--weight-decay", 2.0)


@case("torch")
def a_body_unfrozen_in_its_group(t: Trial) -> None:
    """No gradients in the first half: its tensors stood still, and have no buffers then."""

    def freeze(optimizer: Optimizer, step: int) -> None:
        if step in (0, STEPS // 2):
            for parameter in optimizer.param_groups[0]["params"][:2]:
                parameter.requires_grad_(step > 0)
                parameter.grad = None

    record = stated(t, lambda net: Adam(net.parameters(), lr=2e-3), lambda *_: None, freeze)
    t.refused("run", "tensors of parameter group 1 had no optimizer state yet at step 100", "--from 120", flags=("--l2", f"{record.strengths()[1]}"))


@case("torch")
def adagrad_whose_rate_falls_by_itself(t: Trial) -> None:
    """lr/(1 + (k − 1)·lr_decay), which no file says as a number."""
    record = stated(t, lambda net: torch.optim.Adagrad(net.parameters(), lr=0.02, lr_decay=0.002), lambda *_: None)
    # (So small a λ that nothing hangs on the steps before the first file.)
    said = t.average("run", "-o", "never", "--dry-run", "--l2", "1e-3")
    assert not isinstance(said, str), said
    found = [row["rate"] for row in said["inputs"]]
    expected = [0.02 / (1 + 0.002 * (PER_EPOCH * (at + 1))) for at in range(EPOCHS - 1)]
    assert all(abs(a - b) < 1e-9 for a, b in zip(found, expected)), (found, expected)
    assert any("interpolated" in note for note in said["notes"]), said["notes"]
    assert record.paths()[0][0].moves()
