"""Plain torch files of many habits: what is in them, how they are named, what lies beside them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim import lr_scheduler as schedulers

from .nets import EPOCHS, PER_EPOCH, Net, batches, epochs, forward, fresh, learn
from .record import Record, doubles, recording
from .trial import Trial, case, farthest, first_line

STEPS = EPOCHS * PER_EPOCH
LOADS = "`torch.load`, `load_state_dict`"
TOLD = ("--rate", 0.05, "--optimizer", "sgd")

# What a file holds and how it is called, of the epoch (from 0), the network, the optimizer and the loss.
Layout = Callable[[int, Net, Optimizer, float], tuple[str, object]]


def usual(net: nn.Module, optimizer: Optimizer, epoch: int) -> dict:
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "global_step": (epoch + 1) * PER_EPOCH}


def by_step(epoch: int, net: Net, optimizer: Optimizer, _: float) -> tuple[str, object]:
    return f"model-step{(epoch + 1) * PER_EPOCH}.pt", usual(net, optimizer, epoch)


def by_number(epoch: int, net: Net, optimizer: Optimizer, _: float) -> tuple[str, object]:
    """`3.pt` is no step: the file says it."""
    return f"{epoch}.pt", usual(net, optimizer, epoch)


def weights_alone(epoch: int, net: Net, _: Optimizer, __: float) -> tuple[str, object]:
    return f"step-{(epoch + 1) * PER_EPOCH}.pt", net.state_dict()


def steady(net: Net) -> Optimizer:
    return SGD(net.parameters(), lr=0.05, momentum=0.9)


def plain(net: Net) -> Optimizer:
    return SGD(net.parameters(), lr=0.05)


def written_as(
    t: Trial, layout: Layout, make: Callable[[Net], Optimizer] = steady, net: Net | None = None, per_step: Callable | None = None
) -> tuple[Record, Net]:
    """Ten files of ten epochs, each in the given layout."""
    folder, net = fresh(t.folder / "run"), net or Net()
    with recording() as record:
        optimizer = make(net)
        scheduler = per_step(optimizer) if per_step else None

        def save(epoch: int, loss: float) -> None:
            name, state = layout(epoch, net, optimizer, loss)
            torch.save(state, folder / name)

        epochs(record, net, optimizer, save, every_step=scheduler.step if scheduler else None)
    return record, net


def bare(state: dict) -> dict:
    """Without what wrappers put before names."""
    return {re.sub(r"^((module|_orig_mod|_fsdp_wrapped_module)\.)+", "", name): value for name, value in state.items()}


def check(
    t: Trial, record: Record, net: Net, *flags: object, otherwise: tuple[object, ...] = (), out: str = "average.pt", run: str = "run"
) -> None:
    used = t.weights(run, record, *flags, otherwise=otherwise)
    expected = t.written(run, out, record, *used)
    found = torch.load(t.folder / out, weights_only=True)
    net.load_state_dict(bare(found.get("model", found)))
    t.loaded(LOADS, net.state_dict(), expected)
    forward(net)


# ------------------------------------------------------------------ what is in a file


@case("torch")
def nested_dictionaries(t: Trial) -> None:
    """`{"encoder", "decoder"}` stay two."""

    def layout(epoch: int, net: Net, optimizer: Optimizer, _: float) -> tuple[str, object]:
        parts = {"encoder": net.body.state_dict(), "decoder": net.head.state_dict()}
        return f"step_{(epoch + 1) * PER_EPOCH}.pt", parts | {"optimizer": optimizer.state_dict()}

    record, net = written_as(t, layout, lambda n: Adam(n.parameters(), lr=2e-3))
    t.weights("run", record)
    expected = t.written("run", "average.pt", record)
    found = torch.load(t.folder / "average.pt", weights_only=True)
    net.body.load_state_dict(found["encoder"])
    net.head.load_state_dict(found["decoder"])
    t.loaded(LOADS, net.state_dict(), expected)


@case("torch")
def generator_and_discriminator(t: Trial) -> None:
    """The networks of a GAN, each with an optimizer of its own."""
    folder, pair, data = fresh(t.folder / "run"), nn.ModuleDict({"netG": Net(), "netD": Net()}), batches()
    with recording() as record:
        made = {
            "optimizerG": Adam(pair["netG"].parameters(), lr=1e-3, betas=(0.5, 0.999)),
            "optimizerD": Adam(pair["netD"].parameters(), lr=4e-3, betas=(0.9, 0.999)),
        }
        for epoch in range(EPOCHS):
            for _ in range(PER_EPOCH):
                learn(pair["netG"], made["optimizerG"], data)
                learn(pair["netD"], made["optimizerD"], data)
            record.keep(pair)
            parts = {**pair, **made}
            torch.save({"epoch": epoch} | {name: one.state_dict() for name, one in parts.items()}, folder / f"gan_{epoch}.pt")
    assert len(record.weights(1.0)) == 2
    t.weights("run", record)
    expected = t.written("run", "average.pt", record)
    found = torch.load(t.folder / "average.pt", weights_only=True)
    for name, net in pair.items():
        net.load_state_dict(found[name])
    t.loaded(LOADS, pair.state_dict(), expected)


@case("torch")
def a_model_and_its_ema(t: Trial) -> None:
    """`ema_model` is a copy, left out with a note."""
    shadow = Net()

    def layout(epoch: int, net: Net, optimizer: Optimizer, _: float) -> tuple[str, object]:
        return f"ckpt-{(epoch + 1) * PER_EPOCH}.pt", usual(net, optimizer, epoch) | {"ema_model": shadow.state_dict()}

    record, net = written_as(t, layout)
    t.notes("run", record, "ema_model")
    check(t, record, net)


@case("torch")
def a_student_and_its_teacher(t: Trial) -> None:
    """The teacher is the student's moving average: left out with a note."""
    teacher = Net()

    def layout(epoch: int, net: Net, optimizer: Optimizer, _: float) -> tuple[str, object]:
        for slow, fast in zip(teacher.parameters(), net.parameters()):
            slow.data.lerp_(fast.detach(), 0.1)
        parts = {"student": net.state_dict(), "teacher": teacher.state_dict(), "optimizer": optimizer.state_dict()}
        return f"checkpoint{epoch:04}.pth", parts | {"epoch": epoch + 1}

    record, net = written_as(t, layout, lambda n: AdamW(n.parameters(), lr=2e-3))
    used = t.weights("run", record)
    t.notes("run", record, "teacher")
    expected = t.written("run", "average.pth", record, *used)
    found = torch.load(t.folder / "average.pth", weights_only=True)
    net.load_state_dict(found.get("student", found))
    t.loaded(LOADS, net.state_dict(), expected)


