"""scikit-learn as an independent judge of `afterfit fit`.

Run by `make test` as `python tests/oracle.py PATH_TO_AFTERFIT`; prints `N passed, N failed` and fails if any did. More
arguments are names of checks: only those are run.
"""

import functools
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

# Two threads fighting over tables this small make scikit-learn forty times slower. (Before numpy is loaded.)
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import safe_open
from safetensors.numpy import load_file
from scipy.special import logsumexp
from sklearn import metrics
from sklearn.datasets import load_digits
from sklearn.impute import SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import LeaveOneGroupOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KernelCenterer, StandardScaler

import runner

# scikit-learn is asked for more digits than it promises; what it reached is measured here.
warnings.filterwarnings("ignore")

AFTERFIT = Path(sys.argv[1]).resolve()
RNG = np.random.default_rng(0)


def command(folder, *arguments):
    return subprocess.run([AFTERFIT, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=60)


def run(folder, *arguments):
    done = command(folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fit(folder, *arguments):
    return json.loads(run(folder, "fit", *arguments, "--json", "-q"))


def refused(folder, *arguments, says):
    """An error that names what is wrong, in a sentence; no panic, and nothing written."""
    before = sorted(path.name for path in folder.iterdir())
    done = command(folder, "fit", *arguments, "-o", "refused.safetensors", "--report", "refused.html", "--json", "-q")
    assert done.returncode not in (0, 101), f"not refused: {done.stdout[:300]}{done.stderr[:300]}"
    assert done.stdout == "" and done.stderr.startswith("error:"), done
    assert any(word in done.stderr for word in says), f"unclear: {done.stderr}"
    assert sorted(path.name for path in folder.iterdir()) == before


def csv(path, x, y, names=None, **more):
    """A table with the target last; `more` columns (weights, groups) before it. NaN is an empty field."""
    names = names or [f"x{j}" for j in range(x.shape[1])]
    number = lambda value: "" if np.isnan(value) else repr(float(value))
    lines = [",".join([*names, *more, "y"])]
    for i, (row, t) in enumerate(zip(x, y)):
        lines.append(",".join([*map(number, row), *(str(column[i]) for column in more.values()), str(t)]))
    Path(path).write_text("\n".join(lines) + "\n")


def libsvm(path, x, y):
    lines = [f"{t} " + " ".join(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v) for row, t in zip(x, y)]
    Path(path).write_text("\n".join(lines) + "\n")


def regression(n=400, d=12):
    """Correlated features of very different sizes: an ill-conditioned table."""
    x = RNG.normal(size=(n, d)) @ RNG.normal(size=(d, d)) * np.logspace(-2, 1, d)
    y = x @ RNG.normal(size=d) + RNG.normal(size=n) + 7.0
    return x, y


def classes(n=300, d=5, k=3):
    x = RNG.normal(size=(n, d))
    y = np.argmax(x @ RNG.normal(size=(d, k)) + np.linspace(1.0, -0.5, k) + RNG.normal(size=(n, k)), axis=1)
    return x, y


def counts(n=300, d=5):
    x = RNG.normal(size=(n, d))
    return x, RNG.poisson(np.exp(0.4 * x @ RNG.normal(size=d) + 0.5))


def close(found, expected, tolerance):
    error = np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected)
    assert error < tolerance, f"relative error {error:.2e}, allowed {tolerance:.0e}"


def near(found, expected, tolerance, *about):
    """To a share of the value, or of 1 where that is smaller."""
    assert abs(found - expected) <= tolerance * max(1.0, abs(expected)), (found, expected, *about)


def balance(y):
    """scikit-learn's balanced weights: their sum is the number of rows."""
    count = np.bincount(y)
    return len(y) / (len(count) * count[y])


def weighted_mean(values, w):
    return float(np.sum(w * values) / np.sum(w))


def row_losses(kind, scores, y):
    """The loss of each row; scores have a column for each output."""
    if kind == "number":
        return 0.5 * (scores[:, 0] - y) ** 2
    if kind == "count":
        best = np.where(y > 0, y * np.log(np.maximum(y, 1)) - y, 0.0)
        return np.exp(scores[:, 0]) - y * scores[:, 0] + best
    if scores.shape[1] == 1:
        scores = np.c_[np.zeros(len(scores)), scores]
    return logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]


def slopes(kind, scores, y):
    if kind == "number":
        return scores - y[:, None]
    if kind == "count":
        return np.exp(scores) - y[:, None]
    if scores.shape[1] == 1:
        return 1.0 / (1.0 + np.exp(-scores)) - y[:, None]
    p = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
    p[np.arange(len(y)), y] -= 1.0
    return p


def judge(kind, x, y, w, weight, bias, l2):
    """The penalized objective, and how far the minimizer's weights can be, by the length of its gradient."""
    scores = x @ weight.T + bias
    value = weighted_mean(row_losses(kind, scores, y), w) + 0.5 * l2 * np.sum(weight**2)
    slope = slopes(kind, scores, y) * w[:, None] / w.sum()
    gradient = slope.T @ x + l2 * weight
    reach = 1.0 + np.sqrt(np.sum(w[:, None] * x**2) / w.sum())
    return value, (np.linalg.norm(gradient) + reach * np.linalg.norm(slope.sum(axis=0))) / l2


def learner(kind, w, l2, solver):
    """scikit-learn's model at λ, solved as far as doubles go."""
    if kind == "number":
        return Ridge(alpha=l2 * w.sum(), solver="svd")
    options = dict(solver=solver, warm_start=True, tol=1e-13, max_iter=1000)
    return PoissonRegressor(alpha=l2, **options) if kind == "count" else LogisticRegression(C=1.0 / (l2 * w.sum()), **options)


def solutions(kind, x, y, w, strengths):
    """scikit-learn's weights and intercepts at every λ, each from the one before: by the solver that comes nearest."""
    found, last = {}, None
    # With an intercept, centered features have the same optimum, and solvers keep their digits.
    center = np.average(x, axis=0, weights=w)
    x = x - center
    for l2 in sorted(strengths, reverse=True):
        best = None
        for solver, warm in [("newton-cholesky", True), ("newton-cholesky", False), ("lbfgs", True)]:
            model = learner(kind, w, l2, solver)
            if warm and last is not None and kind != "number":
                model.coef_, model.intercept_ = last[0].copy(), last[1].copy() if kind == "class" else float(last[1])
            model.fit(x, y, sample_weight=w)
            weight, bias = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
            value, off = judge(kind, x, y, w, weight, bias, l2)
            if best is None or off < best.off:
                best = SimpleNamespace(weight=weight, bias=bias - weight @ center, value=value, off=off, excess=0.5 * l2 * off**2)
                best.last = (np.asarray(model.coef_), np.asarray(model.intercept_))
            if best.excess < 1e-12:
                break
        assert best.excess < 1e-8, f"scikit-learn itself is {best.excess:.1e} off at {l2}: no judge"
        last = best.last
        found[l2] = best
    return found


def tables():
    """Tables of all kinds: rows to train on, rows that judge, the command's options and the smallest λ."""

    def table(name, kind, x, y, n, *arguments, w=None, l2=1e-5, form="csv", total=None):
        w = np.ones(len(x)) if w is None else np.asarray(w, float)
        total = w[:n] if total is None else total
        return SimpleNamespace(
            name=name, kind=kind, x=x[:n], y=y[:n], w=total, test=(x[n:], y[n:], w[n:]), raw=w, arguments=arguments, l2=l2, form=form
        )

    x, y = classes(500, 6, 2)
    yield table("two classes", "class", x, y, 300, l2=1e-8)
    x, y = classes(500, 6, 3)
    yield table("three classes", "class", x, y, 300, l2=1e-8)
    x, y = load_digits(return_X_y=True)
    yield table("ten classes", "class", x[:900] / 16, y[:900], 500)
    x, y = classes(400, 5, 3)
    yield table("weights", "class", x, y, 250, "--weights", "w", w=np.exp(RNG.normal(size=400)))
    x, y = classes(400, 5, 3)
    yield table("balanced", "class", x, y, 250, "--class-weight", "balanced", total=balance(y[:250]))
    x = RNG.normal(size=(500, 60)) * (RNG.random(size=(500, 60)) < 0.1)
    y = (x @ RNG.normal(size=60) + 0.5 * RNG.normal(size=500) > 0).astype(int)
    yield table("sparse", "class", x, y, 300, form="libsvm")
    x = RNG.normal(size=(160, 200))
    y = np.argmax(x[:, :3] + RNG.normal(size=(160, 3)), axis=1)
    yield table("wide", "class", x, y, 60)
    x, y = classes(400, 4, 3)
    x = np.c_[x, x[:, 0], x[:, 0] + x[:, 1], 1e-3 * x[:, 2], np.ones(len(x))]
    yield table("collinear", "class", x, y, 250)
    x = RNG.normal(size=(300, 3))
    yield table("separable", "class", x, (x @ [1.0, -2.0, 0.5] > 0.3).astype(int), 150)
    x, y = classes(60, 2, 2)
    y[:2] = [0, 1]
    yield table("tiny", "class", x, y, 10)
    x = RNG.normal(size=(1600, 4))
    rare = np.argsort(x @ [1.0, 0.5, 0.0, 0.0] + RNG.normal(size=1600))[-16:]
    y = np.zeros(1600, int)
    y[rare] = 1
    yield table("unbalanced", "class", x, y, 1000)
    x, y = counts(500, 5)
    yield table("counts", "count", x, y, 300, "--model", "poisson", l2=1e-8)
    x, y = counts(500, 5)
    yield table("weighted counts", "count", x, y, 300, "--model", "poisson", "--weights", "w", w=RNG.integers(1, 6, size=500))
    x, y = classes(500, 6, 3)
    yield table("float32", "class", x.astype(np.float32).astype(float), y, 300, form="npy")
    x, y = regression(400, 6)
    yield table("numbers", "number", x, y, 250, l2=1e-6)


