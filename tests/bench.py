"""Benchmarks of the command beside scikit-learn and numpy, in turns in one run; prints BENCHMARKS.md.

Run by `make bench` as `python tests/bench.py PATH_TO_AFTERFIT`. Takes about a quarter of an hour on two cores, most of them
scikit-learn's. Progress goes to stderr.
"""

import json
import math
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
from threadpoolctl import threadpool_limits

AFTERFIT = Path(sys.argv[1]).resolve()
ROOT = Path(__file__).resolve().parent.parent
warnings.simplefilter("ignore", ConvergenceWarning)


def say(text):
    print(text, file=sys.stderr, flush=True)


def measured(*arguments, memory=None):
    """Runs the command, perhaps with so many bytes of address space; its JSON, wall seconds and peak memory in bytes."""
    # A small process of its own starts the command: a fork of this one would count our arrays as the command's memory.
    watch = (
        "import json, os, resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "limit = int(sys.argv[1])\n"
        "if limit: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "child = subprocess.Popen(sys.argv[2:], stderr=subprocess.DEVNULL)\n"
        "_, status, usage = os.wait4(child.pid, 0)\n"
        "print('\\n' + json.dumps([status, time.perf_counter() - start, usage.ru_maxrss * 1024]))\n"
    )
    done = subprocess.run([sys.executable, "-c", watch, str(memory or 0), AFTERFIT, *map(str, arguments)], capture_output=True, text=True, check=True)
    *printed, last = done.stdout.strip().splitlines()
    status, seconds, memory = json.loads(last)
    assert status == 0, (arguments, done.stderr)
    return json.loads("".join(printed)), seconds, memory


def idx(path):
    raw = path.read_bytes()
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(raw[3])]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


# What both sides must reach at every λ: the held-out log-loss of the exact model, to this share of it.
EQUAL = 1e-3


def log_loss(model, x, y):
    scores = model.decision_function(x)
    scores = np.stack([np.zeros(len(y)), scores], axis=1) if scores.ndim == 1 else scores
    top = scores.max(axis=1)
    return float(np.mean(top + np.log(np.exp(scores - top[:, None]).sum(axis=1)) - scores[np.arange(len(y)), y]))


def warm_started(x, y, xt, yt, strengths, tolerance):
    """scikit-learn over all λ from the strongest down: seconds, held-out losses, accuracies."""
    model = LogisticRegression(warm_start=True, max_iter=10_000, tol=tolerance)
    start = time.perf_counter()
    losses, hits = [], []
    for l2 in sorted(strengths, reverse=True):
        model.set_params(C=1 / (len(y) * l2))
        model.fit(x, y)
        losses.append(log_loss(model, xt, yt))
        hits.append(model.score(xt, yt))
    return time.perf_counter() - start, losses[::-1], hits[::-1]


def with_its_best_threads(*arguments):
    """On small tables threads can cost scikit-learn more than they bring: the faster of all of them and one."""
    runs = []
    for count in (None, 1):
        with threadpool_limits(count):
            runs.append(warm_started(*arguments))
    return min(runs, key=lambda run: run[0])


def off(losses, exact):
    return max(abs(loss / truth - 1) for loss, truth in zip(losses, exact))


