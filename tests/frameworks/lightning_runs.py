"""Lightning: ModelCheckpoint's names, its many optimizers, its averaging callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.optim import SGD, Adam, AdamW
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader, TensorDataset

from .nets import EPOCHS, PER_EPOCH, Net, forward
from .record import Record, recording
from .trial import Trial, case

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
STEPS = EPOCHS * PER_EPOCH
LOADS = "`load_from_checkpoint`"


class Lit(pl.LightningModule):
    """`make` gives what `configure_optimizers` returns; it is no hyperparameter, unlike `norm`: without the hyperparameters
    in the average's file it could not be built again."""

    def __init__(self, make: Callable | None = None, norm: bool = False) -> None:
        super().__init__()
        self.net, self.make = Net(norm), make
        self.save_hyperparameters("norm")

    def training_step(self, batch: list, _: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list, _: int) -> None:
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> object:
        return self.make(self)


class Saver(ModelCheckpoint):
    """Tells the record when a checkpoint is written; `last.ckpt` is the same once more."""

    record: Record
    saved = -1

    def _save_checkpoint(self, trainer: pl.Trainer, filepath: str) -> None:
        if trainer.global_step != self.saved:
            self.record.keep(trainer.lightning_module)
        self.saved = trainer.global_step
        super()._save_checkpoint(trainer, filepath)


def data() -> DataLoader:
    x = torch.randn(16 * PER_EPOCH, 4, generator=torch.Generator().manual_seed(4))
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16)


def fit(
    t: Trial,
    record: Record,
    module: Lit,
    run: str = "run",
    callbacks: tuple = (),
    logger: object = False,
    trainer: dict | None = None,
    **saving: object,
) -> None:
    saver = Saver(t.folder / run, **{"save_top_k": -1} | saving)
    saver.record = record
    usual = {
        "accelerator": "cpu",
        "max_epochs": EPOCHS,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": t.folder,
    }
    made = pl.Trainer(**usual | (trainer or {}), logger=logger, callbacks=[*callbacks, saver])
    made.fit(module, data(), data())


def check(
    t: Trial, record: Record, run: str = "run", otherwise: tuple[object, ...] = (), kind: type[Lit] = Lit
) -> None:
    used = t.weights(run, record, otherwise=otherwise)
    expected = t.written(run, "average.ckpt", record, *used)
    module = kind.load_from_checkpoint(t.folder / "average.ckpt", weights_only=True)
    t.loaded(LOADS, module.state_dict(), expected)
    forward(module.net)


def each_step(scheduler: object) -> dict:
    return {"scheduler": scheduler, "interval": "step"}


def adam_cosine(module: Lit) -> tuple:
    optimizer = Adam(module.parameters(), lr=2e-3)
    return [optimizer], [each_step(schedulers.CosineAnnealingLR(optimizer, STEPS))]


def one_cycle(module: Lit) -> tuple:
    optimizer = SGD(module.parameters(), lr=0.05, momentum=0.9)
    return [optimizer], [each_step(schedulers.OneCycleLR(optimizer, 0.1, total_steps=STEPS))]


@case("lightning")
def default_names(t: Trial) -> None:
    """`epoch=0-step=20.ckpt`"""
    with recording() as record:
        fit(t, record, Lit(adam_cosine))
    check(t, record)


@case("lightning")
def names_of_a_metric_only(t: Trial) -> None:
    """`00-0.293448.ckpt`"""
    with recording() as record:
        fit(t, record, Lit(one_cycle), filename="{epoch:02d}-{val_loss:.6f}", auto_insert_metric_name=False)
    check(t, record)


@case("lightning")
def names_of_epoch_and_metric(t: Trial) -> None:
    """`net-epoch=00-val_loss=0.29.ckpt`, SGD whose steps only global_step knows."""

    def made(module: Lit) -> tuple:
        optimizer = SGD(module.parameters(), lr=0.05, momentum=0.9, nesterov=True)
        return [optimizer], [schedulers.MultiStepLR(optimizer, [4, 7], 0.3)]

    with recording() as record:
        fit(t, record, Lit(made), filename="net-{epoch:02d}-{val_loss:.2f}")
    check(t, record)


@case("lightning")
def last_beside_the_others_in_a_numbered_folder(t: Trial) -> None:
    """`run2/last.ckpt` is neither step 2 nor an iterate of its own."""
    with recording() as record:
        fit(t, record, Lit(one_cycle), "run2", save_last=True, filename="net-{val_loss:.6f}")
    assert (t.folder / "run2/last.ckpt").exists()
    check(t, record, "run2")
    t.notes("run2", record, "last.ckpt")


@case("lightning")
def every_thirty_steps_with_a_warm_up(t: Trial) -> None:
    """Six files; steps per epoch and per file differ."""

    def made(module: Lit) -> dict:
        optimizer = AdamW(module.parameters(), lr=2e-3)
        warmed = [schedulers.LinearLR(optimizer, 0.05, 1, 40), schedulers.CosineAnnealingLR(optimizer, STEPS - 40)]
        return {"optimizer": optimizer, "lr_scheduler": each_step(schedulers.SequentialLR(optimizer, warmed, [40]))}

    with recording() as record:
        fit(t, record, Lit(made), every_n_train_steps=30)
    check(t, record)


@case("lightning")
def the_four_best(t: Trial) -> None:
    """save_top_k: an irregular choice of steps."""
    with recording() as record:
        fit(t, record, Lit(adam_cosine), save_top_k=4, monitor="train_loss", every_n_train_steps=10)
    steps = [int(path.stem.rpartition("=")[2]) for path in (t.folder / "run").iterdir()]
    marks = [next(iter(mark.values())) for mark in record.marks]
    check(t, record.only(sorted(marks.index(step) for step in steps)))