@case("torch")
def wrappers_that_came_and_went(t: Trial) -> None:
    """DataParallel, torch.compile and FSDP in turns: names differ by their prefixes only."""

    def layout(epoch: int, net: Net, optimizer: Optimizer, _: float) -> tuple[str, object]:
        prefix = ("", "module.", "_orig_mod.", "_fsdp_wrapped_module.", "_orig_mod.module.")[epoch % 5]
        state = usual(net, optimizer, epoch)
        return f"{epoch + 1:03d}.pt", state | {"model": {prefix + name: value for name, value in state["model"].items()}}

    check(t, *written_as(t, layout))


@case("torch")
def a_list_of_tensors(t: Trial) -> None:
    """Parameters without names."""

    def layout(epoch: int, net: Net, optimizer: Optimizer, _: float) -> tuple[str, object]:
        return f"params-{epoch}.pt", {
            "params": [p.detach() for p in net.parameters()],
            "optimizer": optimizer.state_dict(),
            "step": (epoch + 1) * PER_EPOCH,
        }

    record, net = written_as(t, layout, lambda n: Adam(n.parameters(), lr=2e-3))
    t.weights("run", record)
    expected = t.written("run", "average.pt", record)
    found = torch.load(t.folder / "average.pt", weights_only=True)
    found = found["params"] if isinstance(found, dict) else found
    t.loaded("`torch.load`", dict(zip([name for name, _ in net.named_parameters()], found, strict=True)), expected)


@case("torch")
def optimizers_by_any_name(t: Trial) -> None:
    """A dictionary with `state` and `param_groups` is an optimizer's, whatever its key."""
    for key in ("opt", "opt_state", "trainer", "adam", "o"):
        layout = lambda e, n, o, _, key=key: (f"s{(e + 1) * PER_EPOCH}.pt", {"model": n.state_dict(), key: o.state_dict(), "step": (e + 1) * PER_EPOCH})
        record, net = written_as(t, layout, lambda net: torch.optim.Adam(net.parameters(), lr=2e-3))
        t.notes("run", record, f"{key} is an optimizer's state")
        check(t, record, net, out=f"{key}.pt")