def tables(folder):
    """Tables that nothing here was tuned on: name, files, arrays."""
    from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_svmlight_file, load_wine

    rng = np.random.default_rng(0)
    for name, load in [("digits", load_digits), ("breast cancer", load_breast_cancer), ("wine", load_wine), ("iris", load_iris)]:
        x, y = load(return_X_y=True)
        order = rng.permutation(len(y))
        x, y = x[order], y[order]
        cut = len(y) * 4 // 5
        spread = x[:cut].std(axis=0)
        x = (x - x[:cut].mean(axis=0)) / np.where(spread > 0, spread, 1)
        for part, rows in [("train", slice(0, cut)), ("test", slice(cut, None))]:
            np.savez(folder / f"{part}.npz", x=x[rows], y=y[rows])
        files = [folder / "train.npz", "--target", "y", "--test", folder / "test.npz"]
        yield f"{name}, standardized", files, (x[:cut], y[:cut], x[cut:], y[cut:])
    packed = ROOT.parent / "shared" / "data" / "a9a"
    if packed.is_dir():
        import lzma

        for part in ["a9a", "a9a.t"]:
            (folder / f"{part}.libsvm").write_bytes(lzma.open(packed / f"{part}.xz").read())
        x, y = load_svmlight_file(str(folder / "a9a.libsvm"), n_features=123)
        xt, yt = load_svmlight_file(str(folder / "a9a.t.libsvm"), n_features=123)
        arrays = (x, (y > 0).astype(int), xt, (yt > 0).astype(int))
        yield "a9a, sparse", [folder / "a9a.libsvm", "--test", folder / "a9a.t.libsvm"], arrays
    # Words: few of many a row, frequent and rare ones.
    n, d = 49_749, 300
    present = rng.random((n, d)) < 0.12 * np.arange(1, d + 1) ** -0.35
    weights = rng.normal(size=d)
    y = (present @ weights + rng.logistic(size=n) > 4).astype(int)
    x = present.astype(float)
    cut = n * 4 // 5
    from scipy.sparse import csr_matrix
    from sklearn.datasets import dump_svmlight_file

    for part, rows in [("train", slice(0, cut)), ("test", slice(cut, None))]:
        dump_svmlight_file(x[rows], y[rows], str(folder / f"{part}.libsvm"), zero_based=False)
    arrays = (csr_matrix(x[:cut]), y[:cut], csr_matrix(x[cut:]), y[cut:])
    yield "made-up words, sparse", [folder / "train.libsvm", "--test", folder / "test.libsvm"], arrays


