"""A dial as an optax transformation: its sums are part of the optimizer's state.

>>> import jax, jax.numpy as jnp, optax
>>> import afterfit.jax
>>> schedule = optax.cosine_decay_schedule(0.1, 300)
>>> optimizer = optax.chain(
...     afterfit.jax.dial(schedule, steps=300, l2=(1e-2, 1.0), optimizer="heavy-ball", momentum=0.9),
...     optax.sgd(schedule, momentum=0.9),
... )
>>> params = {"w": jnp.zeros(2)}
>>> state = optimizer.init(params)
>>> @jax.jit
... def step(params, state):
...     grads = {"w": params["w"] - jnp.array([1.0, -2.0])}
...     updates, state = optimizer.update(grads, state, params)
...     return optax.apply_updates(params, updates), state
>>> for _ in range(300):
...     params, state = step(params, state)
>>> reading = afterfit.jax.read(state, params, l2=0.1)
>>> bool(jnp.allclose(reading.params["w"], jnp.array([1.0, -2.0]) / 1.1, atol=1e-3))
True

Under ``jit`` no code of ours runs while training, so the shares of all steps are made beforehand, in Rust, from the schedule that
the optimizer is given as well. They are a constant of the compiled step, steps × sums numbers, and masses are exact under the
schedule, also with momentum. Updates pass through untouched; the state is a pytree that Orbax saves as it is. Sums and center are
sharded as the parameters given to ``init`` are (where ``init`` itself is compiled, as ``out_shardings`` says).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from . import _afterfit
from ._numbers import whole
from ._status import Status

__all__ = ["DialState", "Reading", "dial", "read"]


class _Spec:
    """What a dial knows besides its sums. Equal to another made from the same settings, so that a step is compiled once."""

    def __init__(self, tracker: _afterfit.Tracker) -> None:
        self.tracker = tracker
        self.shares, self.scales = tracker.table()
        self._key = tracker.state()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Spec) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"<{self.tracker.sums} sums over {len(self.shares)} steps>"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DialState:
    """The dial's part of an optimizer's state.

    Attributes
    ----------
    count
        Steps taken.
    center
        The parameters at the start.
    sums
        For each parameter its sums, along a first axis.
    reach
        The farthest any weight moved.
    """

    count: jax.Array
    center: Any
    sums: Any
    reach: jax.Array
    spec: _Spec = field(metadata={"static": True})


@dataclass(frozen=True)
class Reading:
    """The parameters at one strength, and how far they can be trusted.

    Attributes
    ----------
    params
        A pytree like the parameters.
    error
        No weight is further than this from the average asked for.
    certificate
        The same as a share of the farthest any weight moved, rounding apart.
    unspent
        λ: the mass that no step has spent. Near 1, the training was too short for this λ.
    status
        Exact, approximation or heuristic, and why.
    """

    params: Any
    error: float
    certificate: float
    unspent: float | None
    status: Status


def _wide(leaf: Any) -> Any:
    """The type of a parameter's sums."""
    return jnp.float64 if leaf.dtype == jnp.float64 else jnp.float32


def _beside(leaf: Any) -> Any:
    """Where a parameter's sums are to be: each as the parameter is; None leaves it to XLA."""
    if isinstance(leaf, jax.core.Tracer):
        return None
    sharding = leaf.sharding
    if isinstance(sharding, NamedSharding):
        spec = PartitionSpec(None, *sharding.spec)  # type: ignore[no-untyped-call]
        return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
    return sharding if isinstance(sharding, SingleDeviceSharding) and leaf.committed else None