@case("torch")
def a_tuple_of_model_optimizer_and_step(t: Trial) -> None:
    layout = lambda e, n, o, _: (f"s{(e + 1) * PER_EPOCH}.pt", (n.state_dict(), o.state_dict(), (e + 1) * PER_EPOCH))
    record, net = written_as(t, layout, lambda net: torch.optim.Adam(net.parameters(), lr=2e-3))
    used = t.weights("run", record)
    expected = t.written("run", "average.pt", record, *used)
    model, optimizer, step = torch.load(t.folder / "average.pt", weights_only=True)
    assert optimizer is None and step == STEPS
    net.load_state_dict(model)
    t.loaded(LOADS, net.state_dict(), expected)


@case("torch")
def the_old_format(t: Trial) -> None:
    """torch.save before 1.6, under `.pth.tar`."""
    folder, net = fresh(t.folder / "run"), Net(norm=True)
    with recording() as record:
        optimizer = steady(net)

        def save(epoch: int, _: float) -> None:
            state = {
                "epoch": epoch + 1,
                "arch": "net",
                "state_dict": net.state_dict(),
                "best_acc1": 0.5,
                "optimizer": optimizer.state_dict(),
            }
            torch.save(state, folder / f"checkpoint_{epoch + 1}.pth.tar", _use_new_zipfile_serialization=False)

        epochs(record, net, optimizer, save)
    used = t.weights("run", record, otherwise=("--steps-per-epoch", PER_EPOCH))
    expected = t.written("run", "average.pth.tar", record, *used)
    found = torch.load(t.folder / "average.pth.tar", weights_only=True)
    net.load_state_dict(found.get("state_dict", found))
    t.loaded(LOADS, net.state_dict(), expected)


@case("torch")
def whole_modules_pickled(t: Trial) -> None:
    """`torch.save(net)`: the weights, or a word about state_dict."""
    record, net = written_as(t, lambda epoch, net, *_: (f"net-{(epoch + 1) * PER_EPOCH}.pt", net), plain)
    t.disk = "`net-20.pt` and 9 more, whole modules"
    found = t.average("run", "-o", "never", "--dry-run", "--l2", "1", *TOLD)
    if isinstance(found, str):
        assert "state_dict" in found, found
        t.did.append("refused: names `state_dict`")
    else:
        check(t, record, net, *TOLD)


# ------------------------------------------------------------------ what made it


@case("torch")
def dampening(t: Trial) -> None:
    check(t, *written_as(t, by_number, lambda n: SGD(n.parameters(), lr=0.05, momentum=0.9, dampening=0.5)))


def two_groups(body: float, head: float, **settings: object) -> Callable[[Net], Optimizer]:
    return lambda n: SGD([{"params": n.body.parameters(), "lr": body}, {"params": n.head.parameters(), "lr": head}], **settings)


@case("torch")
def a_head_of_a_hundred_times_the_rate(t: Trial) -> None:
    record, net = written_as(t, by_step, two_groups(0.001, 0.1, momentum=0.9), per_step=lambda o: schedulers.CosineAnnealingLR(o, STEPS))
    check(t, record, net, otherwise=("--rates", t.rates(record)))


@case("torch")
def a_head_out_of_proportion(t: Trial) -> None:
    """Its rate falls by half, the body's by five: a mass each. (Momenta have the shapes of their tensors.)"""
    made = []

    def per_step(optimizer: Optimizer) -> object:
        made.append(schedulers.CosineAnnealingLR(optimizer, STEPS, eta_min=0.01))
        return made[0]

    def layout(epoch: int, net: Net, optimizer: Optimizer, loss: float) -> tuple[str, object]:
        name, state = by_step(epoch, net, optimizer, loss)
        return name, state | {"scheduler": made[0].state_dict()}

    record, net = written_as(t, layout, two_groups(0.05, 0.02, momentum=0.9), per_step=per_step)
    assert len(record.weights(1.0)) == 2
    check(t, record, net)


