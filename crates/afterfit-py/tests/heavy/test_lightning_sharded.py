"""Lightning's sharded strategy: the dial's shards are saved with its checkpoints, and found again."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from test_sharded import RANGE, compare, data, end, make, net, readings, spawn, train
from torch.utils.data import DataLoader

from afterfit.lightning import DialCallback
from afterfit.torch import Dial

EPOCH = 12


class Sharded(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def configure_model(self) -> None:
        from torch.distributed.fsdp import fully_shard

        for part in (self.net[0], self.net[2], self.net):
            fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.net(data(self.global_step)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(rank: int, world: int, folder: str, epochs: int, whole: bool, resumed: str | None = None) -> DialCallback:
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "RANK": str(rank),
        "NODE_RANK": "0",
    }
    callback = DialCallback(l2=RANGE, ema=(0.9, 0.99), nodes=6, block=5, save=Path(folder) / "run.dial")
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=world, logger=False, enable_progress_bar=False, enable_model_summary=False,
        strategy=ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=not whole),
        use_distributed_sampler=False, default_root_dir=folder,
        callbacks=[callback, pl.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
    )  # fmt: skip
    trainer.fit(Sharded(), DataLoader(torch.zeros(EPOCH, 1)), ckpt_path=resumed)
    found = readings(callback.dial)
    if rank == 0:
        torch.save(found, os.path.join(folder, f"readings-{world}.pt"))
    return callback


def first(rank: int, world: int, folder: str) -> None:
    fit(rank, world, folder, 2, os.environ["WHOLE"] == "yes")
    end()


def second(rank: int, world: int, folder: str) -> None:
    callback = fit(rank, world, folder, 2, os.environ["WHOLE"] == "yes", os.path.join(folder, "epoch=0.ckpt"))
    assert callback.dial.steps == 2 * EPOCH
    end()


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("whole", ["no", "yes"])
def test_shards_are_saved_with_checkpoints(whole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    optimizer, dial = make(model)
    train(model, optimizer, 0, 2 * EPOCH)
    alone = readings(dial)
    monkeypatch.setenv("WHOLE", whole)
    monkeypatch.setenv("MASTER_PORT", free_port())
    spawn(first, 2, tmp_path, 0)
    compare(torch.load(tmp_path / "readings-2.pt"), alone)
    beside = "epoch=0.ckpt-afterfit-dial" if whole == "yes" else "epoch=0.ckpt/afterfit-dial"
    assert (tmp_path / beside / ".metadata").is_file()
    (tmp_path / "run.dial").unlink()
    monkeypatch.setenv("MASTER_PORT", free_port())
    spawn(second, 3, tmp_path, 1)
    compare(torch.load(tmp_path / "readings-3.pt"), alone)
    loaded = torch.nn.Module()
    loaded.net = net()
    compare(readings(Dial.load(tmp_path / "run.dial", loaded)), alone)