def write(folder, table):
    """The command's arguments for a table and the rows that judge it."""
    if table.form == "npy":
        for name, x, y in [("t", table.x, table.y), ("v", *table.test[:2])]:
            np.save(folder / f"{name}.npy", x.astype(np.float32))
            np.save(folder / f"{name}y.npy", y)
        return ["t.npy", "--target", "ty.npy", "--test", "v.npy", "--test-target", "vy.npy", *table.arguments]
    if table.form == "libsvm":
        libsvm(folder / "t.libsvm", table.x, table.y)
        libsvm(folder / "v.libsvm", *table.test[:2])
        return ["t.libsvm", "--test", "v.libsvm", *table.arguments]
    more = "--weights" in table.arguments
    csv(folder / "t.csv", table.x, table.y, **({"w": table.raw[: len(table.x)]} if more else {}))
    csv(folder / "v.csv", *table.test[:2], **({"w": table.test[2]} if more else {}))
    return ["t.csv", "--target", "y", "--test", "v.csv", *table.arguments]


def compare_path(table, out, reference):
    """Every line of a path with scikit-learn's own optimum."""
    xt, yt, wt = table.test
    for row in out["path"]:
        sk, about = reference[row["l2"]], (table.name, row)
        ours = row["train_loss"] + 0.5 * row["l2"] * row["norm"] ** 2
        size = max(1.0, abs(sk.value))
        assert abs(ours - sk.value) <= 1e-6 * size, ("objective", ours, sk.value, *about)
        assert ours - sk.value <= row["excess"] + 1e-10 * size, ("excess", ours - sk.value, *about)
        assert abs(row["norm"] - np.linalg.norm(sk.weight)) <= row["distance"] + sk.off + 1e-8 * row["norm"], ("distance", *about)
        assert row["resolved"], about
        scores = xt @ sk.weight.T + sk.bias
        loss = weighted_mean(row_losses(table.kind, scores, yt), wt)
        assert abs(row["validation_loss"] - loss) <= 1e-3 * loss, ("held-out loss", row["validation_loss"], loss, *about)
        if wt.min() == wt.max():
            error = np.std(row_losses(table.kind, scores, yt), ddof=1) / np.sqrt(len(yt))
            assert abs(row["validation_error"] - error) <= 1e-2 * error, ("standard error", error, *about)
        if table.kind == "class":
            label = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
            accuracy = weighted_mean(label == yt, wt)
            assert abs(row["validation_accuracy"] - accuracy) <= wt.max() / wt.sum() + 1e-12, ("accuracy", accuracy, *about)


def every_λ_is_scikit_learns(folder):
    """Objective, certificates, held-out loss and accuracy at every λ; the saved weights at the best one and at two more."""
    wrong = []
    for table in tables():
        arguments = write(folder, table)
        grid = "1e-5..1:12" if table.l2 == 1e-5 else ",".join([f"{table.l2}", *(f"{l2:.6e}" for l2 in np.logspace(-5, 0, 11))])
        out = fit(folder, *arguments, "--l2", grid, "-o", "m.safetensors", "--force")
        reference = solutions(table.kind, table.x, table.y, table.w, [row["l2"] for row in out["path"]])
        try:
            compare_path(table, out, reference)
            models = [(out, out["best_l2"])]
            for l2 in [out["path"][0]["l2"], out["path"][5]["l2"]]:
                models.append((fit(folder, *arguments, "--l2", repr(l2), "-o", f"{l2}.safetensors", "--force"), l2))
            for at, (out, l2) in enumerate(models):
                model = load_file(folder / ("m.safetensors" if at == 0 else f"{l2}.safetensors"))
                row = next(row for row in out["path"] if row["l2"] == l2)
                off = np.linalg.norm(model["weight"] - reference[l2].weight)
                slack = reference[l2].off + 1e-9 * np.linalg.norm(reference[l2].weight)
                assert off <= row["distance"] + slack, ("weights", table.name, off, slack, row)
                value, _ = judge(table.kind, table.x, table.y, table.w, model["weight"], model["bias"], l2)
                near(value, row["train_loss"] + 0.5 * l2 * row["norm"] ** 2, 1e-9, "what is saved is what was said", table.name, row)
        except AssertionError as error:
            wrong.append(error)
    assert not wrong, "\n".join(map(str, wrong))


def units_do_not_matter(folder):
    """Years instead of ages, grams instead of tons: features far from 0, tiny or huge have the same optimum by any solver."""
    x, y = classes(200, 3, 2)
    wide = RNG.normal(size=(80, 60))
    of_wide = np.argmax(wide[:, :3], axis=1)
    xc, yc = counts(200, 3)
    cases = [
        ("years", "class", x + [2000, 0, 0], y, "1e-5..1e2:8"),
        ("around 1e3", "class", x + 1e3, y, "1e-5..1e2:8"),
        ("around 1e6", "class", x + 1e6, y, "1e-3..1:4"),
        ("counts around 40", "count", xc + 40, yc, "1e-5..1e2:8"),
        ("tiny", "class", x * 1e-4, y, "1e-5..1:6"),
        ("huge", "class", x * 1e3, y, "1e-3..1:4"),
        ("huge and wide", "class", wide * 1e3, of_wide, "1e-5..1:6"),
        ("of all sizes", "class", x * [1e-3, 1.0, 1e3], y, "1e-5..1:6"),
    ]
    wrong = []
    for name, kind, x, y, grid in cases:
        table = SimpleNamespace(name=name, kind=kind, x=x[:-50], y=y[:-50], w=np.ones(len(x) - 50), test=(x[-50:], y[-50:], np.ones(50)))
        csv(folder / "t.csv", table.x, table.y)
        csv(folder / "v.csv", *table.test[:2])
        model = ["--model", "poisson"] if kind == "count" else []
        try:
            out = fit(folder, "t.csv", "--target", "y", "--test", "v.csv", "--l2", grid, *model)
            compare_path(table, out, solutions(kind, table.x, table.y, table.w, [row["l2"] for row in out["path"]]))
        except AssertionError as error:
            wrong.append((name, error))
    # Years, ages, temperatures in kelvin: whatever the rows.
    for name, draw, model in [
        ("two", lambda: classes(200, 2, 2), []),
        ("three", lambda: classes(200, 2, 3), []),
        ("counts", lambda: counts(200, 2), ["--model", "poisson"]),
    ]:
        for mean in [40, 300, 2000]:
            failed = []
            for _ in range(8):
                x, y = draw()
                csv(folder / "t.csv", x + mean, y)
                done = command(folder, "fit", "t.csv", "--target", "y", "--json", "-q", *model)
                failed += [done.stderr.strip()] if done.returncode else []
            wrong += [f"{name}, mean {mean}: {len(failed)} of 8 tables are refused: {failed[0]}"] if failed else []
    # Weights too short to matter for the loss still rank rows.
    x, y = classes(300, 3, 2)
    out = fitted(folder, "class", x[:200] * 1e-4, y[:200], (x[200:] * 1e-4, y[200:]), "--scoring", "auc", grid="1e-5..1:6")
    reference = solutions("class", x[:200] * 1e-4, y[:200], np.ones(200), [row["l2"] for row in out["path"]])
    for row in out["path"]:
        auc = metrics.roc_auc_score(y[200:], x[200:] @ reference[row["l2"]].weight[0])
        if abs(row["validation_score"] - auc) > 0.01:
            wrong.append(f"tiny: auc {row['validation_score']} at {row['l2']}, scikit-learn's is {auc}; norm {row['norm']}")
    assert not wrong, "\n".join(map(str, wrong))


