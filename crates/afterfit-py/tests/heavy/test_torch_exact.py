"""The real optimizers of torch on a linear model: readings are the closed-form ridge models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from problem import RANGE, STRENGTHS, Problem, flat
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, StepLR

from afterfit.torch import Dial

HUGE = 1e12  # an epsilon beside which Adam's second moments vanish: they stand still

Make = Callable[..., Optimizer]


def warmup_cosine(optimizer: Optimizer) -> LRScheduler:
    return LambdaLR(optimizer, lambda k: min(1.0, k / 50) * (0.55 + 0.45 * torch.cos(torch.tensor(k / 250)).item()))


CASES: dict[str, tuple[Make, Callable[[Optimizer], LRScheduler] | None]] = {
    "sgd": (lambda p: SGD(p, lr=0.5), None),
    "sgd, StepLR": (lambda p: SGD(p, lr=0.5), lambda o: StepLR(o, 200, gamma=0.3)),
    "momentum": (lambda p: SGD(p, lr=0.1, momentum=0.8), None),
    "momentum, StepLR": (lambda p: SGD(p, lr=0.1, momentum=0.8), lambda o: StepLR(o, 200, gamma=0.3)),
    "momentum, warm-up": (lambda p: SGD(p, lr=0.1, momentum=0.8), warmup_cosine),
    "momentum, OneCycleLR": (
        lambda p: SGD(p, lr=0.1, momentum=0.8),
        lambda o: OneCycleLR(o, max_lr=0.12, total_steps=700, base_momentum=0.7, max_momentum=0.9, final_div_factor=10),
    ),
    "dampening": (lambda p: SGD(p, lr=0.3, momentum=0.8, dampening=0.4), lambda o: StepLR(o, 200, gamma=0.3)),
    "nesterov": (lambda p: SGD(p, lr=0.1, momentum=0.8, nesterov=True), None),
    "nesterov, StepLR": (lambda p: SGD(p, lr=0.1, momentum=0.8, nesterov=True), lambda o: StepLR(o, 200, gamma=0.3)),
}
STEPS = 700


def trained(problem: Problem, make: Make, schedule: Callable[[Optimizer], LRScheduler] | None, **options: object):
    model = problem.model()
    optimizer = make(model.parameters())
    scheduler = None if schedule is None else schedule(optimizer)
    options = {"l2": RANGE, "tolerance": 1e-9, "quadratic": True, **options}
    dial = Dial(model, optimizer, steps=STEPS, schedule=scheduler, **options)
    problem.train(model, optimizer, STEPS, scheduler)
    return dial


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("case", CASES)
def test_sgd_is_ridge(case: str, start: str) -> None:
    problem = Problem(start=start)
    dial = trained(problem, *CASES[case])
    for l2 in STRENGTHS:
        reading = dial.read(l2)
        off = (flat(reading.state_dict()) - problem.ridge(l2)).abs().max()
        assert off < 1e-6, f"{case} at {l2}: {off:e}"
        assert reading.error < 1e-6 and reading.status.standing == "exact"


def test_coupled_weight_decay_changes_the_curvature() -> None:
    problem = Problem()
    dial = trained(problem, lambda p: SGD(p, lr=0.1, momentum=0.8, weight_decay=0.05), None)
    problem.hessian += 0.05 * torch.eye(6, dtype=torch.float64)
    for l2 in STRENGTHS:
        assert (flat(dial.read(l2).state_dict()) - problem.ridge(l2)).abs().max() < 1e-6


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("schedule", [None, warmup_cosine, lambda o: StepLR(o, 200, gamma=0.3)])
def test_frozen_adam_is_ridge_in_its_norm(start: str, schedule: object) -> None:
    problem = Problem(start=start)
    scaled = (RANGE[0] / HUGE, RANGE[1] / HUGE)
    constant = (lambda o: LambdaLR(o, lambda k: 1.0)) if schedule is None else schedule
    dial = trained(problem, lambda p: Adam(p, lr=0.3 * HUGE, eps=HUGE), constant, l2=scaled)
    for l2 in STRENGTHS:
        reading = dial.read(l2 / HUGE)
        off = (flat(reading.state_dict()) - problem.ridge(l2)).abs().max()
        assert off < 1e-6, f"{l2}: {off:e}"
        assert reading.status.standing == "approximation" and "second moments" in reading.status.reason


def test_frozen_adamw_keeps_its_own_decay() -> None:
    problem, decay = Problem(), 0.05
    scaled = (RANGE[0] / HUGE, RANGE[1] / HUGE)
    make = lambda p: AdamW(p, lr=0.3 * HUGE, eps=HUGE, weight_decay=decay / HUGE)  # noqa: E731
    dial = trained(problem, make, warmup_cosine, l2=scaled)
    eye = torch.eye(6, dtype=torch.float64)
    last = flat(dict(dial.model.named_parameters())).detach()
    slope = problem.hessian @ last - problem.right
    for l2 in STRENGTHS:
        # Q∇L(w) + (λ + δp)(w − c) + δ(1 − p)w = pQ∇L(w_K), p being the mass unspent: λ and δ side by side once it is spent.
        reading = dial.read(l2 / HUGE)
        left = reading.unspent
        right = problem.right + (l2 + decay * left) * problem.start + left * slope
        exact = torch.linalg.solve(problem.hessian + (l2 + decay) * eye, right)
        off = (flat(reading.state_dict()) - exact).abs().max()
        assert off < 1e-6, f"{l2}: {off:e}"


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("stepped", [False, True])
def test_groups_have_a_strength_of_their_own(start: str, momentum: float, stepped: bool) -> None:
    problem = Problem(start=start)
    model = problem.model(split=2)
    base = 0.5 * (1 - momentum)
    groups = [{"params": [model[0]], "lr": base}, {"params": [model[1]], "lr": 0.4 * base}]
    optimizer = SGD(groups, momentum=momentum)
    scheduler = StepLR(optimizer, 400, gamma=0.5) if stepped else None
    dial = Dial(model, optimizer, l2=RANGE, tolerance=1e-9, steps=1500, schedule=scheduler, quadratic=True)
    problem.train(model, optimizer, 1500, scheduler)
    for l2 in STRENGTHS:
        reading = dial.read(l2)
        own = dial._courses[0].tracker.group_l2(l2)
        assert own[0] == pytest.approx(l2) and own[1] > 2 * l2
        penalties = torch.tensor([own[0]] * 2 + [own[1]] * 4, dtype=torch.float64)
        off = (flat(reading.state_dict()) - problem.ridge(penalties)).abs().max()
        assert off < 1e-6, f"{l2}: {off:e}"
        assert reading.status.standing == "exact"


def test_a_mass_for_each_group_says_that_it_is_an_approximation() -> None:
    problem = Problem()
    model = problem.model(split=2)
    optimizer = SGD([{"params": [model[0]], "lr": 0.5}, {"params": [model[1]], "lr": 0.2}])
    dial = Dial(model, optimizer, l2=RANGE, masses="each", quadratic=True)
    problem.train(model, optimizer, 100)
    assert dial.read(0.1).status.standing == "approximation"


def test_an_undeclared_schedule_is_inside_the_certificate() -> None:
    problem = Problem()
    model = problem.model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.8)
    scheduler = StepLR(optimizer, 200, gamma=0.3)
    dial = Dial(model, optimizer, l2=RANGE, tolerance=1e-6, steps=STEPS, quadratic=True)
    problem.train(model, optimizer, STEPS, scheduler)
    for l2 in STRENGTHS:
        reading = dial.read(l2)
        off = (flat(reading.state_dict()) - problem.ridge(l2)).abs().max()
        assert off <= reading.error + 1e-9 and reading.error < 0.1


def test_a_step_that_was_not_declared_is_refused() -> None:
    problem = Problem()
    model = problem.model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.8)
    Dial(model, optimizer, l2=RANGE, nodes=4, schedule=[0.1] * 10)
    problem.train(model, optimizer, 10)
    with pytest.raises(ValueError, match="step 10 was taken at rate 0.1.*has ended"):
        problem.train(model, optimizer, 1)


def test_unspent_mass_is_said() -> None:
    problem = Problem()
    model = problem.model()
    optimizer = SGD(model.parameters(), lr=0.01)
    dial = Dial(model, optimizer, l2=RANGE, nodes=6)
    problem.train(model, optimizer, 20)
    assert 0.9 < dial.read(0.03).unspent < 1.0
