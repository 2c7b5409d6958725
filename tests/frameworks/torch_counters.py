"""Loops that count their steps in their own ways, and optimizers that make it hard to tell what happened."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Adam, Optimizer, lr_scheduler

from .nets import EPOCHS, PER_EPOCH, Net, batches, epochs, fresh, learn
from .record import Record, recording
from .torch_layouts import STEPS, check, plain, written_as
from .trial import Trial, case


@case("torch")
def nano_gpt_counts_iter_num(t: Trial) -> None:
    """`3.pt` with `iter_num` inside."""
    layout = lambda e, n, o, _: (f"{e + 1}.pt", {"model": n.state_dict(), "optimizer": o.state_dict(), "iter_num": (e + 1) * PER_EPOCH})
    record, net = written_as(t, layout)
    check(t, record, net)


@case("torch")
def a_counter_deep_inside(t: Trial) -> None:
    def layout(epoch: int, net: Net, optimizer: torch.optim.Optimizer, _: float) -> tuple[str, object]:
        state = {"global_step": (epoch + 1) * PER_EPOCH, "best": 0.5}
        return f"{epoch + 1}.pt", {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "train_state": state}

    record, net = written_as(t, layout)
    check(t, record, net)


@case("torch")
def numbers_as_numpy_has_them(t: Trial) -> None:
    """A cosine by hand in numpy, and a counter of numpy's."""
    folder, net = fresh(t.folder / "run"), Net()
    with recording() as record:
        optimizer, data = SGD(net.parameters(), lr=0.05, momentum=0.9), batches()
        for step in range(STEPS):
            learn(net, optimizer, data)
            optimizer.param_groups[0]["lr"] = np.float64(0.025 * (1 + math.cos(math.pi * (step + 1) / STEPS)))
            if (step + 1) % PER_EPOCH == 0:
                record.keep(net)
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "global_step": np.int64(step + 1)}
                torch.save(state, folder / f"{(step + 1) // PER_EPOCH}.pt")
    check(t, record, net, otherwise=("--rates", t.rates(record)))


@case("torch")
def batches_of_which_four_make_a_step(t: Trial) -> None:
    """The file's counter counts batches, and four do not divide an epoch: Adam's own counter knows."""
    folder, net = fresh(t.folder / "run"), Net()
    with recording() as record:
        optimizer, data = Adam(net.parameters(), lr=2e-3), batches()
        for epoch in range(EPOCHS):
            for batch in range(50):
                x, y = next(data)
                (nn.functional.cross_entropy(net(x), y) / 4).backward()
                if (epoch * 50 + batch + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            record.keep(net)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "global_step": (epoch + 1) * 50}
            torch.save(state, folder / f"epoch_{epoch + 1}.pt")
    check(t, record, net)


