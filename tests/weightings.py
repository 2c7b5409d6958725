"""PyTorch's own optimizers and averages as judges of what `afterfit average` weighs checkpoints with.

    .venv-torch/bin/python tests/weightings.py target/release/afterfit

Everything is f64 and small: quadratics `½wᵀHw − bᵀw` of eight weights, whose penalized minimizers numpy solves for.
Prints `N passed, N failed`.
"""

import json
import os
import resource
import shlex
import subprocess
import sys
from math import cos, pi
from pathlib import Path

import numpy as np
import torch
from ema_pytorch import EMA
from ema_pytorch.post_hoc_ema import KarrasEMA, sigma_rel_to_gamma
from safetensors.numpy import load_file, save_file
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

import runner

AFTERFIT = Path(sys.argv[1]).resolve()
RNG = np.random.default_rng(7)
D = 8


def run(folder, *arguments, fails=False):
    """The command's JSON, or its message where it is to fail. It never panics."""
    done = subprocess.run([AFTERFIT, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode not in (101, 134) and done.returncode >= 0 and "panicked" not in done.stderr, done.stderr
    assert (done.returncode != 0) == fails, f"{arguments}\n{done.stderr or done.stdout}"
    return done.stderr if fails else json.loads(done.stdout)


def average(folder, *arguments, inputs="run"):
    """The averaged tensors, and the row of JSON that describes them with its weights and notes."""
    out = run(folder, "average", inputs, "-o", "out.safetensors", "--force", "--json", *arguments)
    row = out["outputs"][0] | {"weights": out["weights"][0], "notes": out["notes"]}
    return load_file(folder / "out.safetensors"), row


def close(found, expected, tolerance, what=""):
    """Within a tolerance of the size of what is expected."""
    error = np.abs(np.asarray(found) - expected).max() / np.abs(expected).max()
    assert error <= tolerance, f"{what}: off by {error:.2e}, more than {tolerance:.0e}"


def short(row):
    return {key: value for key, value in row.items() if key != "weights"}


def honest(averaged, expected, names="a"):
    """Right, or not called exact."""
    found, row = averaged
    error = np.abs(whole(found, names) - expected).max() / np.abs(expected).max()
    assert error < 1e-11 or row["status"] != "exact", f"off by {error:.2e} and called exact: {short(row)}"


def far(found, other, least, what=""):
    error = np.abs(np.asarray(found) - other).max() / np.abs(other).max()
    assert error > least, f"{what}: only {error:.2e} apart: this would prove nothing"


# ------------------------------------------------------------------ runs of real optimizers on a quadratic


class Quadratic:
    """Eigenvalues from 0.02 to 1 in a random basis, a random start c."""

    def __init__(self, seed, blocks=None):
        random = np.random.default_rng(seed)
        basis = np.linalg.qr(random.normal(size=(D, D)))[0]
        self.H = basis @ np.diag(np.geomspace(0.02, 1, D)) @ basis.T
        if blocks:
            self.H[:blocks, blocks:] = self.H[blocks:, :blocks] = 0
        self.b, self.c = random.normal(size=D), random.normal(size=D)

    def ridge(self, pull, decay=0.0):
        """Solves `(H + decay + pull)w = b + pull·c`; a pull for each weight, or one for all."""
        pull = np.broadcast_to(pull, D)
        return np.linalg.solve(self.H + np.diag(pull + decay), self.b + pull * self.c)


def warmed_cosine(steps, warmup=20):
    """From exactly 0 up to 1, then half a cosine."""
    return lambda k: k / warmup if k < warmup else 0.5 * (1 + cos(pi * (k - warmup) / (steps - warmup)))


def train(folder, quadratic, make, shapes, steps, sizes=(D,), keep=None, extra=None):
    """Trains with a real optimizer and scheduler; saves `{"model", "optimizer"}` at every step, as trainers do: after
    `optimizer.step()` and `scheduler.step()`. Returns the path. `make` makes the optimizer of named parameters."""
    folder.mkdir(exist_ok=True)
    names = [chr(ord("a") + i) for i in range(len(sizes))]
    starts = np.split(quadratic.c, np.cumsum(sizes)[:-1])
    parameters = {n: torch.nn.Parameter(torch.tensor(s.copy())) for n, s in zip(names, starts)}
    optimizer = make(parameters)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, shapes) if shapes else None
    H, b = torch.tensor(quadratic.H), torch.tensor(quadratic.b)
    path = []
    for k in range(steps + 1):
        whole = torch.cat([parameters[n].detach() for n in names])
        path.append(whole.numpy().copy())
        if keep is None or k in keep:
            state = {n: parameters[n].detach().clone() for n in names} | (extra or {})
            torch.save({"model": state, "optimizer": optimizer.state_dict()}, folder / f"step-{k}.pt")
        gradient = (H @ whole - b).split(list(sizes))
        for n, g in zip(names, gradient):
            parameters[n].grad = g.clone()
        optimizer.step()
        if scheduler:
            scheduler.step()
    return np.array(path)


def whole(tensors, names="a"):
    return np.concatenate([tensors[n] for n in names])


def sgd(**settings):
    return lambda parameters: torch.optim.SGD(list(parameters.values()), **settings)


def real_sgd_is_ridge(folder):
    """Warm-up from rate 0 and cosine: the average is the ridge solution to rounding (1e-12; seen 1e-15)."""
    for i, settings in enumerate([
        {"lr": 1.0}, {"lr": 0.1, "momentum": 0.9}, {"lr": 0.1, "momentum": 0.9, "nesterov": True},
        {"lr": 0.2, "momentum": 0.9, "dampening": 0.5}, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    ]):  # fmt: skip
        quadratic, steps, l2 = Quadratic(1), 400, 0.3
        path = train(folder / str(i), quadratic, sgd(**settings), warmed_cosine(steps), steps)
        found, row = average(folder, "--l2", l2, "--quadratic", inputs=str(i))
        assert row["status"] == "exact" and row["remaining"] < 1e-13, short(row)
        expected = quadratic.ridge(l2, settings.get("weight_decay", 0))
        far(path[-1], expected, 0.05, "the last iterate")
        close(found["a"], expected, 1e-12, settings)


def one_cycle_momentum_is_ridge(folder):
    """torch's OneCycleLR moves the momentum against the rate: both are read from every checkpoint."""
    quadratic, steps, l2 = Quadratic(2), 600, 0.3
    made = {}

    def make(parameters):
        made["sgd"] = torch.optim.SGD(list(parameters.values()), lr=0.1, momentum=0.9)
        made["cycle"] = torch.optim.lr_scheduler.OneCycleLR(made["sgd"], 0.1, total_steps=steps + 1, base_momentum=0.8)
        made["sgd"].register_step_post_hook(lambda *_: made["cycle"].step())
        return made["sgd"]

    # (The hook steps once more than there are steps to take; the run keeps one in hand.)
    path = train(folder / "run", quadratic, make, None, steps - 1)
    found, row = average(folder, "--l2", l2, "--quadratic")
    assert row["status"] == "exact" and row["remaining"] < 1e-13, short(row)
    far(path[-1], quadratic.ridge(l2), 0.05)
    close(found["a"], quadratic.ridge(l2), 1e-12)


def a_momentum_that_starts_at_0(folder):
    """Fine if right, or if not called exact."""
    quadratic, l2 = Quadratic(5), 0.3

    def make(parameters):
        made = torch.optim.SGD(list(parameters.values()), lr=0.1)
        made.register_step_post_hook(lambda *_: made.param_groups[0].update(momentum=0.9 if made.seen > 5 else 0.0))
        made.register_step_pre_hook(lambda *_: setattr(made, "seen", made.seen + 1))
        made.seen = 0
        return made

    train(folder / "run", quadratic, make, None, 600)
    honest(average(folder, "--l2", l2, "--quadratic"), quadratic.ridge(l2))


def unspent_mass_leaves_what_theory_says(folder):
    """`(H+λ)(ŵ−w_λ) = R ∇L(w_K)`: 1e-12 of the right side, a run of 60 steps."""
    quadratic, l2 = Quadratic(3), 0.05
    path = train(folder / "run", quadratic, sgd(lr=0.1, momentum=0.9), warmed_cosine(60), 60)
    found, row = average(folder, "--l2", l2, "--quadratic")
    assert row["remaining"] > 1e-3, short(row)
    left = (quadratic.H + l2 * np.eye(D)) @ (found["a"] - quadratic.ridge(l2))
    close(left, row["remaining"] * (quadratic.H @ path[-1] - quadratic.b), 1e-12)


# ------------------------------------------------------------------ Adam, frozen by a huge eps


def frozen_adam_is_ridge(folder):
    """eps = 1e12 makes Q = 1e-12·(1 − 1e-12·√v̂): constant to about 1e-12, so 1e-10 is asked. λ is AdamW's decay, and
    AdamW's own toward 0 stays beside it."""
    quadratic, steps, l2, scale = Quadratic(4), 500, 0.2, 1e12
    for kind, decay in ((torch.optim.Adam, 0.0), (torch.optim.AdamW, 0.05)):
        make = lambda p: kind(list(p.values()), lr=scale, eps=scale, weight_decay=decay / scale)  # noqa: E731
        path = train(folder / kind.__name__, quadratic, make, warmed_cosine(steps), steps)
        expected = quadratic.ridge(l2, decay)
        found, row = average(folder, "--l2", l2 / scale, "--quadratic", inputs=kind.__name__)
        assert row["status"] == "approximation" and row["remaining"] < 1e-11, short(row)
        far(path[-1], expected, 0.05)
        close(found["a"], expected, 1e-10, kind.__name__)
        wrong, row = average(folder, "--l2", l2 / scale, "--optimizer", "adam", "--beta1", 0.5, inputs=kind.__name__)
        assert row["status"] == "approximation", short(row)
        far(wrong["a"], expected, 0.01, "a wrong beta1")


# ------------------------------------------------------------------ parameter groups

SIZES = (3, 5)


def groups(first, second, reverse=False, **settings):
    """One group for each tensor; reversed: the second tensor's first."""

    def make(parameters):
        made = [{"params": [parameters["a"]], **first}, {"params": [parameters["b"]], **second}]
        return torch.optim.SGD(made[::-1] if reverse else made, lr=0.1, **settings)

    return make


def pull_of(l2, rate, momentum, other_rate, other_momentum):
    """λ_g(q) of docs/theory.md, "Parameter groups": q from the first group's rate, in the stable form."""
    x = l2 * rate
    q = 2 / (1 + momentum + x + np.sqrt((1 - momentum) ** 2 + x * (2 * (1 + momentum) + x)))
    return (1 - q) * (1 - other_momentum * q) / (q * other_rate)


def constant_groups_share_one_mass(folder):
    """Two rates and two momenta: the generalized ridge with each group's own λ_g."""
    quadratic, l2 = Quadratic(5), 0.1
    make = groups({"lr": 0.1, "momentum": 0.9}, {"lr": 0.3, "momentum": 0.5})
    train(folder / "run", quadratic, make, None, 600, SIZES)
    found, row = average(folder, "--l2", l2, "--quadratic")
    other = pull_of(l2, 0.1, 0.9, 0.3, 0.5)
    close(whole(found, "ab"), quadratic.ridge(np.repeat([l2, other], SIZES)), 1e-12)
    assert row["status"] == "exact" and row["remaining"] < 1e-13, short(row)
    assert any("groups" in note for note in row["notes"]), row["notes"]
    close(np.array(row["group_l2"]), np.array([l2, other]), 1e-12, "the λ of each group")


def proportional_groups_share_one_mass(folder):
    """One schedule, rates 1 to 4, one momentum: λ·η_ref/η_g."""
    quadratic, l2, steps = Quadratic(6), 0.4, 600
    train(folder / "run", quadratic, groups({"lr": 0.05}, {"lr": 0.2}, momentum=0.9), warmed_cosine(steps), steps, SIZES)
    found, row = average(folder, "--l2", l2, "--quadratic")
    assert row["status"] == "exact" and row["remaining"] < 1e-13, short(row)
    close(whole(found, "ab"), quadratic.ridge(np.repeat([l2, l2 / 4], SIZES)), 1e-12)
    assert any("groups" in note for note in row["notes"]), row["notes"]
    close(np.array(row["group_l2"]), np.array([l2, l2 / 4]), 1e-12, "the λ of each group")


def groups_out_of_proportion(folder, reverse=False, named=False, extra=None):
    """Schedules that differ, blocks that do not interact: a mass each is the plain ridge in each block."""
    quadratic, l2, steps = Quadratic(8, blocks=3), 0.3, 500
    shapes = [warmed_cosine(steps), lambda k: 1 - k / steps]
    make = groups({"lr": 0.1}, {"lr": 0.05}, reverse, momentum=0.9)
    if named:

        def make(parameters):
            made = [{"params": [("a", parameters["a"])], "lr": 0.1}, {"params": [("b", parameters["b"])], "lr": 0.05}]
            return torch.optim.SGD(made[::-1] if reverse else made, lr=0.1, momentum=0.9)

    train(folder / "run", quadratic, make, shapes[::-1] if reverse else shapes, steps, SIZES, extra=extra)
    return quadratic.ridge(l2), *average(folder, "--l2", l2, "--quadratic")


def groups_out_of_proportion_have_a_mass_each(folder):
    expected, found, row = groups_out_of_proportion(folder)
    close(whole(found, "ab"), expected, 1e-12)
    assert row["status"] == "approximation" and "groups" in row["reason"], short(row)
    one, _ = average(folder, "--l2", 0.3, "--quadratic", "--groups", "one")
    far(whole(one, "ab"), expected, 0.01, "one mass for both")


def named_groups_in_any_order(folder):
    expected, found, _ = groups_out_of_proportion(folder, reverse=True, named=True)
    close(whole(found, "ab"), expected, 1e-12)


def unnamed_groups_in_another_order_than_the_model(folder):
    """Without names torch numbers tensors by group, here b first: whoever takes them for the model's order is wrong.
    Buffers of other shapes tell; where they do not, it is said that the order is taken on trust."""
    expected, found, row = groups_out_of_proportion(folder, reverse=True)
    error = np.abs(whole(found, "ab") - expected).max()
    trusted = any("does not say which" in note or "has no names" in note for note in row["notes"])
    assert error < 1e-11 or (trusted and row["status"] != "exact"), f"off by {error:.2e}: {row['notes']}"


def groups_that_cannot_be_told_apart_are_no_identity(folder):
    """A float buffer beside the parameters: tensors no longer match the optimizer's numbers."""
    extra = {"frequencies": torch.ones(4, dtype=torch.float64)}
    expected, found, row = groups_out_of_proportion(folder, extra=extra)
    honest((found, row), expected, "ab")


def a_group_added_later(folder):
    """Its masses are its own from then on."""
    quadratic, l2 = Quadratic(8, blocks=3), 0.3

    def make(parameters):
        made = torch.optim.SGD([parameters["a"]], lr=0.1, momentum=0.9)
        late = iter([False] * 50 + [True] + [False] * 999)
        made.register_step_post_hook(lambda *_: next(late) and made.add_param_group({"params": [parameters["b"]], "lr": 0.02}))
        return made

    train(folder / "run", quadratic, make, None, 900, SIZES)
    honest(average(folder, "--l2", l2, "--quadratic"), quadratic.ridge(l2), "ab")


def a_frozen_group_stays(folder):
    """Rate 0 for the whole run: it keeps its value bit for bit, and the other solves its own ridge around it."""
    quadratic, l2, steps = Quadratic(9), 0.3, 400
    train(folder / "run", quadratic, groups({"lr": 0.1}, {"lr": 0.0}, momentum=0.9), warmed_cosine(steps), steps, SIZES)
    found, row = average(folder, "--l2", l2, "--quadratic")
    H, b, c = quadratic.H, quadratic.b, quadratic.c
    expected = np.linalg.solve(H[:3, :3] + l2 * np.eye(3), b[:3] - H[:3, 3:] @ c[3:] + l2 * c[:3])
    assert np.array_equal(found["b"], c[3:])
    close(found["a"], expected, 1e-12)
    assert row["status"] == "exact", short(row)


# ------------------------------------------------------------------ optimizers without an identity


def standing(folder, state):
    """What afterfit says of checkpoints with this optimizer state, or a group of it."""
    place = folder / str(len(list(folder.iterdir())))
    place.mkdir()
    if isinstance(state, dict):
        state = {"state": {}, "param_groups": [state | {"params": [0]}]}
    else:
        state = state([torch.nn.Parameter(torch.ones(2, 2))], lr=0.01).state_dict()
    for k in range(4):
        torch.save({"model": {"w": torch.ones(2, 2) * k}, "optimizer": state}, place / f"step-{k}.pt")
    return average(folder, "--l2", 0.1, "--quadratic", inputs=place.name)[1]


def optimizers_are_known_by_their_settings(folder):
    """torch's own where torch has them."""
    real, lion = torch.optim, {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.0}
    transformers = lion | {"eps": (1e-30, 1e-3), "scale_parameter": True, "relative_step": False}
    lars, lamb = {"lr": 0.01, "momentum": 0.9, "trust_coefficient": 0.001}, lion | {"eps": 1e-6, "trust_coeff": 1.0}
    for name, state in [
        ("Lion", lion), ("Muon", real.Muon), ("Adafactor", real.Adafactor), ("Adafactor", transformers),
        ("L-BFGS", real.LBFGS), ("signSGD", real.Rprop), ("LARS", lars), ("LAMB", lamb),
    ]:  # fmt: skip
        row = standing(folder, state)
        assert (row["status"], row["scheme"]) == ("heuristic", name) and name in row["reason"], (name, short(row))
    for kind in (real.NAdam, real.RAdam, real.Adamax, real.RMSprop, real.Adagrad, real.Adadelta):
        assert standing(folder, kind)["status"] == "approximation", kind


def an_optimizer_nobody_knows_is_not_called_exact(folder):
    """torch's ASGD says neither momentum nor betas; taking it for sgd is a guess."""
    row = standing(folder, torch.optim.ASGD)
    assert row["status"] != "exact" or any("sgd" in note for note in row["notes"]), short(row)


def lions_average_balances_its_mean_update(folder):
    """`λ(ŵ−c) = −Σ p_k u_k` for any updates u (docs/theory.md): order of saving and stepping, rates, center. 1e-12 of the
    largest weight."""
    (folder / "run").mkdir()
    l2, steps, w, m = 0.5, 80, RNG.normal(size=D), np.zeros(D)
    path, updates, rates = [], [], [0.05 * warmed_cosine(steps, 10)(k) for k in range(steps)]
    for k in range(steps + 1):
        path.append(w)
        group = {"lr": rates[min(k, steps - 1)], "betas": (0.9, 0.99), "weight_decay": 0.0, "params": [0]}
        torch.save({"model": {"a": torch.tensor(w)}, "optimizer": {"state": {}, "param_groups": [group]}}, folder / f"run/step-{k}.pt")
        gradient = np.tanh(w) + RNG.normal(size=D)
        updates.append(np.sign(0.9 * m + 0.1 * gradient))
        m = 0.99 * m + 0.01 * gradient
        w = w - group["lr"] * updates[-1]
    found, row = average(folder, "--l2", l2)
    close(l2 * (found["a"] - path[0]), -np.dot(row["weights"][:steps], updates[:steps]), 1e-12)


# ------------------------------------------------------------------ what other tools average


def walk(folder, count=60, every=1):
    """A random walk, saved at steps 0, every, 2·every, …"""
    path = RNG.normal(size=(count, D)).cumsum(0)
    (folder / "run").mkdir(exist_ok=True)
    for old in (folder / "run").iterdir():
        old.unlink()
    for k, w in enumerate(path):
        save_file({"a": w}, folder / "run" / f"step-{k * every}.safetensors")
    return path


def fed(average_of, path):
    """A torch average, made of w_0's model and updated with w_1, w_2, …"""
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(torch.tensor(path[0]))
    averaged = average_of(model)
    for w in path[1:]:
        model.a.data.copy_(torch.tensor(w))
        averaged.update_parameters(model) if isinstance(averaged, AveragedModel) else averaged.update()
    inner = averaged.module if isinstance(averaged, AveragedModel) else averaged.ema_model
    return inner.a.detach().numpy()


# Two sums of sixty f64 in another order.
SUMS = 1e-13


def torchs_averaged_model(folder):
    path = walk(folder)
    ema = fed(lambda model: AveragedModel(model, avg_fn=get_ema_avg_fn(0.9)), path)
    close(average(folder, "--ema", 0.9, "--ema-start", "update")[0]["a"], ema, SUMS)
    far(average(folder, "--ema", 0.9, "--ema-start", "debiased")[0]["a"], ema, 1e-5)
    close(average(folder, "--uniform", "--from", 1)[0]["a"], fed(AveragedModel, path), SUMS)
    # Checkpoints 100 steps apart: decays are those of a step, so a decay of 0.9 a checkpoint is 0.9^(1/100) a step.
    path = walk(folder, every=100)
    ema = fed(lambda model: AveragedModel(model, avg_fn=get_ema_avg_fn(0.9)), path)
    close(average(folder, "--ema", repr(0.9**0.01), "--ema-start", "update")[0]["a"], ema, SUMS)
    close(average(folder, "--uniform", "--from", 1)[0]["a"], fed(AveragedModel, path), SUMS)


def hand_written_emas(folder):
    for every in (1, 100):
        path, decay = walk(folder, every=every), 0.93
        ema, sums, mass = path[0], np.zeros(D), 0.0
        for w in path[1:]:
            ema = decay * ema + (1 - decay) * w
        for w in path:  # optax.ema(debias=True), w_0 the first it sees
            sums, mass = decay * sums + (1 - decay) * w, decay * mass + (1 - decay)
        step = repr(decay ** (1 / every))
        close(average(folder, "--ema", step)[0]["a"], ema, SUMS)
        close(average(folder, "--ema", step, "--ema-start", "debiased")[0]["a"], sums / mass, SUMS)
        half = float(every * np.log(0.5) / np.log(decay))
        close(average(folder, "--half-life", repr(half))[0]["a"], ema, SUMS)


def ema_pytorchs_warm_up(folder):
    """Its first update copies w_1; the decay at its t-th is 1 − t^(−2/3), up to beta. (A power in f32: 1e-6.)"""
    path = walk(folder, 400)
    for beta in (0.95, 0.9999):
        theirs = fed(lambda model: EMA(model, beta=beta, update_after_step=0, update_every=1), path)
        close(average(folder, "--ema", beta, "--ema-warmup")[0]["a"], theirs, 1e-6, beta)
    theirs = fed(lambda model: EMA(model, beta=0.9999, power=0.75, update_after_step=0, update_every=1), path)
    close(average(folder, "--ema", 0.9999, "--ema-warmup", 0.75)[0]["a"], theirs, 1e-6)


def a_warmed_up_ema_over_sparse_checkpoints(folder):
    """A decay is a step's, with a warm-up as without: long after the warm-up, over checkpoints 100 steps apart, the two
    agree. (0.99 a step leaves 0.37 of the average at each checkpoint.)"""
    walk(folder, every=100)
    plain, warm = average(folder, "--ema", 0.99)[0]["a"], average(folder, "--ema", 0.99, "--ema-warmup")[0]["a"]
    close(warm, plain, 0.01)


def power_function_emas(folder):
    """Karras et al.: weights (k/K)^(γ+1) − ((k−1)/K)^(γ+1), at any stride."""
    gamma = sigma_rel_to_gamma(0.1)
    for every in (1, 100):
        path = walk(folder, every=every)
        shares = (np.arange(len(path)) / (len(path) - 1)) ** (gamma + 1)
        # (γ is the root of a cubic, by numpy's eigenvalues: 1e-11.)
        close(average(folder, "--power-ema", 0.1)[0]["a"], np.diff(shares) @ path[1:], 1e-11)
        close(average(folder, "--power-ema-gamma", repr(gamma))[0]["a"], np.diff(shares) @ path[1:], SUMS)
    # ema-pytorch counts from 1 where the paper counts from 0: β at its t-th update is (1−1/(t+1))^(γ+1). Its average of
    # w_1 … is the paper's of iterates 2, 3, …, the first of which stands in for two.
    path = walk(folder)
    theirs = fed(lambda model: KarrasEMA(model, sigma_rel=0.1, update_every=1), path)
    far(average(folder, "--power-ema", 0.1)[0]["a"], theirs, 1e-4, "its own count")
    for k in range(len(path) - 1, 0, -1):
        (folder / f"run/step-{k}.safetensors").rename(folder / f"run/step-{k + 1}.safetensors")
    close(average(folder, "--power-ema", 0.1)[0]["a"], theirs, 1e-11)


def megatrons_merge(folder):
    """`schedule_to_merge_coefficients`: decay[i] = f(i/n)."""
    shapes = {"linear": lambda x: 1 - x, "1-sqrt": lambda x: 1 - np.sqrt(x)}
    for every in (1, 100):
        path = walk(folder, every=every)
        n = len(path)
        for name, shape in shapes.items():
            decay = [shape(i / n) for i in range(n)]
            coefficients = np.zeros(n)
            coefficients[-1] = decay[-1]
            for i in range(1, n - 1):
                coefficients[i] = decay[i] - decay[i + 1]
            coefficients[0] = 1 - coefficients.sum()
            close(average(folder, "--anneal", name, "--window", "100%")[0]["a"], coefficients @ path, SUMS, name)


def wise_ft_and_bema(folder):
    for every in (1, 100):
        path = walk(folder, every=every)
        close(average(folder, "--wise", 0.3)[0]["a"], 0.7 * path[0] + 0.3 * path[-1], SUMS)
        ema = path[0]
        for k, w in enumerate(path[1:], 1):
            beta = (10 + k * every) ** -0.5
            ema = (1 - beta) * ema + beta * w
        last = every * (len(path) - 1)
        close(average(folder, "--bema")[0]["a"], ema + (10 + last) ** -0.2 * (path[-1] - path[0]), SUMS)
    weights = np.concatenate([[-0.5], np.full(len(path) - 1, 1.5 / (len(path) - 1))])
    (folder / "weights.txt").write_text("\n".join(map(repr, weights.tolist())))
    close(average(folder, "--weights", "weights.txt")[0]["a"], weights @ path, SUMS)


def one_iterate_as_it_is(folder):
    path = walk(folder)
    assert all(np.array_equal(average(folder, "--iterate", k)[0]["a"], path[k]) for k in range(1, 60, 5))
    assert np.array_equal(average(folder, "--wise", 1)[0]["a"], path[-1])


def decay_chosen_afterwards(folder):
    """A run at a constant rate, weighted, against one whose rate really fell like that (1e-10; seen 1e-14)."""
    steps, shapes = 300, {"cosine": lambda x: 0.5 * (1 + cos(pi * x)), "linear": lambda x: 1 - x, "1-sqrt": lambda x: 1 - x**0.5}
    for momentum, share in ((0.0, 1.0), (0.0, 0.4), (0.9, 1.0)):
        quadratic, settings = Quadratic(10), {"lr": 0.5 * (1 - momentum), "momentum": momentum}
        place = folder / f"{momentum}-{share}"
        place.mkdir()
        path = train(place / "run", quadratic, sgd(**settings), None, steps)
        start = round(steps * (1 - share))
        for name, shape in shapes.items():
            fall = lambda k: 1 if k < start else shape((k - start) / (steps - start))  # noqa: E731
            real = train(place / "real", quadratic, sgd(**settings), fall, steps, keep=())
            found, row = average(place, "--schedule", name, "--window", f"{share:.0%}", "--quadratic")
            assert row["status"] == "exact", short(row)
            far(path[-1], real[-1], 1e-3)
            close(found["a"], real[-1], 1e-10, (name, momentum, share))


# ------------------------------------------------------------------ dials


def masses(l2, rates, momentum):
    """The look-ahead rule of docs/theory.md, backwards, and the unspent mass last."""
    ahead, spends = 0.0, []
    for rate in rates[::-1]:
        a = rate + momentum * ahead
        e = l2 * a
        ahead = a / (1 + e)
        spends.append((e / (1 + e), 1 / (1 + e)))
    left, p = 1.0, []
    for spend, keep in spends[::-1]:
        p.append(left * spend)
        left *= keep
    return np.array([*p, left])


def dials_keep_their_promise(folder):
    quadratic, steps = Quadratic(11), 300
    path = train(folder / "run", quadratic, sgd(lr=0.1, momentum=0.9), warmed_cosine(steps), steps)
    rates = [0.1 * warmed_cosine(steps)(k) for k in range(steps)]
    run(folder, "average", "run", "-o", "run.dial", "--dial", "1e-3..1", "--quadratic", "--json")
    worst = 0.0
    for l2 in (1e-3, 2.3e-3, 0.017, 0.1, 0.61, 1.0, 3e-4, 1e-6, 2.0, 10.0, 1e3, 1e6):
        done = subprocess.run(
            [AFTERFIT, "dial", "read", "run.dial", "--l2", str(l2), "-o", f"{l2}.safetensors", "--json"],
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            assert not 1e-3 <= l2 <= 1 and done.returncode == 1, done.stderr
            assert "cannot be read" in done.stderr and not (folder / f"{l2}.safetensors").exists(), done.stderr
            continue
        row = json.loads(done.stdout)["outputs"][0]
        p = masses(l2, rates, 0.9)
        error = np.abs(load_file(folder / f"{l2}.safetensors")["a"] - p @ path).max()
        assert error <= row["error"], f"λ = {l2}: off by {error:.2e}, at most {row['error']:.2e} was promised"
        np.testing.assert_allclose(row["remaining"], p[-1], rtol=1e-9, atol=1e-300)
        worst = max(worst, row["error"]) if 1e-3 <= l2 <= 1 else worst
    # Sixteen sums for three decades: about 1.5e-3 of the farthest any weight moved.
    assert worst < 1.5e-3 * np.abs(path - path[0]).max(), worst


def dials_of_groups_keep_their_promise(folder):
    """A mass each: both groups against their own look-ahead masses."""
    quadratic, steps, l2 = Quadratic(12), 300, 0.05
    shapes = [warmed_cosine(steps), lambda k: 1 - k / steps]
    path = train(folder / "run", quadratic, groups({"lr": 0.1}, {"lr": 0.05}, momentum=0.9), shapes, steps, SIZES)
    run(folder, "average", "run", "-o", "run.dial", "--dial", "1e-3..1", "--quadratic", "--json")
    row = run(folder, "dial", "read", "run.dial", "--l2", l2, "-o", "read.safetensors", "--json")["outputs"][0]
    found = load_file(folder / "read.safetensors")
    for name, rate, shape, part in (("a", 0.1, shapes[0], slice(0, 3)), ("b", 0.05, shapes[1], slice(3, D))):
        expected = masses(l2, [rate * shape(k) for k in range(steps)], 0.9) @ path[:, part]
        error = np.abs(found[name] - expected).max()
        assert error <= row["error"], f"group {name}: off by {error:.2e}, at most {row['error']:.2e} was promised"


def dials_of_sparse_checkpoints_say_so(folder):
    """Every tenth iterate, or none before step 50, whose rates must be told: a reading is as far from the truth as the average itself."""
    quadratic, steps, l2 = Quadratic(6), 300, 0.01
    for name, keep in (("sparse", range(0, steps + 1, 10)), ("late", range(50, steps + 1))):
        path = train(folder / name, quadratic, sgd(lr=0.1, momentum=0.9), warmed_cosine(steps), steps, keep=keep)
        expected = masses(l2, [0.1 * warmed_cosine(steps)(k) for k in range(steps)], 0.9) @ path
        told = ["--quadratic"]
        if name == "late":
            refused = run(folder, "average", name, "-o", "no.safetensors", "--l2", l2, "--quadratic", fails=True)
            assert "no file says the rates of the first 50 steps" in refused and "--rates" in refused, refused
            (folder / "rates.csv").write_text("step,lr\n" + "".join(f"{k},{0.1 * warmed_cosine(steps)(k)!r}\n" for k in range(steps)))
            told += ["--rates", "rates.csv"]
        _, direct = average(folder, "--l2", l2, *told, inputs=name)
        assert direct["status"] == "approximation", short(direct)
        run(folder, "average", name, "-o", f"{name}.dial", "--dial", "1e-3..1", *told, "--json")
        row = run(folder, "dial", "read", f"{name}.dial", "--l2", l2, "-o", f"{name}.safetensors", "--json")["outputs"][0]
        error = np.abs(load_file(folder / f"{name}.safetensors")["a"] - expected).max()
        assert row["status"] != "exact" or error <= row["error"], f"{name}: off by {error:.2e}: {row}"


def the_weights_command_agrees(folder):
    """`afterfit weights` against the look-ahead rule; Adam with its bias correction and gain (1e-12: sums of 90)."""
    rates, l2 = [0.1] * 40 + [0.03] * 50, 0.4
    common = ["--rate", "0.1,40:0.03", "--l2", l2, "--steps", 90, "--json"]
    said = run(folder, "weights", "--optimizer", "heavy-ball", "--momentum", 0.9, *common)
    np.testing.assert_allclose(said["weights"], masses(l2, rates, 0.9)[:-1], rtol=1e-12)
    said = run(folder, "weights", "--optimizer", "adam", *common)
    corrected = [rate * 0.1 / (1 - 0.9 ** (k + 1)) for k, rate in enumerate(rates)]
    np.testing.assert_allclose(said["weights"], masses(l2, corrected, 0.9)[:-1], rtol=1e-12)


# ------------------------------------------------------------------ wrong on purpose


# Arguments, and a word that the message must have.
REFUSED = """
run --uniform --window 0 => last iterates; run --uniform --window 21 => 20; run --uniform --window 0% => window;
run --uniform --window 101% => window; run --uniform --window nan% => window; run --uniform --window -3 => -3;
run --uniform --window 9..3 => window; run --uniform --window 30..40 => window; run --uniform --window 0steps => steps;
run --uniform --window 99999999999999999999 => window; run --uniform --window x => window;
run --uniform --window '' => window; run --window 5 => --window; run --ema 0.9 --window 5 => --window;
run --anneal round => shape; run --schedule cosine => rate; frozen --schedule cosine --window 100% => rate;
run --anneal '' => shape; run --ema 1 => decay; run --ema -0.1 => decay; run --ema nan => decay; run --ema-warmup => --ema;
run --ema 0.9 --ema-warmup 0 => power; run --ema 0.9 --ema-start late => late; run --half-life 0 => half-life;
run --power-ema 0.5 => sigma_rel; run --power-ema 0 => sigma_rel; run --power-ema-gamma -2 => gamma;
run --wise 1.5 => share; run --wise nan => share; run --iterate 77 => 77; run --last 0 => last; run --iterate -1 => -1;
run --weights empty => weights; run --weights short => 20; run --weights nan.txt => finite; run --weights inf => finite;
run --weights zero => sum; run --weights two => sum; run --weights words => one; run --weights huge => sum;
run --weights binary => binary; run --weights run => run; run --weights missing => missing;
torch --l2 1 --optimizer adam --beta1 1 => beta1; torch --l2 1 --optimizer sgd --nesterov => nesterov;
run --l2 1 --rate 0.1 --optimizer heavy-ball => momentum; torch --l2 1 --optimizer sgd --nesterov => contradicts;
run --l2 1 --rate 0.1 --nesterov => momentum; torch --l2 1 --optimizer sgd --momentum 0.9 => momentum;
torch --l2 1 --momentum 1 => momentum; torch --l2 1 --optimizer heavy-ball --momentum 0.9 --dampening 1 => dampening;
torch --l2 1 --optimizer sophia => sophia; torch --l2 1 --groups both => both; torch --l2 -1 => -1; torch --l2 nan => nan;
run --l2 1 => rate; run => strength; nan --uniform => NaN; nan --bema => NaN; shapes --bema => shape;
run --dial 1e-3..1 => rate; torch --dial 1..1e-3 => 1; torch --dial 0..1 => 0; torch --dial 1e-3..1 --ema 0.9 => --dial;
torch --dial 1e-3..1 --nodes 0 => nodes; run --l2 1 --rate 0.1 --dampening 0.5 => dampening; torch --l2 1 --alpha 0.1 => alpha;
"""


def wrong_input_is_refused(folder):
    """Exit code 1 or 2, a message with the word that matters, and nothing left behind."""
    walk(folder, 20)
    train(folder / "torch", Quadratic(13), sgd(lr=0.1, momentum=0.9), None, 10)
    train(folder / "frozen", Quadratic(13), sgd(lr=0.1, momentum=0.9), warmed_cosine(10, 5), 10)
    poisoned = walk(folder, 20)[3]
    (folder / "nan").mkdir()
    save_file({"a": poisoned}, folder / "nan/step-0.safetensors")
    save_file({"a": poisoned * np.nan}, folder / "nan/step-1.safetensors")
    (folder / "shapes").mkdir()
    save_file({"a": poisoned}, folder / "shapes/step-0.safetensors")
    save_file({"a": poisoned[:3]}, folder / "shapes/step-1.safetensors")
    for name, text in {
        "empty": "", "short": "0.5 0.5", "nan.txt": "nan " * 20, "inf": "inf " + "0 " * 19, "zero": "0 " * 20,
        "two": "0.1 " * 20, "words": "one half", "huge": "1e308 1e308 -1e308 " + "0 " * 17,
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "binary").write_bytes(bytes(range(256)))
    cases = [case.split(" => ") for case in REFUSED.replace("\n", " ").split(";") if case.strip()]
    before, wrong = sorted(folder.rglob("*")), []
    for arguments, word in cases:
        try:
            message = run(folder, "average", *shlex.split(arguments), "-o", "never.safetensors", fails=True)
            assert word.lower() in message.lower(), f"no word of `{word}`: {message}"
        except (AssertionError, subprocess.TimeoutExpired) as error:
            wrong.append(f"{arguments}: {str(error).strip()[:300]}")
        left = set(folder.rglob("*")) - set(before)
        if left:
            wrong.append(f"{arguments}: left {[str(path.relative_to(folder)) for path in left]}")
            for path in left:
                path.unlink()
    assert not wrong, "\n".join(wrong)


def weights_are_read_from_plain_files(folder):
    walk(folder, 20)
    os.mkfifo(folder / "pipe")
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))  # noqa: E731
    for name in ("/dev/zero", "pipe"):
        command = [AFTERFIT, "average", "run", "-o", "never.safetensors", "--weights", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, preexec_fn=limit)
        assert done.returncode == 1 and "memory" not in done.stderr, done.stderr