@case("torch")
def a_frozen_first_group(t: Trial) -> None:
    check(t, *written_as(t, by_number, two_groups(0.0, 0.05, momentum=0.9)))


@case("torch")
def one_file_without_its_optimizer(t: Trial) -> None:
    """What it does not say is not a momentum of 0."""

    def layout(epoch: int, net: Net, optimizer: Optimizer, _: float) -> tuple[str, object]:
        state = usual(net, optimizer, epoch)
        return f"step-{(epoch + 1) * PER_EPOCH}.pt", {k: v for k, v in state.items() if k != "optimizer" or epoch not in (0, 4)}

    check(t, *written_as(t, layout))


@case("torch")
def a_warm_up_from_0_with_the_start_kept(t: Trial) -> None:
    """`step-0.pt` is w_0, and its first rate is 0: its weight is not."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    with recording() as record:
        optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9)
        scheduler = schedulers.LambdaLR(optimizer, lambda k: min(k / 40, 1.0))
        for step in range(201):
            if step % 20 == 0:
                record.keep(net)
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, folder / f"step-{step}.pt")
            learn(net, optimizer, data)
            scheduler.step()
    assert record.weights(record.strengths()[1])[0][0] > 0.01
    check(t, record, net)


@case("torch")
def saved_ever_more_rarely(t: Trial) -> None:
    """Steps 1, 2, 5, 10, …; linear interpolation of a schedule whose form is known would be far off."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    with recording() as record:
        optimizer = AdamW(net.parameters(), lr=2e-3)
        scheduler = schedulers.CosineAnnealingLR(optimizer, 200)
        for step in range(1, 201):
            learn(net, optimizer, data)
            scheduler.step()
            if step in (1, 2, 5, 10, 20, 50, 100, 200):
                record.keep(net)
                torch.save(
                    {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()},
                    folder / f"iter_{step:07d}.pt",
                )
    check(t, record, net)


# ------------------------------------------------------------------ names


def named(t: Trial, name: Callable[[int, float], str]) -> tuple[Record, Net]:
    return written_as(t, lambda e, n, o, loss: (name(e, loss), usual(n, o, e)))


@case("torch")
def names_without_numbers(t: Trial) -> None:
    greek = ["omega", "alpha", "gamma", "beta", "zeta", "delta", "eta", "theta", "iota", "kappa"]
    check(t, *named(t, lambda e, _: f"{greek[e]}.pt"))


@case("torch")
def clocks_in_names(t: Trial) -> None:
    """The last file is of the next day, at an earlier hour."""
    check(t, *named(t, lambda e, _: f"net_2026-11-1{6 + e // 8}_{(20 + e) % 24:02d}-15-0{9 - e}.pt"))


@case("torch")
def metrics_in_names(t: Trial) -> None:
    check(t, *named(t, lambda e, loss: f"net_acc{0.4 + 0.05 * e:.3f}_loss{loss:.4f}.pt"))


@case("torch")
def names_that_contradict_the_files(t: Trial) -> None:
    """`step-500` says 20 inside: an error that shows both."""
    named(t, lambda e, _: f"step-{500 * (10 - e)}.pt")
    t.refused("run", "500", "20", flags=("--l2", 1))


@case("torch")
def epochs_in_names_and_no_steps_anywhere(t: Trial) -> None:
    """Nothing but weights."""
    record, net = written_as(t, lambda e, n, *_: (f"model_epoch_{e}.pth", n.state_dict()), plain)
    check(t, record, net, *TOLD, otherwise=("--steps-per-epoch", PER_EPOCH, "--epochs-from", 0), out="average.pth")


@case("torch")
def epochs_and_steps_in_names(t: Trial) -> None:
    """`epoch_3_step_80`: nothing inside says more."""
    record, net = written_as(t, lambda e, n, *_: (f"net_epoch_{e}_step_{(e + 1) * PER_EPOCH}.pth", n.state_dict()), plain)
    check(t, record, net, *TOLD)


