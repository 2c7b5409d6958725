"""What a training loop may do: the dial keeps up, and leaves it as it was."""

from __future__ import annotations

import contextlib
import copy
import warnings
from pathlib import Path

import matplotlib
import pytest
import torch
from problem import RANGE, STRENGTHS, Problem, flat
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import afterfit
from afterfit.torch import Dial, refresh


def plain_average(iterates: list[torch.Tensor], rates: list[float], l2: float) -> torch.Tensor:
    """Theorem 1, step by step: the slow and obvious version."""
    mass, total = 1.0, torch.zeros_like(iterates[0])
    for weights, rate in zip(iterates[:-1], rates, strict=False):
        total += mass * (l2 * rate / (1 + l2 * rate)) * weights
        mass /= 1 + l2 * rate
    return total + mass * iterates[-1]


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, seed: int = 1, each=None) -> None:
    generator = torch.Generator().manual_seed(seed)
    parameter = next(model.parameters())
    for step in range(count):
        x = torch.randn(16, 5, generator=generator).to(parameter.dtype)
        if each is not None:
            each(step)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


def at(dial: Dial, l2: float) -> dict[str, torch.Tensor]:
    return dial.read(l2).state_dict()


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("count", [1, 2, 47])
def test_blocks_are_the_plain_sums(block: int, count: int) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    iterates, rates = [], []

    def record(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 if step < 20 else 0.03
        rates.append(optimizer.param_groups[0]["lr"])
        iterates.append(flat(dict(model.named_parameters())).detach().double())

    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=5, dtype=torch.float64, block=block)
    steps(model, optimizer, count, each=record)
    iterates.append(flat(dict(model.named_parameters())).detach().double())
    for family, start, end, _ in dial._courses[0].tracker.families:
        for l2 in (start, (start * end) ** 0.5, end):
            reading = dial.read(l2)
            off = (flat(reading.state_dict()).double() - plain_average(iterates, rates, l2)).abs().max()
            assert off <= reading.error + 1e-6, (family, l2)


def test_emas_are_those_of_torch() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, ema=(0.9, 0.999), power_ema=(0.05, 0.25), tolerance=1e-5, block=7)
    average = [parameter.detach().clone().double() for parameter in model.parameters()]
    for step in range(60):
        steps(model, optimizer, 1, seed=step)
        for mean, parameter in zip(average, model.parameters(), strict=False):
            mean.lerp_(parameter.detach().double(), 1 - 0.97)
    reading = dial.read(ema=0.97)
    for mean, made in zip(average, (reading.state_dict()[name] for name, _ in model.named_parameters()), strict=False):
        assert (mean - made.double()).abs().max() <= reading.error + 1e-6
    assert reading.error < 1e-4
    assert dial.read(sigma_rel=0.1).error < 1e-3
    assert dial.read(debiased_ema=0.97).kind == "debiased_ema"
    with pytest.raises(ValueError, match="this weighting cannot be read from this dial"):
        dial.read(weights=[float(k == 30) for k in range(61)])


def test_the_loop_is_not_touched() -> None:
    alone, watched = net(), net()
    one, other = AdamW(alone.parameters(), lr=1e-2), AdamW(watched.parameters(), lr=1e-2)
    dial = Dial(watched, other, l2=(1e-2, 10.0))
    steps(alone, one, 30)
    steps(watched, other, 30, each=lambda step: step and dial.read(0.5))
    assert torch.equal(flat(alone.state_dict()), flat(watched.state_dict()))


def test_reading_changes_no_bit_of_later_readings() -> None:
    found = []
    for often in (False, True):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=6, block=5)
        steps(model, optimizer, 33, each=lambda step, dial=dial, often=often: often and step and dial.read(0.1))
        found.append(flat(at(dial, 0.1)))
    assert torch.equal(*found)


def test_applied_weights_go_away_again_also_after_an_error() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0))
    steps(model, optimizer, 20)
    raw = flat(model.state_dict()).clone()
    expected = flat(at(dial, 0.3))
    with dial.applied(0.3) as reading:
        assert torch.equal(flat(model.state_dict()), expected)
        assert torch.equal(flat(at(dial, 0.3)), expected), "readings inside are of the trained weights"
        with pytest.raises(RuntimeError, match="applied already"), dial.applied(0.1):
            pass
        with pytest.raises(RuntimeError, match="while averaged weights are applied"):
            optimizer.step()
    assert reading.value == 0.3
    assert torch.equal(flat(model.state_dict()), raw)
    with pytest.raises(ZeroDivisionError), dial.applied(0.3):
        raise ZeroDivisionError
    assert torch.equal(flat(model.state_dict()), raw)