def fitted(folder, kind, x, y, test, *arguments, grid="1e-4..1:7", w=None, name="t"):
    more = {} if w is None else {"w": w}
    csv(folder / f"{name}.csv", x, y, **more)
    csv(folder / "v.csv", *test)
    model = {"count": ["--model", "poisson"], "number": ["--model", "linear"], "class": ["--model", "softmax"]}[kind]
    weights = [] if w is None else ["--weights", "w"]
    return fit(folder, f"{name}.csv", "--target", "y", "--test", "v.csv", "--l2", grid, *model, *weights, *arguments)


def weights_are_repeated_rows(folder):
    """Whole-number weights, zero among them, are that many rows of the same; the optimum is scikit-learn's with sample_weight.
    Only the weights' proportions count: λ is next to a mean."""
    x, y = regression(150, 4)
    x /= x.std(axis=0)
    for kind, x, y in [("number", x, y), ("class", *classes(150, 4, 2)), ("class", *classes(150, 4, 4)), ("count", *counts(150, 4))]:
        w = RNG.integers(0, 4, size=100)
        train, test = (x[:100], y[:100]), (x[100:], y[100:])
        weighted = fitted(folder, kind, *train, test, w=w, name="weighted")
        repeated = fitted(folder, kind, *(np.repeat(part, w, axis=0) for part in train), test, name="repeated")
        thrice = fitted(folder, kind, *train, test, w=w * 0.37, name="scaled")
        reference = solutions(kind, *train, w, [row["l2"] for row in weighted["path"]])
        for row, other, scaled in zip(weighted["path"], repeated["path"], thrice["path"]):
            sk = reference[row["l2"]]
            for one in [row, other, scaled]:
                ours = one["train_loss"] + 0.5 * one["l2"] * one["norm"] ** 2
                near(ours, sk.value, 1e-6, kind, one)
                assert ours - sk.value <= one["excess"] + 1e-10 * max(1, sk.value), (kind, one)
                loss = row_losses(kind, test[0] @ sk.weight.T + sk.bias, test[1]).mean()
                near(one["validation_loss"], loss, 1e-3, kind, one)


def class_weights_are_scikit_learns(folder):
    """`--class-weight balanced` is class_weight="balanced"; judging is left as it is. With weights, each class has the same
    weight in all."""
    for k in [2, 3]:
        x, y = classes(300, 4, k)
        train, test = (x[:200], y[:200]), (x[200:], y[200:])
        for w in [None, np.exp(RNG.normal(size=200))]:
            out = fitted(folder, "class", *train, test, "--class-weight", "balanced", w=w)
            own = np.ones(200) if w is None else w
            each = own / np.bincount(train[1], weights=own)[train[1]]
            reference = solutions("class", *train, each * 200 / each.sum(), [row["l2"] for row in out["path"]])
            for row in out["path"]:
                sk = reference[row["l2"]]
                near(row["train_loss"] + 0.5 * row["l2"] * row["norm"] ** 2, sk.value, 1e-6, k, row)
                near(row["validation_loss"], row_losses("class", test[0] @ sk.weight.T + sk.bias, test[1]).mean(), 1e-3, k, row)
                if w is None:
                    own = LogisticRegression(C=1 / (200 * row["l2"]), class_weight="balanced", tol=1e-12, solver="newton-cholesky").fit(*train)
                    close(own.coef_, sk.weight, 1e-5)


def weighted_kernel_ridge(folder):
    """The (n + 1)-system in α and b, solved directly: (K + λ Σw / w_i) α + b = y, Σα = 0. Balanced classes are such weights."""
    x, y = regression(150, 3)
    x /= x.std(axis=0)
    labels = (y > np.quantile(y, 0.8)).astype(int)
    matrix, cross = (pairwise_kernels(part, x[:100], metric="rbf", gamma=0.3) for part in (x[:100], x[100:]))

    def solved(w, target, l2):
        system = np.block([[matrix + l2 * w.sum() * np.diag(1 / w), np.ones((100, 1))], [np.ones((1, 100)), np.zeros((1, 1))]])
        alpha = np.linalg.solve(system, np.append(target, 0.0))
        return cross @ alpha[:-1] + alpha[-1]

    common = ["--target", "y", "--model", "kernel", "--gamma", 0.3, "--l2", "1e-4..1:6", "-o", "m.safetensors", "--force"]
    w = RNG.integers(1, 5, size=100)
    csv(folder / "t.csv", x[:100], y[:100], w=w)
    csv(folder / "v.csv", x[100:], y[100:])
    csv(folder / "r.csv", np.repeat(x[:100], w, axis=0), np.repeat(y[:100], w))
    out = fit(folder, "t.csv", "--test", "v.csv", *common, "--weights", "w")
    repeated = fit(folder, "r.csv", "--test", "v.csv", *common[:-3])
    for row, other in zip(out["path"], repeated["path"]):
        loss = 0.5 * np.mean((solved(w, y[:100], row["l2"]) - y[100:]) ** 2)
        near(row["validation_loss"], loss, 1e-6, row)
        near(other["validation_loss"], loss, 1e-6, other)
    for l2, value in [("best", out["best_l2"]), ("1se", out["one_se_l2"]), ("1e-4", 1e-4), ("0.0123", 0.0123), ("0.7", 0.7)]:
        found = np.array(run(folder, "predict", "m.safetensors", "v.csv", "--l2", l2).split()[1:], float)
        close(found, solved(w, y[:100], value), 1e-4)
    csv(folder / "t.csv", x[:100], labels[:100])
    csv(folder / "v.csv", x[100:], labels[100:])
    out = fit(folder, "t.csv", "--test", "v.csv", *common, "--target-as", "classes", "--class-weight", "balanced")
    for row in out["path"]:
        scores = np.c_[tuple(solved(balance(labels[:100]), (labels[:100] == c) * 1.0, row["l2"]) for c in [0, 1])]
        near(row["validation_accuracy"], np.mean(scores.argmax(axis=1) == labels[100:]), 0.0201, row)
        near(row["validation_loss"], 0.5 * np.mean(np.sum((scores - np.eye(2)[labels[100:]]) ** 2, axis=1)), 1e-6, row)


def nothing_leaks_between_folds(folder):
    """Groups as many as folds: the folds are known, so standardizing and imputing inside them must be scikit-learn's pipeline
    with LeaveOneGroupOut, at every λ. (The groups differ in size, mean and spread; means over all rows would show.)"""
    for kind in ["number", "class", "count"]:
        for missing in [False, True]:
            for w in [None, "w"]:
                sizes = [30, 45, 60, 75]
                groups = np.repeat(["b", "a", "d", "c"], sizes)
                x = np.concatenate([RNG.normal(size=(n, 3)) * [1 + i, 5.0, 0.2] + [i, -i, 30.0] for i, n in enumerate(sizes)])
                z = (x - x.mean(axis=0)) / x.std(axis=0)
                y = {
                    "number": z @ [1.0, -1.0, 0.5] + RNG.normal(size=210),
                    "class": np.argmax(z + RNG.normal(size=(210, 3)), axis=1),
                    "count": RNG.poisson(np.exp(0.3 * z @ [1.0, 1.0, -0.5])),
                }[kind]
                if missing:
                    x[RNG.random(x.shape) < 0.15] = np.nan
                weights = np.ones(210) if w is None else np.round(RNG.exponential(size=210) + 0.1, 3)
                order = RNG.permutation(210)
                x, y, groups, weights = x[order], y[order], groups[order], weights[order]
                csv(folder / "t.csv", x, y, g=groups, w=weights)
                model = {"number": "linear", "class": "softmax", "count": "poisson"}[kind]
                arguments = ["t.csv", "--target", "y", "--group", "g", "--cv", 4, "--standardize", "--model", model, "--l2", "1e-3..1:4"]
                arguments += ["--missing", "mean"] if missing else []
                arguments += ["--weights", "w"] if w else ["--drop", "w"]
                out = fit(folder, *arguments)
                again = fit(folder, *arguments, "--repeats", 2)
                for row, other in zip(out["path"], again["path"]):
                    near(other["validation_loss"], row["validation_loss"], 1e-12, "the same folds twice", kind)
                for row in out["path"]:
                    losses = []
                    for train, test in LeaveOneGroupOut().split(x, y, groups):
                        pipe = make_pipeline(*([SimpleImputer()] if missing else []), StandardScaler())
                        pipe.fit(x[train], standardscaler__sample_weight=weights[train])
                        a, b = pipe.transform(x[train]), pipe.transform(x[test])
                        sk = solutions(kind, a, y[train], weights[train], [row["l2"]])[row["l2"]]
                        losses.append(weighted_mean(row_losses(kind, b @ sk.weight.T + sk.bias, y[test]), weights[test]))
                    near(row["validation_loss"], np.mean(losses), 1e-4, kind, missing, w, row)
                    near(row["validation_error"], np.std(losses, ddof=1) / 2, 2e-3, kind, missing, w, row)


