"""Formats that are other tools' own: read, or refused with the format's name and the way to convert it.

DeepSpeed's files are written here by hand, key for key as its release 0.19.8 wrote them on a CPU: the package compiles C++
for a minute when it is first used. All others are made by their own packages.
"""

from __future__ import annotations

import enum
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import flax.serialization
import jax.numpy as jnp
import keras
import numpy as np
import orbax.checkpoint
import torch
import torch.distributed.checkpoint as dcp
from torch.optim import AdamW

from .nets import PER_EPOCH, Net, epochs, forward, fresh
from .record import Record, recording
from .trial import Trial, case

MEAN = ("--uniform",)


def converted(t: Trial, said: str, names: list[str], made: str, values: dict[str, float]) -> None:
    """Runs the line that a refusal printed, for each of these files, and averages what it made: each array is of one number."""
    line = re.search(r"python .*", said).group(0)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    shown = next(name for name in names if name in line)
    for name in names:
        done = subprocess.run(line.replace(shown, name), check=False, shell=True, cwd=t.folder, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{line}: {done.stderr[-600:]}"
    found = t.average("run", "-o", "average.npz", "--filter", made, *MEAN)
    assert not isinstance(found, str), found
    arrays = np.load(t.folder / "average.npz")
    for name, value in values.items():
        assert np.allclose(arrays[name], value), f"{name}: {arrays[name]} instead of {value}"
    t.did.append("the line it prints converts them")


@case("torch")
def distributed_checkpoints(t: Trial) -> None:
    """torch.distributed.checkpoint: `.metadata` and `__0_0.distcp`; tests/distributed.py has those of several processes."""
    folder, net = fresh(t.folder / "run"), Net()
    with recording() as record:
        optimizer = AdamW(net.parameters(), lr=2e-3)
        epochs(
            record,
            net,
            optimizer,
            lambda e, _: dcp.save(
                {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
                checkpoint_id=folder / f"step-{(e + 1) * PER_EPOCH}",
                no_dist=True,
            ),
        )
    t.weights("run", record)
    expected = t.written("run", "average", record)
    saved = {"model": {name: torch.empty_like(value) for name, value in net.state_dict().items()}}
    dcp.load(saved, checkpoint_id=t.folder / "average", no_dist=True)
    net.load_state_dict(saved["model"])
    t.loaded("`torch.distributed.checkpoint.load`", net.state_dict(), expected)
    forward(net)


# ------------------------------------------------------------------ DeepSpeed


def stand_in(module: str, name: str, value: type) -> type:
    """A class that pickles under the name of one that is not installed."""
    parts = module.split(".")
    for at in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:at]), types.ModuleType(".".join(parts[:at])))
    value.__module__, value.__qualname__, value.__name__ = module, name, name
    setattr(sys.modules[module], name, value)
    return value


class Stage(enum.IntEnum):
    optimizer_states = 1
    weights = 3


class Scaler:
    def __init__(self) -> None:
        self.cur_scale, self.dynamic = 1.0, False


