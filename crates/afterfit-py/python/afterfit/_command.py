"""The command's subcommands as functions: the same engine, names and words; results are small dataclasses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ._afterfit import call
from ._numbers import whole
from ._progress import bar

PathLike: TypeAlias = "str | os.PathLike[str]"
#: A number, several of them, a range ``(from, to)`` or ``(from, to, count)`` in a tuple, or a text as the command takes it.
Strengths: TypeAlias = "float | Sequence[float] | tuple[float, float, int] | str"


def text(value: Any) -> str:
    """A value as the command reads it; a pair in a tuple is a range."""
    match value:
        case tuple() if len(value) == 2:
            return f"{text(value[0])}..{text(value[1])}"
        case tuple() if len(value) == 3:
            return f"{text(value[0])}..{text(value[1])}:{int(value[2])}"
        case str() | os.PathLike():
            return os.fspath(value)
        case bool():
            return str(value).lower()
        case int() | np.integer():
            return str(int(value))
        case float() | np.floating():
            return repr(float(value))
        case _:
            return ",".join(text(one) for one in value)


def _strength(l2: Any) -> Any:
    """(A flag without a value would be made of True.)"""
    if l2 is None or isinstance(l2, bool):
        raise ValueError(f"l2 is {l2}: it must be a number above 0")
    return l2


def _listed(value: Any) -> Any:
    """Several values; a tuple is no range here."""
    return list(value) if isinstance(value, tuple) else value


def _flags(**options: Any) -> list[str]:
    """``name=value`` as ``--name=value``; what is ``None`` or ``False`` is left out."""
    flags = []
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")
        if value is None or value is False:
            continue
        flags.append(flag if value is True else f"{flag}={text(value)}")
    return flags


@dataclass(frozen=True)
class Plan:
    """What a dial would cost, and how good it would be.

    Attributes
    ----------
    nodes : int
        Sums to keep.
    certificate : float
        Bound on the error of any weight of a reading, relative to the largest move of any weight.
    bytes : int
        Memory of the sums; with ``block=``, of all that a dial keeps.
    """

    nodes: int
    certificate: float
    bytes: int


def plan(
    l2: Strengths,
    rate: float | str,
    steps: int,
    params: int,
    *,
    tolerance: float = 1e-3,
    dtype: Literal["f32", "f64"] = "f64",
    block: int | None = None,
    optimizer: str | None = None,
    momentum: float | None = None,
    dampening: float | None = None,
    alpha: float | None = None,
    beta1: float | None = None,
    weight_decay: float | None = None,
) -> Plan:
    """Nodes, memory and certified error of a dial, before training.

    Parameters
    ----------
    l2 : pair of floats
        The range of strengths to be read off the dial.
    rate : float or str
        Rate of the training run: ``0.1``, or ``"0.1,50000:0.01"`` (from step 50000 on, 0.01).
    steps : int
        Steps of the training run.
    params : int
        Weights of the model.
    tolerance : float
        Error allowed in any weight, as a share of the largest move of any weight.
    dtype : {"f32", "f64"}
        Type of the sums. (Those of `afterfit.torch.Dial` are f32, unless a parameter is f64.)
    block : int, optional
        Count the center and so many iterates that wait to be added, too: `bytes` is then :attr:`afterfit.torch.Dial.memory`
        of a dial made with this ``block=``.
    optimizer : str, optional
        ``"sgd"`` (the default), ``"heavy-ball"``, ``"nesterov"``, ``"adam"``, …
    momentum, dampening, alpha, beta1, weight_decay : float, optional
        Its constants.

    Returns
    -------
    Plan

    Examples
    --------
    >>> import afterfit
    >>> afterfit.plan(l2=(1e-5, 1e-2), rate=0.1, steps=150_000, params=11_173_962).nodes
    18
    """
    steps, params, block = whole("steps", steps, 0), whole("params", params, 0), whole("block", block)
    flags = _flags(
        l2=_strength(l2), rate=rate, steps=steps, params=params, tolerance=tolerance, dtype=dtype, block=block,
        optimizer=optimizer, momentum=momentum, dampening=dampening, alpha=alpha, beta1=beta1, weight_decay=weight_decay,
    )  # fmt: skip
    return Plan(**json.loads(call(["afterfit", "plan", "--json", *flags])))


@dataclass(frozen=True)
class Weights:
    """The weight of each iterate.

    Attributes
    ----------
    l2 : float
        The strength.
    weights : ndarray of shape (steps,)
        Of ``w_0 … w_{K-1}``.
    remaining : float
        What remains, given to the last iterate.
    exact : bool
        Whether the average is the regularized model on a quadratic loss.
    ratio : float or None
        From one weight to the next, where that is the same for all.
    """

    l2: float
    weights: npt.NDArray[np.float64]
    remaining: float
    exact: bool
    ratio: float | None = None


def weights(
    l2: float,
    rate: float | str,
    steps: int,
    *,
    optimizer: str | None = None,
    momentum: float | None = None,
    dampening: float | None = None,
    alpha: float | None = None,
    beta1: float | None = None,
    weight_decay: float | None = None,
) -> Weights:
    """The weight each iterate gets for a strength.

    Parameters
    ----------
    l2 : float
        Strength, next to a mean loss.
    rate : float or str
        Rate: ``0.1``, or ``"0.1,150:0.01"`` (from step 150 on, 0.01).
    steps : int
        Steps taken.
    optimizer : str, optional
        ``"sgd"`` (the default), ``"heavy-ball"``, ``"nesterov"``, ``"adam"``, …
    momentum, dampening, alpha, beta1, weight_decay : float, optional
        Its constants.

    Returns
    -------
    Weights

    Examples
    --------
    >>> import afterfit
    >>> found = afterfit.weights(l2=1.0, rate=1.0, steps=3)
    >>> found.weights, found.remaining
    (array([0.5  , 0.25 , 0.125]), 0.125)
    """
    flags = _flags(
        l2=_strength(l2), rate=rate, steps=whole("steps", steps, 0), optimizer=optimizer, momentum=momentum, dampening=dampening,
        alpha=alpha, beta1=beta1, weight_decay=weight_decay,
    )  # fmt: skip
    found = json.loads(call(["afterfit", "weights", "--json", *flags]))
    return Weights(**{**found, "weights": np.array(found["weights"])})


@dataclass(frozen=True)
class Output:
    """One average that was written.

    Attributes
    ----------
    path : Path or str
        Where; a URL is a str.
    strength : float, list of floats or None
        What it was made with; of a dial, its range.
    scheme : str
        How the weights came about.
    status : str
        ``"exact"``, ``"approximation"`` or ``"heuristic"``, for this path.
    reason : str
        Why.
    answer : str or None
        ``"regularized"`` or ``"normalized"``.
    remaining : float or None
        The mass that the path leaves unspent.
    group_l2 : list of floats
        What each parameter group is penalized with, where that differs.
    skipped : bool
        It was there already.
    score : float or None
        What ``evaluate`` said of it.
    best : bool
        Whether that is the best score, where ``best=`` says what is best.
    lora_error : float or None
        What the cut of a LoRA product to its rank lost.
    nodes : list of floats
        Of a dial.
    certificate : float or None
        Of a dial: bound on the error of any weight, relative to the largest move of any weight.
    """

    path: Path | str
    strength: float | list[float] | None = None
    scheme: str = ""
    status: str = ""
    reason: str = ""
    answer: str | None = None
    remaining: float | None = None
    group_l2: list[float] = field(default_factory=list)
    skipped: bool = False
    score: float | None = None
    best: bool = False
    lora_error: float | None = None
    nodes: list[float] = field(default_factory=list)
    certificate: float | None = None


@dataclass(frozen=True)
class Averages:
    """What :func:`average` wrote.

    Attributes
    ----------
    outputs : list of Output
        One for each average.
    inputs : dict
        The checkpoints: their paths, steps and rates, and what made them.
    weights : list
        For each output the weight of each checkpoint; lists of them where parameter groups have their own.
    bytes : int
        Of all outputs.
    last_score : float or None
        What ``evaluate`` said of the last checkpoint as it is.
    seconds : dict
        Where the time went.
    copied : dict
        How many tensors were copied from the last checkpoint instead of averaged.
    notes : list of str
        What should be known before an average is trusted.
    """

    outputs: list[Output]
    inputs: Any = None
    weights: list[Any] = field(default_factory=list)
    bytes: int = 0
    last_score: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    copied: Any = None
    notes: list[str] = field(default_factory=list)

    @property
    def best(self) -> Output | None:
        """The output of the best score; None unless ``evaluate=`` and ``best=`` were given."""
        return next((output for output in self.outputs if output.best), None)


def average(
    paths: PathLike | Iterable[PathLike],
    out: PathLike,
    *,
    l2: Strengths | Literal["auto"] | None = None,
    ratio: float | Sequence[float] | None = None,
    uniform: bool = False,
    last: int | Sequence[int] | None = None,
    ema: float | Sequence[float] | None = None,
    half_life: float | Sequence[float] | None = None,
    ema_start: Literal["first", "update", "debiased"] | None = None,
    ema_warmup: bool | float | None = None,
    power_ema: float | Sequence[float] | None = None,
    power_ema_gamma: float | Sequence[float] | None = None,
    anneal: str | Sequence[str] | None = None,
    schedule: str | Sequence[str] | None = None,
    window: int | str | None = None,
    wise: float | Sequence[float] | None = None,
    bema: bool = False,
    iterate: int | Sequence[int] | None = None,
    weights: PathLike | None = None,
    answer: Literal["regularized", "normalized"] | None = None,
    dial: tuple[float, float] | Literal["auto"] | None = None,
    nodes: int | None = None,
    rate: float | str | None = None,
    rates: PathLike | None = None,
    steps_per_epoch: int | None = None,
    start: PathLike | None = None,
    optimizer: str | None = None,
    momentum: float | None = None,
    dampening: float | None = None,
    alpha: float | None = None,
    beta1: float | None = None,
    weight_decay: float | None = None,
    nesterov: bool = False,
    groups: Literal["one", "each"] | None = None,
    quadratic: bool = False,
    origin: int | None = None,
    step_regex: str | None = None,
    from_: int | None = None,
    to: int | None = None,
    every: int | None = None,
    filter: str | None = None,
    key: str | None = None,
    skip_broken: bool = False,
    copy: str | Sequence[str] = (),
    lora: Literal["apart", "exact"] | None = None,
    lora_rank: int | None = None,
    dtype: str | None = None,
    format: Literal["safetensors", "npz", "pt", "dcp"] | None = None,
    shard_size: str | None = None,
    memory: str | None = None,
    force: bool = False,
    skip_existing: bool = False,
    evaluate: Callable[[Path], float] | None = None,
    best: Literal["max", "min"] | None = None,
    keep: Literal["all", "best"] = "all",
    report: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    progress: bool = False,
) -> Averages:
    """Average checkpoints of a network: every strength in one pass.

    Everything is as in ``afterfit average``, whose ``--help`` describes each option; ``--from`` is ``from_`` here.

    Parameters
    ----------
    paths : path or iterable of paths
        Checkpoints: files, patterns, folders of checkpoints, or folders that are one (sharded) checkpoint each.
    out : path
        A file for one strength, a folder for several.
    l2 : float, list, range or "auto"
        Strengths of an ℓ2 penalty around the first checkpoint: a number, a list, a range ``(1e-5, 1e-2)`` or
        ``(1e-5, 1e-2, 16)`` in a tuple, or ``"auto"``.
    evaluate : callable, optional
        Called in this thread with the path of the last checkpoint and of each output; returns a score, which must be finite.
    best : {"max", "min"}, optional
        Which score is best; ``keep="best"`` requires it. Without it there are scores, and no output is called the best.
    keep : {"all", "best"}
        Which outputs to keep after evaluation.
    report : path, optional
        A page to look at: scores and weights over λ.
    copy : str or list of str
        Patterns of tensors to copy from the last checkpoint instead of averaging.
    progress : bool
        Show a bar, where tqdm is installed.

    Returns
    -------
    Averages

    Raises
    ------
    CheckpointError
        A checkpoint cannot be used.
    FileNotFoundError
        One is not there.
    ValueError
        Options that contradict each other, or are out of range. Advice is in the exception's notes.

    Examples
    --------
    >>> import afterfit, numpy as np, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for step in range(4):
    ...     np.savez(folder / f"step-{step}.npz", w=np.full(3, float(step)))
    >>> found = afterfit.average(folder, folder / "mean.npz", uniform=True)
    >>> np.load(found.outputs[0].path)["w"]
    array([1.5, 1.5, 1.5])
    """
    arguments = average_arguments(**locals())
    with bar(progress, "average", "B") as move:
        said = call(["afterfit", "average", *arguments], evaluate=evaluate, progress=move)
    return averages(json.loads(said))


def average_arguments(
    paths: PathLike | Iterable[PathLike],
    out: PathLike,
    copy: str | Sequence[str] = (),
    evaluate: Callable[[Path], float] | None = None,
    keep: str = "all",
    progress: bool = False,
    **options: Any,
) -> list[str]:
    """What the command is called with for these keywords of :func:`average`."""
    inputs = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not inputs:
        raise ValueError("paths is empty: there is no checkpoint to average")
    if options.get("best") is not None and evaluate is None:
        raise ValueError(f"best is {options['best']!r}, and nothing is judged: give evaluate=, a function of a path")
    # (A tuple is a range of λ, and several values of anything else.)
    several = {name: value if name in ("l2", "dial") else _listed(value) for name, value in options.items()}
    flags = _flags(
        output=out,
        **several,
        # (What is called is the function: the text only stands for it.)
        eval="{}" if evaluate is not None else None,
        keep=keep if keep != "all" else None,
    )
    flags += [f"--copy={pattern}" for pattern in ([copy] if isinstance(copy, str) else copy)]
    return ["--json", "--quiet", *flags, "--", *(os.fspath(path) for path in inputs)]


def averages(found: dict[str, Any]) -> Averages:
    """What the command's JSON says."""
    last_checkpoint = found.pop("last_checkpoint", None) or {}
    outputs = [
        Output(**{**output, "path": output["path"] if "://" in output["path"] else Path(output["path"])})
        for output in found.pop("outputs")
    ]
    found.pop("files", None)
    return Averages(outputs=outputs, last_score=last_checkpoint.get("score"), **found)