def imputed_and_standardized_models_take_raw_tables(folder):
    """The saved model predicts what the pipeline predicts, missing values included."""
    x, y = regression(200, 3)
    x[RNG.random(x.shape) < 0.1] = np.nan
    csv(folder / "t.csv", x, y)
    out = fit(folder, "t.csv", "--target", "y", "--cv", 3, "--standardize", "--missing", "mean", "--l2", "1e-3..1:5", "-o", "m.safetensors")
    pipe = make_pipeline(SimpleImputer(), StandardScaler(), Ridge(alpha=200 * out["best_l2"], solver="svd")).fit(x, y)
    close(np.array(run(folder, "predict", "m.safetensors", "t.csv").split()[1:], float), pipe.predict(x), 1e-8)


def predict_reads_any_λ(folder):
    """Grid points and points between them, best and 1se: predictions within 1e-4 of scikit-learn's model at that λ."""
    x, y = regression(260, 4)
    x /= x.std(axis=0)
    wide = RNG.normal(size=(160, 120))
    cases = [
        ("number", x, y, []),
        ("number", x, y, ["--standardize"]),
        ("class", *classes(260, 4, 2), []),
        ("class", *classes(260, 4, 3), []),
        ("class", *classes(260, 4, 3), ["--standardize"]),
        ("class", wide, (wide[:, 0] + wide[:, 1] > 0).astype(int), []),
        ("count", *counts(260, 4), []),
    ]
    wrong = []
    for kind, x, y, arguments in cases:
        n = len(x) - 60
        train, test = (x[:n], y[:n]), (x[n:], y[n:])
        out = fitted(folder, kind, *train, test, *arguments, "-o", "m.safetensors", "--force", grid="1e-5..10:9")
        grid = [row["l2"] for row in out["path"]]
        row = next(row for row in out["path"] if row["l2"] == out["best_l2"])
        assert row["validation_loss"] == min(row["validation_loss"] for row in out["path"])
        allowed = row["validation_loss"] + row["validation_error"]
        assert out["one_se_l2"] == max(row["l2"] for row in out["path"] if row["validation_loss"] <= allowed), out
        between = [np.sqrt(a * b) for a, b in zip(grid, grid[1:])]
        asked = [*map(repr, grid), *(repr(float(l2)) for l2 in between), "best", "1se"]
        scaler = StandardScaler(with_mean="--standardize" in arguments, with_std="--standardize" in arguments).fit(train[0])
        a, b = scaler.transform(train[0]), scaler.transform(test[0])
        values = {"best": out["best_l2"], "1se": out["one_se_l2"]}
        reference = solutions(kind, a, train[1], np.ones(n), {values.get(l2) or float(l2) for l2 in asked})
        for l2 in asked:
            sk = reference[values.get(l2) or float(l2)]
            scores = b @ sk.weight.T + sk.bias
            lines = run(folder, "predict", "m.safetensors", "v.csv", "--l2", l2, *(["--probabilities"] if kind == "class" else []))
            found = np.array([line.split(",") for line in lines.split()[1:]], float)
            if kind == "class":
                scores = np.c_[np.zeros(60), scores] if scores.shape[1] == 1 else scores
                expected = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
                off = np.abs(found[:, 1:] - expected).max()
            else:
                expected = np.exp(scores) if kind == "count" else scores
                off = np.abs(found - expected).max() / max(1.0, np.abs(expected).max())
            if off > 1e-4:
                wrong.append(f"{kind} of {x.shape[1]} features {arguments} at {l2}: predictions off by {off:.1e}")
        for l2 in ["9e-6", "11", "-1", "nan", "worst"]:
            done = command(folder, "predict", "m.safetensors", "v.csv", "--l2", l2)
            assert done.returncode != 0 and done.stderr.startswith("error:") and not done.stdout, (l2, done)
    assert not wrong, "\n".join(wrong)


def scores_are_those_of_sklearn_metrics(folder):
    """--scoring: the values are scikit-learn's on the same rows, weighted or not, and the best λ is that of the best score."""
    x, y = regression(300, 5)
    x /= x.std(axis=0)
    auc = lambda y, p, w: metrics.roc_auc_score(y, p if p.shape[1] > 2 else p[:, 1], multi_class="ovr", average="macro", sample_weight=w)
    accuracy = lambda y, p, w: metrics.accuracy_score(y, p.argmax(axis=1), sample_weight=w)
    log_loss = lambda y, p, w: metrics.log_loss(y, p, sample_weight=w)
    mae = lambda y, p, w: metrics.mean_absolute_error(y, p, sample_weight=w)
    r2 = lambda y, p, w: metrics.r2_score(y, p, sample_weight=w)
    deviance = lambda y, p, w: metrics.mean_poisson_deviance(y, p, sample_weight=w)
    cases = [
        ("number", x, y + 3 * RNG.standard_t(2, size=300), {"mae": mae, "r2": r2}),
        ("class", *classes(300, 5, 2), {"auc": auc, "accuracy": accuracy, "log-loss": log_loss}),
        ("class", *classes(300, 5, 3), {"auc": auc, "accuracy": accuracy, "log-loss": log_loss}),
        ("count", *counts(300, 5), {"mae": mae, "r2": r2, "deviance": deviance}),
    ]
    model = {"number": "linear", "class": "softmax", "count": "poisson"}
    for kind, x, y, scorings in cases:
        for weights in [None, np.round(RNG.exponential(size=300) + 0.1, 3)]:
            w = np.ones(300) if weights is None else weights
            csv(folder / "t.csv", x[:150], y[:150], w=w[:150])
            csv(folder / "v.csv", x[150:], y[150:], w=w[150:])
            extra = ["--drop", "w"] if weights is None else ["--weights", "w"]
            for name, score in scorings.items():
                tight = ["--tolerance", "1e-12"] if kind != "number" else []
                out = fit(
                    folder, "t.csv", "--target", "y", "--test", "v.csv", "--model", model[kind], "--scoring", name, "--l2", "1e-3..10:7", *extra, *tight
                )
                reference = solutions(kind, x[:150], y[:150], w[:150], [row["l2"] for row in out["path"]])
                for row in out["path"]:
                    sk = reference[row["l2"]]
                    scores = x[150:] @ sk.weight.T + sk.bias
                    if kind == "class":
                        scores = np.c_[np.zeros(150), scores] if scores.shape[1] == 1 else scores
                        p = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
                    else:
                        p = np.exp(scores[:, 0]) if kind == "count" else scores[:, 0]
                    # One pair of rows in a near tie may be ranked either way, one row on the edge classified either way.
                    allowed = {"auc": 1e-3, "accuracy": w[150:].max() / w[150:].sum() + 1e-12}.get(name, 1e-5)
                    near(row["validation_score"], score(y[150:], p, w[150:]), allowed, kind, name, row)
                sign = 1 if name in ["auc", "accuracy", "r2"] else -1
                ranked = max(out["path"], key=lambda row: (sign * row["validation_score"], row["l2"]))
                assert out["best_l2"] == ranked["l2"], (name, out["best_l2"], ranked)