def test_batch_norm_is_refreshed_for_any_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0))
    steps(model, optimizer, 20)
    batches = [{"inputs": torch.randn(16, 5), "name": "x"} for _ in range(4)]
    raw = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with dial.applied(0.3, refresh=batches, call=lambda model, batch: model(batch["inputs"])):
        hidden = torch.cat([model[0](batch["inputs"]) for batch in batches])
        assert torch.allclose(model[1].running_mean, hidden.mean(0), atol=1e-5)
        assert model.training and model[1].momentum == 0.1
    assert all(torch.equal(raw[name], tensor) for name, tensor in model.state_dict().items())
    refresh(model, [(torch.randn(16, 5), "label")])
    assert not torch.equal(raw["1.running_mean"], model[1].running_mean)


def test_sweeps_choose() -> None:
    problem = Problem()
    model = problem.model()
    optimizer = SGD(model.parameters(), lr=0.5)
    dial = Dial(model, optimizer, l2=RANGE, tolerance=1e-6)
    problem.train(model, optimizer, 300)
    wanted = problem.ridge(0.15)

    def distance(model: nn.ParameterList) -> list[float]:
        return ((model[0] - wanted) ** 2).tolist()

    found = dial.sweep(distance, l2=25)
    assert len(found.l2) == 25 and found.l2[0] == RANGE[0] and found.l2[-1] == RANGE[1]
    assert 0.1 < found.best < 0.2 and found.one_se >= found.best
    assert found.frame().shape == (25, 5)
    assert dial.sweep(lambda model: -sum(distance(model)), l2=[0.02, 0.15], best="max").best == 0.15
    matplotlib.use("agg")
    assert found.plot().get_xscale() == "log"


def test_wise_is_the_straight_line() -> None:
    problem = Problem()
    model = problem.model()
    optimizer = SGD(model.parameters(), lr=0.5)
    dial = Dial(model, optimizer, l2=RANGE, nodes=4)
    problem.train(model, optimizer, 5)
    middle = 0.5 * (problem.start + model[0].detach())
    assert torch.allclose(dial.wise(0.5).state_dict()["0"], middle)


def test_closures_and_accumulation_are_steps() -> None:
    problem = Problem()
    model = problem.model()
    optimizer = SGD(model.parameters(), lr=0.5)
    dial = Dial(model, optimizer, l2=RANGE, tolerance=1e-9, quadratic=True)
    for _ in range(300):

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            for _ in range(3):
                (problem.loss(model) / 3).backward()
            return problem.loss(model)

        optimizer.step(closure)
    assert dial.steps == 300
    assert (flat(at(dial, 0.1)) - problem.ridge(0.1)).abs().max() < 1e-6


def test_skipped_steps_are_no_steps() -> None:
    """A plain GradScaler does not call step; a fused optimizer is called and told by found_inf."""
    problem = Problem()
    readings = []
    for fused in (None, False, True):
        model = problem.model()
        optimizer = SGD(model.parameters(), lr=0.5, fused=bool(fused))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=fused is not None)
        dial = Dial(model, optimizer, l2=RANGE, nodes=12, block=5)
        taken = step = 0
        while taken < 60:
            optimizer.zero_grad()
            scaler.scale(problem.loss(model)).backward()
            if fused is not None and step % 4 == 0:
                model[0].grad[0] = float("inf")
            else:
                taken += 1
            scaler.step(optimizer)
            scaler.update()
            step += 1
        assert dial.steps == 60, fused
        readings.append(flat(at(dial, 0.1)))
    assert torch.allclose(readings[0], readings[1], atol=1e-12)
    assert torch.allclose(readings[0], readings[2], atol=1e-12)