@case("torch")
def a_folder_for_each_step(t: Trial) -> None:
    """`ckpt_20/model.pt` beside `ckpt_20/optimizer.pt`."""
    folder, net = fresh(t.folder / "run"), Net()
    with recording() as record:
        optimizer = plain(net)

        def save(epoch: int, _: float) -> None:
            own = fresh(folder / f"ckpt_{(epoch + 1) * PER_EPOCH}")
            torch.save(net.state_dict(), own / "model.pt")
            torch.save(optimizer.state_dict(), own / "optimizer.pt")

        epochs(record, net, optimizer, save)
    used = t.weights("run", record, otherwise=TOLD)
    expected = t.written("run", "out", record, *used)
    net.load_state_dict(load_file(t.folder / "out/model.safetensors"))
    t.loaded("`safetensors.torch.load_file`", net.state_dict(), expected)


@case("torch")
def optimizers_in_files_of_their_own(t: Trial) -> None:
    """`model_20.pt` beside `optimizer_20.pt`."""
    folder, net = fresh(t.folder / "run"), Net()
    with recording() as record:
        optimizer = plain(net)

        def save(epoch: int, _: float) -> None:
            torch.save(net.state_dict(), folder / f"model_{(epoch + 1) * PER_EPOCH}.pt")
            torch.save(optimizer.state_dict(), folder / f"optimizer_{(epoch + 1) * PER_EPOCH}.pt")

        epochs(record, net, optimizer, save)
    check(t, record, net, otherwise=TOLD)


@case("torch")
def best_and_final_beside_the_others(t: Trial) -> None:
    record, net = named(t, lambda e, _: f"checkpoint-{(e + 1) * PER_EPOCH}.pt")
    for name in ("best.pt", "final.pt", "model_best.pt", "last.pt", "latest.pt"):
        (t.folder / "run" / name).write_bytes((t.folder / "run/checkpoint-160.pt").read_bytes())
    t.notes("run", record, "best.pt", "final.pt", "last.pt")
    check(t, record, net)


# ------------------------------------------------------------------ troubles


@case("torch")
def a_broken_file_among_good_ones(t: Trial) -> None:
    """Named, with a guess at what happened; --skip-broken continues without it."""
    record, net = named(t, lambda e, _: f"checkpoint-{(e + 1) * PER_EPOCH}.pt")
    broken = t.folder / "run/checkpoint-100.pt"
    os.truncate(broken, broken.stat().st_size * 2 // 3)
    t.refused("run", "checkpoint-100.pt", "--skip-broken", flags=("--l2", 1))
    rest = record.only([i for i in range(EPOCHS) if i != 4])
    check(t, rest, net, "--skip-broken")
    t.notes("run", rest, "checkpoint-100.pt", flags=("--skip-broken",))


@case("torch")
def three_hundred_files_and_few_open_at_once(t: Trial) -> None:
    """`ulimit -n 256`; and torch opens a small average of so many."""
    folder, net, data = fresh(t.folder / "run"), Net(), batches()
    with recording() as record:
        optimizer = steady(net)
        for step in range(1, 301):
            learn(net, optimizer, data)
            record.keep(net)
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, folder / f"step-{step}.pt")
    t.weights("run", record, limit="ulimit -n 256")
    l2 = record.strengths()[1]
    found = t.average("run", "-o", "average.pt", "--l2", f"{l2:.17g}", limit="ulimit -n 256")
    assert not isinstance(found, str), f"refused: {found}"
    state = torch.load(t.folder / "average.pt", weights_only=True)
    t.loaded(LOADS, state.get("model", state), record.average([np.array(found["weights"][0])]))


@case("torch")
def dynamically_quantized(t: Trial) -> None:
    """Weights packed in objects: refused by name, not dropped."""
    folder = fresh(t.folder / "run")
    for step in (20, 40, 60):
        quantized = torch.ao.quantization.quantize_dynamic(Net(), {nn.Linear}, dtype=torch.qint8)
        torch.save({"model": quantized.state_dict(), "step": step}, folder / f"step-{step}.pt")
    t.refused("run", "quantized", ("_packed_params", "body.0"), flags=("--uniform",))


@case("torch")
def codes_of_eight_bits_with_scales(t: Trial) -> None:
    """Averaged scales beside the last file's codes would be no model: refused by name."""
    folder = fresh(t.folder / "run")
    for step in (20, 40, 60):
        state = {}
        for name, value in Net().state_dict().items():
            scale = value.abs().max() / 127
            state |= {name: (value / scale).round().to(torch.int8), f"{name}_scale": scale} if value.dim() > 1 else {name: value}
        torch.save({"model": state, "step": step}, folder / f"step-{step}.pt")
    t.refused("run", ("quantized", "integer", "codes"), "body.0.weight", flags=("--uniform",))