def averages_are_near_and_say_how_near(folder):
    """--average-only: log-loss within 2 % and accuracy within three points, rescaled; certificates hold, and `resolved` is said
    only where the excess is tiny."""
    for k, steps in [(4, ["--steps", 8000]), (2, []), (3, ["--steps", 200]), (3, ["--no-rescale"])]:
        x, y = classes(2000, 8, k)
        csv(folder / "t.csv", x[:1500], y[:1500])
        csv(folder / "v.csv", x[1500:], y[1500:])
        out = fit(folder, "t.csv", "--target", "y", "--test", "v.csv", "--l2", "1e-3..1:7", "--average-only", *steps)
        reference = solutions("class", x[:1500], y[:1500], np.ones(1500), [row["l2"] for row in out["path"]])
        share = np.bincount(y[:1500]) / 1500
        null = -np.sum(share * np.log(share))
        for row in out["path"]:
            sk = reference[row["l2"]]
            excess = row["train_loss"] + 0.5 * row["l2"] * row["norm"] ** 2 - sk.value
            assert -1e-9 <= excess <= row["excess"] + 1e-10, (k, excess, row)
            assert abs(row["norm"] - np.linalg.norm(sk.weight)) <= row["distance"] + sk.off, (k, row)
            assert row["resolved"] == (row["excess"] <= 1e-4 * null * (1 + 1e-9)), (k, row, null)
            if steps == ["--steps", 8000] or not steps:
                scores = x[1500:] @ sk.weight.T + sk.bias
                loss = row_losses("class", scores, y[1500:]).mean()
                assert abs(row["validation_loss"] - loss) < 0.02 * loss, (row["l2"], row["validation_loss"], loss)
                label = scores.argmax(axis=1) if k > 2 else (scores[:, 0] > 0).astype(int)
                assert abs(row["validation_accuracy"] - np.mean(label == y[1500:])) < 0.03


def without_an_intercept(folder):
    """--bias false is fit_intercept=False; standardizing then only scales."""
    x, y = regression(200, 3)
    for kind, x, y in [("number", x / x.std(axis=0), y), ("class", *classes(200, 3, 2)), ("class", *classes(200, 3, 3)), ("count", *counts(200, 3))]:
        x = x + 0.5
        for arguments in [[], ["--standardize"]]:
            out = fitted(folder, kind, x[:150], y[:150], (x[150:], y[150:]), "--bias", "false", *arguments)
            scale = x[:150].std(axis=0) if arguments else 1.0
            a, b = x[:150] / scale, x[150:] / scale
            for row in out["path"]:
                model = learner(kind, np.ones(150), row["l2"], "newton-cholesky").set_params(fit_intercept=False).fit(a, y[:150])
                weight = np.atleast_2d(model.coef_)
                value, _ = judge(kind, a, y[:150], np.ones(150), weight, 0.0, row["l2"])
                near(row["train_loss"] + 0.5 * row["l2"] * row["norm"] ** 2, value, 1e-6, kind, arguments, row)
                near(row["validation_loss"], row_losses(kind, b @ weight.T, y[150:]).mean(), 1e-3, kind, arguments, row)


def dates_and_booleans_are_numbers(folder):
    """ISO dates are days since 1970 and truths are 1 and 0: the same path, and the same predictions, as of those numbers."""
    n = 120
    days = RNG.integers(15000, 20000, size=n)
    minutes = RNG.integers(0, 1440, size=n)
    flags = RNG.integers(0, 2, size=(n, 4))
    plain = np.datetime64("1970-01-01") + days.astype("timedelta64[D]")
    timed = plain.astype("datetime64[m]") + minutes.astype("timedelta64[m]")
    words = [("true", "FALSE"), ("Yes", "no"), ("T", "F"), ("y", "n")]
    z = RNG.normal(size=n)
    y = 0.01 * (days - 17500) + flags @ [1.0, -2.0, 0.5, 3.0] + z + RNG.normal(size=n)
    for kind, target in [("linear", [repr(float(v)) for v in y]), ("softmax", ["up" if v > 0 else "down" for v in y])]:
        lines = [["day", "time", "b0", "b1", "b2", "b3", "z", "y"]]
        for i in range(n):
            truths = [yes if flag else no for flag, (yes, no) in zip(flags[i], words)]
            lines.append([str(plain[i]), f"{timed[i]}:00Z", *truths, repr(float(z[i])), target[i]])
        (folder / "texts.csv").write_text("\n".join(map(",".join, lines)) + "\n")
        numbers = np.c_[days, days + minutes / 1440, flags, z]
        csv(folder / "numbers.csv", numbers, target, names=lines[0][:-1])
        outs = {}
        for name in ["texts", "numbers"]:
            arguments = ["--target", "y", "--model", kind, "--cv", 3, "--standardize", "--l2", "1e-3..1:5", "-o", f"{name}.safetensors", "--force"]
            outs[name] = fit(folder, f"{name}.csv", *arguments)["path"]
        for a, b in zip(outs["texts"], outs["numbers"]):
            for key in ["train_loss", "validation_loss", "norm"]:
                near(a[key], b[key], 1e-9, kind, key)
        extra = ["--probabilities"] if kind == "softmax" else []
        texts, found = (run(folder, "predict", f"{name}.safetensors", f"{name}.csv", *extra).split()[1:] for name in outs)
        last = lambda rows: np.array([row.split(",")[-1] for row in rows], float)
        assert np.abs(last(texts) - last(found)).max() < 1e-8
        if kind == "linear":
            scaled = StandardScaler().fit_transform(numbers)
            best = json.loads(safe_open(folder / "texts.safetensors", "numpy").metadata()["afterfit"])["l2"]
            close(last(texts), Ridge(alpha=n * best, solver="svd").fit(scaled, y).predict(scaled), 1e-7)


def separable_at_tiny_λ(folder):
    """Classes that planes divide: the optimum is far away but there, and its certificate says so."""
    x = RNG.normal(size=(100, 3))
    many = RNG.normal(size=(100, 30))
    two, three, seven = (x @ [1.0, -2.0, 0.5] > 0).astype(int), np.argmax(x, axis=1), RNG.integers(0, 7, size=100)
    wrong = []
    # (Features ten times as large are a λ a hundred times smaller.)
    for name, x, y, grid in [
        ("two", x, two, "1e-8,1e-7,1e-6,1e-4"),
        ("three", x, three, "1e-8,1e-7,1e-6,1e-4"),
        ("seven", many, seven, "1e-7,1e-6,1e-5,1e-4"),
        ("seven, tiny", many, seven, "1e-9,1e-8,1e-7,1e-6,1e-5,1e-4"),
        ("seven, in other units", many * 100, seven, "1e-5..1e2:8"),
    ]:
        done = command(folder, "fit", *common(folder, x, y), "--l2", grid, "--json", "-q")
        if done.returncode:
            wrong.append(f"{name}: {done.stderr}")
            continue
        rows = json.loads(done.stdout)["path"]
        reference = solutions("class", x, y, np.ones(100), [row["l2"] for row in rows])
        for row in rows:
            sk = reference[row["l2"]]
            ours = row["train_loss"] + 0.5 * row["l2"] * row["norm"] ** 2
            assert ours - sk.value <= row["excess"] + 1e-12, (name, ours, sk.value, row)
            assert abs(row["norm"] - np.linalg.norm(sk.weight)) <= row["distance"] + sk.off, (name, row)
            # The objective itself is small here; within 1 % of it is the least one may ask.
            if abs(ours - sk.value) > 1e-6 or abs(ours / sk.value - 1) > 0.01:
                wrong.append(f"{name} at {row['l2']}: objective {ours:.3e}, scikit-learn's {sk.value:.3e}, excess said to be {row['excess']:.1e}")
    assert not wrong, "\n".join(wrong)


def common(folder, x, y, **more):
    """Arguments for a table that judges itself."""
    csv(folder / "t.csv", x, y, **more)
    return ["t.csv", "--target", "y", "--test", "t.csv"]


def strengths_in_any_order_and_twice(folder):
    """A list of λ need not rise, and may say a λ twice: each has the line it has alone."""
    for kind, (x, y) in [("softmax", classes(80, 3, 3)), ("poisson", counts(80, 3)), ("linear", regression(80, 3))]:
        arguments = [*common(folder, x, y), "--model", kind, "--l2"]
        alone = {l2: fit(folder, *arguments, l2)["path"][0] for l2 in ["1", "0.5", "0.001"]}
        for grid in ["1,0.5,0.001", "0.001,1,0.5", "1,1,0.5", "0.001,0.5,0.5,0.5,1"]:
            objective = lambda row: row["train_loss"] + 0.5 * row["l2"] * row["norm"] ** 2
            for l2, row in zip(grid.split(","), fit(folder, *arguments, grid, "-o", "m.safetensors", "--force")["path"]):
                assert row["l2"] == float(l2)
                near(objective(row), objective(alone[l2]), 1e-6, grid)