def classes():
    """Every table: 40 exact λ, process start and reading included, against scikit-learn as exact."""
    strengths = np.logspace(-5, 0, 40)
    print("## Classes: 40 λ from 1e-5 to 1, exact\n")
    print(f"Both sides are held to the same accuracy: the held-out log-loss of the exact model within {100 * EQUAL:g} % at **every** λ. `afterfit fit` is the whole command (start, reading, every λ, certificates, evaluation; median of five); scikit-learn's `LogisticRegression` (lbfgs, warm-started from the strongest λ down, data in memory, on all threads or one, whichever is faster) gets the loosest `tol` of 1e-4, 1e-5, … that reaches it.\n")
    print("| table | rows × features, classes | afterfit | off by | certified | peak memory | scikit-learn | its `tol` | off by | ratio |\n|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for name, files, (x, y, xt, yt) in tables(folder):
            say(f"{name} …")
            fit = ["fit", *files, "--model", "softmax", "--l2", "1e-5..1:40", "--json"]
            exact = [row["validation_loss"] for row in measured(*fit, "--tolerance", "1e-13")[0]["path"]]
            runs = sorted((measured(*fit) for _ in range(5)), key=lambda run: run[1])
            out, seconds, memory = runs[2]
            losses = [row["validation_loss"] for row in out["path"]]
            certified = max(row["excess"] for row in out["path"])
            for tolerance in [1e-4, 1e-5, 1e-6, 1e-7]:
                theirs, their_losses, _ = with_its_best_threads(x, y, xt, yt, strengths, tolerance)
                if off(their_losses, exact) <= EQUAL:
                    break
            shape = f"{x.shape[0]} × {x.shape[1]}, {len(np.unique(y))}"
            print(f"| {name} | {shape} | {seconds:.3f} s | {off(losses, exact):.0e} | {certified:.0e} | {memory / 1e6:.0f} MB | {theirs:.2f} s | {tolerance:.0e} | {off(their_losses, exact):.0e} | **{theirs / seconds:.0f}×** |", flush=True)
    print("\nOff by: the largest relative distance of a held-out log-loss from the exact one. Certified: the largest excess of a penalized training loss that the certificates allow for.\n")


def softmax(mnist, x, y, xt, yt):
    """20 exact λ, and the averages of one run at the same ones, against scikit-learn."""
    strengths = np.logspace(-5, 0, 20)
    grid = ["fit", mnist / "train-images-idx3-ubyte", "--test", mnist / "t10k-images-idx3-ubyte", "--l2", "1e-5..1:20", "--json"]
    runs, averages = [measured(*grid)], [measured(*grid, "--average-only")]
    say("scikit-learn, 20 λ …")
    exact = [row["validation_loss"] for row in runs[0][0]["path"]]
    for tolerance in [1e-4, 1e-5, 1e-6]:
        peer, their_losses, their_hits = warm_started(x, y, xt, yt, strengths, tolerance)
        say(f"  tol {tolerance:.0e}: {peer:.0f} s, off by {off(their_losses, exact):.1e}")
        if off(their_losses, exact) <= EQUAL:
            break
    for _ in range(2):
        runs.append(measured(*grid))
        averages.append(measured(*grid, "--average-only"))
    (out, seconds, memory), (rough, rough_seconds, rough_memory) = (sorted(some, key=lambda run: run[1])[1] for some in (runs, averages))
    path = out["path"]
    exact = [row["validation_loss"] for row in path]
    print("## MNIST softmax, 60 000 × 784, 10 classes, 20 λ from 1e-5 to 1\n")
    print("| | wall time | held-out log-loss off by | certified excess | best test accuracy | peak memory | ratio |\n|---|---|---|---|---|---|---|")
    for name, one, took, peak in [("`afterfit fit` (everything)", path, seconds, memory), ("`afterfit fit --average-only` (everything)", rough["path"], rough_seconds, rough_memory)]:
        best = max(row["validation_accuracy"] for row in one)
        apart = off([row["validation_loss"] for row in one], exact)
        apart = f"{100 * apart:.1f} %" if apart > 0 else "–"
        print(f"| {name} | {took:.2f} s | {apart} | {max(math.inf if row['excess'] is None else row['excess'] for row in one):.0e} | {100 * best:.2f} % | {peak / x.nbytes:.2f} × the data as f32 | **{peer / took:.0f}×** |")
    print(f"| scikit-learn `LogisticRegression`, lbfgs, warm-started, `tol` {tolerance:.0e} (data in memory) | {peer:.1f} s | {100 * off(their_losses, exact):.2f} % | | {100 * max(their_hits):.2f} % | | |")
    print("\nOff by: the largest over all λ, relative, from the certified models of the first line.\n")


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


def streamed():
    """A file of 10 GB with 1 GB allowed, and what others of its size do."""
    rng = np.random.default_rng(2)
    n, d, gigabyte = 40_000, 20, 10**9
    print("## Tables larger than memory\n\nLinear models of 50 λ, `fit --stream`, with 1 GB of address space; the files repeat the same rows.\n")
    print("| file | rows | wall time | peak memory | reading the bytes alone |\n|---|---|---|---|---|")
    x = rng.normal(size=(n, d))
    y = x @ rng.normal(size=d) + rng.normal(size=n)
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(",".join(f"{value:.6f}" for value in row) for row in np.column_stack([x, y])) + "\n"
        sparse = "\n".join(f"{target:.6f} " + " ".join(f"{c + 1}:{row[c]:.6f}" for c in range(d)) for row, target in zip(x, y)) + "\n"
        names = ",".join([f"x{at}" for at in range(d)] + ["y"]) + "\n"
        for ending, header, block, size in [("csv", names, text, gigabyte), ("csv", names, text, 10 * gigabyte), ("libsvm", "", sparse, gigabyte)]:
            table, block = Path(folder) / f"t.{ending}", block.encode()
            times = -(-size // len(block))
            with table.open("wb") as file:
                file.write(header.encode())
                for _ in range(times):
                    file.write(block)
            arguments = ["--target", "y"] if ending == "csv" else []
            _, seconds, memory = measured("fit", table, *arguments, "--stream", "--model", "linear", "--json", memory=gigabyte)
            start = time.perf_counter()
            with table.open("rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
            read = time.perf_counter() - start
            print(f"| {ending}, {table.stat().st_size / 1e9:.1f} GB | {times * n / 1e6:.1f} M | {seconds:.1f} s | {memory / 1e6:.0f} MB | {read:.1f} s |")
            say(f"streamed: {ending}, {size / 1e9:.0f} GB done")
            table.unlink()
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
    classes()
    softmax(mnist, x, y, xt, yt)
    say("linear …")
    linear(mnist, x, y, xt, yt)
    say("growth …")
    growth()
    sparse()
    say("streamed …")
    streamed()
    say("core …")
    core = subprocess.run(["cargo", "bench", "-q", "-p", "afterfit", "--bench", "core"], cwd=ROOT, check=True, capture_output=True, text=True)
    print("## The core, beside the limits it runs against\n")
    print(core.stdout[core.stdout.index("| what") :].strip())


main()
