"""Every strength of a folder of checkpoints in one pass, and the best of them by a function of yours."""

from pathlib import Path

import numpy as np

import afterfit

# A run that leaves checkpoints: gradient descent on a noisy regression, twenty rows and as many features.
rng = np.random.default_rng(0)
X, X_test = rng.normal(size=(20, 20)), rng.normal(size=(500, 20))
truth = rng.normal(size=20)
y, y_test = X @ truth + 3 * rng.normal(size=20), X_test @ truth
folder = Path("checkpoints")
folder.mkdir()
w, rate = np.zeros(20), 0.2
for step in range(501):
    if step % 5 == 0:
        np.savez(folder / f"step-{step}.npz", w=w)
    w = w - rate * X.T @ (X @ w - y) / len(y)


def evaluate(path: Path) -> float:
    return float(np.mean((X_test @ np.load(path)["w"] - y_test) ** 2))


found = afterfit.average(
    folder, "averaged", l2="auto", rate=rate, quadratic=True, format="npz", evaluate=evaluate, best="min", keep="best"
)
best = found.best
assert best is not None and best.score is not None and found.last_score is not None
print(f"as trained {found.last_score:.2f}, at λ = {best.strength:.3g} {best.score:.2f}: {best.path}")
assert best.score < found.last_score