@case("lightning")
def gradients_of_two_batches(t: Trial) -> None:
    """Ten steps an epoch; batch norm counts twenty."""
    with recording() as record:
        fit(t, record, Lit(lambda m: SGD(m.parameters(), lr=0.1), norm=True), trainer={"accumulate_grad_batches": 2})
    check(t, record)


@case("lightning")
def lambda_with_a_warm_up(t: Trial) -> None:
    def made(module: Lit) -> tuple:
        optimizer = AdamW(module.parameters(), lr=2e-3)
        return [optimizer], [each_step(schedulers.LambdaLR(optimizer, lambda k: min((k + 1) / 40, 1 - k / 250)))]

    with recording() as record:
        fit(t, record, Lit(made))
    check(t, record, otherwise=("--rates", t.rates(record)))


@case("lightning")
def plateau_of_the_validation_loss(t: Trial) -> None:
    def made(module: Lit) -> dict:
        optimizer = SGD(module.parameters(), lr=0.05, momentum=0.9)
        plateau = schedulers.ReduceLROnPlateau(optimizer, factor=0.3, patience=0, threshold=0.2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}

    with recording() as record:
        fit(t, record, Lit(made))
    check(t, record, otherwise=("--rates", t.rates(record)))


def stepped(**config: object) -> Callable[[Lit], dict]:
    """A scheduler with Lightning's settings of when."""

    def made(module: Lit) -> dict:
        optimizer = AdamW(module.parameters(), lr=2e-3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedulers.ExponentialLR(optimizer, 0.9)} | config}

    return made


@case("lightning")
def a_scheduler_every_three_steps(t: Trial) -> None:
    """Lightning counts a `frequency` anew in every epoch: the last two of its 20 steps are none."""
    with recording() as record:
        fit(t, record, Lit(stepped(interval="step", frequency=3)))
    check(t, record)


@case("lightning")
def a_scheduler_every_fifteen_steps(t: Trial) -> None:
    """Of epochs of 20: once in each, and files at the ends of epochs are those of Lightning's default. A note says what that decides."""
    with recording() as record:
        fit(t, record, Lit(stepped(interval="step", frequency=15)))
    t.weights("run", record, "--rates", t.rates(record))
    found = t.average("run", "-o", "never", "--dry-run", "--l2", ",".join(map(str, record.strengths())))
    assert "are not known exactly" in str(found["notes"]), found["notes"]


@case("lightning")
def a_scheduler_every_fifteen_steps_in_files_between_epochs(t: Trial) -> None:
    with recording() as record:
        fit(t, record, Lit(stepped(interval="step", frequency=15)), every_n_train_steps=7)
    check(t, record)


@case("lightning")
def a_scheduler_of_epochs(t: Trial) -> None:
    """Lightning's default: the same files as with one that is stepped every 15 of 20 steps."""
    with recording() as record:
        fit(t, record, Lit(stepped()))
    check(t, record)


@case("lightning")
def a_scheduler_of_every_other_epoch(t: Trial) -> None:
    with recording() as record:
        fit(t, record, Lit(stepped(interval="epoch", frequency=2)))
    check(t, record)


@case("lightning")
def a_scheduler_of_steps_of_two_batches(t: Trial) -> None:
    with recording() as record:
        fit(t, record, Lit(stepped(interval="step", frequency=6)), trainer={"accumulate_grad_batches": 2})
    check(t, record)


class Pair(Lit):
    """Body and head by optimizers of their own, stepped by hand: Lightning's global_step counts both."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> list:
        return [Adam(self.net.body.parameters(), lr=1e-3), SGD(self.net.head.parameters(), lr=0.05, momentum=0.9)]

    def training_step(self, batch: list, _: int) -> None:
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        both = self.optimizers()
        for optimizer in both:
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in both:
            optimizer.step()


@case("lightning")
def two_optimizers(t: Trial) -> None:
    with recording() as record:
        fit(t, record, Pair())
    assert len(record.weights(1.0)) == 2
    check(t, record, kind=Pair)


@case("lightning")
def a_moving_average_beside_the_weights(t: Trial) -> None:
    """EMAWeightAveraging puts its own average under `state_dict`: iterates are `current_model_state`."""
    with recording() as record:
        fit(t, record, Lit(adam_cosine), callbacks=(EMAWeightAveraging(decay=0.9),))
    check(t, record, otherwise=("--key", "current_model_state"))


@case("lightning")
def weights_only(t: Trial) -> None:
    """Steps are known, rates are not: told by hand."""
    with recording() as record:
        fit(t, record, Lit(lambda m: SGD(m.parameters(), lr=0.05)), save_weights_only=True)
    check(t, record, otherwise=("--rate", 0.05, "--optimizer", "sgd"))


@case("lightning")
def weights_only_with_lightnings_log_of_rates(t: Trial) -> None:
    """LearningRateMonitor's column of CSVLogger's file."""

    def made(module: Lit) -> tuple:
        optimizer = Adam(module.parameters(), lr=2e-3)
        return [optimizer], [each_step(schedulers.OneCycleLR(optimizer, 4e-3, total_steps=STEPS, cycle_momentum=False))]

    with recording() as record:
        log = CSVLogger(t.folder, "logs")
        fit(
            t,
            record,
            Lit(made),
            callbacks=(LearningRateMonitor("step"),),
            logger=log,
            save_weights_only=True,
            trainer={"log_every_n_steps": 1},
        )
    check(t, record, otherwise=("--rates", "logs/version_0/metrics.csv", "--optimizer", "adam"))