def weights_of_zero(folder):
    """A row of weight 0 is no row: classes, folds and judges of nothing but such rows are refused in words a user knows, or fitted
    as if they were not there."""
    x, y = classes(40, 2, 3)
    wrong = []

    def clear(what, *arguments):
        done = command(folder, "fit", *arguments, "--json", "-q")
        words = ["weight", "class"]
        strange = ["Σ", "NaN", "X holds", "too large", "Hessian", "counted from 0"]
        if done.returncode and (not any(word in done.stderr for word in words) or any(word in done.stderr for word in strange)):
            wrong.append(f"{what}: {done.stderr.strip()}")

    w = np.where(y == 2, 0, 1)
    base = [*common(folder, x, y, w=w), "--weights", "w", "--l2"]
    for arguments in [["0.1"], ["1e-5..1e2:8"], ["0.1", "--class-weight", "balanced"], ["0.1", "--bias", "false"], ["0.1", "--average-only"]]:
        clear(f"a class of weight 0, {arguments}", *base, *arguments)
    two = (y > 0).astype(int)
    clear("all but one class of weight 0", *common(folder, x, two, w=two), "--weights", "w", "--l2", "0.1")
    numbers = x[:, 0] + RNG.normal(size=40)
    for kind, target in [("linear", numbers), ("kernel", numbers), ("poisson", y), ("softmax", two)]:
        csv(folder / "t.csv", x, target, w=(np.arange(40) < 1) * 1.0)
        base = ["t.csv", "--target", "y", "--weights", "w", "--model", kind, "--l2", "0.1,1"]
        clear(f"{kind}: one row of weight above 0, held out in one fold", *base, "--cv", 4)
        if kind != "kernel":
            clear(f"{kind}: the same, standardized", *base, "--cv", 4, "--standardize")
    # The same weight for every row is no weight, to the last digit of a kernel matrix.
    for seed in range(40):
        tiny = np.random.default_rng(seed).normal(size=(3, 1)) * 3e-4
        csv(folder / "t.csv", tiny, [0.47, 0.93, 0.34], w=[2, 2, 2])
        arguments = ["t.csv", "--target", "y", "--test", "t.csv", "--model", "kernel", "--weights", "w", "--l2", "0.1", "--json", "-q"]
        done = command(folder, "fit", *arguments)
        if done.returncode:
            wrong.append(f"kernel of nearly equal rows (seed {seed}): {done.stderr.strip()}")
            break
    # An npz table that judges has weights like any other.
    judging = np.arange(1.0, 41.0)
    np.savez(folder / "t.npz", x=x, y=y, w=np.ones(40))
    np.savez(folder / "v.npz", x=x, y=y, w=judging)
    csv(folder / "t.csv", x, y, w=np.ones(40))
    csv(folder / "v.csv", x, y, w=judging)
    arguments = ["--target", "y", "--weights", "w", "--l2", "0.1"]
    rows = [fit(folder, f"t.{form}", "--test", f"v.{form}", *arguments)["path"][0] for form in ["csv", "npz"]]
    losses = [row["validation_loss"] for row in rows]
    if abs(losses[0] - losses[1]) > 1e-9:
        wrong.append(f"weights of a test table: {losses[0]} of csv, {losses[1]} of npz")
    assert not wrong, "\n".join(wrong)


def in_own_units(kind, x, y, l2):
    """The least penalized objective of one output, by Newton's method on standardized features with a penalty each."""
    spread = x.std(axis=0)
    z = np.c_[(x - x.mean(axis=0)) / spread, np.ones(len(x))]
    ridge = np.append(l2 / spread**2, 0.0)
    value = lambda v: row_losses(kind, (z @ v)[:, None], y).mean() + 0.5 * np.sum(ridge * v**2)
    v = np.zeros(z.shape[1])
    for _ in range(100):
        scores = z @ v
        slope = slopes(kind, scores[:, None], y)[:, 0]
        bend = {"number": np.ones(len(y)), "count": np.exp(scores), "class": (slope + y) * (1 - slope - y)}[kind]
        hessian = z.T @ (z * bend[:, None]) / len(y) + np.diag(ridge)
        size = 1 / np.sqrt(np.diag(hessian))
        step = size * np.linalg.solve(hessian * np.outer(size, size), size * (z.T @ slope / len(y) + ridge * v))
        length = 1.0
        while value(v - length * step) > value(v) and length > 1e-12:
            length /= 2
        v = v - length * step
    return value(v)


def odd_columns(folder):
    """Constant columns get the weight 0; a column of 1e8 beside one of 1e-8 is fitted as it is, and standardized."""
    wrong = []
    for kind, (x, y) in [("number", regression(150, 3)), ("class", classes(150, 3, 2)), ("class", classes(150, 3, 3)), ("count", counts(150, 3))]:
        x = x / x.std(axis=0)
        constant = np.c_[x, np.full(150, 3.7), np.zeros(150), np.full(150, 1e6 + 0.1)]
        sizes = np.c_[x[:, 0], x[:, 1] * 1e8, x[:, 2] * 1e-8]
        for name, table, arguments in [
            ("constant", constant, []),
            ("constant", constant, ["--standardize"]),
            ("sizes", sizes, ["--standardize"]),
        ]:
            try:
                train, test = (table[:100], y[:100]), (table[100:], y[100:])
                out = fitted(folder, kind, *train, test, *arguments, "-o", "m.safetensors", "--force", grid="1e-3..1:4")
                scale = StandardScaler(with_mean=bool(arguments), with_std=bool(arguments)).fit(train[0])
                a, b = scale.transform(train[0]), scale.transform(test[0])
                if name == "constant":
                    a[:, 3:] = b[:, 3:] = 0.0
                reference = solutions(kind, a, train[1], np.ones(100), [row["l2"] for row in out["path"]])
                for row in out["path"]:
                    sk = reference[row["l2"]]
                    near(row["train_loss"] + 0.5 * row["l2"] * row["norm"] ** 2, sk.value, 1e-6, kind, name, row)
                    near(row["validation_loss"], row_losses(kind, b @ sk.weight.T + sk.bias, test[1]).mean(), 1e-3, kind, name, row)
                if name == "constant":
                    weight = load_file(folder / "m.safetensors")["weight"]
                    assert np.abs(weight[:, 3:]).max() < 1e-6 * np.abs(weight).max(), (kind, weight)
            except AssertionError as error:
                wrong.append((kind, name, arguments, error))
        # As they are, 1e8 is more than one λ can serve: a right answer with its certificate, or a clear error.
        train = (sizes[:100], y[:100])
        csv(folder / "t.csv", *train)
        csv(folder / "v.csv", sizes[100:], y[100:])
        model = {"number": "linear", "class": "softmax", "count": "poisson"}[kind]
        done = command(folder, "fit", "t.csv", "--target", "y", "--test", "v.csv", "--model", model, "--l2", "1e-3..1:4", "--json", "-q")
        if done.returncode:
            wrong.append((kind, "1e8 beside 1e-8", done.stderr))
            continue
        if y.max() == 2 and kind == "class":
            continue
        for row in json.loads(done.stdout)["path"]:
            value = in_own_units(kind, *train, row["l2"])
            ours = row["train_loss"] + 0.5 * row["l2"] * row["norm"] ** 2
            if not (-1e-9 <= (ours - value) / max(1.0, value) <= row["excess"] + 1e-9):
                wrong.append((kind, "1e8 beside 1e-8: certificate", ours, value, row))
            if row["resolved"] and ours - value > 1e-3 * max(1.0, value):
                wrong.append((kind, "1e8 beside 1e-8: called resolved", ours, value, row))
    assert not wrong, "\n".join(map(str, wrong))


