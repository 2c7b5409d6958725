"""A dial that is saved goes on as if nothing had happened, and the command reads what torch wrote."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from problem import RANGE, Problem, flat
from test_torch_dial import net, steps
from torch.optim import SGD, Adam, AdamW

import afterfit
from afterfit._afterfit import main
from afterfit.torch import Dial


def make(kind: str):
    model = net()
    optimizer = {
        "sgd": lambda: SGD(model.parameters(), lr=0.1),
        "momentum": lambda: SGD(model.parameters(), lr=0.05, momentum=0.9),
        "adamw": lambda: AdamW([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 1e-3}], lr=1e-2),
    }[kind]()
    dial = Dial(model, optimizer, l2=(1e-2, 1.0), ema=(0.9, 0.99), nodes=[6, 5], block=5)
    return model, optimizer, dial


def through_a_file(state: object) -> object:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("cut", [1, 5, 13])
def test_resumed_is_uninterrupted_bit_for_bit(kind: str, cut: int) -> None:
    def train(model, optimizer, first: int, last: int) -> None:
        for step in range(first, last):
            steps(model, optimizer, 1, seed=step)

    model, optimizer, whole = make(kind)
    train(model, optimizer, 0, 24)
    other, other_optimizer, dial = make(kind)
    train(other, other_optimizer, 0, cut)
    state = through_a_file([other.state_dict(), other_optimizer.state_dict(), dial.state_dict()])
    again, again_optimizer, resumed = make(kind)
    for target, kept in zip((again, again_optimizer, resumed), state, strict=False):
        target.load_state_dict(kept)
    train(again, again_optimizer, cut, 24)
    for target in ({"l2": 0.1}, {"ema": 0.95}):
        one, two = whole.read(**target), resumed.read(**target)
        assert torch.equal(flat(one.state_dict()), flat(two.state_dict()))
        assert (one.error, one.unspent, one.status) == (two.error, two.unspent, two.status)
    for first, second in zip(whole._courses[0].banks, resumed._courses[0].banks, strict=False):
        assert torch.equal(first.sums, second.sums)


def test_hostile_states_are_refused_and_change_nothing() -> None:
    model, optimizer, dial = make("adamw")
    steps(model, optimizer, 7)
    good = dial.state_dict()
    name = "sum-03/0.weight"

    def spoiled(change) -> dict:
        state = copy.deepcopy(good)
        change(state, state["courses"]["0"])
        return state

    cases = [
        (lambda s, c: s.clear(), "'format' is missing"),
        (lambda s, c: s.update(format=99), "its format is 99"),
        (lambda s, c: s.update(format="1"), "'format' is str"),
        (lambda s, c: s.update(courses={}), "of 0 optimizers"),
        (lambda s, c: c.update(tracker="{}"), "not the state of a dial"),
        (lambda s, c: c.update(tracker=c["tracker"].replace('"rate":0.01', '"rate":-1.0')), "rate is -1"),
        (lambda s, c: c.update(tracker=c["tracker"].replace('"masses":[[', '"masses":[[7.0,')), "not the state of a dial"),
        (lambda s, c: c.update(members=[1]), "'members' is list"),
        (lambda s, c: c["members"].update({"nothing": 0}), "no parameter of the model"),
        (lambda s, c: c["members"].update({"0.weight": 1}), "is not in parameter group"),
        (lambda s, c: c["members"].update({"0.weight": 12}), "of group 12"),
        (lambda s, c: c.update(group_of=[0, 7]), "its groups follow"),
        (lambda s, c: c["tensors"].pop(name), "is missing"),
        (lambda s, c: c["tensors"].update({name: torch.zeros(3)}), "is needed"),
        (lambda s, c: c["tensors"].update({name: c["tensors"][name].double()}), "float64"),
        (lambda s, c: c["tensors"][name].fill_(float("nan")), "not finite"),
        (lambda s, c: c["tensors"].update({name: "a string"}), "is missing"),
        (lambda s, c: c.update(reach=torch.tensor([float("inf")])), "its reach is"),
    ]
    before = flat(dial.read(0.1).state_dict())
    for change, words in cases:
        with pytest.raises(afterfit.CheckpointError, match=words):
            dial.load_state_dict(spoiled(change))
        assert torch.equal(flat(dial.read(0.1).state_dict()), before)
    with pytest.raises(afterfit.CheckpointError, match="not a dictionary"):
        dial.load_state_dict([1, 2])
    other = Dial(model, optimizer, l2=(1e-3, 1.0), ema=(0.9, 0.99))
    with pytest.raises(afterfit.CheckpointError, match="this dial was made for"):
        other.load_state_dict(good)
    dial.load_state_dict(good)
    assert torch.equal(flat(dial.read(0.1).state_dict()), before)


def test_states_of_another_optimizer_are_refused(tmp_path: Path) -> None:
    kinds = {
        "sgd": lambda p: SGD(p, lr=0.1),
        "heavy-ball": lambda p: SGD(p, lr=0.1, momentum=0.9),
        "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "adam": lambda p: Adam(p, lr=0.1),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
        "Rprop": lambda p: torch.optim.Rprop(p, lr=0.1),
    }

    def trained(kind: str) -> Dial:
        model = net()
        optimizer = kinds[kind](model.parameters())
        dial = Dial(model, optimizer, l2=(1e-2, 1.0), nodes=4)
        steps(model, optimizer, 3)
        return dial

    dials = {kind: trained(kind) for kind in kinds}
    states = {kind: dial.state_dict() for kind, dial in dials.items()}
    for kind, dial in dials.items():
        for other, state in states.items():
            if other == kind:
                dial.load_state_dict(state)
                continue
            with pytest.raises(afterfit.CheckpointError, match=f"made under {other}, and the optimizer is {kind}"):
                dial.load_state_dict(state)


def test_dials_are_not_copied() -> None:
    _, _, dial = make("sgd")
    for do in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="take its state_dict"):
            do(dial)


def test_momentum_may_change_before_a_state_is_taken_over() -> None:
    model, optimizer, dial = make("momentum")
    steps(model, optimizer, 3)
    optimizer.param_groups[0]["momentum"] = 0.5
    dial.load_state_dict(dial.state_dict())
    steps(model, optimizer, 3)
    assert dial.steps == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_command_reads_what_torch_saved(tmp_path: Path, dtype: torch.dtype) -> None:
    from safetensors.torch import load_file

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).to(dtype)
    optimizer = AdamW([{"params": model[:2].parameters()}, {"params": model[2:].parameters(), "lr": 1e-3}], lr=1e-2)
    dial = Dial(model, optimizer, l2=(1e-2, 10.0), ema=(0.9, 0.99), block=5)
    steps(model, optimizer, 23)
    (file,) = dial.save(tmp_path / "run.dial")
    assert main(["afterfit", "dial", "info", str(file)]) == 0
    assert main(["afterfit", "inspect", str(file)]) == 0
    for name, value in (("l2", 0.3), ("ema", 0.95)):
        out = tmp_path / f"{name}.safetensors"
        assert main(["afterfit", "dial", "read", str(file), f"--{name}", str(value), "-o", str(out), "--json"]) == 0
        made, read = load_file(out), dial.read(**{name: value})
        expected = read.state_dict()
        assert sorted(made) == sorted(expected)
        for key, tensor in expected.items():
            # The same coefficients; what is added up in another order may differ by the rounding that the bound includes.
            assert made[key].dtype == tensor.dtype
            tolerance = read.error + 1e-6 * (dtype == torch.float32)
            assert torch.allclose(made[key].double(), tensor.double(), rtol=1e-12, atol=tolerance), key
        assert read.error < 1e-3


def test_a_saved_dial_is_read_and_goes_on(tmp_path: Path) -> None:
    problem = Problem()

    def fresh():
        model = problem.model(split=2)
        optimizer = Adam([{"params": [model[0]]}, {"params": [model[1]], "lr": 0.02}], lr=0.05)
        return model, optimizer

    model, optimizer = fresh()
    dial = Dial(model, optimizer, l2=RANGE, nodes=8, block=4)
    problem.train(model, optimizer, 30)
    (file,) = dial.save(tmp_path / "run.dial")
    other, _ = fresh()
    loaded = Dial.load(file, other)
    assert torch.allclose(flat(loaded.read(0.1).state_dict()), flat(dial.read(0.1).state_dict()), atol=1e-13)
    assert loaded.read(0.1).error == pytest.approx(dial.read(0.1).error)
    with pytest.raises(RuntimeError, match="loaded for reading"):
        loaded.push(0.1)
    third, third_optimizer = fresh()
    with pytest.raises(afterfit.CheckpointError, match="not where the dial stopped"):
        Dial.load(file, third, third_optimizer)
    third.load_state_dict(model.state_dict())
    with pytest.raises(afterfit.CheckpointError, match="made under adam, and the optimizer is heavy-ball"):
        Dial.load(file, third, SGD([{"params": [third[0]]}, {"params": [third[1]]}], lr=0.1, momentum=0.9))
    third_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # (torch would share its buffers)
    going = Dial.load(file, third, third_optimizer, block=4)
    problem.train(third, third_optimizer, 30)
    problem.train(model, optimizer, 30)
    assert going.steps == 60
    assert torch.allclose(flat(going.read(0.1).state_dict()), flat(dial.read(0.1).state_dict()), atol=1e-12)
    with pytest.raises(FileNotFoundError):
        Dial.load(tmp_path / "nothing.dial", other)
    (tmp_path / "text.dial").write_text("not a dial")
    with pytest.raises(afterfit.CheckpointError):
        Dial.load(tmp_path / "text.dial", other)


def test_groups_that_came_later_are_saved(tmp_path: Path) -> None:
    problem = Problem()
    model = problem.model(split=2)
    optimizer = SGD([model[1]], lr=0.5, momentum=0.5)
    dial = Dial(model, optimizer, l2=RANGE, nodes=10)
    problem.train(model, optimizer, 20)
    optimizer.add_param_group({"params": [model[0]], "lr": 0.1})
    problem.train(model, optimizer, 23)
    (file,) = dial.save(tmp_path / "run.dial")
    loaded = Dial.load(file, problem.model(split=2))
    assert torch.allclose(flat(loaded.read(0.1).state_dict()), flat(dial.read(0.1).state_dict()), atol=1e-13)
    state = through_a_file(dial.state_dict())
    again = Dial(model, optimizer, l2=RANGE, nodes=10)
    again.load_state_dict(state)
    assert torch.equal(flat(again.read(0.1).state_dict()), flat(dial.read(0.1).state_dict()))
