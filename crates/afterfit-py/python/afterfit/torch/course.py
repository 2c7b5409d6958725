"""One optimizer's part of a dial."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .. import _afterfit
from .bank import Bank, Slot, farthest
from .checkpoints import CenterFile, tensors_of
from .optimizers import clean, foretold, has_buffer, has_stepped, momentum_of, recurrence_of
from .shards import is_sharded, local_of, sharded_like

if TYPE_CHECKING:
    from .dial import Dial


class NotFinite(ValueError):
    """The weights were NaN or infinite while the dial watched."""


@dataclass
class Step:
    """A step whose rates or outcome are still on their way from the device."""

    kept: bool
    rates: list[Any]
    momenta: list[float | None]
    skipped: Tensor | None
    event: Any


def later(value: Any) -> Any:
    """A number that is on a device, on its way to this machine; any other number as it is."""
    if not isinstance(value, Tensor) or value.device.type != "cuda":
        return float(value)
    host = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
    return host.copy_(value.detach(), non_blocking=True)


class Course:
    """One optimizer's part of a dial: its steps, its masses, its sums."""

    def __init__(self, dial: Dial, optimizer: Optimizer | None) -> None:
        self.dial, self.optimizer = dial, optimizer
        self.tracker: _afterfit.Tracker | None = None
        self.banks: list[Bank] = []
        # By group of the tracker: the optimizer's group whose rates it has.
        self.group_of: list[int] = []
        self.member: dict[int, int] = {}
        self.kinds: list[str] = []
        self.calls = 0
        self.staged = 0
        self.older = 0
        self.queue: list[Step] = []
        self.declared: tuple[list[list[float]], list[list[float] | None]] | None = None
        self.last: dict[str, Tensor] | None = None
        self.loaded = False
        self.pushed = False

    @property
    def groups(self) -> list[dict[str, Any]]:
        if self.optimizer is None:
            return [{"params": list(self.dial._parameters.values()), "lr": 0.0}]
        return self.optimizer.param_groups

    def steps(self) -> int:
        return 0 if self.tracker is None else self.tracker.steps

    # What enters.

    def push(self, rate: float | None = None, closure: bool = False) -> None:
        """Takes in the weights and the rates of the step that is about to be taken."""
        dial = self.dial
        if self.optimizer is None and rate is None:
            raise ValueError("this dial has no optimizer: push(rate) needs the rate of the step")
        groups = self.groups
        if rate is not None:
            groups = [{**group, "lr": rate} for group in groups]
        self.admit(groups, closure or self.optimizer is None)
        tracker = self.tracker
        if tracker is None:
            return
        kept = self.calls % dial.every == 0
        self.calls += 1
        if kept:
            if self.staged == dial._rows(tracker):
                self.make_room()
            for bank in self.banks:
                bank.stage(self.staged)
            self.staged += 1
        of = [groups[at] for at in self.group_of]
        momenta = [momentum_of(group) if has_buffer(kind, group) else None for kind, group in zip(self.kinds, of, strict=True)]
        rates = {at: later(groups[at]["lr"]) for at in set(self.group_of)}
        found_inf = getattr(self.optimizer, "found_inf", None)
        skipped = later(found_inf) if isinstance(found_inf, Tensor) else None
        step = Step(kept, [rates[at] for at in self.group_of], momenta, None, None)
        if isinstance(skipped, Tensor) or any(isinstance(rate, Tensor) for rate in step.rates):
            step.skipped = skipped
            step.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            step.event.record(torch.cuda.current_stream(self.banks[0].home))
            self.queue.append(step)
        elif self.queue:
            step.skipped = None if skipped is None else torch.tensor(skipped)
            self.queue.append(step)
        elif skipped:
            if kept:
                tracker.skip()
        else:
            tracker.step(step.rates, momenta, kept=kept)

    def settle(self, count: int | None = None) -> None:
        """Takes in steps whose numbers have arrived: all, or until so many iterates have their shares."""
        tracker = self.tracker
        while self.queue and tracker is not None and (count is None or tracker.waiting < count):
            step = self.queue.pop(0)
            if step.event is not None:
                step.event.synchronize()
            if step.skipped is not None and float(step.skipped) != 0.0:
                if step.kept:
                    tracker.skip()
            else:
                tracker.step([float(rate) for rate in step.rates], step.momenta, kept=step.kept)

    def make_room(self) -> None:
        """Brings a full block into the sums. While flags are on their way, the block before it: its flags are here."""
        if self.queue:
            if self.older:
                self.settle(self.older)
                self.flush(older=True)
            self.older = self.staged
            for bank in self.banks:
                bank.swap()
            self.staged = 0
        else:
            if self.older:
                self.flush(older=True)
            self.flush(older=False)

    def flush(self, *, older: bool) -> None:
        assert self.tracker is not None
        rows = self.older if older else self.staged
        scales, shares = self.tracker.take(rows)
        for bank in self.banks:
            block = bank.older if older else bank.current
            assert block is not None
            bank.add(block[:rows], torch.from_numpy(scales), torch.from_numpy(shares[bank.sequence]))
        if older:
            self.older = 0
        else:
            self.staged = 0

    # Who takes part.

    def admit(self, groups: list[dict[str, Any]], closure: bool) -> None:
        """Gives parameters sums that move for the first time."""
        dial = self.dial
        new: list[tuple[int, list[tuple[str, Tensor]]]] = []
        for at, group in enumerate(groups):
            found = [
                (dial._names[id(parameter)], parameter)
                for parameter in group["params"]
                if id(parameter) not in self.member
                and id(parameter) in dial._names
                and parameter.requires_grad
                and (closure or parameter.grad is not None)
            ]
            if found:
                new.append((at, found))
        if self.calls == 0 and not self.loaded:
            self.tracker = None  # (what a checkpoint might have been restored into: weights may have changed since)
        if new or self.tracker is None:
            self.begin(groups, new)

    def begin(self, groups: list[dict[str, Any]], new: list[tuple[int, list[tuple[str, Tensor]]]]) -> None:
        dial = self.dial
        if any(hasattr(parameter, "ds_id") for _, found in new for _, parameter in found):
            raise ValueError("DeepSpeed's ZeRO-3 leaves no weights in the model: its stages 0 to 2 do, and FSDP2 has shards")
        if self.tracker is None:
            self.banks, self.group_of, self.member, self.kinds = [], [], {}, []
            if not new:
                return
        optimizers = [self.named(groups[at]) for at, _ in new]
        quadratic = dial.quadratic
        if self.tracker is None:
            rates = [float(groups[at]["lr"]) for at, _ in new]
            families = dial._planned(self, optimizers[0], groups)
            declared = self.foretell(groups, [at for at, _ in new])
            self.tracker = _afterfit.Tracker(
                families, optimizers, rates, masses=dial.masses, every=dial.every, quadratic=quadratic, **declared
            )
            if self.optimizer is not None and has_stepped(self.optimizer) and not dial._resuming:
                self.tracker.doubt("missing-start")
                warnings.warn(
                    "the optimizer has taken steps that this dial has not seen: averages are around the weights now",
                    stacklevel=2,
                )
        else:
            self.settle()
            self.tracker.add_groups(optimizers, quadratic=quadratic, **self.foretell(groups, [at for at, _ in new]))
        first = len(self.group_of)
        members = []
        for offset, (at, found) in enumerate(new):
            self.group_of.append(at)
            self.kinds.append(optimizers[offset][0])
            for name, parameter in found:
                self.member[id(parameter)] = first + offset
                members.append((name, parameter, first + offset))
        self.add_banks(members)
        dial._check_center(self.banks)

    def named(self, group: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
        if self.dial.recurrence != "auto":
            kind = self.dial.recurrence
            return (kind, {}) if isinstance(kind, str) else kind
        if self.optimizer is None:
            return "sgd", {}
        return recurrence_of(self.optimizer, group)

    def like(self, group_of: list[int]) -> _afterfit.Tracker:
        """A tracker of the optimizer as it is now, to hold beside one that was kept."""
        named = [self.named(self.groups[at]) for at in group_of]
        return _afterfit.Tracker([(name, *ends, 1) for name, ends in self.dial._ranges], named, [0.0] * len(named))

    def own_decay(self) -> str:
        """What is to be said of an ℓ2 penalty that the optimizer adds to the loss. (Adam's and AdamW's are in their masses.)"""
        linear = [at for at, kind in zip(self.group_of, self.kinds, strict=True) if kind in ("sgd", "heavy-ball", "nesterov")]
        decays = sorted({float(self.groups[at].get("weight_decay") or 0.0) for at in linear} - {0.0})
        return f"; beside the optimizer's own weight_decay, {', '.join(f'{decay:g}' for decay in decays)}" if decays else ""

    def foretell(self, groups: list[dict[str, Any]], which: list[int]) -> dict[str, Any]:
        """The declared rates of some of the optimizer's groups, as the tracker takes them."""
        if self.dial.schedule is None:
            return {}
        if self.declared is None:
            self.declared = foretold(self.dial.schedule, groups, self.optimizer, self.dial.total)
        rates, momenta = self.declared
        if any(at >= len(rates) for at in which):
            raise ValueError("a parameter group was added whose rates were not declared: make the dial without schedule=")
        kept = [momenta[at] if has_buffer(self.named(groups[at])[0], groups[at]) else None for at in which]
        return {"declared": [rates[at] for at in which], "declared_momenta": kept}

    def add_banks(self, members: list[tuple[str, Tensor, int]]) -> None:
        """Sums for parameters (name, parameter, group of the tracker), those of one mass sequence and device together."""
        assert self.tracker is not None
        dial, sequence_of = self.dial, self.tracker.sequence_of
        together: dict[tuple[int, torch.device], list[tuple[str, Tensor, int]]] = {}
        for member in members:
            key = (sequence_of[member[2]], local_of(member[1]).device)
            together.setdefault(key, []).append(member)
        rows = dial._rows(self.tracker)
        self.tracker.added_in(rows)
        for (sequence, _), found in together.items():
            bank = Bank(sequence, found, self.tracker.sums, rows, dial.dtype, dial.device)
            if self.banks and self.banks[0].older is not None:
                bank.set_up_older()
            self.banks.append(bank)

    # What comes out.

    def slots(self) -> Iterator[tuple[Bank, Slot]]:
        """Every parameter with sums, those of a group together."""
        found = [(bank, slot) for bank in self.banks for slot in bank.slots]
        return iter(sorted(found, key=lambda pair: pair[1].group))

    def latest(self, bank: Bank) -> Tensor:
        """w − c, as a vector."""
        return self.weights(bank).sub_(bank.center)

    @torch.no_grad()
    def weights(self, bank: Bank) -> Tensor:
        """w, as a vector: where training has come to, whatever the model has now."""
        vector = torch.empty_like(bank.center)
        source = self.last if self.last is not None else self.dial._raw
        if source is None:
            bank.fill(vector)
        else:
            for slot in bank.slots:
                slot.of(vector).copy_(local_of(source[slot.name]))
        return vector

    def reach(self) -> list[float]:
        """The farthest any weight of each mass sequence moved, over all shards."""
        assert self.tracker is not None
        found = [0.0] * self.tracker.sequences
        for bank in self.banks:
            waiting = [block for block, _ in bank.waiting(self.older, self.staged)]
            reach = torch.stack([bank.reach, *map(farthest, [*waiting, self.latest(bank)])]).max()
            parameter = bank.slots[0].parameter
            if is_sharded(parameter):
                mesh = parameter.device_mesh  # type: ignore[attr-defined]
                # (Of NaN and a number, a maximum over ranks may be either: all must see the same.)
                reach = reach.to(bank.home).nan_to_num(nan=math.inf, posinf=math.inf)
                for dim in range(mesh.ndim):
                    torch.distributed.all_reduce(reach, torch.distributed.ReduceOp.MAX, group=mesh.get_group(dim))
            found[bank.sequence] = max(found[bank.sequence], float(reach))
            if not math.isfinite(float(reach)):
                raise NotFinite(f"the weights held NaN or infinity at some of the {self.tracker.steps} steps: nothing can be read")
        return found

    @torch.no_grad()
    def combine(self, mix: Callable[[int], tuple[list[float], list[float], float]]) -> dict[str, Tensor]:
        """``c + Σ a_j S_j + Σ b_i row_i + last (w − c)`` for every parameter."""
        made = {}
        for bank in self.banks:
            sums, rows, last = mix(bank.sequence)
            vector = self.latest(bank).mul_(last)
            if sums:
                bank.mixed(vector, bank.sums, sums)
            for block, where in bank.waiting(self.older, self.staged):
                if rows:
                    bank.mixed(vector, block, rows[where])
            vector.add_(bank.center)
            for slot in bank.slots:
                like = local_of(slot.parameter)
                made[slot.name] = sharded_like(slot.parameter, slot.of(vector).to(like.device, like.dtype, copy=True))
        return made

    @torch.no_grad()
    def whole_sum(self, bank: Bank, slot: Slot, sum: int, latest: Tensor) -> Tensor:
        """A sum with all that waits, in a parameter's coordinates."""
        assert self.tracker is not None
        scale, of = self.tracker.sum(sum)
        rows, ahead = of[bank.sequence]
        stretch = slice(slot.start, slot.stop)
        vector = bank.sums[sum, stretch] * scale
        for block, where in bank.waiting(self.older, self.staged):
            bank.mixed(vector, block[:, stretch], rows[where])
        return slot.shaped(vector.add_(latest[stretch], alpha=ahead))

    # What is kept.

    def state(self) -> dict[str, Any]:
        self.settle()
        tracker = self.tracker
        if tracker is None:
            return {}
        if self.older:
            self.flush(older=True)
        sharded = any(is_sharded(slot.parameter) for _, slot in self.slots())
        file = self.dial.center_file
        elsewhere = [slot.name for _, slot in self.slots() if file is not None and slot.name in file.names]
        # Shards are restored in place, so what there is must not depend on when.
        rows = self.dial._rows(tracker) if sharded else self.staged
        tensors = {}
        for bank, slot in self.slots():
            bank.waited_for()
            if slot.name not in elsewhere:
                tensors[f"center/{slot.name}"] = sharded_like(slot.parameter, slot.of(bank.center))
            for sum in range(tracker.sums):
                tensors[f"sum-{sum:02}/{slot.name}"] = sharded_like(slot.parameter, slot.of(bank.sums[sum]))
            for row in range(rows):
                tensors[f"row-{row:02}/{slot.name}"] = sharded_like(slot.parameter, slot.of(bank.current[row]))
        return {
            "tracker": tracker.state(),
            "calls": self.calls,
            "group_of": list(self.group_of),
            "members": {slot.name: slot.group for _, slot in self.slots()},
            "reach": torch.tensor(self.reach(), dtype=torch.float64),
            "tensors": tensors,
            **({} if file is None or not elsewhere else {"center": file.state(elsewhere)}),
        }

    def check(self, state: Any) -> Callable[[], None] | None:
        """Looks at everything a state says before any of it is taken over; what is returned takes it over."""
        if state == {}:
            return None
        tracker = _afterfit.Tracker.restore(entry(state, "tracker", str))
        calls, group_of = entry(state, "calls", int), entry(state, "group_of", list)
        members, tensors = entry(state, "members", dict), entry(state, "tensors", dict)
        reach = entry(state, "reach", Tensor)
        dial = self.dial
        center_file = None
        if "center" in state:
            center_file, centers = self.center_of(entry(state, "center", dict))
            tensors = tensors | centers
        asked = [(name, *ends) for name, ends in dial._ranges]
        found = [(name, start, end) for name, start, end, _ in tracker.families]
        alike = len(asked) == len(found) and all(
            a[0] == f[0] and math.isclose(a[1], f[1], rel_tol=1e-6) and math.isclose(a[2], f[2], rel_tol=1e-6)
            for a, f in zip(asked, found, strict=True)
        )
        if not alike:
            raise wrong(f"it is of {found}, and this dial was made for {asked}")
        if tracker.every != dial.every:
            raise wrong(f"it keeps every {tracker.every}th iterate, and this dial every {dial.every}th")
        groups = self.groups
        if len(group_of) != len(tracker.sequence_of) or any(
            not isinstance(at, int) or not 0 <= at < len(groups) for at in group_of
        ):
            raise wrong(f"its groups follow {group_of}, and the optimizer has {len(groups)} parameter groups")
        own = self.like(group_of)
        if own.recurrences != tracker.recurrences or own.unknown != tracker.unknown:
            raise wrong(f"it was made under {optimizers_of(tracker)}, and the optimizer is {optimizers_of(own)}")
        where = {id(parameter): at for at, group in enumerate(groups) for parameter in group["params"]}
        listed = []
        for name, group in members.items():
            parameter = dial._parameters.get(name)
            if parameter is None:
                raise wrong(f"it has sums of {name!r}, which is no parameter of the model")
            if not isinstance(group, int) or not 0 <= group < len(group_of):
                raise wrong(f"{name!r} is said to be of group {group!r} of {len(group_of)}")
            if where.get(id(parameter)) != group_of[group]:
                raise wrong(f"{name!r} is not in parameter group {group_of[group]} of the optimizer")
            listed.append((name, parameter, group))
        if reach.shape != (tracker.sequences,) or not bool(torch.isfinite(reach).all()):
            raise wrong(f"its reach is {reach.tolist()}")
        sharded = any(is_sharded(parameter) for _, parameter, _ in listed)
        rows = dial._rows(tracker) if sharded else tracker.waiting
        if tracker.waiting > dial._rows(tracker):
            raise wrong(f"{tracker.waiting} iterates wait, and a block has {dial._rows(tracker)}")
        keys = ["center"] + [f"sum-{at:02}" for at in range(tracker.sums)] + [f"row-{at:02}" for at in range(rows)]
        for name, parameter, _ in listed:
            for key in keys:
                tensor = tensors.get(f"{key}/{name}")
                if not isinstance(tensor, Tensor):
                    raise wrong(f"{key}/{name} is missing")
                if tensor.shape != parameter.shape or tensor.dtype != dial.dtype:
                    raise wrong(
                        f"{key}/{name} is {tuple(tensor.shape)} {tensor.dtype}, and {tuple(parameter.shape)} {dial.dtype} is needed"
                    )
                if not bool(torch.isfinite(local_of(tensor)).all()):
                    raise wrong(f"{key}/{name} holds a number that is not finite")

        def take_over() -> None:
            # (Sums that are being restored in place are read before they are made anew.)
            kept = {key: local_of(tensor).clone() for key, tensor in tensors.items()}
            dial.center = "start"
            read_again = set() if center_file is None else set(center_file.names)
            dial.center_file = dial.center_file or center_file
            if dial.center_file is not None:
                dial.center_file.names -= {name for name, _, _ in listed}
                dial.center_file.names |= read_again
            self.tracker, self.calls, self.group_of = tracker, calls, list(group_of)
            self.member = {id(parameter): group for _, parameter, group in listed}
            self.kinds = [self.named(groups[at])[0] for at in group_of]
            self.banks, self.queue = [], []
            self.staged, self.older, self.loaded = tracker.waiting, 0, True
            self.add_banks(listed)
            for bank in self.banks:
                bank.reach = reach[bank.sequence].to(bank.device, bank.dtype)
                for slot in bank.slots:
                    slot.of(bank.center).copy_(kept[f"center/{slot.name}"])
                    for sum in range(tracker.sums):
                        slot.of(bank.sums[sum]).copy_(kept[f"sum-{sum:02}/{slot.name}"])
                    for row in range(tracker.waiting):
                        slot.of(bank.current[row]).copy_(kept[f"row-{row:02}/{slot.name}"])
                if bank.pinned:
                    bank.gate_center.copy_(bank.center)

        return take_over

    def center_of(self, kept: dict[str, Any]) -> tuple[CenterFile, dict[str, Tensor]]:
        """The file that a state's center is read from again, and what it has of the center."""
        dial = self.dial
        names, digest, path = entry(kept, "names", list), entry(kept, "sha256", str), Path(entry(kept, "path", str))
        # (Where it is now is said by who resumes.)
        file = CenterFile(path if dial.center_file is None else dial.center_file.path)
        if not file.path.exists():
            raise wrong(f"its center is in {file.path}, which is not there: say where it is now, center=…")
        if file.digest != digest:
            raise wrong(f"its center is a file of SHA-256 {digest}, and that of {file.path} is {file.digest}")
        given = {clean(name): tensor for name, tensor in tensors_of(file.path).items()}
        found = {}
        for name in names:
            parameter = dial._parameters.get(name)
            if parameter is None or name not in given or is_sharded(parameter):
                raise wrong(f"the center of {name!r} is to be read from {file.path}: it is not there, or no such parameter is here")
            found[f"center/{name}"] = given[name].to(parameter.dtype).to(dial.dtype)
            file.names.add(name)
        return file, found


def optimizers_of(tracker: _afterfit.Tracker) -> str:
    return ", ".join(dict.fromkeys(tracker.unknown or tracker.recurrences))


def wrong(reason: str) -> _afterfit.CheckpointError:
    return _afterfit.CheckpointError(f"this state does not fit the dial: {reason}")


def entry(state: Any, name: str, kind: type) -> Any:
    if not isinstance(state, Mapping):
        raise wrong(f"it is {type(state).__name__}, not a dictionary")
    if name not in state:
        raise wrong(f"{name!r} is missing")
    if not isinstance(state[name], kind) or isinstance(state[name], bool):
        raise wrong(f"{name!r} is {type(state[name]).__name__}, not {kind.__name__}")
    return state[name]
