"""Lightning's trainer gives the numbers of the bare loop, and its own weights back."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from problem import RANGE, STRENGTHS, Problem, flat
from torch.utils.data import DataLoader

import afterfit
from afterfit.lightning import DialCallback
from afterfit.torch import Dial

pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 120


class Module(pl.LightningModule):
    def __init__(self, problem: Problem, manual: bool = False) -> None:
        super().__init__()
        self.problem, self.weights = problem, problem.model(split=2)
        self.automatic_optimization = not manual
        self.ends: list[torch.Tensor] = []

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        loss = self.problem.loss(self.weights)
        if not self.automatic_optimization:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def on_train_epoch_end(self) -> None:
        self.ends.append(flat(self.state_dict()).clone())

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.SGD(
            [{"params": [self.weights[0]]}, {"params": [self.weights[1]], "lr": 0.05}], lr=0.1, momentum=0.8
        )
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40, gamma=0.5)
        if not self.automatic_optimization:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(module: Module, callback: DialCallback, epochs: int, folder: Path, ckpt: str | None = None) -> pl.Trainer:
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=[callback, pl.callbacks.ModelCheckpoint(folder, save_top_k=-1)],
    )  # fmt: skip
    trainer.fit(module, DataLoader(torch.zeros(20, 1), batch_size=1), ckpt_path=ckpt)
    return trainer


def bare(problem: Problem, schedule: bool) -> Dial:
    model = problem.model(split=2)
    optimizer = torch.optim.SGD([{"params": [model[0]]}, {"params": [model[1]], "lr": 0.05}], lr=0.1, momentum=0.8)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40, gamma=0.5)
    dial = Dial(model, optimizer, l2=RANGE, nodes=12, steps=STEPS, schedule=scheduler if schedule else None)
    problem.train(model, optimizer, STEPS, scheduler)
    return dial


@pytest.mark.parametrize("schedule", [None, "trainer"])
def test_the_numbers_are_those_of_the_bare_loop(schedule: str | None, tmp_path: Path) -> None:
    problem = Problem()
    module, callback = Module(problem), DialCallback(l2=RANGE, nodes=12, schedule=schedule, save=tmp_path / "run.dial")
    fit(module, callback, STEPS // 20, tmp_path)
    dial = bare(problem, schedule is not None)
    assert callback.dial.steps == STEPS
    for l2 in STRENGTHS:
        one, two = callback.read(l2), dial.read(l2)
        assert torch.equal(flat(one.state_dict()), flat(two.state_dict())), l2
        assert one.error == two.error
    assert torch.equal(flat(module.state_dict()), flat(dial.model.state_dict())), "the trained weights stay"
    assert (tmp_path / "run.dial").is_file()


def test_interrupted_is_uninterrupted(tmp_path: Path) -> None:
    problem = Problem()
    whole = DialCallback(l2=RANGE, nodes=12)
    fit(Module(problem), whole, 6, tmp_path / "whole")
    fit(Module(problem), DialCallback(l2=RANGE, nodes=12), 3, tmp_path / "first")
    (checkpoint,) = (tmp_path / "first").glob("epoch=2*.ckpt")
    resumed = DialCallback(l2=RANGE, nodes=12)
    fit(Module(problem), resumed, 6, tmp_path / "second", str(checkpoint))
    assert resumed.dial.steps == STEPS
    for l2 in STRENGTHS:
        assert torch.equal(flat(resumed.read(l2).state_dict()), flat(whole.read(l2).state_dict()))


def test_states_that_do_not_fit_are_said(tmp_path: Path) -> None:
    fit(Module(Problem()), DialCallback(l2=RANGE, nodes=12), 1, tmp_path / "first")
    (file,) = (tmp_path / "first").glob("*.ckpt")
    checkpoint = torch.load(file, weights_only=False)
    own = checkpoint["callbacks"]["DialCallback"]["dial"]["courses"]["0"]
    for change, words in [
        (lambda: own["tensors"].popitem(), "is missing"),
        (lambda: own.update(tracker="cut"), "not the state of a dial"),
    ]:
        change()
        torch.save(checkpoint, file)
        with pytest.raises(afterfit.CheckpointError, match=words):
            fit(Module(Problem()), DialCallback(l2=RANGE, nodes=12), 2, tmp_path / "second", str(file))


def test_checkpoints_hold_the_trained_weights(tmp_path: Path) -> None:
    module, callback = Module(Problem()), DialCallback(l2=RANGE, nodes=12)
    fit(module, callback, 2, tmp_path)
    for epoch, weights in enumerate(module.ends):
        (file,) = tmp_path.glob(f"epoch={epoch}*.ckpt")
        saved = torch.load(file, weights_only=False)["state_dict"]
        assert torch.equal(flat(saved), weights)


class Diverging(Module):
    def training_step(self, batch: torch.Tensor, step: int) -> torch.Tensor:
        loss = super().training_step(batch, step)
        return loss * float("nan") if self.global_step == 25 else loss


@pytest.mark.filterwarnings("default:the weights held NaN")
def test_weights_that_are_nan_do_not_stop_the_trainer(tmp_path: Path) -> None:
    callback = DialCallback(l2=RANGE, nodes=12, save=tmp_path / "run.dial")
    with pytest.warns(UserWarning, match="the weights held NaN .* the dial is not in this checkpoint") as seen:
        trainer = fit(Diverging(Problem()), callback, 3, tmp_path)
    assert trainer.global_step == 60
    assert sum("held NaN" in str(one.message) for one in seen) == 1
    kept = [torch.load(file, weights_only=False)["callbacks"] for file in sorted(tmp_path.glob("*.ckpt"))]
    assert ["DialCallback" in states and "dial" in states["DialCallback"] for states in kept] == [True, False, False]
    assert not (tmp_path / "run.dial").exists()
    with pytest.raises(ValueError, match="NaN or infinity"):
        callback.dial.state_dict()


def test_callbacks_are_made_for_what_a_dial_knows(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'toleranse'"):
        DialCallback(l2=RANGE, toleranse=1e-3)
    callback = DialCallback(l2=RANGE, nodes=4, save=tmp_path / "new" / "folder" / "run.dial")
    assert repr(callback) == "DialCallback(l2=(0.02, 1.0), nodes=4)"
    fit(Module(Problem()), callback, 1, tmp_path)
    assert (tmp_path / "new" / "folder" / "run.dial").is_file()


def test_manual_optimization(tmp_path: Path) -> None:
    callback = DialCallback(l2=RANGE, nodes=12)
    fit(Module(Problem(), manual=True), callback, 2, tmp_path)
    assert callback.dial.steps == 40 and callback.read(0.1).error < 0.1
    with pytest.raises(ValueError, match="no step yet"):
        DialCallback(l2=RANGE).read(0.1)
