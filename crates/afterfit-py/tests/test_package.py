"""The package: what it needs, how it stops, what it promises to readers and type checkers."""

import doctest
import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import afterfit

HERE = Path(__file__).parent


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)


def test_importing_needs_numpy_alone():
    heavy = [
        "sklearn",
        "scipy",
        "torch",
        "lightning",
        "transformers",
        "jax",
        "matplotlib",
        "tqdm",
        "pandas",
        "anywidget",
        "ray",
    ]
    done = python(f"import sys; [sys.modules.__setitem__(name, None) for name in {heavy}]; import afterfit")
    assert done.returncode == 0, done.stderr


def test_the_command_is_in_the_package():
    done = subprocess.run([sys.executable, "-m", "afterfit", "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"afterfit {afterfit.__version__}"
    assert subprocess.run([sys.executable, "-m", "afterfit", "fit", "nowhere.csv"], capture_output=True).returncode == 1


LONG_FIT = """
import numpy as np
from afterfit.sklearn import LogisticRegressionCV
rng = np.random.default_rng(0)
X, y = rng.normal(size=(60_000, 60)), rng.integers(0, 8, 60_000)
print("ready", flush=True)
LogisticRegressionCV(Cs=400, cv=20).fit(X, y)
print("done", flush=True)
"""

LONG_AVERAGE = """
import sys, time, afterfit
print("ready", flush=True)
def evaluate(path):
    print("evaluating", flush=True)
    time.sleep(60)
afterfit.average(sys.argv[1], sys.argv[2], uniform=True, evaluate=evaluate)
"""


@contextmanager
def started(*command):
    """A process that hears Ctrl-C, also where this one was told to ignore it (in the background, say), and ends with the test."""

    def hear():
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_a_fit():
    """Within a second, which is not measured here: machines are busy. The fit itself takes minutes."""
    with started(sys.executable, "-c", LONG_FIT) as fit:
        assert fit.stdout.readline() == "ready\n"
        time.sleep(2.0)
        fit.send_signal(signal.SIGINT)
        said, error = fit.communicate(timeout=60)
        assert said == ""
        assert error.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_leaves_nothing_half_written(tmp_path):
    import numpy as np

    run = tmp_path / "run"
    run.mkdir()
    for step in range(4):
        np.savez(run / f"step-{step}.npz", w=np.full(1000, float(step)))
    with started(sys.executable, "-c", LONG_AVERAGE, str(run), str(tmp_path / "mean.npz")) as average:
        assert average.stdout.readline() == "ready\n"
        assert average.stdout.readline() == "evaluating\n"
        average.send_signal(signal.SIGINT)
        _, error = average.communicate(timeout=60)
        assert error.rstrip().endswith("KeyboardInterrupt")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["mean.npz", "run"], "the output is whole, and nothing else is there"
    assert np.load(tmp_path / "mean.npz")["w"][0] == 1.5


@pytest.mark.parametrize("name", ["afterfit", "afterfit._command", "afterfit.theory", "afterfit.sklearn"])
def test_examples_in_the_documentation(name):
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert not failed and (tried or name == "afterfit")


@pytest.mark.parametrize("name", ["table.py", "checkpoints.py"])
def test_examples_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(HERE.parent / "examples" / name), run_name="__main__")


def test_progress_is_shown_where_it_is_asked_for(capfd):
    pytest.importorskip("tqdm")
    import numpy as np

    from afterfit.sklearn import RidgeCV

    X = np.random.default_rng(0).normal(size=(50, 3))
    RidgeCV(verbose=True).fit(X, X[:, 0])
    assert "RidgeCV" in capfd.readouterr().err