# ------------------------------------------------------------------ the command's own promises


@case("torch")
def one_checkpoint_is_no_average(t: Trial) -> None:
    net = Net()
    torch.save(usual(net, steady(net), 0), fresh(t.folder / "run") / "step-20.pt")
    t.refused("run", ("one checkpoint", "single checkpoint", "only checkpoint"), flags=("--uniform",))


@case("torch")
def a_start_in_a_file_of_its_own(t: Trial) -> None:
    net = Net()
    torch.save(net.state_dict(), t.folder / "init.pt")
    with recording() as record:
        record.keep(net)
        folder, optimizer = fresh(t.folder / "run"), steady(net)
        epochs(record, net, optimizer, lambda e, _: torch.save(usual(net, optimizer, e), folder / f"step-{(e + 1) * PER_EPOCH}.pt"))
    check(t, record, net, "--start", "init.pt")


@case("torch")
def strengths_chosen_by_the_command(t: Trial) -> None:
    """--l2 auto: 16 from 0.1/Ση to 30/Ση, Ση that of the steps which momentum makes."""
    record, _ = named(t, lambda e, _: f"step-{(e + 1) * PER_EPOCH}.pt")
    t.disk = t.disk or "`step-20.pt` and 9 more"
    found = t.average("run", "-o", "never", "--dry-run", "--l2", "auto")
    assert not isinstance(found, str), f"refused: {found}"
    strengths = np.array([row["strength"] for row in found["outputs"]])
    path = record.paths()[0][0]
    assert len(strengths) == 16 and abs(strengths[-1] / strengths[0] / 300 - 1) < 0.01, strengths
    assert any(abs(strengths[0] * reach / 0.1 - 1) < 0.02 for reach in (path.reach(), path.raw.sum())), (
        strengths,
        path.reach(),
        path.raw.sum(),
    )
    t.did.append("16 strengths from 0.1/Ση to 30/Ση")


@case("torch")
def decays_of_an_ema_are_per_step(t: Trial) -> None:
    named(t, lambda e, _: f"step-{(e + 1) * PER_EPOCH}.pt")
    t.disk = "`step-20.pt` and 9 more"
    found = t.average("run", "-o", "never", "--dry-run", "--ema", "0.99")
    assert not isinstance(found, str), f"refused: {found}"
    keep = 0.99**PER_EPOCH
    expected = np.array([keep**9] + [(1 - keep) * keep ** (9 - j) for j in range(1, 10)])
    assert np.abs(np.array(found["weights"][0]) - expected).sum() / 2 <= 0.01, (found["weights"][0], expected)
    t.did.append("`--ema 0.99` weighs by decay^gap")


@case("torch")
def keep_best_requires_best(t: Trial) -> None:
    named(t, lambda e, _: f"step-{(e + 1) * PER_EPOCH}.pt")
    t.refused("run", "--best", flags=("--l2", "0.1,1", "--eval", "echo 1 # {}", "--keep", "best"), out="best")


@case("torch")
def an_empty_folder_is_free_and_parents_are_made(t: Trial) -> None:
    record, _ = named(t, lambda e, _: f"step-{(e + 1) * PER_EPOCH}.pt")
    fresh(t.folder / "empty")
    l2 = [f"{one:.17g}" for one in record.strengths()]
    for out in ("empty", "new/deep/folder"):
        found = t.average("run", "-o", out, "--l2", ",".join(l2), "--format", "pt")
        assert not isinstance(found, str), f"refused: {found}"
        for row, weights in zip(found["outputs"], found["weights"], strict=True):
            state = torch.load(t.folder / row["path"], weights_only=True)
            t.loaded(LOADS, state.get("model", state), record.average([np.array(weights)]))
    t.disk, t.did = "`step-20.pt` and 9 more", ["writes into an empty folder; makes parents"]