def zero(t: Trial, stage: int, ranks: int) -> tuple[Record, Net]:
    """`global_step20/mp_rank_00_model_states.pt` and each rank's part of the optimizer; stage 3 leaves the module empty."""
    enumeration = stand_in("deepspeed.runtime.zero.config", "ZeroStageEnum", Stage)
    scaler = stand_in("deepspeed.runtime.fp16.loss_scaler", "LossScaler", Scaler)
    run, net = fresh(t.folder / "run"), Net()
    with recording() as record:
        optimizer = AdamW(net.parameters(), lr=1e-3)

        def save(epoch: int, _: float) -> None:
            steps = (epoch + 1) * PER_EPOCH
            folder = fresh(run / f"global_step{steps}")
            named = {name: value.detach().clone() for name, value in net.named_parameters()}
            settings = {"ds_config": {"train_batch_size": 16, "zero_optimization": {"stage": stage}}, "ds_version": "0.19.8"}
            common = {
                "buffer_names": [],
                "optimizer": None,
                "param_shapes": [{name: value.shape for name, value in named.items()}],
                "lr_scheduler": None,
            }
            common |= {
                "skipped_steps": 0,
                "global_steps": steps,
                "global_samples": 16 * steps,
                "dp_world_size": ranks,
                "mp_world_size": 1,
            } | settings
            flat = torch.cat([value.flatten() for value in named.values()])
            flat = torch.nn.functional.pad(flat, (0, -len(flat) % ranks)).chunk(ranks)
            group = {key: value for key, value in optimizer.state_dict()["param_groups"][0].items()} | {"params": [0]}
            for rank in range(ranks):
                part = flat[rank].clone()
                moments = {"step": torch.tensor(float(steps)), "exp_avg": torch.zeros_like(part), "exp_avg_sq": torch.zeros_like(part)}
                base = {"state": {0: moments}, "param_groups": [group]}
                state = {"loss_scaler": scaler(), "dynamic_loss_scale": False, "overflow": False, "zero_stage": enumeration(stage)}
                if stage == 3:
                    state |= {"partition_count": ranks, "optimizer_state_dict": base, "fp32_flat_groups": [part]}
                    empty = {name: torch.empty(0) for name in named}
                    torch.save({"module": empty} | common, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
                else:
                    state |= {"partition_count": [ranks], "base_optimizer_state": base, "single_partition_of_fp32_groups": [part]}
                torch.save({"optimizer_state_dict": state} | settings, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
            if stage < 3:
                torch.save({"module": named} | common, folder / "mp_rank_00_model_states.pt")
            (run / "latest").write_text(f"global_step{steps}")
            (run / "zero_to_fp32.py").write_text("# DeepSpeed's script lies beside every run of it.\n")

        epochs(record, net, optimizer, save)
    return record, net


@case("torch", by="by hand, after DeepSpeed 0.19.8")
def deepspeed_zero_1(t: Trial) -> None:
    """The module is whole, the optimizer is in pieces: right, or the way to make it whole."""
    record, net = zero(t, 1, 2)
    l2 = f"{record.strengths()[1]:.17g}"
    if isinstance(t.average("run", "-o", "never", "--dry-run", "--l2", l2), str):
        t.refused("run", ("ZeRO", "DeepSpeed"), "zero_to_fp32", flags=("--l2", l2))
        return
    t.weights("run", record)
    expected = t.written("run", "average.pt", record)
    found = torch.load(t.folder / "average.pt", weights_only=True)
    net.load_state_dict(found.get("module", found))
    t.loaded("`torch.load`, `load_state_dict`", net.state_dict(), expected)
    forward(net)


@case("torch", by="by hand, after DeepSpeed 0.19.8")
def deepspeed_zero_3(t: Trial) -> None:
    """The module is empty tensors: never a model of 0 numbers."""
    zero(t, 3, 2)
    t.refused("run", ("ZeRO", "DeepSpeed"), "zero_to_fp32", flags=MEAN)


# ------------------------------------------------------------------ JAX and Keras


@case("flax")
def flax_msgpack(t: Trial) -> None:
    folder = fresh(t.folder / "run")
    for step in range(10, 40, 10):
        params = {"dense": {"kernel": jnp.full((3, 2), float(step)), "bias": jnp.zeros(2)}}
        (folder / f"checkpoint_{step}.msgpack").write_bytes(flax.serialization.to_bytes({"params": params, "step": step}))
    said = t.refused("run", "msgpack", "safetensors", flags=MEAN)
    names = [f"run/checkpoint_{step}.msgpack" for step in (10, 20, 30)]
    converted(t, said, names, "*.safetensors", {"params.dense.kernel": 20, "params.dense.bias": 0})


@case("flax")
def flax_checkpoints_without_an_extension(t: Trial) -> None:
    """`flax.training.checkpoints` calls them `checkpoint_10`: known by their content or not at all, never by a guess."""
    folder = fresh(t.folder / "run")
    for step in range(10, 40, 10):
        (folder / f"checkpoint_{step}").write_bytes(flax.serialization.to_bytes({"params": {"kernel": jnp.ones((3, 2))}, "step": step}))
    said = t.refused("run", "msgpack", flags=MEAN)
    converted(t, said, [f"run/checkpoint_{step}" for step in (10, 20, 30)], "*.safetensors", {"params.kernel": 1})


@case("orbax-checkpoint")
def orbax_folders(t: Trial) -> None:
    with orbax.checkpoint.CheckpointManager((t.folder / "run").resolve()) as manager:
        for step in range(10, 40, 10):
            manager.save(step, args=orbax.checkpoint.args.StandardSave({"kernel": jnp.full((3, 2), float(step))}))
    # (Its safetensors layout is for loading alone.)
    said = t.refused("run", "orbax", ("safetensors", "npz"), flags=MEAN)
    converted(t, said, [f"run/{step}" for step in (10, 20, 30)], "*.npz", {"kernel": 20})


def keras_model() -> keras.Model:
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(3)])


@case("keras")
def keras_whole_models(t: Trial) -> None:
    folder = fresh(t.folder / "run")
    model = keras_model()
    for epoch in range(1, 4):
        model.save(folder / f"model-{epoch:02d}.keras")
    said = t.refused("run", "keras", ("safetensors", "npz"), flags=MEAN)
    converted(t, said, [f"run/model-{epoch:02d}.keras" for epoch in (1, 2, 3)], "*.npz", {})


@case("keras")
def keras_weights(t: Trial) -> None:
    folder = fresh(t.folder / "run")
    for epoch in range(1, 4):
        keras_model().save_weights(folder / f"epoch-{epoch:02d}.weights.h5")
    said = t.refused("run", ("keras", "HDF5", "h5"), ("safetensors", "npz"), flags=MEAN)
    converted(t, said, [f"run/epoch-{epoch:02d}.weights.h5" for epoch in (1, 2, 3)], "*.npz", {})


# ------------------------------------------------------------------ whole modules


@case("torch", by="by hand, after ultralytics 8")
def ultralytics_whole_models(t: Trial) -> None:
    """`{"model": the module itself, "ema", "optimizer", …}`: the printed line keeps everything but the class."""
    folder, net = fresh(t.folder / "run"), Net()
    with recording() as record:
        optimizer = AdamW(net.parameters(), lr=2e-3)
        save = lambda e, _: torch.save(
            {"epoch": e, "model": net, "ema": None, "updates": e, "optimizer": optimizer.state_dict()}, folder / f"epoch{e}.pt"
        )
        epochs(record, net, optimizer, save)
    said = t.refused("run", "model", "state_dict")
    line = re.search(r"python .*", said).group(0).replace("FILES", "run/*.pt")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run(line, check=True, shell=True, cwd=t.folder, env=env, capture_output=True, timeout=120)
    t.weights("run", record, "--filter", "*.weights.pt")