@case("torch")
def an_optimizer_made_anew_in_the_middle(t: Trial) -> None:
    """Its counter starts again while the names rise: nobody is believed."""
    folder, net = fresh(t.folder / "run"), Net()
    optimizer, data = Adam(net.parameters(), lr=2e-3), batches()
    for step in range(1, STEPS + 1):
        if step == STEPS // 2 + 1:
            optimizer = Adam(net.parameters(), lr=1e-3)
        learn(net, optimizer, data)
        if step % PER_EPOCH == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"ckpt_{step}.pt")
    t.refused("run", str(STEPS // 2 + PER_EPOCH), "--step-regex")


def normed(t: Trial, seen: int, passes: int) -> tuple[Record, Net]:
    """SGD, which counts nothing, with batch norm that has seen so many batches before, and several for each step."""
    net = Net(norm=True)
    net.body[1].num_batches_tracked += seen

    def layout(epoch: int, net: Net, optimizer: torch.optim.Optimizer, _: float) -> tuple[str, object]:
        return f"epoch_{epoch}.pth", {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}

    def more(_: torch.optim.Optimizer) -> object:
        looks = batches(1)
        return type("Looks", (), {"step": staticmethod(lambda: [net(next(looks)[0]) for _ in range(passes - 1)])})

    return written_as(t, layout, net=net, per_step=more)


@case("torch")
def batch_norm_of_a_pretrained_model(t: Trial) -> None:
    """`num_batches_tracked` begins at 5000: no step counter, though it rises by 20 an epoch, and the refusal says so."""
    record, net = normed(t, 5000, 1)
    check(t, record, net, otherwise=("--steps-per-epoch", PER_EPOCH))
    assert f"--steps-per-epoch {PER_EPOCH} if every step takes one" in t.did[0], t.did


@case("torch")
def batch_norm_of_four_batches_a_step(t: Trial) -> None:
    record, net = normed(t, 0, 4)
    check(t, record, net, otherwise=("--steps-per-epoch", PER_EPOCH))


class Twins(nn.Module):
    """Two layers that nothing but their names tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


@case("torch")
def groups_in_another_order_than_the_model(t: Trial) -> None:
    """Each group with a schedule of its own, the last layer's first: no shape tells which is which, so it is not guessed."""
    folder, net = fresh(t.folder / "run"), Twins()
    with recording() as record:
        groups = [{"params": net.second.parameters(), "lr": 0.02}, {"params": net.first.parameters(), "lr": 0.0}]
        optimizer = SGD(groups, lr=0.02, momentum=0.9)

        def warmed() -> None:
            optimizer.param_groups[1]["lr"] += 1e-4

        save = lambda e, _: torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": (e + 1) * PER_EPOCH}, folder / f"step{(e + 1) * PER_EPOCH}.pt"
        )
        epochs(record, net, optimizer, save, every_step=warmed)
    t.refused("run", "which tensor is in which", "--groups")


@case("torch")
def an_ema_over_epochs_of_unknown_length(t: Trial) -> None:
    written_as(t, lambda e, n, *_: (f"epoch_{e + 1}.pt", n.state_dict()), plain)
    t.refused("run", "--steps-per-epoch", flags=("--ema", "0.999"))


@case("torch")
def every_second_epoch_counted_from_0_or_1(t: Trial) -> None:
    """`epoch_1, epoch_3, …` of SGD, which counts nothing: the end of every second from 0, or every other from 1."""
    record, net = written_as(t, lambda e, n, o, _: (f"epoch_{e}.pt", {"model": n.state_dict(), "optimizer": o.state_dict()}))
    odd = list(range(1, EPOCHS, 2))
    for even in range(0, EPOCHS, 2):
        (t.folder / "run" / f"epoch_{even}.pt").unlink()
    check(t, record.only(odd), net, "--steps-per-epoch", PER_EPOCH, otherwise=("--epochs-from", 0))


@case("torch")
def every_fifth_epoch_counted_from_0(t: Trial) -> None:
    """`epoch_4, epoch_9`: nobody counts so from 1."""
    record, net = written_as(t, lambda e, n, o, _: (f"epoch_{e}.pt", {"model": n.state_dict(), "optimizer": o.state_dict()}))
    kept = [4, 9]
    for other in set(range(EPOCHS)) - set(kept):
        (t.folder / "run" / f"epoch_{other}.pt").unlink()
    check(t, record.only(kept), net, "--steps-per-epoch", PER_EPOCH)


@case("torch", by="by hand, after fairseq 0.12")
def fairseq_epochs_and_updates_in_one_folder(t: Trial) -> None:
    """`checkpoint_1_15.pt` beside `checkpoint1.pt`: `num_updates` is inside, whatever the optimizer."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    with recording() as record:
        optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9)
        for step in range(1, STEPS + 1):
            learn(net, optimizer, data)
            epoch = (step - 1) // PER_EPOCH + 1
            names = [f"checkpoint_{epoch}_{step}.pt"] if step % 15 == 0 and step % PER_EPOCH else []
            names += [f"checkpoint{epoch}.pt"] if step % PER_EPOCH == 0 else []
            for name in names:
                record.keep(net)
                history = [{"optimizer_name": "FairseqSGD", "lr_scheduler_state": {"best": None}, "num_updates": step}]
                state = {"model": net.state_dict(), "optimizer_history": history, "extra_state": {"epoch": epoch}}
                torch.save(state | {"last_optimizer_state": optimizer.state_dict()}, folder / name)
    check(t, record, net)


@case("torch", by="by hand, after detectron2 0.6")
def detectron2_counts_iterations_from_0(t: Trial) -> None:
    """`model_0000019.pth` holds iteration 19, the twentieth."""
    layout = lambda e, n, o, _: (
        f"model_{(e + 1) * PER_EPOCH - 1:07d}.pth",
        {"model": n.state_dict(), "optimizer": o.state_dict(), "iteration": (e + 1) * PER_EPOCH - 1},
    )
    record, net = written_as(t, layout)
    check(t, record, net)


@case("torch")
def steps_written_with_an_exponent(t: Trial) -> None:
    """`step_1e+02.pt`: what `{step:.0e}` makes of 100."""
    record, net = written_as(t, lambda e, n, o, _: (f"step_{(e + 1) * PER_EPOCH:.1e}.pt", {"model": n.state_dict(), "optimizer": o.state_dict()}))
    check(t, record, net)


@case("safetensors")
def a_step_of_safetensors_with_a_point(t: Trial) -> None:
    """`global_step` "100.0" in the metadata, and names that say nothing."""
    from safetensors.torch import load_file, save_file

    folder, net = fresh(t.folder / "run"), Net()
    with recording() as record:
        optimizer = SGD(net.parameters(), lr=0.05)
        save = lambda e, _: save_file(
            net.state_dict(), folder / f"{'abcdefghij'[e]}.safetensors", {"global_step": f"{(e + 1) * PER_EPOCH:.1f}", "lr": "0.05"}
        )
        epochs(record, net, optimizer, save)
    t.weights("run", record)
    expected = t.written("run", "average.safetensors", record)
    t.loaded("`safetensors.torch.load_file`", load_file(t.folder / "average.safetensors"), expected)


@case("torch")
def hard_links_are_one_file(t: Trial) -> None:
    """A best and a last that are links: no file counts twice."""
    record, net = written_as(t, lambda e, n, o, _: (f"step{(e + 1) * PER_EPOCH}.pt", {"model": n.state_dict(), "optimizer": o.state_dict()}))
    (t.folder / "run" / "step7000.pt").hardlink_to(t.folder / "run" / f"step{STEPS}.pt")
    t.notes("run", record, "links", "step7000.pt")
    check(t, record, net)


# ------------------------------------------------------------------ --start


def from_start(t: Trial, start: dict) -> tuple[Record, Net]:
    """A run from a start that is saved in another form; the record has it as step 0."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    net.load_state_dict({name: value.bfloat16().float() for name, value in net.state_dict().items()})
    with recording() as record:
        optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9)
        record.note(optimizer)
        next(iter(record.optimizers.values()))[1].clear()
        record.keep(net)
        torch.save({start["before"] + name: value.to(start["type"]) for name, value in net.state_dict().items()}, t.folder / "start.pt")
        for step in range(1, STEPS + 1):
            learn(net, optimizer, data)
            if step % PER_EPOCH == 0:
                record.keep(net)
                state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "global_step": step}
                torch.save(state, folder / f"step{step}.pt")
    return record, net