def wrong_readings_are_refused(folder):
    train(folder / "run", Quadratic(14), sgd(lr=0.1), None, 300)
    run(folder, "average", "run", "-o", "run.dial", "--dial", "1e-2..1", "--nodes", 5, "--json")
    for arguments, word in [
        (["--l2", "nan"], "nan"), (["--l2", "-1"], "-1"), (["--ema", "0.5"], "cannot be read"), (["--ema", "2"], "decay"),
        (["--power-ema", "0.05"], "cannot be read"), ([], "--l2"), (["--l2", "0.1,0.2"], "folder"), (["--l2", "0.1", "--dtype", "int"], "int"),
    ]:  # fmt: skip
        message = run(folder, "dial", "read", "run.dial", "-o", "never.safetensors", *arguments, fails=True)
        assert word in message.lower() and not (folder / "never.safetensors").exists(), (arguments, message)
    (folder / "cut.dial").write_bytes((folder / "run.dial").read_bytes()[:-9])
    for dial in ("cut.dial", "missing.dial", "run", "run/step-0.pt"):
        message = run(folder, "dial", "read", dial, "-o", "never.safetensors", "--l2", "0.1", fails=True)
        assert dial in message and not (folder / "never.safetensors").exists(), message


CHECKS = [
    real_sgd_is_ridge, one_cycle_momentum_is_ridge, a_momentum_that_starts_at_0, unspent_mass_leaves_what_theory_says,
    frozen_adam_is_ridge, constant_groups_share_one_mass, proportional_groups_share_one_mass,
    groups_out_of_proportion_have_a_mass_each, named_groups_in_any_order, unnamed_groups_in_another_order_than_the_model,
    groups_that_cannot_be_told_apart_are_no_identity, a_group_added_later, a_frozen_group_stays,
    optimizers_are_known_by_their_settings, an_optimizer_nobody_knows_is_not_called_exact,
    lions_average_balances_its_mean_update, torchs_averaged_model, hand_written_emas, ema_pytorchs_warm_up,
    a_warmed_up_ema_over_sparse_checkpoints, power_function_emas, megatrons_merge, wise_ft_and_bema, one_iterate_as_it_is,
    decay_chosen_afterwards, dials_keep_their_promise, dials_of_groups_keep_their_promise, dials_of_sparse_checkpoints_say_so,
    the_weights_command_agrees, wrong_input_is_refused, weights_are_read_from_plain_files, wrong_readings_are_refused,
]  # fmt: skip

torch.set_num_threads(1)
runner.run(CHECKS)