@pytest.mark.parametrize("every", [1, 3])
def test_numbers_that_arrive_later_change_nothing(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """As on a GPU: flags and rates are tensors that are looked at a block later."""
    problem = Problem()
    readings = []
    for late in (False, True):
        model = problem.model()
        optimizer = SGD(model.parameters(), lr=torch.tensor(0.05, dtype=torch.float64), fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        dial = Dial(model, optimizer, l2=RANGE, ema=(0.9, 0.99), nodes=12, block=5, every=every)
        if late:
            monkeypatch.setattr("torch.cuda.current_stream", lambda device: None)
            event = type("Event", (), {"record": lambda self, stream: None, "synchronize": lambda self: None})
            monkeypatch.setattr("torch.cuda.Event", event)
            monkeypatch.setattr("afterfit.torch.course.later", lambda value: torch.as_tensor(value).clone())
        for step in range(83):
            optimizer.zero_grad()
            scaler.scale(problem.loss(model)).backward()
            if step % 7 == 0:
                model[0].grad[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            if step in (31, 40) and late:
                assert dial.read(0.1).error < 1.0
                assert dial._courses[0].queue == []
        assert dial.steps == 83 - 12
        readings.append(dial)
    one, two = readings
    for target in ({"l2": 0.1}, {"ema": 0.95}):
        off = flat(one.read(**target).state_dict()) - flat(two.read(**target).state_dict())
        # (Between kept iterates a share may go to the other neighbor if a block ends there.)
        assert off.abs().max() < (1e-12 if every == 1 else 1e-2)
    assert two._courses[0].banks[0].older is not None


def test_layouts_and_cheap_products_change_nothing() -> None:
    """Convolutions with channels last, autocast around the step, and matrix products of low precision allowed."""
    found = []
    for special in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Conv2d(5, 2, 2))
        if special:
            model = model.to(memory_format=torch.channels_last)
            torch.set_float32_matmul_precision("medium")
        optimizer = SGD(model.parameters(), lr=0.1)
        dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=6, block=3)
        generator = torch.Generator().manual_seed(0)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(2, 3, 6, 6, generator=generator)).square().mean().backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=special):
                optimizer.step()
        found.append((at(dial, 0.1), dial.state_dict()["courses"]["0"]["tensors"]))
        torch.set_float32_matmul_precision("highest")
    for one, two in zip(*found, strict=False):
        assert all(torch.allclose(one[name], two[name], atol=1e-6) for name in one)
    assert found[1][0]["0.weight"].is_contiguous(memory_format=torch.channels_last)


def test_rates_may_be_tensors() -> None:
    problem = Problem()
    found = []
    for rate in (0.3, torch.tensor(0.3, dtype=torch.float64)):
        model = problem.model()
        optimizer = Adam(model.parameters(), lr=rate, foreach=False, capturable=False)
        dial = Dial(model, optimizer, l2=RANGE, nodes=8)
        problem.train(model, optimizer, 40)
        found.append(flat(at(dial, 0.1)))
    assert torch.allclose(*found, atol=1e-9)


def test_a_step_inside_a_step_is_one() -> None:
    """torch hooks the step of every class that an optimizer is made of, and a derived one calls that of its base."""

    class Derived(SGD):
        def step(self, closure=None):
            return super().step(closure)

    class Fails(Derived):
        def step(self, closure=None):
            super().step(closure)
            raise RuntimeError("after its step")

    found = []
    for kind in (SGD, Derived, Fails):
        model = net()
        optimizer = kind(model.parameters(), lr=0.1, momentum=0.9)
        dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=6)
        for step in range(10):
            # (One that ends with an error is none around the next.)
            with pytest.raises(RuntimeError, match="after its") if kind is Fails else contextlib.nullcontext():
                steps(model, optimizer, 1, seed=step)
        assert dial.steps == 10
        found.append(flat(at(dial, 0.1)))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_capturable_optimizers_are_the_same() -> None:
    """Their rate and their steps are tensors. (On a CPU Adam refuses to be: here it is for the dial, and not for its step.)"""

    class Capturable(Adam):
        def step(self, closure=None):
            self.param_groups[0]["capturable"] = False
            done = super().step(closure)
            self.param_groups[0]["capturable"] = True
            return done

    found = []
    for kind, capturable in ((Adam, False), (Capturable, True)):
        model = net()
        rate = torch.tensor(0.02, dtype=torch.float64) if capturable else 0.02
        optimizer = kind(model.parameters(), lr=rate, foreach=False, capturable=capturable)
        dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=6, block=3)
        for step in range(10):
            steps(model, optimizer, 1, seed=step)
            if capturable:
                rate.mul_(0.9)  # as a captured schedule does, in place
            else:
                optimizer.param_groups[0]["lr"] *= 0.9
        assert dial.steps == 10
        found.append(dial.read(0.1))
    one, two = found
    assert torch.allclose(flat(one.state_dict()), flat(two.state_dict()), rtol=1e-12) and one.status == two.status
    assert one.error == pytest.approx(two.error)
    model = net()
    with pytest.raises(AssertionError, match="capturable"):
        steps(model, Adam(model.parameters(), lr=torch.tensor(0.1), capturable=True), 1)


