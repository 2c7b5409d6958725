"""Many machines, through Ray: averages of checkpoints file by file, linear models of datasets block by block."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray
from ray.exceptions import RayTaskError

from . import _command
from ._afterfit import Moments, Rows, call, logistic_apart, strengths, url_of
from ._command import Averages, PathLike, Strengths
from ._progress import bar

__all__ = ["LogisticPath", "RidgePath", "average", "logistic_path", "ridge_path"]

_Array = npt.NDArray[np.float64]

#: Tasks of a worker: so that the last ones end at about the same time.
_TASKS_EACH = 4
#: How often a worker that keeps rows is made again.
_RESTARTS = 8
#: Moments that a task adds up.
_FAN = 8
#: A Gram matrix of more features takes minutes and gigabytes; `afterfit fit` has the same limit.
_MOST_FEATURES = 10_000
#: More different values are no classes.
_MOST_CLASSES = 1000
#: Rows of a sample, of up to so many numbers in all.
_SAMPLE_ROWS, _SAMPLE_NUMBERS = 16_384, 1 << 25


def _workers(num_workers: int | None, num_cpus: float) -> int:
    if num_workers is None:
        return max(1, int(ray.cluster_resources().get("CPU", 1.0) // num_cpus))  # type: ignore[no-untyped-call]
    if num_workers < 1:
        raise ValueError(f"num_workers is {num_workers}: at least 1 is needed")
    return num_workers


def _start(num_cpus: float) -> None:
    if not (num_cpus > 0 and math.isfinite(num_cpus)):
        raise ValueError(f"num_cpus is {num_cpus}: above 0 is needed")
    if not ray.is_initialized():
        ray.init()


def _with_threads(num_cpus: float) -> dict[str, Any]:
    """Processes with as many threads as Ray has reserved CPUs (a process starts them once; results do not depend on them)."""
    return {"env_vars": {"RAYON_NUM_THREADS": str(max(1, math.ceil(num_cpus)))}}


def _on_machines_with_cpus() -> dict[str, Any]:
    """Options of workers that reserve nothing: spread, but not to machines without CPUs, as a head node often is on purpose."""
    idle = [node["NodeID"] for node in ray.nodes() if node["Alive"] and not node["Resources"].get("CPU")]  # type: ignore[no-untyped-call]
    return {"scheduling_strategy": "SPREAD", **({"label_selector": {"ray.io/node-id": f"!in({','.join(idle)})"}} if idle else {})}


def _get(refs: Any) -> Any:
    """What tasks returned; an error of theirs as it was raised there."""
    try:
        return ray.get(refs)
    except RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None


# Checkpoints.


def _run(arguments: list[str]) -> str:
    return call(arguments)


def _absolute(path: PathLike) -> str:
    """A path that means the same on every machine that sees the file system."""
    text = os.fspath(path)
    url = url_of(text)
    if url is not None:
        return url
    return os.path.abspath(text) + ("/" if text.endswith("/") else "")


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """The places of neighbors, in up to ``count`` shares of about the same size together."""
    total, done = sum(max(1, size) for size in sizes), 0
    shares: list[list[int]] = [[]]
    for at, size in enumerate(sizes):
        if shares[-1] and done >= len(shares) * total / count:
            shares.append([])
        shares[-1].append(at)
        done += max(1, size)
    return shares


def average(
    paths: PathLike | Iterable[PathLike],
    out: PathLike,
    *,
    num_workers: int | None = None,
    num_cpus: float = 1,
    max_retries: int = 3,
    progress: bool = False,
    **options: Any,
) -> Averages:
    """Average checkpoints of a network on many machines: :func:`afterfit.average`, divided by files of the outputs.

    Each task reads what the checkpoints have of some files of the outputs and writes these, for every strength; nothing is
    exchanged between workers. Which tensor is in which file depends on the checkpoints and ``shard_size`` alone, so outputs are
    the same to the bit as those of one machine, whatever the number of workers. (Relative paths become absolute ones, in the
    record of the inputs, too.)

    Parameters
    ----------
    paths : path or iterable of paths
        Checkpoints, on a file system that all machines see.
    out : path
        Where to, on such a file system, too.
    num_workers : int, optional
        Tasks at a time. By default as many as the cluster has CPUs for.
    num_cpus : float
        CPUs of a worker, and its threads.
    max_retries : int
        How often Ray runs a task again whose process or machine died.
    progress : bool
        Show a bar, where tqdm is installed.
    **options
        Those of :func:`afterfit.average`. An output that is one file is one worker's work, as are dials and distributed
        checkpoints: ``shard_size="5GB"`` cuts outputs into files. ``evaluate`` and ``report`` are for afterwards.

    Returns
    -------
    Averages

    Raises
    ------
    CheckpointError
        A checkpoint cannot be used.
    ValueError
        Options that contradict each other, or are out of range.

    Notes
    -----
    A finished file lies in ``NAME.afterfit-parts`` beside the output until all are there; then the folder gets its name. After
    an error or a stop the same call takes up the files that are finished.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np, ray
    >>> import afterfit.ray
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for step in range(4):
    ...     np.savez(folder / f"step-{step}.npz", w=np.full(3, float(step)))
    >>> context = ray.init(num_cpus=1, include_dashboard=False)
    >>> found = afterfit.ray.average(folder, folder / "mean.npz", uniform=True)
    >>> np.load(found.outputs[0].path)["w"]
    array([1.5, 1.5, 1.5])
    >>> ray.shutdown()
    """
    given = inspect.signature(_command.average).bind(paths, out, **options)
    given.apply_defaults()
    settings = {**given.arguments, "progress": False}
    for name in ("evaluate", "best", "report"):
        if settings[name] is not None:
            raise ValueError(f"{name} is not for many machines: call it for the outputs when they are there")
    settings["paths"] = [_absolute(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    for name in ("out", "rates", "start", "weights"):
        settings[name] = None if settings[name] is None else _absolute(settings[name])
    _start(num_cpus)
    begun = perf_counter()
    arguments = _command.average_arguments(**settings)
    plan = json.loads(call(["afterfit", "average", *([] if settings["dry_run"] else ["--dry-run"]), *arguments]))
    if settings["dry_run"]:
        return _command.averages(plan)
    files, outputs = plan.get("files", []), len(plan["outputs"])
    workers = _workers(num_workers, num_cpus)
    if not files:
        # (A task that dies after its output has its name finds it again.)
        again = [] if settings["force"] or settings["skip_existing"] else ["--skip-existing"]
        whole = ray.remote(num_cpus=num_cpus, max_retries=max_retries, runtime_env=_with_threads(num_cpus))(_run)
        return _command.averages(json.loads(_get(whole.remote(["afterfit", "average", *again, *arguments]))))
    sizes = [file["bytes"] for file in files]
    parts = _shares(sizes, workers * _TASKS_EACH)
    how: dict[str, Any] = {"num_cpus": num_cpus, "max_retries": max_retries, "runtime_env": _with_threads(num_cpus)}
    run = ray.remote(**how, scheduling_strategy="SPREAD")(_run)
    todo, total, done = iter(parts), sum(sizes) * outputs, 0
    running: dict[Any, list[int]] = {}
    try:
        with bar(progress, "average", "B") as move:
            while True:
                while len(running) < workers and (part := next(todo, None)) is not None:
                    numbers = ",".join(map(str, part))
                    running[run.remote(["afterfit", "average", f"--files={numbers}", *arguments])] = part
                if not running:
                    break
                (ready, *_), _ = ray.wait(list(running))
                _get(ready)
                done += sum(sizes[at] for at in running.pop(ready)) * outputs
                if move is not None:
                    move(done, total)
    except BaseException as error:
        for task in running:
            ray.cancel(task)
        if isinstance(error, Exception):
            error.add_note("hint: files that are finished are kept beside the outputs; the same call takes them up again")
        raise
    passed = perf_counter() - begun
    found = json.loads(call(["afterfit", "average", "--join", *arguments]))
    found["seconds"] = {**found["seconds"], "pass": passed, "total": perf_counter() - begun}
    return _command.averages(found)


# Tables.


def _schema(dataset: Any, target: Sequence[str], features: Sequence[str] | None, weight: str | None) -> list[str]:
    """The names of the features, once all columns are there and hold numbers (but for a target of classes)."""
    schema = dataset.schema()
    if schema is None:
        raise ValueError("the dataset has no rows")
    names = list(schema.names)
    others = {*target, *([] if weight is None else [weight])}
    chosen = [name for name in names if name not in others] if features is None else list(features)
    for name in [*target, *chosen, *([] if weight is None else [weight])]:
        if name not in names:
            raise ValueError(f"there is no column {name!r}: the dataset has {', '.join(map(repr, names[:20]))}")
    if not chosen:
        raise ValueError("there is no feature beside the target")
    if len({*chosen}) < len(chosen) or others & {*chosen}:
        raise ValueError("a column is a feature twice, or a feature and the target (or the weights), too")
    if len(chosen) > _MOST_FEATURES:
        raise ValueError(f"{len(chosen)} features are too many: at most {_MOST_FEATURES} are possible on many machines")
    return chosen


def _numbers(block: Any, name: str) -> npt.NDArray[Any]:
    """A column as finite numbers."""
    column, kind = block.column(name), block.schema.field(name).type
    is_number = any(check(kind) for check in (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal))
    if not is_number:
        raise ValueError(f"column {name!r} holds {kind}, and numbers are needed: encode it, or leave it out of features")
    if column.null_count:
        raise ValueError(f"column {name!r} has {column.null_count} missing values in a block: drop or fill them first")
    values: npt.NDArray[Any] = column.to_numpy()
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise ValueError(f"column {name!r} holds {values[wrong[0]]} at row {wrong[0]} of a block: every number must be finite")
    return values


def _matrix(block: Any, names: Sequence[str]) -> npt.NDArray[Any]:
    """Columns side by side; in single precision if all of them are."""
    columns = [_numbers(block, name) for name in names]
    single = all(column.dtype == np.float32 for column in columns)
    return np.stack(columns, dtype=np.float32 if single else np.float64, casting="same_kind").T


def _moments(block: Any, features: list[str], targets: list[str], weight: str | None) -> Any:
    """The moments of a block, or what is wrong with it."""
    kinds = pa.schema([("moments", pa.large_binary()), ("error", pa.string())])
    if not block.num_rows:
        return kinds.empty_table()
    try:
        moments = Moments(len(features), len(targets))
        y = np.ascontiguousarray(_matrix(block, targets), dtype=np.float64)
        weights = None if weight is None else _numbers(block, weight).astype(np.float64)
        if weights is not None and (weights < 0).any():
            raise ValueError(f"column {weight!r} holds {weights.min()}: a weight is at least 0")
        moments.add(_matrix(block, features), y, weights)
        return pa.table([[moments.to_bytes()], [None]], schema=kinds)
    except ValueError as error:
        return pa.table([[b""], [str(error)]], schema=kinds)


def _merge(*tables: Any) -> Any:
    """The moments of all rows, or what was wrong with some."""
    table = pa.concat_tables(tables)
    errors = [error for error in table["error"].to_pylist() if error is not None]
    if errors:
        raise ValueError(errors[0])
    merged: Moments | None = None
    for found in table["moments"]:
        moments = Moments.from_bytes(found.as_py())
        if merged is None:
            merged = moments
        else:
            merged.merge(moments)
    return table.slice(0, 0) if merged is None else pa.table([[merged.to_bytes()], [None]], schema=table.schema)


def _reduced(refs: Iterator[Any], merge: Callable[..., Any]) -> Any:
    """A tree over refs as they come: never more than a few of each level wait."""
    levels: list[list[Any]] = []
    for ref in refs:
        at = 0
        while True:
            if at == len(levels):
                levels.append([])
            levels[at].append(ref)
            if len(levels[at]) < _FAN:
                break
            ref, levels[at] = merge(*levels[at]), []
            at += 1
    left = [ref for level in levels for ref in level]
    return merge(*left) if left else None


def _blocks(dataset: Any) -> Iterator[Any]:
    for bundle in dataset.iter_internal_ref_bundles():
        yield from bundle.block_refs


def _grid(l2: Any, other: Any, name: str, of: Callable[[_Array], _Array]) -> _Array:
    """The strengths next to a mean loss, by either of their names."""
    if (l2 is None) == (other is None):
        raise ValueError(f"l2 or {name} is needed, and one of them alone")
    if l2 is not None:
        return np.array(strengths(_command.text(l2)))
    values = np.array(strengths(_command.text(other)))
    return of(values)


@dataclass(frozen=True)
class RidgePath:
    """The ridge models of every strength.

    Attributes
    ----------
    l2 : ndarray of shape (strengths,)
        Next to half a mean squared error.
    alphas : ndarray of shape (strengths,)
        The same in scikit-learn's unit, next to a sum: ``l2`` times the weight of all rows.
    coefs : ndarray of shape (strengths, features) or (strengths, targets, features)
        The weights.
    intercepts : ndarray of shape (strengths,) or (strengths, targets)
        The intercepts.
    features : list of str
        The columns.
    rows : float
        The weight of all rows: their number where they have none of their own.
    errors : ndarray of shape (strengths,)
        How far the weights can be from the exact ones, as a share of their length.
    moments : Moments
        All that was kept of the rows: ``moments.ridge([l2])`` has other strengths without another pass.
    """

    l2: _Array
    alphas: _Array
    coefs: _Array
    intercepts: _Array
    features: list[str]
    rows: float
    errors: _Array
    moments: Moments = field(repr=False)


def ridge_path(
    dataset: Any,
    *,
    target: str | Sequence[str],
    l2: Strengths | None = None,
    alphas: Strengths | None = None,
    features: Sequence[str] | None = None,
    sample_weight: str | None = None,
    fit_intercept: bool = True,
    standardize: bool = False,
) -> RidgePath:
    """Ridge regression of a Ray dataset at every strength, from one pass over its blocks.

    Each block becomes its moments around its own mean where it lies, moments are added up in a tree of tasks, and the driver
    solves for every strength. Tasks are pure: a block that is lost is read again, and counts once. The answer is that of one
    machine to rounding, whatever the blocks.

    Parameters
    ----------
    dataset : ray.data.Dataset
        Of columns of numbers, without missing values.
    target : str or list of str
        The column to predict, or several.
    l2 : float, list or range
        Strengths next to half a mean squared error: a number, a list, a range ``(1e-5, 1e-2, 16)`` in a tuple.
    alphas : float, list or range
        Strengths in scikit-learn's unit instead: ``l2`` times the weight of all rows.
    features : list of str, optional
        The columns to predict from; all others by default.
    sample_weight : str, optional
        A column that says how often each row counts.
    fit_intercept : bool
        Whether there is an intercept, which is not penalized.
    standardize : bool
        Whether features are divided by their spread before they are penalized.

    Returns
    -------
    RidgePath

    Raises
    ------
    ValueError
        A column is missing, or holds something that is not a finite number.

    Notes
    -----
    At most 10 000 features. Moments take ``4 d²`` bytes for d features (80 kB for 100, 400 MB for 10 000), once for each block that
    is waiting to be added up, and some ``20 d²`` bytes on the driver: blocks should have far more than d rows.
    """
    targets = [target] if isinstance(target, str) else list(target)
    if not targets:
        raise ValueError("no target is named")
    chosen = _schema(dataset, targets, features, sample_weight)
    _grid(l2, alphas, "alphas", lambda given: given)
    columns = [*chosen, *targets, *([] if sample_weight is None else [sample_weight])]
    found = dataset.select_columns(columns).map_batches(
        _moments,
        batch_format="pyarrow",
        batch_size=None,
        fn_kwargs={"features": chosen, "targets": targets, "weight": sample_weight},
        runtime_env=_with_threads(1),
    )
    merged = _reduced(_blocks(found), ray.remote(runtime_env=_with_threads(1))(_merge).remote)
    table = None if merged is None else _get(merged)
    if table is None or not table.num_rows:
        raise ValueError("the dataset has no rows")
    moments = Moments.from_bytes(table["moments"][0].as_py())
    rows = moments.rows
    grid = _grid(l2, alphas, "alphas", lambda given: given / rows)
    path = moments.ridge(grid.tolist(), intercept=fit_intercept, standardize=standardize)
    one = isinstance(target, str)
    return RidgePath(
        l2=path.l2,
        alphas=path.l2 * rows,
        coefs=path.weights[:, 0] if one else path.weights,
        intercepts=path.biases[:, 0] if one else path.biases,
        features=chosen,
        rows=rows,
        errors=path.errors,
        moments=moments,
    )


@dataclass(frozen=True)
class LogisticPath:
    """The logistic models of every strength.

    Attributes
    ----------
    l2 : ndarray of shape (strengths,)
        Next to a mean loss.
    Cs : ndarray of shape (strengths,)
        The same in scikit-learn's unit: ``1 / (l2 · rows)``.
    coefs : ndarray of shape (strengths, scores, features)
        One score for two classes, else one for each.
    intercepts : ndarray of shape (strengths, scores)
        The intercepts.
    classes : list
        In the order of the scores; of two, the score is that of the second.
    features : list of str
        The columns.
    rows : int
        How many there are.
    losses : ndarray of shape (strengths,)
        The mean loss of all rows, without the penalty.
    distances : ndarray of shape (strengths,)
        The weights are no farther than this from the minimizer's.
    excesses : ndarray of shape (strengths,)
        The penalized loss is at most this much above its minimum.
    passes : int
        Over the data.
    """

    l2: _Array
    Cs: _Array
    coefs: _Array
    intercepts: _Array
    classes: list[Any]
    features: list[str]
    rows: int
    losses: _Array
    distances: _Array
    excesses: _Array
    passes: int


def _levels(block: Any, target: str) -> dict[Any, int]:
    """How many rows of a block each class has."""
    column = block.column(target)
    if column.null_count:
        raise ValueError(f"column {target!r} has {column.null_count} missing values in a block: drop these rows first")
    counts = {entry["values"]: entry["counts"] for entry in column.value_counts().to_pylist()}
    if any(isinstance(level, float) and not math.isfinite(level) for level in counts):
        raise ValueError(f"column {target!r} holds a number that is not finite")
    if len(counts) > _MOST_CLASSES:
        raise ValueError(f"column {target!r} has more than {_MOST_CLASSES} different values: these are no classes")
    return counts


def _labeled(block: Any, features: list[str], target: str, classes: list[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]:
    """Features, and the place of each row's class."""
    places = {level: at for at, level in enumerate(classes)}
    labels = np.array([places[level] for level in block.column(target).to_pylist()], dtype=np.uint32)
    # (Every pass goes through rows.)
    return np.ascontiguousarray(_matrix(block, features)), labels