def rates_by_columns(t: Trial, record: Record) -> dict[str, str]:
    """The rates as tools export them: the names of their columns, and a line for a step."""
    raw, columns = record.paths()[0][0].raw, {}
    for tool, (head, line) in {
        "wandb": (
            '"Step","grateful-sky-1 - lr","grateful-sky-1 - lr__MIN","grateful-sky-1 - lr__MAX"',
            '"{step}","{rate}","{rate}","{rate}"',
        ),
        "wandb-history": ("_step,_runtime,train/learning_rate", "{step},{step}.5,{rate}"),
        "tensorboard": ("Wall time,Step,Value", "1763280000.{step},{step},{rate}"),
        "lightning": ("epoch,lr-SGD,step,train_loss", ",{rate},{step},"),
        "transformers": ("step,learning_rate,loss", "{step},{rate},0.5"),
    }.items():
        lines = [line.format(step=step, rate=f"{rate:.17g}") for step, rate in enumerate(raw)]
        (t.folder / f"{tool}.csv").write_text("\n".join([head, *lines, ""]))
        columns[tool] = f"{tool}.csv"
    return columns


@case("torch")
def rates_by_the_names_of_other_tools(t: Trial) -> None:
    """W&B, TensorBoard, Lightning's and Transformers' columns; the first rate is 0."""
    record, net = written_as(t, weights_alone, plain, per_step=lambda o: schedulers.LambdaLR(o, lambda k: min(k / 30, 1.0)))
    for tool, file in rates_by_columns(t, record).items():
        try:
            t.weights("run", record, "--rates", file, "--optimizer", "sgd")
        except AssertionError as error:
            raise AssertionError(f"{tool}: {error}") from error
    check(t, record, net, "--rates", "tensorboard.csv", "--optimizer", "sgd")


@case("torch")
def told_everything_the_command_agrees(t: Trial) -> None:
    """Guards this test itself: where names are steps and rates come from a file, both compute the same weights, to rounding."""
    for at, (make, flags) in enumerate([
        (plain, ("sgd",)),
        (steady, ("heavy-ball", "--momentum", 0.9)),
        (lambda n: SGD(n.parameters(), lr=0.05, momentum=0.9, nesterov=True), ("nesterov", "--momentum", 0.9)),
        (lambda n: SGD(n.parameters(), lr=0.05, momentum=0.9, dampening=0.5), ("heavy-ball", "--momentum", 0.9, "--dampening", 0.5)),
        (lambda n: Adam(n.parameters(), lr=2e-3, betas=(0.8, 0.99)), ("adam", "--beta1", 0.8)),
    ]):  # fmt: skip
        for shape in (lambda _: 1.0, lambda k: min(k / 30, 1.3 - k / 300)):
            record, _ = written_as(t, weights_alone, make, per_step=lambda o: schedulers.LambdaLR(o, shape))  # noqa: B023
            strengths = record.strengths()
            ask = ("-o", "never", "--dry-run", "--l2", ",".join(f"{l2:.17g}" for l2 in strengths))
            found = t.average("run", *ask, "--rates", t.rates(record), "--optimizer", *flags)
            assert not isinstance(found, str), f"{at}: refused: {found}"
            off = farthest(found, record, strengths)[0]
            assert off < 1e-9, f"{flags}: {off}"
    t.disk, t.did = "`step-20.pt` and 9 more", ["weights right with `--rates` and `--optimizer`, to rounding"]


@case("torch")
def a_soup_of_runs(t: Trial) -> None:
    """The same step of three runs: fine for a mean, which knows no time."""
    states = []
    for seed in range(3):
        torch.manual_seed(seed)
        states.append(Net().state_dict())
        torch.save(states[-1], fresh(t.folder / f"seed{seed}") / "step-200.pt")
    done = t.run("average", *(f"seed{seed}/step-200.pt" for seed in range(3)), "-o", "soup.pt", "--uniform", "--json")
    assert done.returncode == 0, done.stderr
    expected = {name: sum(doubles(state[name]) for state in states) / 3 for name in states[0]}
    t.loaded(LOADS, torch.load(t.folder / "soup.pt", weights_only=True), expected)
    t.disk, t.did = "`seed0/step-200.pt` and 2 more", ["averaged by `--uniform`"]


@case("torch")
def a_dry_run_sees_that_the_output_is_there(t: Trial) -> None:
    written_as(t, by_step)
    (t.folder / "average.pt").write_text("somebody's")
    found = t.average("run", "-o", "average.pt", "--dry-run", "--l2", "1")
    assert isinstance(found, str) and "average.pt" in found, found
    t.disk, t.did = "`model-step20.pt` and 9 more", [f"refused: “{first_line(found)}”"]