def test_memory_is_as_planned() -> None:
    for dtype, name in ((torch.float32, "f32"), (torch.float64, "f64")):
        for block in (3, 9):
            model = net().to(torch.float32)
            optimizer = SGD(model.parameters(), lr=0.1)
            weights = sum(parameter.numel() for parameter in model.parameters())
            plan = afterfit.plan(l2=(1e-3, 1.0), rate=0.1, steps=500, params=weights, dtype=name, block=block)
            dial = Dial(model, optimizer, l2=(1e-3, 1.0), steps=500, dtype=dtype, block=block)
            steps(model, optimizer, 20)
            assert (dial.sums, dial.memory) == (plan.nodes, plan.bytes)


def test_parameters_that_are_unfrozen_begin_then() -> None:
    """The head first, then the body: each is averaged from its own start."""
    problem = Problem()
    model = problem.model(split=2)
    model[0].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.5)
    dial = Dial(model, optimizer, l2=RANGE, tolerance=1e-8)
    problem.train(model, optimizer, 50)
    assert torch.equal(at(dial, 0.1)["0"], problem.start[:2])
    model[0].requires_grad_(True)
    middle = model[1].detach().clone()
    iterates: list[torch.Tensor] = []
    problem.train(model, optimizer, 70, each=lambda step: iterates.append(model[0].detach().clone()))
    iterates.append(model[0].detach().clone())
    assert dial.steps == 120
    expected = plain_average(iterates, [0.5] * 70, 0.1)
    reading = dial.read(0.1)
    assert (reading.state_dict()["0"] - expected).abs().max() <= reading.error + 1e-9
    assert (reading.state_dict()["1"] - middle).abs().max() > 1e-3
    assert reading.status.standing == "approximation"


def test_groups_may_be_added() -> None:
    problem = Problem()
    model = problem.model(split=2)
    optimizer = SGD([model[1]], lr=0.5, momentum=0.5)
    dial = Dial(model, optimizer, l2=RANGE, nodes=10)
    problem.train(model, optimizer, 20)
    optimizer.add_param_group({"params": [model[0]], "lr": 0.1})
    problem.train(model, optimizer, 20)
    reading = dial.read(0.1)
    assert not torch.equal(reading.state_dict()["0"], model[0])
    assert len(dial._courses[0].tracker.rates) == 2


def test_tied_parameters_have_one_sum() -> None:
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 5)
            self.head = nn.Linear(5, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(x))

    model = Tied()
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.arange(7)).square().mean().backward()
        optimizer.step()
    made = at(dial, 0.1)
    assert made["embed.weight"] is made["head.weight"]
    fresh = Tied()
    fresh.load_state_dict(made)
    assert len(list(dial._courses[0].slots())) == 1


def test_compiled_models_have_plain_names() -> None:
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = SGD(compiled.parameters(), lr=0.1)
    dial = Dial(compiled, optimizer, l2=(1e-2, 1.0), nodes=4)
    steps(compiled, optimizer, 5)
    assert sorted(at(dial, 0.1)) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    net().load_state_dict(at(dial, 0.1))


def test_compiled_steps_are_seen() -> None:
    model = net()
    optimizer = Adam(model.parameters(), lr=torch.tensor(0.01))
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(2, 5)).square().mean().backward()
        step()
    assert dial.steps == 4


def test_narrow_weights_have_wide_sums() -> None:
    model = net().to(torch.bfloat16)
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    steps(model, optimizer, 12)
    assert dial.dtype == torch.float32
    assert all(tensor.dtype == torch.bfloat16 for tensor in at(dial, 0.1).values())
    wide = net().double()
    with pytest.raises(ValueError, match="not narrower"):
        Dial(wide, SGD(wide.parameters(), lr=0.1), l2=(1e-2, 1.0), dtype=torch.float32)