@case("torch")
def a_start_in_bf16(t: Trial) -> None:
    """A pretrained model in bf16, trained in f32: converted, not refused."""
    record, net = from_start(t, {"before": "", "type": torch.bfloat16})
    t.notes("run", record, "bf16", "f32", flags=("--start", "start.pt"))
    check(t, record, net, "--start", "start.pt")


@case("torch")
def a_start_of_a_wrapped_model(t: Trial) -> None:
    record, net = from_start(t, {"before": "module._orig_mod.", "type": torch.float32})
    check(t, record, net, "--start", "start.pt")


@case("torch")
def a_start_whose_names_have_a_prefix(t: Trial) -> None:
    """`backbone.` before every name, as a Lightning module has it."""
    record, net = from_start(t, {"before": "backbone.", "type": torch.float16})
    check(t, record, net, "--start", "start.pt")


@case("torch")
def a_start_with_another_head(t: Trial) -> None:
    from_start(t, {"before": "", "type": torch.float32})
    state = torch.load(t.folder / "start.pt")
    torch.save({name: value for name, value in state.items() if not name.startswith("head")}, t.folder / "start.pt")
    t.refused("run", "head.weight", "--start", "save it before training", flags=("--l2", "1", "--start", "start.pt"))
    torch.save(state | {"head.weight": torch.zeros(5, 8), "head.bias": torch.zeros(5)}, t.folder / "start.pt")
    t.refused("run", "head.weight", "[5, 8]", "1 more", "save it before training", flags=("--l2", "1", "--start", "start.pt"))