def _sample(block: Any, count: int, features: list[str], target: str, classes: list[Any]) -> Any:
    """Rows of a block, evenly spaced."""
    rows = np.unique(np.linspace(0, block.num_rows - 1, min(count, block.num_rows)).astype(np.int64))
    return _labeled(block.take(rows), features, target, classes)


class _Keeper:
    """Some blocks of a dataset, kept in memory. (A lost one is made anew from its blocks, which Ray has, or makes anew.)"""

    def __init__(self, blocks: list[Any], features: list[str], target: str, classes: list[Any], intercept: bool) -> None:
        self.rows = Rows(len(features), len(classes), intercept=intercept)
        self.wrong: ValueError | None = None
        try:
            for block in blocks:
                self.rows.add(*_labeled(ray.get(block), features, target, classes))
        except ValueError as error:  # (Raised here, it would be said to be the actor's death.)
            self.wrong = error

    def sums(self) -> _Array:
        if self.wrong is not None:
            raise self.wrong
        return self.rows.sums()

    def squares(self, means: _Array) -> float:
        return self.rows.squares(means)

    def evaluate(self, models: _Array) -> tuple[_Array, _Array]:
        return self.rows.evaluate(models)


def logistic_path(
    dataset: Any,
    *,
    target: str,
    l2: Strengths | None = None,
    Cs: Strengths | None = None,
    features: Sequence[str] | None = None,
    fit_intercept: bool = True,
    tolerance: float | None = None,
    num_workers: int | None = None,
    num_cpus: float = 1,
) -> LogisticPath:
    """Logistic regression of a Ray dataset at every strength: two classes or more, exact and certified.

    Workers keep the rows; a pass evaluates loss and gradient of every strength that is still open in one product, in float64
    whatever the data, and the driver runs an L-BFGS for each. They start from the minimizers of a sample. Each ends by its
    certificate: the gradient over all rows bounds how far the model can be from the minimizer, however it was found.

    Parameters
    ----------
    dataset : ray.data.Dataset
        Of columns of numbers, without missing values.
    target : str
        The column of classes: numbers, texts or booleans.
    l2 : float, list or range
        Strengths next to a mean loss: a number, a list, a range ``(1e-5, 1e-2, 16)`` in a tuple.
    Cs : float, list or range
        Strengths in scikit-learn's unit instead: ``1 / (l2 · rows)``.
    features : list of str, optional
        The columns to predict from; all others by default.
    fit_intercept : bool
        Whether there are intercepts, which are not penalized.
    tolerance : float, optional
        The excess of the penalized loss that each strength may be left with, as a share of what the features gain there: 1e-8 by
        default.
    num_workers : int, optional
        Processes that keep rows. By default as many as the cluster has CPUs for.
    num_cpus : float
        Threads of a worker. Workers reserve no CPUs, and are spread over the machines that have some.

    Returns
    -------
    LogisticPath

    Raises
    ------
    ValueError
        A column is missing, holds something that is not a finite number, or the target has one class.

    Notes
    -----
    At most 10 000 features. The columns used must fit in the memory of the workers together (4 bytes a number where all features
    are float32, else 8), and in Ray's object store with what it spills to disk, from where a worker that dies is made again. The
    driver keeps a sample of at most 256 MB, a few dozen models for each strength, and up to 2500 features ``8 d²`` bytes for each.
    A strength at which classes are told apart all but perfectly may stop at 500 passes with a certificate that says so.
    """
    _start(num_cpus)
    workers = _workers(num_workers, num_cpus)
    chosen = _schema(dataset, [target], features, None)
    _grid(l2, Cs, "Cs", lambda given: given)
    kept = dataset.select_columns([*chosen, target]).materialize()
    blocks = kept.to_arrow_refs()
    of_blocks = _get([ray.remote(_levels).remote(block, target) for block in blocks])
    counts: dict[Any, int] = {}
    for levels in of_blocks:
        for level, count in levels.items():
            counts[level] = counts.get(level, 0) + count
    if not 2 <= len(counts) <= _MOST_CLASSES:
        raise ValueError(f"column {target!r} has {len(counts)} different values: from 2 to {_MOST_CLASSES} classes are possible")
    classes, rows = sorted(counts), sum(counts.values())
    grid = _grid(l2, Cs, "Cs", lambda given: 1 / (given * rows))
    sizes = [sum(levels.values()) for levels in of_blocks]
    blocks, sizes = [block for block, size in zip(blocks, sizes, strict=True) if size], [size for size in sizes if size]
    # (Blocks may be more than rows of the sample: some then give none.)
    ends = np.cumsum(sizes) * (min(_SAMPLE_ROWS, _SAMPLE_NUMBERS // len(chosen), rows) / rows)
    counts_of = np.diff(np.floor(ends + 1e-9).astype(np.int64), prepend=0).tolist()
    sample = ray.remote(_sample).remote
    parts = _get([sample(b, n, chosen, target, classes) for b, n in zip(blocks, counts_of, strict=True) if n])
    x, labels = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    # (They reserve nothing, not even a fraction: those that no machine has room for, or whose machine died, would be waited for
    # without end, and where each machine has one CPU, blocks that were lost could not be made again.)
    lives: dict[str, Any] = {"max_restarts": _RESTARTS, "max_task_retries": _RESTARTS, "runtime_env": _with_threads(num_cpus)}
    keeper = ray.remote(num_cpus=0, **_on_machines_with_cpus(), **lives)(_Keeper)
    shares = [[blocks[at] for at in share] for share in _shares(sizes, workers)]
    keepers: list[Any] = [keeper.remote(own, chosen, target, classes, fit_intercept) for own in shares]

    def everyone(method: str, *given: Any) -> list[Any]:
        found: list[Any] = _get([getattr(keeper, method).remote(*given) for keeper in keepers])
        return found

    try:
        means = sum(everyone("sums")) / rows
        squares = sum(everyone("squares", means))
        path, certificates, passes = logistic_apart(
            x,
            labels,
            [float(counts[level]) for level in classes],
            grid.tolist(),
            means=means.tolist(),
            squares=squares,
            evaluate=lambda models: everyone("evaluate", ray.put(models)),
            intercept=fit_intercept,
            tolerance=tolerance,
        )
    finally:
        for one in keepers:
            ray.kill(one)
    return LogisticPath(
        l2=path.l2,
        Cs=1 / (path.l2 * rows),
        coefs=path.weights,
        intercepts=path.biases,
        classes=classes,
        features=chosen,
        rows=rows,
        losses=certificates[:, 0],
        distances=certificates[:, 2],
        excesses=certificates[:, 3],
        passes=passes,
    )
