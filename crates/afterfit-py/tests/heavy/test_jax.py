"""optax under jit gives the numbers of torch's loop and the closed form."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from problem import RANGE, STRENGTHS, Problem, flat

import afterfit.jax
from afterfit.torch import Dial

STEPS = 700


@pytest.fixture(autouse=True)
def wide():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def run(problem: Problem, transformation, base, steps: int, state=None, params=None):
    x, y = jnp.asarray(problem.x.numpy()), jnp.asarray(problem.y.numpy())
    optimizer = optax.chain(base, transformation) if isinstance(base, tuple) else optax.chain(transformation, base)
    params = {"w": jnp.asarray(problem.start.numpy())} if params is None else params
    state = optimizer.init(params) if state is None else state

    @jax.jit
    def step(params, state):
        grads = jax.grad(lambda p: 0.5 * jnp.mean((x @ p["w"] - y) ** 2))(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params, state


SCHEDULE = optax.warmup_cosine_decay_schedule(0.01, 0.12, 50, STEPS, 0.02)


@pytest.mark.parametrize("start", ["zero", "random"])
@pytest.mark.parametrize(
    ("settings", "base"),
    [
        ({"optimizer": "sgd"}, lambda rate: optax.sgd(rate)),
        ({"optimizer": "heavy-ball", "momentum": 0.8}, lambda rate: optax.sgd(rate, momentum=0.8)),
        ({"optimizer": "nesterov", "momentum": 0.8}, lambda rate: optax.sgd(rate, momentum=0.8, nesterov=True)),
    ],
)
def test_readings_are_ridge(settings: dict, base, start: str) -> None:
    problem = Problem(start=start)
    schedule = SCHEDULE if settings["optimizer"] != "sgd" else optax.constant_schedule(0.5)
    dial = afterfit.jax.dial(schedule, steps=STEPS, l2=RANGE, tolerance=1e-9, quadratic=True, **settings)
    params, state = run(problem, dial, base(schedule), STEPS)
    for l2 in STRENGTHS:
        reading = afterfit.jax.read(state, params, l2=l2)
        off = np.abs(np.asarray(reading.params["w"]) - problem.ridge(l2).numpy()).max()
        assert off < 1e-6, f"{l2}: {off:e}"
        assert reading.status.standing == "exact"


def test_the_numbers_are_those_of_torch() -> None:
    problem = Problem()
    model = problem.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    dial = Dial(model, optimizer, l2=RANGE, ema=(0.9, 0.99), nodes=10, schedule=[0.01] * 200)
    problem.train(model, optimizer, 200)
    transformation = afterfit.jax.dial(0.01, steps=200, l2=RANGE, ema=(0.9, 0.99), nodes=10, optimizer="adam", b1=0.9)
    params, state = run(problem, transformation, optax.adam(0.01), 200)
    for target in ({"l2": 0.1}, {"l2": 0.5}, {"ema": 0.95}):
        one, two = afterfit.jax.read(state, params, **target), dial.read(**target)
        assert np.allclose(np.asarray(one.params["w"]), flat(two.state_dict()).numpy(), atol=1e-9)
        assert one.error == pytest.approx(two.error, rel=1e-3) and tuple(one.status) == tuple(two.status)


def test_interrupted_is_uninterrupted_through_orbax(tmp_path: Path) -> None:
    import orbax.checkpoint as ocp

    problem = Problem()
    dial = afterfit.jax.dial(SCHEDULE, steps=100, l2=RANGE, nodes=8)
    base = optax.sgd(SCHEDULE)
    params, state = run(problem, dial, base, 100)
    half, middle = run(problem, dial, base, 50)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", (half, middle))
        checkpointer.wait_until_finished()
        half, middle = checkpointer.restore(tmp_path / "state", (half, middle))
    again, resumed = run(problem, dial, base, 50, middle, half)
    one, two = (afterfit.jax.read(s, p, l2=0.1).params["w"] for s, p in ((state, params), (resumed, again)))
    assert np.array_equal(np.asarray(one), np.asarray(two))


def test_rates_may_be_an_array_and_states_are_pickled() -> None:
    problem = Problem()
    rates = np.linspace(0.1, 0.02, 20)
    states = []
    for schedule in (rates.tolist(), rates, jnp.asarray(rates)):
        dial = afterfit.jax.dial(schedule, steps=20.0, l2=RANGE, nodes=4)
        params, state = run(problem, dial, optax.sgd(lambda step: jnp.asarray(rates)[step]), 20)
        states.append((params, state, pickle.loads(pickle.dumps(state)), copy.deepcopy(state)))
    expected = np.asarray(afterfit.jax.read(states[0][1], states[0][0], l2=0.1).params["w"])
    for params, *copies in states:
        for state in copies:
            assert np.array_equal(np.asarray(afterfit.jax.read(state, params, l2=0.1).params["w"]), expected)


def test_settings_are_checked() -> None:
    for wrong, words in [
        ({"l2": 0.1}, "l2 is 0.1: it must be a range"),
        ({"l2": (1, 2, 3)}, "it must be a range"),
        ({"l2": RANGE, "steps": 2.5}, "steps is 2.5: it must be a whole number"),
        ({"l2": RANGE, "steps": 0}, "steps is 0: it must be at least 1"),
    ]:
        with pytest.raises(ValueError, match=words):
            afterfit.jax.dial(0.1, **{"steps": 5, **wrong})
    with pytest.raises(ValueError, match="3 rates: steps is 5"):
        afterfit.jax.dial(np.full(3, 0.1), steps=5, l2=RANGE)


def test_what_does_not_fit_is_said() -> None:
    problem = Problem()
    dial = afterfit.jax.dial(0.1, steps=5, l2=RANGE, nodes=4)
    params, state = run(problem, dial, optax.sgd(0.1), 7)
    with pytest.raises(ValueError, match="7 steps were taken: 5 were declared"):
        afterfit.jax.read(state, params, l2=0.1)
    with pytest.raises(ValueError, match="holds 0 dials"):
        afterfit.jax.read(optax.sgd(0.1).init(params), params, l2=0.1)
    with pytest.raises(ValueError, match="needs the parameters"):
        dial.update(params, dial.init(params))
    with pytest.raises(ValueError, match="needs a range"):
        afterfit.jax.dial(0.1, steps=5)


def test_integers_are_left_alone_and_narrow_weights_have_wide_sums() -> None:
    dial = afterfit.jax.dial(0.1, steps=5, l2=RANGE, nodes=4)
    params = {"w": jnp.ones(3, jnp.bfloat16), "n": jnp.arange(2)}
    state = dial.init(params)
    for _ in range(3):
        _, state = dial.update(params, state, params)
        params = {"w": params["w"] * 0.5, "n": params["n"]}
    reading = afterfit.jax.read(state, params, l2=0.1)
    assert reading.params["w"].dtype == jnp.bfloat16 and state.sums["w"].dtype == jnp.float32
    assert np.array_equal(np.asarray(reading.params["n"]), [0, 1])


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
import afterfit.jax

assert len(jax.devices()) == 4
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("rows", "columns"))
specs = {"w": P("rows", "columns"), "b": P("columns"), "scale": P(), "tail": P(None, ("rows", "columns"))}
shapes = {"w": (8, 6), "b": (4,), "scale": (3,), "tail": (2, 8)}
plain = {name: jnp.asarray(np.random.default_rng(at).normal(size=shape)) for at, (name, shape) in enumerate(shapes.items())}
params = {name: jax.device_put(leaf, NamedSharding(mesh, specs[name])) for name, leaf in plain.items()}
optimizer = optax.chain(
    afterfit.jax.dial(0.1, steps=50, l2=(0.05, 1.0), nodes=5, optimizer="heavy-ball", momentum=0.9), optax.sgd(0.1, momentum=0.9)
)

@jax.jit
def step(params, state):
    updates, state = optimizer.update(jax.tree.map(lambda leaf: jnp.sin(leaf) + leaf, params), state, params)
    return optax.apply_updates(params, updates), state

def check(state):
    for name, spec in specs.items():
        sums, center = state[0].sums[name], state[0].center[name]
        assert sums.sharding.is_equivalent_to(NamedSharding(mesh, P(None, *spec)), sums.ndim), (name, sums.sharding)
        assert center.sharding.is_equivalent_to(NamedSharding(mesh, spec), center.ndim), (name, center.sharding)
        held = {shard.data.shape for shard in sums.addressable_shards}
        assert held == {(5, *shard.data.shape) for shard in params[name].addressable_shards}, (name, held)

state, alone = optimizer.init(params), optimizer.init(plain)
check(state)
for _ in range(50):
    params, state = step(params, state)
    plain, alone = step(plain, alone)
check(state)
for l2 in (0.07, 0.6):
    one, two = afterfit.jax.read(state, params, l2=l2), afterfit.jax.read(alone, plain, l2=l2)
    for name in specs:
        np.testing.assert_allclose(np.asarray(one.params[name]), np.asarray(two.params[name]), atol=1e-12)
    assert abs(one.error - two.error) <= 1e-9 * two.error
# What was put on a device of its own has its sums there, too.
there = jax.device_put(jnp.ones(3), jax.devices()[2])
assert optimizer.init(there)[0].sums.devices() == {jax.devices()[2]}
print("sharded")
"""


def test_the_state_is_sharded_as_the_parameters_are() -> None:
    settings = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    done = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, env=os.environ | settings)
    assert done.stdout == "sharded\n", done.stderr
