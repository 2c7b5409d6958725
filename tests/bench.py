"""Benchmarks of the command beside scikit-learn and numpy, in turns in one run; prints BENCHMARKS.md.

Run by `make bench` as `python tests/bench.py PATH_TO_AFTERFIT`. Takes about ten minutes on two cores, most of them
scikit-learn's. Progress goes to stderr.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

AFTERFIT = Path(sys.argv[1]).resolve()
ROOT = Path(__file__).resolve().parent.parent
warnings.simplefilter("ignore", ConvergenceWarning)


def say(text):
    print(text, file=sys.stderr, flush=True)


def measured(*arguments):
    """Runs the command; its JSON, wall seconds and peak memory in bytes."""
    # A small process of its own starts the command: a fork of this one would count our arrays as the command's memory.
    watch = (
        "import json, os, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "child = subprocess.Popen(sys.argv[1:], stderr=subprocess.DEVNULL)\n"
        "_, status, usage = os.wait4(child.pid, 0)\n"
        "print('\\n' + json.dumps([status, time.perf_counter() - start, usage.ru_maxrss * 1024]))\n"
    )
    done = subprocess.run([sys.executable, "-c", watch, AFTERFIT, *map(str, arguments)], capture_output=True, text=True, check=True)
    *printed, last = done.stdout.strip().splitlines()
    status, seconds, memory = json.loads(last)
    assert status == 0, (arguments, done.stderr)
    return json.loads("".join(printed)), seconds, memory


def idx(path):
    raw = path.read_bytes()
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def softmax(mnist, x, y, xt, yt):
    """One fit of 115 λ against scikit-learn warm-started over 20 of them, from the strongest down."""
    grid = ["fit", mnist / "train-images-idx3-ubyte", "--test", mnist / "t10k-images-idx3-ubyte", "--l2", "1e-5..1:115", "--json"]
    runs = [measured(*grid)]
    say("scikit-learn, 20 λ …")
    strengths = np.logspace(0, -5, 20)
    model = LogisticRegression(warm_start=True, max_iter=1000)
    start = time.perf_counter()
    theirs = []
    for l2 in strengths:
        model.set_params(C=1 / (len(x) * l2))
        model.fit(x, y)
        theirs.append(model.score(xt, yt))
        say(f"  λ = {l2:.1e}: {100 * theirs[-1]:.2f} %, {time.perf_counter() - start:.0f} s so far")
    peer = time.perf_counter() - start
    runs += [measured(*grid), measured(*grid)]
    out, seconds, memory = sorted(runs, key=lambda run: run[1])[1]
    path = out["path"]
    best = max(row["validation_accuracy"] for row in path)
    data = x.nbytes
    print("## MNIST softmax, 60 000 × 784, 10 classes\n")
    print("| | strengths | wall time | best test accuracy | peak memory |\n|---|---|---|---|---|")
    print(f"| `afterfit fit` (reading, training, evaluation: everything) | {len(path)} | {seconds:.2f} s | {100 * best:.2f} % | {memory / data:.2f} × the data as f32 |")
    print(f"| scikit-learn `LogisticRegression`, lbfgs, warm-started (data in memory) | 20 | {peer:.1f} s | {100 * max(theirs):.2f} % | |")
    print(f"\n**{peer / seconds:.0f}× faster**, with {len(path) / 20:.1f} times as many strengths. Test accuracy along the path:\n")
    print("| λ | scikit-learn | afterfit | resolved by the run |\n|---|---|---|---|")
    for l2, accuracy in zip(strengths, theirs):
        row = min(path, key=lambda row: abs(np.log(row["l2"] / l2)))
        print(f"| {l2:.1e} | {100 * accuracy:.2f} % | {100 * row['validation_accuracy']:.2f} % | {'yes' if row['resolved'] else 'no: early-stopped'} |")
    print()


def linear(mnist, x, y, xt, yt):
    """One fit of 100 λ against numpy: Gram matrix, eigh, a solve and a test loss for each λ."""
    fit = ["fit", mnist / "train-images-idx3-ubyte", "--test", mnist / "t10k-images-idx3-ubyte", "--model", "linear", "--l2", "1e-4..1e2:100", "--json"]

    def peer():
        start = time.perf_counter()
        wide, targets = x.astype(np.float64), y.astype(np.float64)
        mean, target_mean = wide.mean(axis=0), targets.mean()
        gram = wide.T @ wide / len(wide) - np.outer(mean, mean)
        cross = wide.T @ targets / len(wide) - mean * target_mean
        values, vectors = np.linalg.eigh(gram)
        rotated = vectors.T @ cross
        test = xt.astype(np.float64)
        losses = []
        for l2 in np.logspace(-4, 2, 100):
            w = vectors @ (rotated / (values + l2))
            losses.append(0.5 * np.mean((test @ w + target_mean - mean @ w - yt) ** 2))
        return time.perf_counter() - start, losses

    rounds = [(measured(*fit), peer()) for _ in range(3)]
    rounds.sort(key=lambda pair: pair[0][1])
    (out, seconds, memory), _ = rounds[1]
    theirs = sorted(p[0] for _, p in rounds)[1]
    off = max(abs(row["validation_loss"] / loss - 1) for row, loss in zip(out["path"], rounds[0][1][1]))
    print("## MNIST ridge, 60 000 × 784, 100 λ with evaluation\n")
    print("| | wall time | peak memory |\n|---|---|---|")
    print(f"| `afterfit fit` (reading included) | {seconds:.2f} s | {memory / x.nbytes:.2f} × the data as f32 |")
    print(f"| numpy: Gram matrix + eigh (data in memory) | {theirs:.2f} s | |")
    print(f"\n**{theirs / seconds:.1f}× faster**; test losses agree to {off:.0e}, relative.\n")


def growth():
    """How the time grows with rows, features and strengths, on made-up tables."""
    rng = np.random.default_rng(0)
    print("## How cost grows\n\nSeconds for training, averaging and selecting (reading left out), median of three.\n")
    print("| rows | features | λ | linear | softmax, 5 classes |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for n, d, count in [(10_000, 100, 100), (20_000, 100, 100), (40_000, 100, 100), (20_000, 50, 100), (20_000, 200, 100), (20_000, 400, 100), (20_000, 100, 10), (20_000, 100, 1000)]:
            x = rng.normal(size=(n, d)).astype(np.float32)
            w = rng.normal(size=(d, 5))
            table = Path(folder) / "t.npz"
            np.savez(table, x=x, y=np.argmax(x @ w + 3 * rng.normal(size=(n, 5)), axis=1))
            cells = []
            for model in ["linear", "softmax"]:
                times = []
                for _ in range(3):
                    out, _, _ = measured("fit", table, "--model", model, "--l2", f"1e-4..1:{count}", "--json")
                    times.append(sum(out["seconds"][part] for part in ["train", "average", "select"]))
                cells.append(f"{sorted(times)[1]:.2f}")
            print(f"| {n} | {d} | {count} | {cells[0]} | {cells[1]} |")
            say(f"growth: {n} × {d}, {count} λ done")
    print()


def sparse():
    """A sparse table: time against the dense one, memory against its CSR."""
    rng = np.random.default_rng(1)
    n, d, per_row = 200_000, 300, 14
    with tempfile.TemporaryDirectory() as folder:
        columns = np.argpartition(rng.random((n, d), dtype=np.float32), per_row, axis=1)[:, :per_row]
        columns.sort(axis=1)
        dense = np.zeros((n, d), np.float32)
        np.put_along_axis(dense, columns, 1.0, axis=1)
        labels = (dense[:, :150].sum(axis=1) + rng.normal(size=n) > 7).astype(int)
        lines = [f"{label} " + " ".join(f"{c + 1}:1" for c in row) for label, row in zip(labels, columns)]
        (Path(folder) / "t.libsvm").write_text("\n".join(lines))
        np.savez(Path(folder) / "t.npz", x=dense, y=labels)
        csr = n * per_row * 12 + n * 8
        print(f"## A sparse table, {n} × {d}, {per_row} nonzeros a row, softmax, 50 λ\n")
        print("| table | wall time | peak memory |\n|---|---|---|")
        for name in ["t.libsvm", "t.npz"]:
            _, seconds, memory = measured("fit", Path(folder) / name, "--model", "softmax", "--json")
            print(f"| {'libsvm, sparse' if 'svm' in name else 'npz, dense'} | {seconds:.2f} s | {memory / 1e6:.0f} MB ({memory / csr:.1f} × the CSR) |")
    print()


def main():
    cores = os.cpu_count()
    print("# Benchmarks\n\nRegenerated by `make bench`; every comparison ran in turns on the same machine. Compare ratios, not seconds:")
    print(f"machines are shared and noisy. This run: {cores} threads. Training steps on a GPU, beside PyTorch:")
    print("[crates/afterfit-nets](crates/afterfit-nets/README.md#speed), by `make bench-nets`.\n")
    say("MNIST …")
    found = subprocess.run([AFTERFIT, "data", "get", "mnist"], check=True, capture_output=True, text=True)
    mnist = Path(found.stdout.strip())
    x, xt = (idx(mnist / f"{part}-images-idx3-ubyte").reshape(-1, 784).astype(np.float32) / 255 for part in ["train", "t10k"])
    y, yt = (idx(mnist / f"{part}-labels-idx1-ubyte") for part in ["train", "t10k"])
    softmax(mnist, x, y, xt, yt)
    say("linear …")
    linear(mnist, x, y, xt, yt)
    say("growth …")
    growth()
    sparse()
    say("core …")
    core = subprocess.run(["cargo", "bench", "-q", "-p", "afterfit", "--bench", "core"], cwd=ROOT, check=True, capture_output=True, text=True)
    print("## The core, beside the limits it runs against\n")
    print(core.stdout[core.stdout.index("| what") :].strip())


main()