def test_several_optimizers_step_when_they_like() -> None:
    problem = Problem()
    model = problem.model(split=2)
    first, second = SGD([model[0]], lr=0.5), SGD([model[1]], lr=0.3)
    dial = Dial(model, [first, second], l2=RANGE, nodes=8)
    iterates: list[torch.Tensor] = []
    for step in range(40):
        for one in (first, second):
            one.zero_grad()
        problem.loss(model).backward()
        if step % 2 == 0:
            iterates.append(model[0].detach().clone())
            first.step()
        second.step()
    iterates.append(model[0].detach().clone())
    reading = dial.read(0.1)
    assert (reading.state_dict()["0"] - plain_average(iterates, [0.5] * 20, 0.1)).abs().max() <= reading.error
    assert [course.steps() for course in dial._courses] == [20, 40]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AdamW8bit", "adam"), ("PagedAdamW32bit", "adam"), ("FusedAdam", "adam"), ("DeepSpeedCPUAdam", "adam"),
        ("Lion", "lion"), ("MyOptimizer", "MyOptimizer"),
    ],
)  # fmt: skip
def test_optimizers_are_known_by_their_class(name: str, expected: str) -> None:
    def step(self: torch.optim.Optimizer) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(group["lr"] * parameter.grad)

    kind = type(name, (torch.optim.Optimizer,), {"step": step})
    model = net()
    optimizer = kind(model.parameters(), {"lr": 0.1, "betas": (0.9, 0.999)})
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    steps(model, optimizer, 5)
    status = dial.read(0.1).status
    assert dial._courses[0].kinds == [expected]
    if expected == "adam":
        assert status.standing == "approximation"
    else:
        assert status.standing == "heuristic" and name in str(status)


def test_a_dial_of_every_third_iterate_is_near() -> None:
    problem = Problem()
    model = problem.model()
    optimizer = SGD(model.parameters(), lr=0.05)
    dial = Dial(model, optimizer, l2=RANGE, tolerance=1e-6, every=3, block=4)
    problem.train(model, optimizer, 2001)
    for l2 in STRENGTHS[:3]:
        assert (flat(at(dial, l2)) - problem.ridge(l2)).abs().max() < 1e-2
    assert "neighboring checkpoints" in str(dial.read(0.1).status)


def test_only_what_is_asked_for_is_averaged() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4, exclude=r"bias")
    steps(model, optimizer, 5)
    made = at(dial, 0.5)
    assert torch.equal(made["0.bias"], model[0].bias) and not torch.equal(made["0.weight"], model[0].weight)
    with pytest.raises(ValueError, match="no parameter"):
        Dial(model, optimizer, l2=(1e-2, 1.0), params="nothing")


def test_the_center_is_where_training_starts() -> None:
    model = net()
    pretrained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4, center=pretrained)
    steps(model, optimizer, 3)
    assert dial.steps == 3
    pretrained["0.bias"] = pretrained["0.bias"] + 1.0
    other = SGD(model.parameters(), lr=0.1)
    Dial(model, other, l2=(1e-2, 1.0), nodes=4, center=pretrained)
    with pytest.raises(ValueError, match="away from center"):
        steps(model, other, 1)


