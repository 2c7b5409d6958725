"""What a run really did: every step's settings, taken down by a hook of torch's, and the weights that follow from them.

Nothing here looks at a file. The weights are those of docs/theory.md, written out slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


@dataclass
class Path:
    """One parameter group's steps: `b ← μb + G·g`, then `w ← w − η·b`, and AdamW's own decay δ."""

    rates: np.ndarray
    momenta: np.ndarray
    gains: np.ndarray
    nesterov: bool
    adam: bool
    decay: float
    raw: np.ndarray  # the rates as the optimizer states them, before Adam's bias correction

    @classmethod
    def of(cls, steps: list[dict]) -> Path:
        raw = np.array([float(step["lr"]) for step in steps])
        adam = "betas" in steps[0]
        count = 1 + np.arange(len(steps))
        if adam:
            momenta = np.array([float(step["betas"][0]) for step in steps])
            # Made anew, it counts anew, and takes nothing over from the step before.
            anew = np.array([step["anew"] for step in steps]) & (count > 1)
            own = count - np.maximum.accumulate(np.where(anew, count - 1, 0))
            rates, gains = raw / (1 - momenta**own), 1 - momenta
            momenta = np.where(anew, 0.0, momenta)
        else:
            momenta = np.array([step.get("momentum", 0.0) for step in steps])
            # torch copies the first gradient into the buffer, whatever the dampening.
            dampening = np.array([step.get("dampening", 0.0) for step in steps]) * (momenta > 0)
            rates, gains = raw, np.where(count == 1, 1.0, 1 - dampening)
        decoupled = steps[0].get("decoupled_weight_decay", False)
        decay = float(steps[0].get("weight_decay", 0.0)) if adam and decoupled else 0.0
        return cls(rates, momenta, gains, bool(steps[0].get("nesterov", False)), adam, decay, raw)

    def moves(self) -> bool:
        return bool((self.raw > 0).any())

    def constant(self) -> bool:
        return not self.adam and all(np.ptp(values) == 0 for values in (self.raw, self.momenta)) and bool((self.gains == 1).all())

    def reach(self) -> float:
        """Ση, of the steps that momentum makes of the rates."""
        return float(self.raw.sum() if self.adam else (self.raw * self.gains / (1 - self.momenta)).sum())

    def masses(self, l2: float) -> np.ndarray:
        """The weights of w_0 … w_K; the last takes what is left."""
        steps = len(self.raw)
        if self.decay > 0:
            return self._adamw(l2)
        if self.constant():
            keep = np.full(steps, self._closed(l2))
        else:
            # Look-ahead: a_k = η_k + μ_{k+1}C_{k+1} is how far a gradient of step k carries.
            keep, carried = np.empty(steps), 0.0
            for k in reversed(range(steps)):
                a = self.rates[k] * (self.momenta[k] if self.nesterov else 1) + carried
                e = l2 * self.gains[k] * (a + (self.rates[k] if self.nesterov else 0))
                carried = self.momenta[k] * a / (1 + e)
                keep[k] = 1 / (1 + e)
        left = np.concatenate([[1.0], np.cumprod(keep)])
        return np.append(left[:-1] * (1 - keep), left[-1])

    def _closed(self, l2: float) -> float:
        """q of a constant rate."""
        mu, x = self.momenta[0], l2 * self.raw[0]
        if self.nesterov:
            s = 1 / (1 + x)
            return 2 * s / (1 + mu + np.sqrt((1 - mu) ** 2 + 4 * mu * (1 - s)))
        return 2 / (1 + mu + x + np.sqrt((1 - mu) ** 2 + x * (2 * (1 + mu) + x)))

    def _adamw(self, l2: float) -> np.ndarray:
        """p_k ∝ a_k F_k, p_K ∝ F_{K−1}/(λ+δ): δ keeps its place beside λ."""
        steps, delta, carried = len(self.raw), self.decay, 0.0
        share, x = np.empty(steps), np.empty(steps)
        for k in reversed(range(steps)):
            a = self.rates[k] + carried
            share[k] = self.gains[k] * a
            x[k] = 1 - delta * self.raw[k] + (l2 + delta) * share[k]
            carried = self.momenta[k] * a / x[k]
        front = np.cumprod(1 / x)
        found = np.append(share * front, front[-1] / (l2 + delta))
        return found / found.sum()


def handed_out(masses: np.ndarray, kept: list[int]) -> np.ndarray:
    """Mass of steps between two checkpoints goes to both, linearly; outside, to the first or the last."""
    found = np.zeros(len(kept))
    for step, mass in enumerate(masses):
        at = np.interp(step, kept, np.arange(len(kept)))
        left = int(at)
        found[left] += mass * (1 - (at - left))
        if at > left:
            found[left + 1] += mass * (at - left)
    return found


def one_mass_is_exact(paths: list[Path]) -> bool:
    """All rates constant; or in proportion all along, with equal momenta."""
    moving = [path for path in paths if path.moves()]
    if all(path.constant() for path in moving):
        return True
    first = max(moving, key=lambda path: path.raw[0])
    for path in moving:
        if path.adam != first.adam or path.nesterov != first.nesterov or len(path.raw) != len(first.raw):
            return False
        # AdamW's own decay keeps its place beside λ: masses that are not spent feel it.
        if abs(path.decay - first.decay) * max(path.raw.sum(), first.raw.sum()) > 0.015:
            return False
        if not (np.array_equal(path.momenta, first.momenta) and np.array_equal(path.gains, first.gains)):
            return False
        if not np.allclose(path.raw * first.raw.max(), first.raw * path.raw.max(), rtol=1e-9, atol=0):
            return False
    return True


def doubles(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().double().numpy().copy()


@dataclass
class Record:
    """A run: the settings of every step of every optimizer, and the weights at every checkpoint that was kept."""

    optimizers: dict[int, tuple[torch.optim.Optimizer, list[list[dict]]]] = field(default_factory=dict)
    marks: list[dict[int, int]] = field(default_factory=list)
    kept: list[dict[str, np.ndarray]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        rows = self.optimizers.setdefault(id(optimizer), (optimizer, []))[1]
        settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        for one in settings:
            one["lr"] = float(one["lr"])
            one["anew"] = not optimizer.state
        rows.append(settings)

    def keep(self, model: torch.nn.Module | dict[str, torch.Tensor]) -> None:
        """Called when the framework saves: which step it is, and a copy of the weights."""
        self.marks.append({key: len(rows) for key, (_, rows) in self.optimizers.items()})
        if isinstance(model, torch.nn.Module):
            self.names |= {id(value): name for name, value in model.named_parameters()}
            model = model.state_dict()
        self.kept.append({name: doubles(value) for name, value in model.items() if torch.is_tensor(value)})

    def only(self, which: list[int]) -> Record:
        """The same run, of which only these checkpoints are left."""
        return Record(self.optimizers, [self.marks[i] for i in which], [self.kept[i] for i in which], self.names)

    def joined(self) -> Record:
        """A run that was interrupted: the optimizer that resumed it continued where the first had stopped."""
        (key, (_, rows)), *others = self.optimizers.items()
        rows = rows + [row for _, (_, more) in others for row in more]
        last = others[-1][1][0] if others else self.optimizers[key][0]
        return Record({key: (last, rows)}, [{key: sum(mark.values())} for mark in self.marks], self.kept, self.names)

    def paths(self) -> list[tuple[Path, list[int]]]:
        """Every group of every optimizer, and the steps it had taken at each checkpoint."""
        found = []
        for key, (_, rows) in self.optimizers.items():
            last = self.marks[-1].get(key, 0)  # what came after the last checkpoint is not to be seen in any
            steps = [mark.get(key, 0) for mark in self.marks]
            found += [(Path.of([row[group] for row in rows[:last]]), steps) for group in range(len(rows[0]))]
        return found

    def reference(self) -> int:
        """The group that moves first."""
        order = [(np.argmax(path.raw > 0), at) for at, (path, _) in enumerate(self.paths()) if path.moves()]
        return min(order)[1]

    def strengths(self) -> list[float]:
        """Three λ, from little to much."""
        reach = self.paths()[self.reference()][0].reach()
        return [share / reach for share in (0.3, 2, 10)]

    def weights(self, l2: float) -> list[np.ndarray]:
        """For each group, a weight for each checkpoint; one list where one mass serves all."""
        groups = self.paths()
        if one_mass_is_exact([path for path, _ in groups]):
            groups = [groups[self.reference()]]
        return [handed_out(path.masses(l2), steps) for path, steps in groups]

    def group_of(self) -> dict[str, int]:
        """Parameters by name, and the group each belongs to."""
        found, at = {}, 0
        for optimizer, _ in self.optimizers.values():
            for group in optimizer.param_groups:
                found |= {self.names[id(p)]: at for p in group["params"] if id(p) in self.names}
                at += 1
        return found

    def average(self, weights: list[np.ndarray]) -> dict[str, np.ndarray]:
        """The average itself, in f64: integers and batch-norm statistics are the last checkpoint's."""
        found, groups = {}, self.group_of()
        for name, last in self.kept[-1].items():
            if name.endswith(("running_mean", "running_var", "num_batches_tracked", "position_ids")):
                found[name] = last
                continue
            own = weights[groups.get(name, 0)] if len(weights) > 1 else weights[0]
            found[name] = sum(w * state[name] for w, state in zip(own, self.kept, strict=True))
        return found


@contextmanager
def recording() -> Iterator[Record]:
    record = Record()
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: record.note(optimizer))
    try:
        yield record
    finally:
        handle.remove()
