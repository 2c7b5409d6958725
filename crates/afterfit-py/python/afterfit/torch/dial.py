"""The dial of a model and its optimizers."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import _afterfit
from .._numbers import whole
from .._status import Status
from .bank import Bank, Slot
from .checkpoints import CenterFile, tensors_of
from .course import Course, entry, optimizers_of, wrong
from .optimizers import check_schedule, clean, is_inside, unwrapped, unwrapped_model
from .reading import Reading, Sweep, judged
from .reading import refresh as refresh_model
from .shards import bytes_of, is_sharded, local_of, sharded_like, whole_of

_FORMAT = 1
_PRECISIONS = {torch.float32: "f32", torch.float64: "f64"}
_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
_COPIED = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_WORSE = {"exact": 0, "approximation": 1, "heuristic": 2}


class Dial:
    """Sums kept while a model is trained; any strength of a range afterwards, with a bound on the error.

    Parameters
    ----------
    model
        What is trained. Wrapped by DDP, FSDP2 or ``torch.compile``, or not.
    optimizer
        One, or several. SGD, Adam, AdamW and their variants have masses of their own; any other is weighted like sgd, which the
        status of a reading says by name. None: say each step by :meth:`push`.
    l2, ema, power_ema
        Ranges to be read afterwards: strengths λ, decays of an EMA, widths σ_rel of a power-function EMA. At least one.
    tolerance
        The error allowed in any weight, as a share of the farthest any weight moves: it says how many sums there are.
    nodes
        How many sums each family has instead: a number, or one for each family given, in the order above.
    steps
        How many steps there will be, for a better plan.
    schedule
        The rates to come: a scheduler of torch that is stepped after every step, a function of the step, or a list (of the first
        group's rates; other groups in proportion). With momentum, or Adam, masses are then exact under the schedule; a step at
        another rate is refused. Without it, masses are made from the rate of each step, and certificates include what that costs.
    center
        ``"start"``: where training starts. A state dict, such as the pretrained model's, is checked to be just that. So is a file
        of one (safetensors, a folder of these, or ``torch.save``'s); states then hold its path and checksum, not a copy of the
        center, and read it again when they are loaded: it must still be there, or be named anew. (In memory the center stays, and
        what :meth:`save` writes is complete. The centers of shards are in states all the same.)
    params, exclude
        Which parameters are averaged, or not: a regular expression for their names, or a function of name and parameter.
    every
        Keep the iterate of every so many steps: the mass of those between is split between their neighbors. What is read is then
        this thinned average, and :attr:`Reading.error` bounds the distance to it, not to the average of all iterates.
    dtype
        Of the sums: float32 or float64. By default float64 if a parameter is, else float32.
    device
        Where the sums are: by default beside each parameter. ``"cpu"`` has them in pinned memory, filled from a side stream.
    masses
        ``"one"`` for all parameter groups (each is then penalized with a λ of its own, by its rate), ``"each"`` (a mass for each
        group from its own rates), or ``"auto"``: one where that can be exact.
    recurrence
        What the optimizer is like, if its class does not say: a name that ``afterfit average --optimizer`` knows, or a name and its
        constants: ``("heavy-ball", {"momentum": 0.9})``.
    quadratic
        Whether the loss is: readings are then called exact.
    block
        How many iterates are added at once: more cost less time and more memory, a model each.

    Examples
    --------
    >>> import torch
    >>> from afterfit.torch import Dial
    >>> model = torch.nn.ParameterList([torch.zeros(2)])
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> dial = Dial(model, optimizer, l2=(0.1, 1.0))
    >>> for _ in range(100):
    ...     optimizer.zero_grad()
    ...     (0.5 * (model[0] - 1.0).square().sum()).backward()
    ...     optimizer.step()
    >>> dial.read(1.0).state_dict()["0"].round(decimals=2)
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        l2: tuple[float, float] | None = None,
        ema: tuple[float, float] | None = None,
        power_ema: tuple[float, float] | None = None,
        tolerance: float = 1e-3,
        nodes: int | Sequence[int] | None = None,
        steps: int | None = None,
        schedule: Any = None,
        center: str | os.PathLike[str] | Mapping[str, Tensor] = "start",
        params: str | Callable[[str, Tensor], bool] | None = None,
        exclude: str | Callable[[str, Tensor], bool] | None = None,
        every: int = 1,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        masses: str = "auto",
        recurrence: str | tuple[str, dict[str, float]] = "auto",
        quadratic: bool = False,
        block: int | None = None,
    ) -> None:
        given = (("l2", l2), ("ema", ema), ("power_ema", power_ema))
        self._ranges: list[tuple[str, tuple[float, float]]] = []
        for name, ends in given:
            if ends is not None:
                if not isinstance(ends, Sequence) or len(ends) != 2:
                    raise ValueError(f"{name} is {ends!r}: it must be a range, (from, to)")
                self._ranges.append((name, (float(ends[0]), float(ends[1]))))
        steps, every, block = whole("steps", steps), whole("every", every), whole("block", block)
        counts = list(nodes) if isinstance(nodes, Sequence) and not isinstance(nodes, str) else [nodes] * len(self._ranges)
        counts = [whole("nodes", count) for count in counts]
        if len(counts) != len(self._ranges):
            raise ValueError(f"{len(counts)} numbers of nodes: there are {len(self._ranges)} families")
        if isinstance(tolerance, str) or not 0.0 < float(tolerance) <= 1.0:
            raise ValueError(f"tolerance is {tolerance!r}: it must be above 0 and at most 1")
        if not self._ranges:
            raise ValueError("a dial needs a range to read from: l2=(1e-5, 1e-2), ema=(0.99, 0.9999), power_ema=(0.05, 0.25)")
        like = ("sgd", {}) if recurrence == "auto" else (recurrence, {}) if isinstance(recurrence, str) else recurrence
        if not isinstance(like, tuple) or len(like) != 2 or not isinstance(like[0], str) or not isinstance(like[1], dict):
            raise ValueError(f"recurrence is {recurrence!r}: it must be a name, or a name and its constants")
        for (name, ends), count in zip(self._ranges, counts, strict=True):
            # (Refuses a range, a number of sums or constants that are none.)
            tracker = _afterfit.Tracker([(name, *ends, 1 if count is None else count)], [like], [0.0])
            if tracker.unknown:
                raise ValueError(f"recurrence is {recurrence!r}: no optimizer is known by this name")
        check_schedule(schedule, steps)
        if masses not in ("auto", "one", "each"):
            raise ValueError(f"masses is {masses!r}: it must be 'auto', 'one' or 'each'")
        self.center_file: CenterFile | None = None
        if isinstance(center, str | os.PathLike) and center != "start" and os.path.exists(center):
            self.center_file = CenterFile(Path(os.path.abspath(center)))
        elif not isinstance(center, Mapping) and center != "start":
            raise ValueError(f"center is {center!r}: it must be 'start', a state dict, or the file of one")
        self.model = model
        self.tolerance, self.nodes, self.total, self.every = float(tolerance), counts, steps, every
        self.schedule, self.center, self.masses = schedule, center, masses
        self.recurrence, self.quadratic, self.block = recurrence, quadratic, block
        self.device = None if device is None else torch.device(device)
        self._raw: dict[str, Tensor] | None = None
        self._resuming = False
        if optimizer is None:
            optimizers: list[Optimizer | None] = [None]
        elif isinstance(optimizer, Optimizer):
            optimizers = [unwrapped(optimizer)]
        else:
            optimizers = [unwrapped(one) for one in optimizer]
            if not optimizers:
                raise ValueError("there is no optimizer in this list: name one, or leave it out and push each step")
        self._find(optimizers, params, exclude)
        widest = torch.float64 if any(p.dtype == torch.float64 for p in self._parameters.values()) else torch.float32
        self.dtype = widest if dtype is None else dtype
        if self.dtype not in _PRECISIONS or (widest == torch.float64 and self.dtype != widest):
            raise ValueError(f"dtype is {self.dtype}: sums are float32 or float64, and not narrower than the weights")
        self._courses = [Course(self, one) for one in optimizers]
        # (Where `step` itself is compiled, the compiler is to leave this alone.)
        hook = torch.compiler.disable(self._before_step)  # type: ignore[no-untyped-call]
        self._handles = [one.register_step_pre_hook(hook) for one in optimizers if one is not None]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a dial watches an optimizer, and is not copied or pickled: take its state_dict(), or save() it")

    def __repr__(self) -> str:
        ranges = ", ".join(f"{name}={ends}" for name, ends in self._ranges)
        return f"<Dial {ranges}: {self.sums} sums, {self.steps} steps>"

    def _find(
        self,
        optimizers: list[Optimizer | None],
        params: str | Callable[[str, Tensor], bool] | None,
        exclude: str | Callable[[str, Tensor], bool] | None,
    ) -> None:
        """Names of all parameters that may be averaged, and names that stand for another."""

        def matches(rule: Any, name: str, parameter: Tensor) -> bool:
            return bool(rule(name, parameter)) if callable(rule) else re.search(rule, name) is not None

        model = unwrapped_model(self.model)
        self._names: dict[int, str] = {}
        self._parameters: dict[str, Tensor] = {}
        self._tied: list[tuple[str, str]] = []
        first: dict[int, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            name = clean(name)
            if id(parameter) in first:
                self._tied.append((name, first[id(parameter)]))
                continue
            first[id(parameter)] = name
            wanted = params is None or matches(params, name, parameter)
            if wanted and not (exclude is not None and matches(exclude, name, parameter)) and parameter.is_floating_point():
                self._names[id(parameter)] = name
                self._parameters[name] = parameter
        trained = [
            parameter for one in optimizers if one is not None for group in one.param_groups for parameter in group["params"]
        ]
        if trained and not any(id(parameter) in first for parameter in trained):
            raise ValueError("the optimizer has no parameter of this model")
        for at, optimizer in enumerate(optimizers):
            for group, settings in enumerate([] if optimizer is None else optimizer.param_groups):
                for place, parameter in enumerate(settings["params"]):
                    # (What the model does not know by name is trained all the same: a center, a temperature.)
                    if id(parameter) not in first and params is None and exclude is None:
                        name = f"optimizer-{at}.group-{group}.{place}"
                        self._names[id(parameter)] = name
                        self._parameters[name] = parameter
        if not self._names:
            raise ValueError("no parameter of the model is to be averaged")

    def _planned(
        self, course: Course, optimizer: tuple[str, dict[str, float]], groups: list[dict[str, Any]]
    ) -> list[tuple[str, float, float, int]]:
        """Families with their numbers of sums."""
        rate = max(max(float(group["lr"]), float(group.get("initial_lr", 0.0))) for group in groups)
        planned = []
        for at, (name, (start, end)) in enumerate(self._ranges):
            count = self.nodes[at]
            if count is None:
                count = _afterfit.plan_nodes(
                    name, start, end, self.tolerance, optimizer=optimizer, rate=rate, steps=self.total or 0
                )
            planned.append((name, start, end, count))
        return planned

    def _rows(self, tracker: _afterfit.Tracker) -> int:
        """Iterates of a block: half as many as there are sums, so that a block costs half as much memory as they do."""
        return self.block if self.block is not None else max(4, min(16, tracker.sums // 2))

    def _check_center(self, banks: list[Bank]) -> None:
        if self.center == "start":
            return
        if self.center_file is not None:
            _ = self.center_file.digest  # (that of what is looked at now)
        center = self.center if isinstance(self.center, Mapping) else tensors_of(Path(self.center))
        given = {clean(name): tensor for name, tensor in center.items()}
        for bank in banks:
            for slot in bank.slots:
                other = given.get(slot.name)
                if other is None:
                    raise ValueError(f"center has no tensor named {slot.name!r}")
                if other.shape != slot.parameter.shape:
                    raise ValueError(
                        f"center's {slot.name!r} is {tuple(other.shape)}, and the model's {tuple(slot.parameter.shape)}"
                    )
                if is_sharded(slot.parameter):
                    continue
                off = (other.to(slot.parameter) - slot.parameter.detach()).abs().max() if other.numel() else 0.0
                if float(off) != 0.0:
                    raise ValueError(
                        f"{slot.name!r} starts {float(off):.3g} away from center: averages are around where training starts"
                    )
                if self.center_file is not None:
                    self.center_file.names.add(slot.name)
        self.center = "start"  # (looked at once, and not held any longer)

    # While training.

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if started and torch.cuda.is_current_stream_capturing():
            return  # a graph would replay what is recorded here without its numbers: see push
        if is_inside(optimizer):
            return
        course = next(course for course in self._courses if course.optimizer is optimizer)
        if course.pushed and course.calls == 1 and not any(bool(course.latest(bank).any()) for bank in course.banks):
            raise RuntimeError("push() was told of this step, which the optimizer's hook sees, too: leave push() out")
        # (`args` are those of step, the optimizer first.)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        self._push(course, None, closure is not None)

    def _push(self, course: Course, rate: float | None, closure: bool) -> None:
        if self._raw is not None:
            raise RuntimeError("a step was taken while averaged weights are applied")
        if course.last is not None:
            raise RuntimeError("this dial was loaded for reading: load it with its optimizer to go on")
        course.push(rate, closure)

    def push(self, rate: float | None = None) -> None:
        """Take in the weights before a step that no hook sees: under DeepSpeed (of a dial made without its optimizer), before a
        CUDA graph is replayed, in a loop of one's own.

        Parameters
        ----------
        rate
            Of the step; by default each group's own.
        """
        for course in self._courses:
            course.pushed = True
            self._push(course, rate, True)
        if all(course.tracker is None for course in self._courses):
            raise ValueError(
                "no optimizer of this dial moves a parameter of the model (DeepSpeed's move shards of their own): make the dial "
                "without it, and push(rate)"
            )

    def close(self) -> None:
        """Stop watching the optimizer. Readings stay possible as long as the weights stay where they are."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def steps(self) -> int:
        """Steps taken in so far, the most of any optimizer."""
        for course in self._courses:
            course.settle()
        return max(course.steps() for course in self._courses)

    @property
    def sums(self) -> int:
        """How many sums there are; 0 before the first step."""
        return max(0 if course.tracker is None else course.tracker.sums for course in self._courses)

    @property
    def sharded(self) -> bool:
        """Whether parameters, and so the sums, are shards (`DTensor`): what is read or saved then takes all ranks."""
        return any(is_sharded(parameter) for parameter in self._parameters.values())

    @property
    def memory(self) -> int:
        """Bytes of the sums, the center and the iterates that wait."""
        tensors = [
            tensor
            for course in self._courses
            for bank in course.banks
            for tensor in (bank.sums, bank.center, bank.current, bank.older)
            if tensor is not None
        ]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    # Afterwards.

    def _started(self) -> list[Course]:
        started = [course for course in self._courses if course.tracker is not None and course.calls > 0]
        if not started:
            raise ValueError("this dial has seen no step yet")
        for course in started:
            course.settle()
        return started

    def _others(self) -> dict[str, Tensor]:
        """Tensors of the model that have no sums, as they are."""
        averaged = {slot.name for course in self._courses for _, slot in course.slots()}
        tied = {name for name, first in self._tied if first in averaged}
        tensors = unwrapped_model(self.model).state_dict()
        return {
            clean(name): tensor.detach()
            for name, tensor in tensors.items()
            if isinstance(tensor, Tensor) and clean(name) not in averaged and clean(name) not in tied
        }

    def _complete(self, made: dict[str, Tensor]) -> dict[str, Tensor]:
        """All tensors of the model, in its order."""
        others = {name: tensor.clone() for name, tensor in self._others().items()}
        ties = {name: made[first] for name, first in self._tied if first in made}
        every = {**others, **made, **ties}
        order = [clean(name) for name in unwrapped_model(self.model).state_dict()]
        return {name: every[name] for name in [*order, *(set(every) - set(order))] if name in every}

    def read(
        self,
        l2: float | None = None,
        *,
        ema: float | None = None,
        debiased_ema: float | None = None,
        sigma_rel: float | None = None,
        gamma: float | None = None,
        weights: Sequence[float] | None = None,
        answer: str = "regularized",
    ) -> Reading:
        """The weights at a strength, as training stands.

        Parameters
        ----------
        l2
            λ of an ℓ2 penalty around the start.
        ema, debiased_ema
            The decay of an exponential moving average.
        sigma_rel, gamma
            The width, or the exponent, of a power-function EMA.
        weights
            One weight for each iterate, which sum to 1.
        answer
            ``"regularized"`` gives the mass that is not spent to the last weights, ``"normalized"`` leaves it out.

        Returns
        -------
        Reading
        """
        asked = {
            "l2": l2, "ema": ema, "debiased_ema": debiased_ema, "sigma_rel": sigma_rel, "gamma": gamma, "weights": weights
        }  # fmt: skip
        given = [(kind, value) for kind, value in asked.items() if value is not None]
        if len(given) != 1:
            raise TypeError(f"read takes one of {', '.join(asked)}: {len(given)} were given")
        kind, value = given[0]
        precision = _PRECISIONS[self.dtype]
        made: dict[str, Tensor] = {}
        error = certificate = 0.0
        unspent: float | None = None
        status: Status | None = None
        for course in self._started():
            assert course.tracker is not None
            found = course.tracker.read(kind, value, answer=answer, precision=precision)
            error = max(error, found.error(course.reach()))
            certificate = max(certificate, found.certificate)
            if found.remaining is not None:
                unspent = max(unspent or 0.0, found.remaining)
            own = Status(found.standing, found.reason + (course.own_decay() if kind == "l2" else ""))
            if status is None or _WORSE[own.standing] > _WORSE[status.standing]:
                status = own
            made |= course.combine(found.mix)
        assert status is not None
        number = math.nan if isinstance(value, Sequence) else float(value)
        return Reading(kind, number, error, certificate, unspent, status, self._complete(made))

    def wise(self, share: float) -> Reading:
        """The point of the straight line from the start (0) to the end of training (1): WiSE-FT."""
        if not math.isfinite(share):
            raise ValueError(f"share is {share}: it must be finite")
        made: dict[str, Tensor] = {}
        for course in self._started():
            made |= course.combine(lambda sequence: ([], [], share))
        status = Status("heuristic", "the straight line between the first weights and the last, without a strength")
        return Reading("wise", share, 0.0, 0.0, None, status, self._complete(made))

    @contextlib.contextmanager
    def applied(
        self,
        l2: float | Reading | None = None,
        *,
        refresh: Iterable[Any] | None = None,
        call: Callable[[nn.Module, Any], object] | None = None,
        **target: Any,
    ) -> Iterator[Reading]:
        """Inside, the model has the weights at a strength; afterwards, also after an exception, its own again.

        Parameters
        ----------
        l2, **target
            What :meth:`read` takes, or a reading.
        refresh, call
            Batches to measure batch-norm statistics with, as :func:`refresh` takes them. The model's own come back as well.
        """
        if self._raw is not None:
            raise RuntimeError("averaged weights are applied already")
        reading = l2 if isinstance(l2, Reading) else self.read(l2, **target)
        model = unwrapped_model(self.model)
        tensors = reading.state_dict()
        with torch.no_grad():
            raw = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
            buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()} if refresh is not None else {}
        self._raw = raw
        try:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    if name in tensors:
                        parameter.copy_(tensors[name])
            if refresh is not None:
                refresh_model(self.model, refresh, call=call)
            yield reading
        finally:
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    parameter.copy_(raw[name])
                for name, buffer in model.named_buffers():
                    if name in buffers:
                        buffer.copy_(buffers[name])
            self._raw = None

    def sweep(
        self,
        evaluate: Callable[[nn.Module], Any],
        *,
        l2: int | Sequence[float] = 40,
        best: str = "min",
        refresh: Iterable[Any] | None = None,
        call: Callable[[nn.Module, Any], object] | None = None,
    ) -> Sweep:
        """Judge the model at many strengths.

        Parameters
        ----------
        evaluate
            ``evaluate(model)`` gives a number; a number and its standard error; or a loss for each example.
        l2
            Strengths, or how many, evenly spread over the logarithm of the dial's range.
        best
            Whether the ``"min"`` or the ``"max"`` of the values is best.
        refresh, call
            As for :meth:`applied`.
        """
        if best not in ("min", "max"):
            raise ValueError(f"best is {best!r}: it must be 'min' or 'max'")
        if isinstance(l2, int):
            ends = dict(self._ranges).get("l2")
            if ends is None:
                raise ValueError("this dial has no range of strengths: say which, l2=[…]")
            if l2 < 2:
                raise ValueError(f"l2 is {l2}: a sweep has at least 2 strengths")
            low, high = math.log(ends[0]), math.log(ends[1])
            l2 = [math.exp(low + (high - low) * at / (l2 - 1)) for at in range(l2)]
            l2[0], l2[-1] = ends
        strengths = [float(strength) for strength in l2]
        rows: list[tuple[float, float, float, float]] = []
        for strength in strengths:
            with self.applied(strength, refresh=refresh, call=call) as reading:
                value, error = judged(evaluate(self.model))
            if math.isnan(value):
                raise ValueError(f"evaluate gave {value} at l2 = {strength}: nothing can be chosen by it")
            rows.append((value, error, reading.error, reading.unspent or 0.0))
        values, errors = [row[0] for row in rows], [row[1] for row in rows]
        losses = values if best == "min" else [-value for value in values]
        chosen, simplest = _afterfit.choose(strengths, losses, errors)
        return Sweep(
            strengths, values, errors, [row[2] for row in rows], [row[3] for row in rows],
            strengths[chosen], strengths[simplest],
        )  # fmt: skip

    # Files and states.

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on, bit for bit, beside the states of model and optimizer. Of plain containers and tensors
        (which are the dial's own: they go on changing), sharded as the parameters are: for ``torch.save`` and
        ``torch.distributed.checkpoint``."""
        for course in self._courses:
            if course.tracker is None and self.sharded and course.optimizer is not None:
                course.admit(course.groups, closure=True)  # what a checkpoint is restored into
        return {"format": _FORMAT, "courses": {str(at): course.state() for at, course in enumerate(self._courses)}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where :meth:`state_dict` was taken; the model and the optimizer are to be restored as well.

        Raises
        ------
        afterfit.CheckpointError
            If the state is not one, or not of this model, optimizer and range. Nothing has changed then.
        """
        found = entry(state, "format", int)
        if found != _FORMAT:
            raise wrong(f"its format is {found}, and this program reads {_FORMAT}")
        courses = entry(state, "courses", dict)
        if sorted(courses) != sorted(str(at) for at in range(len(self._courses))):
            raise wrong(f"it is of {len(courses)} optimizers, and this dial watches {len(self._courses)}")
        checked = [course.check(courses[str(at)]) for at, course in enumerate(self._courses)]
        self._resuming = True
        for take_over in checked:
            if take_over is not None:
                take_over()

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the file that ``afterfit dial read`` reads. With several optimizers, each has a file of its own: ``run-0.dial``.

        Returns
        -------
        list of Path
            The files.
        """
        files = []
        started = self._started()
        for course in started:
            file = Path(path)
            if len(self._courses) > 1:
                file = file.with_name(f"{file.stem}-{self._courses.index(course)}{file.suffix}")
            self._save(course, file)
            files.append(file)
        return files

    def _save(self, course: Course, file: Path) -> None:
        tracker = course.tracker
        assert tracker is not None
        slots = list(course.slots())
        own = {slot.name for _, slot in slots}
        others = {name: tensor for name, tensor in self._others().items()}
        # Parameters that another optimizer moves are copied as they are.
        for other in self._courses:
            if other is not course:
                others |= {slot.name: slot.parameter.detach() for _, slot in other.slots()}
        ties = [(name, first) for name, first in self._tied if first in own]
        for name, tensor in others.items():
            if tensor.dtype not in _COPIED:
                raise ValueError(f"{name!r} is {tensor.dtype}: a dial's file does not hold such tensors")
        copied = sorted(others, key=lambda name: -others[name].element_size())
        reach = course.reach()
        first = not self.sharded or torch.distributed.get_rank() == 0
        writer = None
        if first:
            writer = _afterfit.DialWriter(
                os.fspath(file),
                tracker,
                precision=_PRECISIONS[self.dtype],
                parts=[
                    (slot.name, list(slot.parameter.shape), _NAMES.get(slot.parameter.dtype, "f32"), slot.group)
                    for _, slot in slots
                ],
                copied=[(name, _COPIED[others[name].dtype], list(others[name].shape)) for name in copied],
                tied=ties,
                remarks=[],
            )

        def put(copy: str, part: int, slot: Slot, local: Tensor) -> None:
            tensor = whole_of(sharded_like(slot.parameter, local.to(local_of(slot.parameter).device)))
            if writer is not None:
                writer.write(copy, part, bytes_of(tensor))

        weights = {id(bank): course.weights(bank) for bank in course.banks}
        latest = {id(bank): course.latest(bank) for bank in course.banks}
        for part, (bank, slot) in enumerate(slots):
            put("center", part, slot, slot.of(bank.center))
            put("last", part, slot, slot.of(weights[id(bank)]))
            for sum in range(tracker.sums):
                put(str(sum), part, slot, course.whole_sum(bank, slot, sum, latest[id(bank)]))
        for at, name in enumerate(copied):
            tensor = whole_of(others[name])
            if writer is not None:
                writer.write_copied(at, bytes_of(tensor))
        if writer is not None:
            writer.finish(reach)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module, optimizer: Optimizer | None = None, **options: Any) -> Dial:
        """A dial from a file that :meth:`save`, ``afterfit average --dial`` or a loop in Rust wrote.

        Parameters
        ----------
        path
            The file.
        model
            Has the parameters that the file names.
        optimizer
            To resume the training (to rounding; :meth:`load_state_dict` resumes bit for bit): the model must then be where the
            dial stopped. None: for reading.
        **options
            Of :class:`Dial`, where they do not follow from the file.
        """
        file = _afterfit.DialFile(os.fspath(path))
        tracker = file.tracker()
        ranges: dict[str, Any] = {name: (start, end) for name, start, end, _ in tracker.families}
        dtype = torch.float32 if file.precision == "f32" else torch.float64
        dial = cls(model, optimizer, **ranges, **{"dtype": dtype, **options})
        try:
            dial._take_in(file, Path(path))
        except BaseException:
            dial.close()
            raise
        return dial

    def _take_in(self, file: _afterfit.DialFile, path: Path) -> None:
        tracker = file.tracker()
        course = self._courses[0]
        members, last = [], {}
        groups = course.groups
        where = {id(parameter): at for at, group in enumerate(groups) for parameter in group["params"]}
        group_of: dict[int, int] = {}
        for at, (name, shape, _, group) in enumerate(file.parts):
            parameter = self._parameters.get(clean(name))
            if parameter is None:
                raise _afterfit.CheckpointError(f"{path}: the model has no parameter {name!r}")
            if list(parameter.shape) != shape:
                raise _afterfit.CheckpointError(f"{path}: {name!r} is {shape}, and {list(parameter.shape)} in the model")
            members.append((clean(name), parameter, group))
            last[clean(name)] = torch.from_numpy(file.read("last", at)).view(shape)
            own = where.get(id(parameter), 0)
            if group_of.setdefault(group, own) != own:
                raise _afterfit.CheckpointError(f"{path}: {name!r} is not in parameter group {group_of[group]} of the optimizer")
            if course.optimizer is not None and not torch.equal(last[clean(name)].to(parameter), parameter.detach()):
                raise _afterfit.CheckpointError(f"{path}: {name!r} is not where the dial stopped: restore the model first")
        course.group_of = [group_of.get(group, 0) for group in range(len(tracker.sequence_of))]
        if course.optimizer is not None:
            now = course.like(course.group_of)
            if now.recurrences != tracker.recurrences:
                raise _afterfit.CheckpointError(
                    f"{path}: it was made under {optimizers_of(tracker)}, and the optimizer is {optimizers_of(now)}"
                )
        course.tracker, course.calls, course.loaded = tracker, max(1, tracker.steps), True
        course.kinds = [course.named(groups[at])[0] for at in course.group_of]
        course.member = {id(parameter): group for _, parameter, group in members}
        course.add_banks(members)
        course.last = last if course.optimizer is None else None
        place = {clean(part[0]): at for at, part in enumerate(file.parts)}
        for bank in course.banks:
            bank.reach = torch.tensor(file.reach[bank.sequence], dtype=bank.dtype, device=bank.device)
            for slot in bank.slots:
                at = place[slot.name]
                size = slot.parameter.shape
                slot.of(bank.center).copy_(torch.from_numpy(file.read("center", at)).view(size))
                for sum in range(tracker.sums):
                    slot.of(bank.sums[sum]).copy_(torch.from_numpy(file.read(str(sum), at)).view(size))
            if bank.pinned:
                bank.gate_center.copy_(bank.center)