@pytest.mark.parametrize("kind", ["start.pt", "start.safetensors", "pretrained"])
def test_a_center_that_can_be_read_again_is_not_copied(kind: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = net()
    start, file = {name: tensor.clone() for name, tensor in model.state_dict().items()}, tmp_path / kind

    def write(tensors: dict[str, Tensor]) -> None:
        if kind.endswith(".pt"):
            torch.save(tensors, file)
        elif kind == "pretrained":
            file.mkdir(exist_ok=True)
            names = sorted(tensors)
            save_file({name: tensors[name] for name in names[:2]}, file / "model-1.safetensors")
            save_file({name: tensors[name] for name in names[2:]}, file / "model-2.safetensors")
        else:
            save_file(tensors, file)

    def make(model: nn.Module, center: object) -> tuple[SGD, Dial]:
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        return optimizer, Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4, block=3, center=center)

    write(start)
    optimizer, dial = make(model, file)
    steps(model, optimizer, 5)
    state = dial.state_dict()
    own = state["courses"]["0"]
    assert not any(name.startswith("center/") for name in own["tensors"])
    assert own["center"]["path"] == str(file) and sorted(own["center"]["names"]) == sorted(start)
    state = copy.deepcopy([model.state_dict(), optimizer.state_dict(), state])
    steps(model, optimizer, 5, seed=7)

    def resumed(center: object) -> Dial:
        again = net()
        optimizer, dial = make(again, center)
        for target, kept in zip((again, optimizer), copy.deepcopy(state[:2]), strict=True):
            target.load_state_dict(kept)
        dial.load_state_dict(state[2])
        steps(again, optimizer, 5, seed=7)
        return dial

    expected = flat(dial.read(0.1).state_dict())
    for center in ("start", file):
        again = resumed(center)
        assert torch.equal(flat(again.read(0.1).state_dict()), expected)
        assert again.state_dict()["courses"]["0"]["center"] == own["center"]
    for change, words in [
        (lambda center: center.update(names=["nothing"]), "'nothing' is to be read from"),
        (lambda center: center.pop("sha256"), "'sha256' is missing"),
        (lambda center: center.update(path=7), "'path' is int"),
    ]:
        hostile = copy.deepcopy(state[2])
        change(hostile["courses"]["0"]["center"])
        with pytest.raises(afterfit.CheckpointError, match=words):
            dial.load_state_dict(hostile)
    # Elsewhere by now; gone; another one.
    moved = tmp_path / f"moved-{kind}"
    file.rename(moved)
    assert torch.equal(flat(resumed(moved).read(0.1).state_dict()), expected)
    with pytest.raises(afterfit.CheckpointError, match="which is not there: say where it is now"):
        resumed("start")
    write({name: tensor + 1.0 for name, tensor in start.items()})
    with pytest.raises(afterfit.CheckpointError, match="its center is a file of SHA-256"):
        resumed(file)
    # What starts elsewhere is said, as of a dictionary; a file of a dial is complete.
    other = net()
    optimizer, _ = make(other, file)
    with pytest.raises(ValueError, match="away from center"):
        steps(other, optimizer, 1)
    (saved,) = dial.save(tmp_path / "run.dial")
    assert torch.allclose(flat(Dial.load(saved, net()).read(0.1).state_dict()), expected)


def test_an_optimizer_that_has_been_running_is_a_doubt() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps(model, optimizer, 3)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    with pytest.warns(UserWarning, match="has not seen"):
        steps(model, optimizer, 3)
    assert "first steps are missing" in str(dial.read(0.1).status)


def test_an_optimizer_that_fills_its_state_when_it_is_made_is_none() -> None:
    model = net()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        steps(model, optimizer, 3)
    assert "missing" not in str(dial.read(0.1).status)
    with pytest.warns(UserWarning, match="has not seen"):
        Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4).push()


def test_the_optimizers_own_weight_decay_is_said() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), ema=(0.9, 0.99), nodes=4)
    steps(model, optimizer, 3)
    assert str(dial.read(0.1).status).endswith("; beside the optimizer's own weight_decay, 0.01")
    assert "weight_decay" not in str(dial.read(ema=0.95).status)


def test_loops_without_an_optimizer_push() -> None:
    problem = Problem()
    model = problem.model()
    dial = Dial(model, l2=RANGE, tolerance=1e-9)
    for _ in range(300):
        dial.push(0.5)
        (gradient,) = torch.autograd.grad(problem.loss(model), [model[0]])
        with torch.no_grad():
            model[0] -= 0.5 * gradient
    assert (flat(at(dial, 0.1)) - problem.ridge(0.1)).abs().max() < 1e-6
    with pytest.raises(ValueError, match="push\\(rate\\) needs"):
        dial.push()


def test_steps_that_are_pushed_are_seen_once() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    dial.push()
    with pytest.raises(RuntimeError, match="which the optimizer's hook sees, too"):
        steps(model, optimizer, 1)
    # Steps that hooks see may be followed by others, as where a CUDA graph is made after a few of them.
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    steps(model, optimizer, 2)
    dial.push()
    assert dial.steps == 3
    # DeepSpeed's optimizers have shards of their own in place of the model's parameters.
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    optimizer.param_groups[0]["params"] = [torch.zeros(3)]
    with pytest.raises(ValueError, match="make the dial without it"):
        dial.push()


