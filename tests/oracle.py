"""scikit-learn as an independent judge of `afterfit fit`.

Run by `make test` as `python tests/oracle.py PATH_TO_AFTERFIT`; prints `N passed, N failed` and fails if any did.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, Ridge

import runner

AFTERFIT = Path(sys.argv[1]).resolve()
RNG = np.random.default_rng(0)


def run(folder, *arguments):
    done = subprocess.run([AFTERFIT, *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fit(folder, *arguments):
    return json.loads(run(folder, "fit", *arguments, "--json", "-q"))


def csv(path, x, y, names=None):
    names = names or [f"x{j}" for j in range(x.shape[1])]
    lines = [",".join([*names, "y"])] + [",".join([*map(repr, map(float, row)), str(t)]) for row, t in zip(x, y)]
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


def close(found, expected, tolerance):
    error = np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected)
    assert error < tolerance, f"relative error {error:.2e}, allowed {tolerance:.0e}"


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


def texts_stay_texts(folder):
    """A row predicts the same whatever else is in the file: `01234` is a text if the model was fitted so."""
    rows = ["zip,y"] + [f"{z},{i % 7 + v}" for i in range(30) for z, v in [("01234", 100.5), ("A1", 5.5), ("1.50", 50.5)]]
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    fit(folder, "t.csv", "--target", "y", "--model", "linear", "--l2", "1e-3,1e-2", "-o", "m.safetensors")
    (folder / "both.csv").write_text("zip\n01234\nA1\n")
    (folder / "one.csv").write_text("zip\n01234\n")
    both, one = (run(folder, "predict", "m.safetensors", name).split()[1] for name in ["both.csv", "one.csv"])
    assert both == one, (both, one)


def polished_rows_are_the_polished_models(folder):
    x, y = classes()
    csv(folder / "t.csv", x[:200], [f"class {c}" for c in y[:200]])
    csv(folder / "v.csv", x[200:], [f"class {c}" for c in y[200:]])
    out = fit(folder, "t.csv", "--target", "y", "--test", "v.csv", "--l2", "0.003,0.03", "--polish", "all")
    for row in out["path"]:
        sk = LogisticRegression(C=1 / (200 * row["l2"]), tol=1e-10, max_iter=10000).fit(x[:200], y[:200])
        loss = -np.mean(np.log(sk.predict_proba(x[200:])[np.arange(100), y[200:]]))
        assert row["polished"] and abs(row["validation_loss"] - loss) < 1e-6, (row, loss)


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
    centred = x[:300] - x[:300].mean(axis=0)
    spectrum = np.linalg.eigvalsh(centred.T @ centred / 300)
    for row in out["path"]:
        sk = Ridge(alpha=300 * row["l2"], solver="svd").fit(x[:300], y[:300])
        for name, part in [("train_loss", slice(0, 300)), ("validation_loss", slice(300, None))]:
            loss = 0.5 * np.mean((sk.predict(x[part]) - y[part]) ** 2)
            assert abs(row[name] / loss - 1) < 1e-6, (name, row[name], loss)
        assert abs(row["validation_r2"] - sk.score(x[300:], y[300:])) < 1e-6
        assert abs(row["degrees_of_freedom"] - np.sum(spectrum / (spectrum + row["l2"]))) < 1e-6


def polished_softmax_equals_scikit_learn(folder):
    """After --polish: LogisticRegression(C = 1/(nλ)), coefficients up to the constant that softmax cannot see."""
    x, y = classes()
    csv(folder / "train.csv", x, [f"class {c}" for c in y])
    for l2 in [1e-3, 1e-1]:
        out = fit(folder, "train.csv", "--target", "y", "--cv", 2, "--l2", f"{l2},{2 * l2}", "--polish", "all", "-o", "m.safetensors", "--force")
        model = load_file(folder / "m.safetensors")
        sk = LogisticRegression(C=1 / (len(x) * out["best_l2"]), tol=1e-10, max_iter=10000).fit(x, y)
        close(model["weight"] - model["weight"].mean(axis=0), sk.coef_ - sk.coef_.mean(axis=0), 1e-4)
        close(model["bias"] - model["bias"].mean(), sk.intercept_ - sk.intercept_.mean(), 1e-3)
        assert all(p["iterations"] > 0 for p in out["polished"]), out["polished"]


def averaged_softmax_is_near(folder):
    """Without polishing: log-loss within 2 % and accuracy within three points, rescaled."""
    x, y = classes(2000, 8, 4)
    csv(folder / "train.csv", x[:1500], y[:1500])
    csv(folder / "test.csv", x[1500:], y[1500:])
    out = fit(folder, "train.csv", "--target", "y", "--test", "test.csv", "--l2", "1e-3..1:7", "--steps", 8000)
    for row in out["path"]:
        sk = LogisticRegression(C=1 / (1500 * row["l2"]), tol=1e-10, max_iter=10000).fit(x[:1500], y[:1500])
        loss = -np.mean(np.log(sk.predict_proba(x[1500:])[np.arange(500), y[1500:]]))
        assert abs(row["validation_loss"] - loss) < 0.02 * loss, (row["l2"], row["validation_loss"], loss)
        assert abs(row["validation_accuracy"] - sk.score(x[1500:], y[1500:])) < 0.03


def kernel_ridge_equals_scikit_learn(folder):
    """alpha = nλ, targets centred; RBF, polynomial, Laplacian and linear kernels, at test points."""
    x, y = regression(150, 3)
    x /= x.std(axis=0)
    csv(folder / "train.csv", x[:100], y[:100])
    csv(folder / "test.csv", x[100:], y[100:])
    for kernel, extra, sk_options in [
        ("rbf", ["--gamma", 0.3], dict(kernel="rbf", gamma=0.3)),
        ("laplacian", ["--gamma", 0.2], dict(kernel="laplacian", gamma=0.2)),
        ("polynomial", ["--gamma", 0.5, "--degree", 2, "--offset", 1], dict(kernel="poly", gamma=0.5, degree=2, coef0=1)),
        ("linear", [], dict(kernel="linear")),
    ]:
        args = ["train.csv", "--target", "y", "--model", "kernel", "--kernel", kernel, *extra, "--test", "test.csv"]
        out = fit(folder, *args, "--l2", "1e-4,1e-2", "-o", "m.safetensors", "--force")
        sk = KernelRidge(alpha=100 * out["best_l2"], **sk_options).fit(x[:100], y[:100] - y[:100].mean())
        expected = sk.predict(x[100:]) + y[:100].mean()
        found = np.array(run(folder, "predict", "m.safetensors", "test.csv").split()[1:], dtype=float)
        close(found, expected, 1e-6)


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
    lines = [f"{t} " + " ".join(f"{j + 1}:{float(v)!r}" for j, v in enumerate(row) if v) for row, t in zip(scaled, y)]
    (folder / "t.libsvm").write_text("\n".join(lines) + "\n")
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
        paths = {name: fit(folder, *args, "--model", model, "--l2", "1e-3..1:5", "--rate", 0.1)["path"] for name, args in tables.items()}
        for name, path in paths.items():
            for row, reference in zip(path, paths["csv"]):
                for key in ["train_loss", "validation_loss", "norm"]:
                    # IDX is f32 data; its softmax runs in f32.
                    allowed = 1e-3 if name == "idx" else 1e-9
                    assert abs(row[key] - reference[key]) <= allowed * abs(reference[key]), (model, name, key)


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
    ridge_path_equals_scikit_learn,
    every_optimizer_gives_the_same_ridge,
    large_means_and_scales,
    texts_stay_texts,
    polished_rows_are_the_polished_models,
    standardized_ridge,
    validation_and_degrees,
    polished_softmax_equals_scikit_learn,
    averaged_softmax_is_near,
    kernel_ridge_equals_scikit_learn,
    formats_agree,
    models_load_elsewhere,
]

runner.run(CHECKS)
