"""Shards on two and three processes give what one process gives, and go on on another number of them."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from problem import flat
from safetensors.torch import load_file
from torch import nn

from afterfit._afterfit import main
from afterfit.torch import Dial

RANGE, TARGETS = (1e-2, 1.0), ({"l2": 0.1}, {"l2": 0.7}, {"ema": 0.95})


def net() -> nn.Sequential:
    torch.manual_seed(0)
    # Seven and five rows: no number of processes here shards them evenly, and some have nothing of a bias.
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def data(step: int) -> torch.Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        # (The same rows everywhere: the mean over processes is the gradient of one.)
        model(data(step)).square().mean().backward()
        optimizer.step()


def make(model: nn.Module) -> tuple[torch.optim.Optimizer, Dial]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return optimizer, Dial(model, optimizer, l2=RANGE, ema=(0.9, 0.99), nodes=6, block=5)


def readings(dial: Dial) -> list[tuple[dict[str, torch.Tensor], float]]:
    found = []
    for target in TARGETS:
        reading = dial.read(**target)
        whole = {
            name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            for name, tensor in reading.state_dict().items()
        }
        found.append((whole, reading.error))
    return found


def begin(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, f"store-{os.environ['TRIAL']}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def end() -> None:
    dist.destroy_process_group()
    # Gloo's threads may outlive the group, and abort the process (SIGABRT) while the interpreter is taken down
    # (pytorch/pytorch#179291): what was to be written is written, so leave without taking it down.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def sharded(world: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    mesh = init_device_mesh("cpu", (world,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def whole_run(rank: int, world: int, folder: str) -> None:
    begin(rank, world, folder)
    model = sharded(world)
    optimizer, dial = make(model)
    train(model, optimizer, 0, 13)
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states, "dial": dial}, checkpoint_id=os.path.join(folder, "checkpoint"))
    train(model, optimizer, 13, 24)
    found = readings(dial)
    dial.save(os.path.join(folder, "run.dial"))
    if rank == 0:
        torch.save(found, os.path.join(folder, "whole.pt"))
    end()


def resumed_run(rank: int, world: int, folder: str) -> None:
    begin(rank, world, folder)
    model = sharded(world)
    optimizer, dial = make(model)
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": states, "dial": dial}
    dcp.load(state, checkpoint_id=os.path.join(folder, "checkpoint"))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    assert dial.steps == 13
    train(model, optimizer, 13, 24)
    found = readings(dial)
    if rank == 0:
        torch.save(found, os.path.join(folder, "resumed.pt"))
    end()


def ddp_run(rank: int, world: int, folder: str) -> None:
    begin(rank, world, folder)
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # One process is enough: weights are the same everywhere.
    dial = Dial(model, optimizer, l2=RANGE, ema=(0.9, 0.99), nodes=6, block=5) if rank == 0 else None
    train(model, optimizer, 0, 24)
    if dial is not None:
        torch.save(readings(dial), os.path.join(folder, "ddp.pt"))
    end()


def ddp_run_of_all(rank: int, world: int, folder: str) -> None:
    begin(rank, world, folder)
    model = nn.parallel.DistributedDataParallel(net())
    optimizer, dial = make(model)
    train(model, optimizer, 0, 24)
    torch.save(readings(dial), os.path.join(folder, f"ddp-{rank}.pt"))
    end()


class Trainer:
    """What Hugging Face's trainer tells its callbacks. (On a CPU, accelerate shards nothing.)"""

    def __init__(self, folder: str, callback, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from types import SimpleNamespace

        self.args = SimpleNamespace(output_dir=folder, save_total_limit=None)
        self.state = SimpleNamespace(global_step=step, max_steps=24, is_world_process_zero=dist.get_rank() == 0)
        self.callback, self.given = callback, {"model": model, "optimizer": optimizer}
        self.tell("on_train_begin")

    def tell(self, event: str) -> None:
        getattr(self.callback, event)(self.args, self.state, None, **self.given)

    def train(self, last: int) -> None:
        train(self.given["model"], self.given["optimizer"], self.state.global_step, last)
        self.state.global_step = last


def callback():
    from afterfit.transformers import DialCallback

    return DialCallback(l2=RANGE, ema=(0.9, 0.99), nodes=6, block=5)


def trainer_run(rank: int, world: int, folder: str) -> None:
    begin(rank, world, folder)
    model = sharded(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = Trainer(folder, callback(), 0, model, optimizer)
    trainer.train(13)
    os.makedirs(os.path.join(folder, "checkpoint-13"), exist_ok=True)
    trainer.tell("on_save")
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=os.path.join(folder, "own"))
    trainer.train(24)
    found = readings(trainer.callback.dial)
    trainer.tell("on_train_end")
    if rank == 0:
        torch.save(found, os.path.join(folder, "trainer.pt"))
    end()


def trainer_resumed(rank: int, world: int, folder: str) -> None:
    begin(rank, world, folder)
    model = sharded(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    weights, states = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=os.path.join(folder, "own"))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    trainer = Trainer(folder, callback(), 13, model, optimizer)
    assert trainer.callback.dial.steps == 13
    trainer.train(24)
    found = readings(trainer.callback.dial)
    if rank == 0:
        torch.save(found, os.path.join(folder, "trainer-resumed.pt"))
    end()


# What takes seconds to import is imported once, by the process that these are forked from.
multiprocessing.set_forkserver_preload(
    [
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint.state_dict",
        "lightning.pytorch",
        "afterfit.torch",
        "afterfit.transformers",
    ]
)


def spawn(run, world: int, folder: Path, trial: int) -> None:
    variables = {**os.environ, "TRIAL": str(trial)}
    mp.start_processes(with_variables, (run, variables, world, str(folder)), nprocs=world, start_method="forkserver")


def with_variables(rank: int, run, variables: dict[str, str], world: int, folder: str) -> None:
    """(Those of the process that asked, which are not those of the process it is forked from.)"""
    os.environ |= variables
    run(rank, world, folder)


def compare(found, expected) -> None:
    for (one, error), (two, other) in zip(found, expected, strict=False):
        assert torch.allclose(flat(one), flat(two), atol=1e-13) and error == pytest.approx(other)


@pytest.fixture(scope="module")
def alone():
    model = net()
    optimizer, dial = make(model)
    train(model, optimizer, 0, 24)
    return readings(dial)


@pytest.mark.parametrize(("world", "then"), [(2, 3), (3, 2)])
def test_shards_are_the_whole(world: int, then: int, tmp_path: Path, alone) -> None:
    spawn(whole_run, world, tmp_path, 0)
    compare(torch.load(tmp_path / "whole.pt"), alone)
    loaded = Dial.load(tmp_path / "run.dial", net())
    compare(readings(loaded), alone)
    out = tmp_path / "read.safetensors"
    assert main(["afterfit", "dial", "read", str(tmp_path / "run.dial"), "--l2", "0.1", "-o", str(out)]) == 0
    (expected, error), *_ = alone
    made = load_file(out)
    assert sorted(made) == sorted(expected)
    assert torch.allclose(flat(made), flat(expected), rtol=1e-12, atol=error) and error < 1e-3
    spawn(resumed_run, then, tmp_path, 1)
    compare(torch.load(tmp_path / "resumed.pt"), alone)


def test_one_process_of_ddp_is_enough(tmp_path: Path, alone) -> None:
    spawn(ddp_run, 2, tmp_path, 0)
    compare(torch.load(tmp_path / "ddp.pt"), alone)


def test_every_process_of_ddp_may_have_a_dial(tmp_path: Path, alone) -> None:
    spawn(ddp_run_of_all, 2, tmp_path, 0)
    for rank in range(2):
        compare(torch.load(tmp_path / f"ddp-{rank}.pt"), alone)


def test_the_callback_of_transformers_saves_shards(tmp_path: Path, alone) -> None:
    spawn(trainer_run, 2, tmp_path, 0)
    compare(torch.load(tmp_path / "trainer.pt"), alone)
    assert (tmp_path / "checkpoint-13" / "afterfit-dial" / ".metadata").is_file()
    compare(readings(Dial.load(tmp_path / "run.dial", net())), alone)
    spawn(trainer_resumed, 3, tmp_path, 1)
    compare(torch.load(tmp_path / "trainer-resumed.pt"), alone)