def impossible_tables_are_refused(folder):
    """Clear errors, and nothing written."""
    x, y = classes(30, 2, 2)
    numbers = y + RNG.normal(size=30)
    wrong = []

    def check(says, y, *arguments, x=x, **more):
        csv(folder / "t.csv", x, y, **more)
        try:
            refused(folder, "t.csv", "--target", "y", "--l2", "1e-3,1e-1", *arguments, says=says)
        except AssertionError as error:
            wrong.append((says, arguments, error))
            for name in ["refused.safetensors", "refused.html"]:
                (folder / name).unlink(missing_ok=True)

    one = np.array(["only"] * 30)
    check(["class"], one)
    check(["class"], np.zeros(30, int))
    check(["class"], one, "--cv", 3)
    holes = np.array([repr(float(v)) for v in numbers])
    for missing in ["", "nan", "NaN"]:
        holes[3] = missing
        for arguments in [[], ["--model", "linear"], ["--missing", "mean"], ["--model", "kernel"]]:
            check(["missing"], holes, *arguments)
    holes = y.astype(str)
    holes[3] = ""
    check(["missing"], holes)
    check(["missing"], holes, "--missing", "mean")
    check(["finite", "inf"], np.where(np.arange(30) == 3, "inf", [repr(float(v)) for v in numbers]), "--model", "linear")
    for arguments, target in [([], y), (["--model", "linear"], numbers), (["--model", "poisson"], y), (["--model", "kernel"], numbers)]:
        check(["weight"], target, *arguments, "--weights", "w", w=np.zeros(30))
        check(["weight"], target, *arguments, "--weights", "w", w=np.where(np.arange(30) == 7, -1.0, 1.0))
        check(["weight"], target, *arguments, "--weights", "w", w=np.where(np.arange(30) == 7, "nan", "1.0"))
        check(["weight"], target, *arguments, "--weights", "w", w=np.where(np.arange(30) == 7, "inf", "1.0"))
        check(["weight"], target, *arguments, "--weights", "w", w=np.where(np.arange(30) == 7, "heavy", "1.0"))
        check(["no column", "wings"], target, *arguments, "--weights", "wings")
    check(["negative", "at least 0", "below 0", "count"], y - 1, "--model", "poisson")
    check(["number", "numeric"], np.array(["a", "b"] * 15), "--model", "linear")
    check(["fold", "group"], y, "--group", "g", "--cv", 3, g=np.arange(30) % 2)
    check(["group"], y, "--group", "g", g=np.zeros(30, int))
    check(["stratif", "classes"], numbers, "--stratify")
    check(["classes", "class-weight"], numbers, "--class-weight", "balanced", "--model", "linear")
    check(["classes", "class-weight"], numbers, "--class-weight", "balanced", "--model", "kernel")
    check(["auc"], numbers, "--scoring", "auc")
    check(["mae"], y, "--scoring", "mae")
    for l2 in ["0", "-1,1", "nan", "inf"]:
        csv(folder / "t.csv", x, y)
        done = command(folder, "fit", "t.csv", "--target", "y", "--l2", l2, "-o", "no.safetensors", "-q")
        if done.returncode in (0, 101) or (folder / "no.safetensors").exists():
            wrong.append(("--l2", l2, done))
    assert not wrong, "\n".join(map(str, wrong))


def small_classes(folder):
    """A class with one row, more classes than rows have fellows, a class without rows in a fold: right answers."""
    wrong = []
    x, y = classes(40, 2, 2)
    y[5] = 2
    every = RNG.normal(size=(6, 2))
    cases = [("one row of a class", x, y), ("a class for each row", every, np.arange(6))]
    for name, x, y in cases:
        try:
            out = fitted(folder, "class", x, y, (x, y), grid="1e-4..1:5")
            table = SimpleNamespace(name=name, kind="class", x=x, y=y, test=(x, y, np.ones(len(x))))
            compare_path(table, out, solutions("class", x, y, np.ones(len(x)), [row["l2"] for row in out["path"]]))
        except AssertionError as error:
            wrong.append((name, error))
    # Held out, the only row of its class is judged by a model that has never seen one: some loss, finite, or a clear error.
    x, y = cases[0][1:]
    csv(folder / "t.csv", x, y)
    for arguments in [["--cv", 5], ["--cv", 5, "--stratify"], ["--cv", 40], ["--repeats", 20]]:
        done = command(folder, "fit", "t.csv", "--target", "y", "--l2", "1e-4..1:5", "--json", "-q", *arguments)
        if done.returncode:
            clear = done.returncode == 1 and "class" in done.stderr
            wrong += [] if clear else [(arguments, "unclear", done.stderr)]
        else:
            losses = [row["validation_loss"] for row in json.loads(done.stdout)["path"]]
            if not (np.isfinite(losses).all() and max(losses) < 5):
                wrong.append((arguments, losses))
    assert not wrong, "\n".join(map(str, wrong))



def ridge_path_equals_scikit_learn(folder):
    """Every λ of the grid, trained on all rows: the average is Ridge(alpha = nλ) to 1e-6, intercept included."""
    x, y = regression()
    csv(folder / "train.csv", x, y)
    for l2 in [1e-6, 1e-4, 1e-2, 1.0, 100.0]:
        grid = f"{l2},{l2 * 3}"
        out = fit(folder, "train.csv", "--target", "y", "--cv", 4, "--l2", grid, "-o", "m.safetensors", "--force")
        model = load_file(folder / "m.safetensors")
        sk = Ridge(alpha=len(x) * out["best_l2"], solver="svd").fit(x, y)
        close(model["weight"][0], sk.coef_, 1e-6)
        close(model["bias"], [sk.intercept_], 1e-6)
        assert all(row["resolved"] for row in out["path"])




def every_optimizer_gives_the_same_ridge(folder):
    """Descent, heavy ball and both Nesterovs, where they resolve λ; where they do not, they say so."""
    x, y = regression(200, 4)
    x /= np.abs(x).max(axis=0)
    csv(folder / "train.csv", x, y)
    for optimizer in [["sgd"], ["heavy-ball", "--momentum", "0.9"], ["nesterov", "--momentum", "0.9"], ["nesterov-paper", "--alpha", "0.001"]]:
        out = fit(folder, "train.csv", "--target", "y", "--cv", 2, "--l2", "0.01,0.1", "--optimizer", *optimizer, "-o", "m.safetensors", "--force")
        assert all(row["resolved"] for row in out["path"]), optimizer
        sk = Ridge(alpha=len(x) * out["best_l2"], solver="svd").fit(x, y)
        close(load_file(folder / "m.safetensors")["weight"][0], sk.coef_, 1e-5)
    out = fit(folder, "train.csv", "--target", "y", "--l2", "1e-7,0.1", "--optimizer", "sgd", "--steps", 50)
    assert not out["path"][0]["resolved"]




def large_means_and_scales(folder):
    """Means far from 0, columns of very different sizes, duplicates: still Ridge, at every λ that a double can hold."""
    x, y = regression(300, 6)
    x /= x.std(axis=0)
    for name, table, target in [
        ("target 1e8", x, y + 1e8),
        ("features 1e6", x + 1e6, y),
        ("duplicate column", np.c_[x, x[:, 0]], y),
        ("collinear at 1e6", np.c_[x, x[:, 0] + x[:, 1]] * 1e6, y),
    ]:
        csv(folder / "train.csv", table, target)
        out = fit(folder, "train.csv", "--target", "y", "--cv", 3, "--l2", "1e-3,1e-1", "-o", "m.safetensors", "--force")
        model = load_file(folder / "m.safetensors")
        sk = Ridge(alpha=len(x) * out["best_l2"], solver="svd").fit(table, target)
        close(table @ model["weight"][0] + model["bias"] - target.mean(), sk.predict(table) - target.mean(), 1e-6)
        loss = 0.5 * np.mean((sk.predict(table) - target) ** 2)
        row = next(row for row in out["path"] if row["l2"] == out["best_l2"])
        assert abs(row["train_loss"] / loss - 1) < 1e-6, (name, row["train_loss"], loss)




def standardized_ridge(folder):
    x, y = regression()
    csv(folder / "train.csv", x, y)
    out = fit(folder, "train.csv", "--target", "y", "--cv", 4, "--standardize", "--l2", "0.01,0.1", "-o", "m.safetensors")
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    sk = Ridge(alpha=len(x) * out["best_l2"], solver="svd").fit(scaled, y)
    close(load_file(folder / "m.safetensors")["weight"][0], sk.coef_ / x.std(axis=0), 1e-6)




def validation_and_degrees(folder):
    """Reported losses, R² and degrees of freedom are what numpy computes from the same test table."""
    x, y = regression()
    csv(folder / "train.csv", x[:300], y[:300])
    csv(folder / "test.csv", x[300:], y[300:])
    out = fit(folder, "train.csv", "--target", "y", "--test", "test.csv", "--l2", "1e-3..10:9")
    centered = x[:300] - x[:300].mean(axis=0)
    spectrum = np.linalg.eigvalsh(centered.T @ centered / 300)
    for row in out["path"]:
        sk = Ridge(alpha=300 * row["l2"], solver="svd").fit(x[:300], y[:300])
        for name, part in [("train_loss", slice(0, 300)), ("validation_loss", slice(300, None))]:
            loss = 0.5 * np.mean((sk.predict(x[part]) - y[part]) ** 2)
            assert abs(row[name] / loss - 1) < 1e-6, (name, row[name], loss)
        assert abs(row["validation_r2"] - sk.score(x[300:], y[300:])) < 1e-6
        assert abs(row["degrees_of_freedom"] - np.sum(spectrum / (spectrum + row["l2"]))) < 1e-6




