"""`average`, `plan`, `weights` and `theory`: what the command says, as Python."""

import copy
import json
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import afterfit
from afterfit import theory
from afterfit._afterfit import Tracker


@pytest.fixture
def run(tmp_path):
    """A run of six checkpoints, w_k = k."""
    folder = tmp_path / "run"
    folder.mkdir()
    for step in range(6):
        np.savez(folder / f"step-{step}.npz", w=np.full(4, float(step)), b=np.array([step * 0.5]))
    return folder


def command(*arguments):
    done = subprocess.run([sys.executable, "-m", "afterfit", *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_average_is_the_commands(run, tmp_path):
    found = afterfit.average(run, tmp_path / "ours", l2=(1e-2, 1e1, 5), rate=0.1, format="npz")
    settings = ["--l2", "1e-2..1e1:5", "--rate", "0.1", "--format", "npz", "--json", "-q"]
    code, said, _ = command("average", run, "-o", tmp_path / "theirs", *settings)
    assert code == 0
    theirs = json.loads(said)
    assert [output.strength for output in found.outputs] == [row["strength"] for row in theirs["outputs"]]
    assert found.weights == theirs["weights"]
    assert found.notes == theirs["notes"]
    for ours, row in zip(found.outputs, theirs["outputs"], strict=True):
        np.testing.assert_array_equal(np.load(ours.path)["w"], np.load(row["path"])["w"])
        assert (ours.status, ours.reason) == (row["status"], row["reason"])


def test_a_function_judges(run, tmp_path):
    seen = []

    def evaluate(path):
        seen.append(path)
        return float(np.load(path)["w"][0])

    settings = {"l2": [0.1, 1.0, 10.0], "rate": 0.1, "format": "npz"}
    found = afterfit.average(run, tmp_path / "best", **settings, evaluate=evaluate, best="min", keep="best")
    assert len(seen) == 4, "the last checkpoint, then every output"
    assert found.last_score == 5.0
    assert found.best is not None and found.best.strength == 10.0
    assert [path.name for path in (tmp_path / "best").iterdir()] == [found.best.path.name]


def test_scores_alone_choose_nothing(run, tmp_path):
    settings = {"l2": [0.1, 1.0], "rate": 0.1, "format": "npz"}
    found = afterfit.average(run, tmp_path / "out", **settings, evaluate=lambda path: 1.0)
    assert [output.score for output in found.outputs] == [1.0, 1.0]
    assert found.best is None and not any("best" in note for note in found.notes)


@pytest.mark.parametrize("best", [None, "max", "min"])
@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_refused(run, tmp_path, score, best):
    with pytest.raises(ValueError, match="evaluate gave (NaN|inf) for .*: a score must be finite"):
        afterfit.average(run, tmp_path / "out", uniform=True, format="npz", evaluate=lambda path: score, best=best)


def test_an_exception_of_the_judge_is_raised_as_it_is(run, tmp_path):
    class Mine(Exception):
        pass

    def evaluate(path):
        raise Mine(path)

    with pytest.raises(Mine):
        afterfit.average(run, tmp_path / "out", uniform=True, format="npz", evaluate=evaluate)


def test_a_dial(run, tmp_path):
    found = afterfit.average(run, tmp_path / "run.dial", dial=(1e-2, 1e1), rate=0.1, nodes=8)
    (output,) = found.outputs
    assert output.certificate is not None and output.certificate < 1 and len(output.nodes) == 8
    assert (tmp_path / "run.dial").is_file()
    # Found there, it is told in full (a task of Ray's that died after it was done finds its own).
    again = afterfit.average(run, tmp_path / "run.dial", dial=(1e-2, 1e1), rate=0.1, nodes=8, skip_existing=True)
    assert again.outputs == [replace(output, skipped=True)]
    assert (again.notes, again.weights, again.bytes) == (found.notes, found.weights, found.bytes)


def test_errors_are_pythons_in_the_commands_words(run, tmp_path):
    out = tmp_path / "out.npz"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        afterfit.average(tmp_path / "nowhere.npz", out, uniform=True)
    broken = tmp_path / "run" / "step-6.npz"
    broken.write_bytes(b"not a zip")
    with pytest.raises(afterfit.CheckpointError) as caught:
        afterfit.average(run, out, uniform=True)
    _, _, said = command("average", run, "-o", out, "--uniform")
    assert f"error: {caught.value}" in said
    broken.unlink()
    with pytest.raises(ValueError, match="no strength was asked for") as caught:
        afterfit.average(run, out)
    assert caught.value.__notes__[0].startswith("hint: add --l2 auto")
    with pytest.raises(afterfit.CheckpointError) as caught:
        afterfit.average(run, out, l2=1.0)
    assert "--rate 0.1" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="cannot be used with"):
        afterfit.average(run, out, uniform=True, rate=0.1, rates="lr.csv")
    with pytest.raises(ValueError, match="keep best removes every other output"):
        afterfit.average(run, out, uniform=True, evaluate=lambda path: 0.0, keep="best")
    assert not out.exists()
    assert list(tmp_path.iterdir()) == [run]


def test_plan_weights_and_theory():
    plan = afterfit.plan(l2=(1e-5, 1e-2), rate=0.1, steps=150_000, params=11_173_962)
    assert (plan.nodes, plan.certificate < 1e-3, plan.bytes > 1e9) == (18, True, True)
    whole = afterfit.plan(l2=(1e-5, 1e-2), rate=0.1, steps=150_000, params=11_173_962, dtype="f32", block=9)
    assert whole.nodes == 18 and 2 * whole.bytes * 18 == plan.bytes * (18 + 1 + 9)
    with pytest.raises(ValueError, match="block is 0: it must be at least 1"):
        afterfit.plan(l2=(1e-5, 1e-2), rate=0.1, steps=10, params=10, block=0)
    found = afterfit.weights(l2=0.5, rate="0.1,50:0.01", steps=100, optimizer="heavy-ball", momentum=0.9)
    assert found.weights.shape == (100,) and found.exact
    np.testing.assert_allclose(found.weights.sum() + found.remaining, 1.0)
    assert afterfit.weights(l2=0.5, rate=0.1, steps=2).ratio == pytest.approx(1 / 1.05)
    assert theory.bound(rate=0.1, l2=0.1, alpha=0.1, beta=1.0, sigma=1.0, delta=0.05) > 0
    assert theory.bracket(rate=0.1, l2=0.8, alpha=0.5, beta=1.0).theorem is False
    flow = theory.flow(eigenvalue=1.0, l2=0.5, time=2.0)
    assert 0 < flow.mass < 1
    with pytest.raises(ValueError, match="this bound requires --condition"):
        theory.bound(rate=0.1, l2=0.1, alpha=0.1, beta=1.0, sigma=1.0, delta=0.05, optimizer="preconditioned")
    with pytest.raises(ValueError, match="heavy-ball needs --momentum"):
        afterfit.weights(l2=0.5, rate=0.1, steps=2, optimizer="heavy-ball")


def test_numbers_are_pythons():
    settings = {"l2": (0.1, 1.0), "rate": 0.1, "params": 5}
    assert afterfit.plan(steps=1e5, **settings) == afterfit.plan(steps=100_000, **settings)
    with pytest.raises(ValueError, match="steps is 10.5: it must be a whole number"):
        afterfit.plan(steps=10.5, **settings)
    with pytest.raises(ValueError, match="steps is -1: it must be at least 0"):
        afterfit.weights(l2=1.0, rate=0.1, steps=-1)
    with pytest.raises(ValueError, match="l2 is True"):
        afterfit.weights(l2=True, rate=0.1, steps=3)
    with pytest.raises(ValueError, match="paths is empty"):
        afterfit.average([], "out.npz", uniform=True)
    with pytest.raises(ValueError, match="give evaluate="):
        afterfit.average(["run"], "out.npz", uniform=True, best="max")


def test_errors_are_pickled_by_their_public_name(run):
    with pytest.raises(afterfit.CheckpointError) as caught:
        afterfit.average(run, "out.npz", l2=1.0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is afterfit.CheckpointError and str(again) == str(caught.value)
    assert afterfit.CheckpointError.__module__ == "afterfit"


def test_trackers_are_copied_as_they_are():
    tracker = Tracker([("l2", 0.1, 1.0, 4)], [("heavy-ball", {"momentum": 0.9})], [0.1])
    tracker.step([0.1])
    assert (tracker.recurrences, tracker.unknown) == (["heavy-ball"], [])
    for again in (pickle.loads(pickle.dumps(tracker)), copy.deepcopy(tracker)):
        assert again.state() == tracker.state()
    assert Tracker([("l2", 0.1, 1.0, 4)], [("mine", {})], [0.1]).unknown == ["mine"]


def test_progress_reaches_a_bar(run, tmp_path):
    pytest.importorskip("tqdm")
    from afterfit._afterfit import call

    told = []
    call(["afterfit", "average", "--json", "-q", "--uniform", f"--output={tmp_path / 'mean.npz'}", str(run)],
         progress=lambda done, total: told.append((done, total)))  # fmt: skip
    assert told and told[-1] == (240, 240), "six checkpoints of five numbers"
