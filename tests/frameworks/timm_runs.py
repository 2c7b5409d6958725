"""timm, saved by its CheckpointSaver in the order of its train.py: zero-based epochs, `last`, `model_best`, a folder whose
name ends in the image size."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import CheckpointSaver, ModelEmaV3

from .record import Record, recording
from .trial import Trial, case

logging.getLogger("timm").setLevel(logging.ERROR)
EPOCHS, PER_EPOCH, SIZE = 10, 8, 32
RUN = f"20261116-101500-test_resnet-{SIZE}"
LOADS = "`timm.models.load_checkpoint`"

PER = ("--steps-per-epoch", PER_EPOCH)


def images() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(5)
    while True:
        yield torch.randn(2, 3, SIZE, SIZE, generator=random), torch.randint(0, 3, (2,), generator=random)


def train(
    t: Trial, record: Record, name: str = "test_resnet", *, opt: str = "sgd", lr: float = 0.02, on_updates: bool = False, ema: bool = False, layer_decay: float | None = None,
    schedule_first: bool = False, run: str = RUN, **schedule: object,
) -> None:  # fmt: skip
    """Save, then step the scheduler (recent versions), or the other way round (older ones)."""
    schedule = {"sched": "cosine", "num_epochs": EPOCHS, "warmup_epochs": 0} | schedule
    args = argparse.Namespace(
        model=name, opt=opt, lr=lr, epochs=EPOCHS, sched_on_updates=on_updates, **{k: v for k, v in schedule.items() if k != "num_epochs"}
    )
    model = timm.create_model(name, num_classes=3, img_size=SIZE) if "vit" in name else timm.create_model(name, num_classes=3)
    optimizer = create_optimizer_v2(model, opt=opt, lr=lr, momentum=0.9, weight_decay=0.02, layer_decay=layer_decay)
    scheduler, _ = create_scheduler_v2(optimizer, **schedule, step_on_epochs=not on_updates, updates_per_epoch=PER_EPOCH)
    averaged = ModelEmaV3(model, decay=0.9) if ema else None
    folder = t.folder / run
    folder.mkdir()
    saver = CheckpointSaver(model, optimizer, args, averaged, checkpoint_dir=str(folder), recovery_dir=str(folder), max_history=EPOCHS)
    scheduler.step_update(0) if on_updates else scheduler.step(0)
    data, updates = images(), 0
    for epoch in range(EPOCHS):
        for _ in range(PER_EPOCH):
            x, y = next(data)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if averaged:
                averaged.update(model)
            scheduler.step_update(updates)
        if schedule_first:
            scheduler.step(epoch + 1)
        record.keep(model)
        saver.save_checkpoint(epoch, metric=50 + 3 * epoch if epoch != 7 else 99.0)
        if not schedule_first:
            scheduler.step(epoch + 1)


def check(
    t: Trial, record: Record, name: str = "test_resnet", run: str = RUN, otherwise: tuple[object, ...] = (), notes: tuple[str, ...] = ()
) -> None:
    used = t.weights(run, record, otherwise=otherwise)
    t.notes(run, record, "last.pth.tar", "model_best.pth.tar", *notes, flags=used)
    expected = t.written(run, "average.pth.tar", record, *used)
    model = timm.create_model(name, num_classes=3, **({"img_size": SIZE} if "vit" in name else {}))
    timm.models.load_checkpoint(model, str(t.folder / "average.pth.tar"), use_ema=False)
    t.loaded(LOADS, model.state_dict(), expected)
    with torch.no_grad():
        assert model.eval()(next(images())[0]).isfinite().all()


@case("timm")
def cosine_each_update(t: Trial) -> None:
    """Batch norm knows batches, which prove no steps; and no file says the rates before the first, nor how many updates an epoch has."""
    with recording() as record:
        train(t, record, on_updates=True)
    check(t, record, otherwise=(*PER, "--rates", t.rates(record)))


@case("timm")
def cosine_each_epoch_saved_before_the_scheduler(t: Trial) -> None:
    """The file holds the rate that its epoch used; no scheduler is saved, the settings are (`args`)."""
    with recording() as record:
        train(t, record)
    check(t, record, otherwise=PER)


@case("timm")
def cosine_each_epoch_saved_after_the_scheduler(t: Trial) -> None:
    with recording() as record:
        train(t, record, schedule_first=True)
    check(t, record, otherwise=PER)


@case("timm")
def adamw_with_a_warm_up_each_update(t: Trial) -> None:
    """A transformer: Adam's own counter knows the steps."""
    with recording() as record:
        train(t, record, "test_vit", opt="adamw", lr=1e-3, on_updates=True, warmup_epochs=3, warmup_prefix=True)
    check(t, record, "test_vit", otherwise=("--rates", t.rates(record)))


@case("timm")
def layer_decay_makes_a_group_of_every_layer(t: Trial) -> None:
    with recording() as record:
        train(t, record, "test_vit", opt="adamw", lr=1e-3, on_updates=True, layer_decay=0.7)
    check(t, record, "test_vit", otherwise=("--rates", t.rates(record)))


@case("timm")
def sgd_of_a_transformer_knows_no_steps(t: Trial) -> None:
    """Epochs only: refused, with --steps-per-epoch as the way on."""
    with recording() as record:
        train(t, record, "test_vit", on_updates=True)
    check(t, record, "test_vit", otherwise=(*PER, "--rates", t.rates(record)))


@case("timm")
def a_model_ema_beside_the_weights(t: Trial) -> None:
    """`state_dict_ema` is left out with a note."""
    with recording() as record:
        train(t, record, on_updates=True, ema=True)
    check(t, record, otherwise=(*PER, "--rates", t.rates(record)), notes=("state_dict_ema",))