# ------------------------------------------------------------------ w_0 as epoch 0


def from_epoch_0(t: Trial, make: Callable[[Net], Optimizer], norm: bool = False, per: Callable[[Optimizer], object] | None = None, before: bool = True) -> Record:
    """Epochs, and nothing that counts steps: epoch 0 is saved before the first step, or it is the first to end."""
    folder, net, data = fresh(t.folder / "run"), Net(norm), batches()
    with recording() as record:
        optimizer = make(net)
        record.note(optimizer)
        next(iter(record.optimizers.values()))[1].clear()
        scheduler = per(optimizer) if per else None

        def save(epoch: int) -> None:
            record.keep(net)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state | ({"scheduler": scheduler.state_dict()} if scheduler else {}), folder / f"epoch_{epoch}.pt")

        if before:
            save(0)
        for epoch in range(EPOCHS):
            for _ in range(PER_EPOCH):
                learn(net, optimizer, data)
            if scheduler:
                scheduler.step()
            save(epoch + before)
    return record


PER = ("--steps-per-epoch", PER_EPOCH)
momentum = lambda net: SGD(net.parameters(), lr=0.05, momentum=0.9)
without = lambda net: SGD(net.parameters(), lr=0.05)


@case("torch")
def a_start_saved_as_epoch_0_of_momentum(t: Trial) -> None:
    """Its buffers are empty in that file alone."""
    t.weights("run", from_epoch_0(t, momentum), otherwise=PER)


@case("torch")
def a_start_saved_as_epoch_0_before_a_schedule(t: Trial) -> None:
    t.weights("run", from_epoch_0(t, momentum, per=lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS)), otherwise=PER)


@case("torch")
def a_start_saved_as_epoch_0_of_batch_norm(t: Trial) -> None:
    """No batch seen."""
    t.weights("run", from_epoch_0(t, without, norm=True), otherwise=PER)


@case("torch")
def a_start_saved_as_epoch_0_and_nothing_to_tell(t: Trial) -> None:
    record = from_epoch_0(t, without)
    t.refused("run", "--epochs-from 0 or --epochs-from 1", flags=("--l2", "1", *PER))
    t.weights("run", record, otherwise=(*PER, "--epochs-from", 1))


@case("torch")
def an_epoch_0_that_ended_and_nothing_to_tell(t: Trial) -> None:
    record = from_epoch_0(t, without, before=False)
    t.refused("run", "--epochs-from 0 or --epochs-from 1", flags=("--l2", "1", *PER))
    t.weights("run", record, otherwise=(*PER, "--epochs-from", 0))


@case("torch")
def an_epoch_0_that_ended(t: Trial) -> None:
    """With buffers of momentum; with as many batches as an epoch has; with a scheduler that was stepped."""
    t.weights("run", from_epoch_0(t, momentum, before=False), otherwise=PER)
    for folder, settings in (("norm", {"norm": True}), ("schedule", {"per": lambda o: lr_scheduler.StepLR(o, 4, 0.3)})):
        own = Trial(t.case, fresh(t.folder / folder), t.afterfit)
        own.weights("run", from_epoch_0(own, without, before=False, **settings), otherwise=PER)