def test_numbers_that_are_not_finite_are_said() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    steps(model, optimizer, 3)
    with torch.no_grad():
        model[0].bias[0] = float("nan")
    steps(model, optimizer, 2)
    with pytest.raises(ValueError, match="NaN or infinity"):
        dial.read(0.1)


def test_settings_are_checked() -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for wrong, words in [
        ({}, "needs a range"),
        ({"l2": (1e-2, 1.0), "every": 0}, "every is 0"),
        ({"l2": (1e-2, 1.0), "center": "zero"}, "center is 'zero'"),
        ({"l2": (1e-2, 1.0), "masses": "two"}, "masses is 'two'"),
        ({"l2": (1e-2, 1.0), "nodes": [3, 4]}, "2 numbers of nodes"),
        ({"l2": (1e-2, 1.0), "nodes": 2.5}, "nodes is 2.5: it must be a whole number"),
        ({"l2": (1e-2, 1.0), "nodes": 5000}, "nodes is 5000: it must be from 1 to 256"),
        ({"l2": (1e-2, 1.0), "tolerance": 0}, "tolerance is 0: it must be above 0"),
        ({"l2": (1e-2, 1.0), "tolerance": "x"}, "tolerance is 'x'"),
        ({"l2": (1e-2, 1.0), "steps": "x"}, "steps is 'x': it must be a whole number"),
        ({"l2": (1e-2, 1.0), "recurrence": 3}, "recurrence is 3: it must be a name"),
        ({"l2": (1e-2, 1.0), "recurrence": "x"}, "no optimizer is known by this name"),
        ({"l2": (1e-2, 1.0), "recurrence": ("heavy-ball", {})}, "heavy-ball needs momentum"),
        ({"l2": (1e-2, 1.0), "schedule": "trainer"}, "schedule is 'trainer': it must be"),
        ({"l2": (1e-2, 1.0), "schedule": 0.1}, "schedule is 0.1: it must be"),
        ({"l2": (1e-2, 1.0), "schedule": []}, "it must be a scheduler of torch"),
        ({"l2": (1e-2, 1.0), "schedule": lambda step: 0.1}, "a function as schedule needs steps="),
    ]:
        with pytest.raises(ValueError, match=words):
            Dial(model, optimizer, **wrong)
    with pytest.raises(ValueError, match="lower end of the range is 1"):
        Dial(model, optimizer, l2=(1.0, 1e-2))
    with pytest.raises(ValueError, match="no optimizer in this list"):
        Dial(model, [], l2=(1e-2, 1.0))
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), steps=1e3)
    assert repr(dial) == "<Dial l2=(0.01, 1.0): 0 sums, 0 steps>"
    with pytest.raises(ValueError, match="no step yet"):
        dial.read(0.1)
    steps(model, optimizer, 3)
    with pytest.raises(TypeError, match="read takes one of"):
        dial.read(0.1, ema=0.9)
    with pytest.raises(ValueError, match="l2 is 0: it must be above 0"):
        dial.read(0.0)
    assert issubclass(afterfit.CheckpointError, ValueError)


def test_what_makes_no_sense_is_refused() -> None:
    model, other = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), nn.Linear(3, 2)
    with pytest.raises(ValueError, match="no parameter of this model"):
        Dial(model, SGD(other.parameters(), lr=0.1), l2=(1e-2, 1.0))
    optimizer = SGD(model.parameters(), lr=0.1)
    for wrong in (0.1, [0.1, 0.5, 1.0]):
        with pytest.raises(ValueError, match="it must be a range"):
            Dial(model, optimizer, l2=wrong)
    with pytest.raises(ValueError, match="steps is -1"):
        Dial(model, optimizer, l2=(1e-2, 1.0), steps=-1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
    x = torch.randn(8, 3)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    with pytest.raises(ValueError, match="evaluate gave nan"):
        dial.sweep(lambda _: float("nan"), l2=3)
    before = model[1].running_mean.clone()
    with pytest.raises(ValueError, match="no batch"):
        dial.sweep(lambda _: 1.0, l2=3, refresh=iter([x]))
    assert torch.equal(before, model[1].running_mean)