def _averaged(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _rates(schedule: Any, steps: int) -> list[float]:
    if callable(schedule):
        counts = jnp.arange(steps)
        try:
            found = np.asarray(jax.vmap(schedule)(counts), dtype=np.float64)
        except Exception:  # a schedule of plain Python, with branches on the step
            found = np.asarray([float(schedule(step)) for step in range(steps)])
        return [float(rate) for rate in np.broadcast_to(found, (steps,))]
    if isinstance(schedule, Sequence) or np.ndim(schedule) == 1:
        if len(schedule) != steps:
            raise ValueError(f"{len(schedule)} rates: steps is {steps}")
        return [float(rate) for rate in schedule]
    return [float(schedule)] * steps


def dial(
    schedule: float | Sequence[float] | npt.ArrayLike | Callable[[Any], Any],
    *,
    steps: int,
    l2: tuple[float, float] | None = None,
    ema: tuple[float, float] | None = None,
    power_ema: tuple[float, float] | None = None,
    tolerance: float = 1e-3,
    nodes: int | None = None,
    optimizer: str = "sgd",
    momentum: float | None = None,
    b1: float | None = None,
    weight_decay: float | None = None,
    quadratic: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """A transformation that leaves updates alone and keeps a dial of the parameters.

    Parameters
    ----------
    schedule
        The rate, or the rates (a list or an array), or optax's schedule: what the optimizer is given, too.
    steps
        How many steps there will be at most.
    l2, ema, power_ema
        Ranges to be read afterwards: strengths λ, decays of an EMA, widths σ_rel of a power-function EMA. At least one.
    tolerance, nodes
        The error allowed in any weight, as a share of the farthest any weight moves, or how many sums each family has instead.
    optimizer
        ``"sgd"`` (optax.sgd), ``"heavy-ball"`` and ``"nesterov"`` (optax.sgd with `momentum`), ``"adam"`` (adam, adamw; with `b1`,
        `weight_decay`), or any name that ``afterfit average --optimizer`` knows.
    quadratic
        Whether the loss is: readings are then called exact.

    Examples
    --------
    >>> import jax.numpy as jnp, optax
    >>> import afterfit.jax
    >>> optimizer = optax.chain(afterfit.jax.dial(0.1, steps=100, l2=(0.1, 1.0)), optax.sgd(0.1))
    >>> params = jnp.zeros(2)
    >>> state = optimizer.init(params)
    >>> for _ in range(100):
    ...     updates, state = optimizer.update(params - 1.0, state, params)
    ...     params = optax.apply_updates(params, updates)
    >>> afterfit.jax.read(state, params, l2=1.0).params.round(3)
    Array([0.5, 0.5], dtype=float32)
    """
    given = (("l2", l2), ("ema", ema), ("power_ema", power_ema))
    for name, ends in given:
        if ends is not None and (not isinstance(ends, Sequence) or len(ends) != 2):
            raise ValueError(f"{name} is {ends!r}: it must be a range, (from, to)")
    ranges = [(name, *ends) for name, ends in given if ends is not None]
    if not ranges:
        raise ValueError("a dial needs a range to read from: l2=(1e-5, 1e-2), ema=(0.99, 0.9999), power_ema=(0.05, 0.25)")
    steps = whole("steps", steps)
    rates = _rates(schedule, steps)
    constants = {"momentum": momentum, "beta1": b1, "weight_decay": weight_decay}
    named = (optimizer, {name: float(value) for name, value in constants.items() if value is not None})
    families = []
    for name, start, end in ranges:
        count = nodes
        if count is None:
            count = _afterfit.plan_nodes(name, start, end, tolerance, optimizer=named, rate=max(rates), steps=steps)
        families.append((name, start, end, count))
    spec = _Spec(_afterfit.Tracker(families, [named], rates[:1], quadratic=quadratic, declared=[rates]))

    def init(params: Any) -> DialState:
        def empty(leaf: Any) -> Any:
            if not _averaged(leaf):
                return jnp.zeros((0,), _wide(leaf))
            return jnp.zeros((spec.tracker.sums, *leaf.shape), _wide(leaf), device=_beside(leaf))

        params = jax.tree.map(jnp.asarray, params)
        # (A copy: the step may be given the parameters' own memory.)
        center = jax.tree.map(lambda leaf: jnp.array(leaf, _wide(leaf) if _averaged(leaf) else leaf.dtype), params)
        reach = jnp.zeros((), jnp.float32)
        return DialState(jnp.zeros((), jnp.int32), center, jax.tree.map(empty, params), reach, spec)

    def update(updates: Any, state: DialState, params: Any = None, **extra: Any) -> tuple[Any, DialState]:
        if params is None:
            raise ValueError("a dial needs the parameters: optimizer.update(grads, state, params)")
        spec = state.spec

        def row(table: Any, dtype: Any, beyond: float) -> Any:
            # Beyond the declared steps nothing is added: reading then says so.
            return jnp.asarray(table, dtype).at[state.count].get(mode="fill", fill_value=beyond)

        def add(sums: Any, leaf: Any, center: Any) -> Any:
            if not _averaged(leaf):
                return sums
            dtype = sums.dtype
            axes = (-1,) + (1,) * leaf.ndim
            moved = leaf.astype(dtype) - center
            shares, scales = row(spec.shares, dtype, 0.0), row(spec.scales, dtype, 1.0)
            return scales.reshape(axes) * sums + shares.reshape(axes) * moved

        def farthest(leaf: Any, center: Any) -> Any:
            moved = jnp.abs(leaf.astype(center.dtype) - center)
            return jnp.max(moved, initial=0.0).astype(jnp.float32) if _averaged(leaf) else jnp.zeros((), jnp.float32)

        sums = jax.tree.map(add, state.sums, params, state.center)
        moved = jax.tree.leaves(jax.tree.map(farthest, params, state.center))
        reach = jnp.max(jnp.stack([state.reach, *moved]))
        return updates, DialState(state.count + 1, state.center, sums, reach, spec)

    return optax.GradientTransformationExtraArgs(init, update)


def read(
    opt_state: Any,
    params: Any,
    l2: float | None = None,
    *,
    ema: float | None = None,
    debiased_ema: float | None = None,
    sigma_rel: float | None = None,
    gamma: float | None = None,
    answer: str = "regularized",
) -> Reading:
    """The parameters at a strength, as training stands.

    Parameters
    ----------
    opt_state
        The state of an optimizer that a :func:`dial` is part of.
    params
        The parameters now.
    l2, ema, debiased_ema, sigma_rel, gamma
        What is read: one of them.
    answer
        ``"regularized"`` gives the mass that is not spent to the last parameters, ``"normalized"`` leaves it out.
    """
    asked = {"l2": l2, "ema": ema, "debiased_ema": debiased_ema, "sigma_rel": sigma_rel, "gamma": gamma}
    given = [(kind, value) for kind, value in asked.items() if value is not None]
    if len(given) != 1:
        raise TypeError(f"read takes one of {', '.join(asked)}: {len(given)} were given")
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, DialState))
    states = [leaf for leaf in leaves if isinstance(leaf, DialState)]
    if len(states) != 1:
        raise ValueError(f"the optimizer's state holds {len(states)} dials: it must hold one")
    state = states[0]
    count = int(state.count)
    if count == 0:
        raise ValueError("this dial has seen no step yet")
    tracker = state.spec.tracker.after(count)
    narrow = any(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.sums))
    found = tracker.read(*given[0], answer=answer, precision="f32" if narrow else "f64")
    sums, _, last = found.mix(0)
    reach = float(state.reach)

    def combine(leaf: Any, sum: Any, center: Any) -> Any:
        nonlocal reach
        leaf = jnp.asarray(leaf)
        if not _averaged(leaf):
            return leaf
        moved = leaf.astype(center.dtype) - center
        if leaf.size:
            reach = max(reach, float(jnp.max(jnp.abs(moved))))
        mixed = jnp.tensordot(jnp.asarray(sums, center.dtype), sum, axes=1, precision="highest")
        return (center + mixed + last * moved).astype(leaf.dtype)

    made = jax.tree.map(combine, params, state.sums, state.center)
    if not math.isfinite(reach):
        raise ValueError(f"the weights held NaN or infinity at some of the {count} steps: nothing can be read")
    return Reading(made, found.error([reach]), found.certificate, found.remaining, Status(found.standing, found.reason))