def kernel_ridge_equals_scikit_learn(folder):
    """alpha = nλ, kernel and targets centered; RBF, polynomial, Laplacian and linear kernels, at test points.

    The intercept is that of the joint minimizer: the (n+1)-system in α and b, solved directly, says the same."""
    x, y = regression(150, 3)
    x /= x.std(axis=0)
    csv(folder / "train.csv", x[:100], y[:100])
    csv(folder / "test.csv", x[100:], y[100:])
    for kernel, extra, metric, options in [
        ("rbf", ["--gamma", 0.3], "rbf", dict(gamma=0.3)),
        ("laplacian", ["--gamma", 0.2], "laplacian", dict(gamma=0.2)),
        ("polynomial", ["--gamma", 0.5, "--degree", 2, "--offset", 1], "poly", dict(gamma=0.5, degree=2, coef0=1)),
        ("linear", [], "linear", {}),
    ]:
        args = ["train.csv", "--target", "y", "--model", "kernel", "--kernel", kernel, *extra, "--test", "test.csv"]
        out = fit(folder, *args, "--l2", "1e-4,1e-2", "-o", "m.safetensors", "--force")
        alpha, mean = 100 * out["best_l2"], y[:100].mean()
        matrix, cross = (pairwise_kernels(part, x[:100], metric=metric, **options) for part in (x[:100], x[100:]))
        center = KernelCenterer().fit(matrix)
        sk = KernelRidge(alpha=alpha, kernel="precomputed").fit(center.transform(matrix), y[:100] - mean)
        expected = sk.predict(center.transform(cross)) + mean
        ones = np.ones((100, 1))
        system = np.block([[matrix + alpha * np.eye(100), ones], [ones.T, np.zeros((1, 1))]])
        solved = np.linalg.solve(system, np.append(y[:100], 0.0))
        close(cross @ solved[:-1] + solved[-1], expected, 1e-8)
        found = np.array(run(folder, "predict", "m.safetensors", "test.csv").split()[1:], dtype=float)
        close(found, expected, 1e-6)




def texts_stay_texts(folder):
    """A row predicts the same whatever else is in the file: `01234` is a text if the model was fitted so."""
    rows = ["zip,y"] + [f"{z},{i % 7 + v}" for i in range(30) for z, v in [("01234", 100.5), ("A1", 5.5), ("1.50", 50.5)]]
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    fit(folder, "t.csv", "--target", "y", "--model", "linear", "--l2", "1e-3,1e-2", "-o", "m.safetensors")
    (folder / "both.csv").write_text("zip\n01234\nA1\n")
    (folder / "one.csv").write_text("zip\n01234\n")
    both, one = (run(folder, "predict", "m.safetensors", name).split()[1] for name in ["both.csv", "one.csv"])
    assert both == one, (both, one)




def a_streamed_tables_memory_does_not_grow(folder):
    """Ten times the rows in the same memory, where the rows would not fit; libsvm as well as CSV."""
    x, y = regression(4000, 20)
    columns = ",".join([f"x{at}" for at in range(20)] + ["y"]) + "\n"
    block = "\n".join(",".join(f"{value:.5f}" for value in row) for row in np.column_stack([x, y])) + "\n"
    sparse = "\n".join(f"{t:.5f} " + " ".join(f"{c + 1}:{v:.5f}" for c, v in enumerate(row)) for row, t in zip(x, y)) + "\n"
    for ending, header, block in [("csv", columns, block), ("libsvm", "", sparse)]:
        peaks = []
        for times in (10, 100):
            (folder / f"t.{ending}").write_text(header + times * block)
            arguments = ["--target", "y"] if ending == "csv" else []
            # (By way of a small process: a child's peak begins with its parent's, and this one has scikit-learn.)
            watch = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
            given = ["fit", f"t.{ending}", *arguments, "--model", "linear", "--stream", "--json", "-q"]
            done = subprocess.run([sys.executable, "-S", "-c", watch, AFTERFIT, *given], cwd=folder, capture_output=True, text=True, check=True)
            peaks.append(1024 * int(done.stdout))
        # (Ten times the rows are 60 MB more as numbers; how many pieces are under way at a time varies.)
        assert peaks[1] - peaks[0] < 25e6, (ending, peaks)


def formats_agree(folder):
    """CSV, Parquet, npz, npy, libsvm and IDX give the same path."""
    x = RNG.integers(0, 256, size=(120, 6)).astype(np.uint8)
    y = ((x - 127.5) @ RNG.normal(size=6) > 0).astype(np.uint8)
    scaled = x.astype(np.float32) / np.float32(255)
    csv(folder / "t.csv", scaled.astype(float), y)
    pq.write_table(pa.table({**{f"x{j}": scaled[:, j].astype(float) for j in range(6)}, "y": y.astype(np.int64)}), folder / "t.parquet")
    np.savez_compressed(folder / "t.npz", x=scaled.astype(float), y=y)
    np.save(folder / "t.npy", np.asfortranarray(scaled.astype(float).reshape(120, 2, 3)))
    np.save(folder / "y.npy", y)
    libsvm(folder / "t.libsvm", scaled, y)
    (folder / "t-images-idx3-ubyte").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 120, 0, 0, 0, 2, 0, 0, 0, 3]) + x.tobytes())
    (folder / "t-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 120]) + y.tobytes())
    tables = {
        "csv": ["t.csv", "--target", "y"],
        "parquet": ["t.parquet", "--target", "y"],
        "npz": ["t.npz", "--target", "y"],
        "npy": ["t.npy", "--target", "y.npy"],
        "libsvm": ["t.libsvm"],
        "idx": ["t-images-idx3-ubyte"],
    }
    for model in ["linear", "softmax"]:
        paths = {name: fit(folder, *args, "--model", model, "--l2", "1e-3..1:5")["path"] for name, args in tables.items()}
        for name, path in paths.items():
            for row, reference in zip(path, paths["csv"]):
                for key in ["train_loss", "validation_loss", "norm"]:
                    # IDX is f32 data; its softmax runs in f32, as exact as its certificate says.
                    allowed = (1e-3 if name == "idx" else 1e-9) * abs(reference[key])
                    if name == "idx" and key == "norm":
                        allowed += row["distance"] + reference["distance"]
                    assert abs(row[key] - reference[key]) <= allowed, (model, name, key, row, reference)




def models_load_elsewhere(folder):
    """The saved model is an ordinary safetensors file whose tensors predict what `predict` predicts."""
    x, y = classes()
    csv(folder / "t.csv", x, y)
    fit(folder, "t.csv", "--target", "y", "--l2", "0.01,0.1", "-o", "m.safetensors")
    model = load_file(folder / "m.safetensors")
    scores = x @ model["weight"].T + model["bias"]
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    printed = run(folder, "predict", "m.safetensors", "t.csv", "--probabilities").split()[1:]
    table = np.array([line.split(",") for line in printed], dtype=float)
    assert np.array_equal(table[:, 0], scores.argmax(axis=1))
    assert np.abs(table[:, 1:] - p).max() < 1e-6


CHECKS = [
    every_λ_is_scikit_learns,
    units_do_not_matter,
    weights_are_repeated_rows,
    class_weights_are_scikit_learns,
    weighted_kernel_ridge,
    nothing_leaks_between_folds,
    imputed_and_standardized_models_take_raw_tables,
    predict_reads_any_λ,
    scores_are_those_of_sklearn_metrics,
    averages_are_near_and_say_how_near,
    without_an_intercept,
    dates_and_booleans_are_numbers,
    separable_at_tiny_λ,
    strengths_in_any_order_and_twice,
    weights_of_zero,
    odd_columns,
    impossible_tables_are_refused,
    small_classes,
    ridge_path_equals_scikit_learn,
    every_optimizer_gives_the_same_ridge,
    large_means_and_scales,
    standardized_ridge,
    validation_and_degrees,
    kernel_ridge_equals_scikit_learn,
    texts_stay_texts,
    a_streamed_tables_memory_does_not_grow,
    formats_agree,
    models_load_elsewhere,
]


def seeded(check):
    """Every check draws the same numbers, whichever others are run."""

    @functools.wraps(check)
    def run_seeded(folder):
        global RNG
        RNG = np.random.default_rng(0)
        check(folder)

    return run_seeded


runner.run([seeded(check) for check in CHECKS if len(sys.argv) < 3 or check.__name__ in sys.argv[2:]])
