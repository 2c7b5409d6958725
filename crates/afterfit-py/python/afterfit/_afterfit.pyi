import os
from collections.abc import Callable, Sequence
from pathlib import Path as File
from typing import Any, final

import numpy as np
import numpy.typing as npt

__version__: str

class CheckpointError(ValueError): ...

def main(arguments: Sequence[str | os.PathLike[str]]) -> int: ...

# The command in this process.

def call(
    arguments: Sequence[str | os.PathLike[str]],
    *,
    evaluate: Callable[[File], float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> str: ...

# Fits of arrays.

_Array = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]
_Kernel = tuple[str, float, float, int]

@final
class Path:
    def __new__(
        cls,
        l2: Sequence[float] | _Array,
        weights: _Array,
        biases: _Array,
        errors: Sequence[float] | _Array,
        nodes: tuple[float, float, _Array, _Array, float] | None,
    ) -> Path: ...
    @property
    def l2(self) -> _Array: ...
    @property
    def weights(self) -> _Array: ...
    @property
    def biases(self) -> _Array: ...
    @property
    def errors(self) -> _Array: ...
    @property
    def continuous(self) -> bool: ...
    def at(self, l2: float) -> tuple[_Array, _Array, float]: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@final
class Learned:
    @property
    def path(self) -> Path: ...
    @property
    def losses(self) -> _Array: ...
    @property
    def folds(self) -> list[tuple[_Array, _Array]]: ...
    @property
    def notes(self) -> list[str]: ...

def learn(
    x: Any,
    y: _Array,
    l2: Sequence[float],
    *,
    model: str,
    kernel: _Kernel | None = None,
    weights: _Array | None = None,
    class_weight: Sequence[float] | None = None,
    folds: Sequence[tuple[_Rows, _Rows]] = ...,
    intercept: bool = True,
    standardize: bool = False,
    sum_held: bool = False,
    keep_path: bool = False,
    keep_folds: bool = False,
    tolerance: float | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Learned: ...
def folds(
    rows: int,
    count: int,
    *,
    seed: int = 0,
    groups: Sequence[int] | None = None,
    strata: Sequence[int] | None = None,
) -> list[_Rows]: ...
def kernel_matrix(kernel: _Kernel, x: Any, z: Any) -> _Array: ...
def strengths(text: str) -> list[float]: ...

# A dial's scalars and its file (src/dial.rs).

@final
class Tracker:
    def __new__(
        cls,
        families: list[tuple[str, float, float, int]],
        optimizers: list[tuple[str, dict[str, float]]],
        rates: list[float],
        *,
        masses: str = "auto",
        every: int = 1,
        quadratic: bool = False,
        declared: list[list[float]] | None = None,
        declared_momenta: list[list[float] | None] | None = None,
    ) -> Tracker: ...
    def add_groups(
        self,
        optimizers: list[tuple[str, dict[str, float]]],
        *,
        quadratic: bool = False,
        declared: list[list[float]] | None = None,
        declared_momenta: list[list[float] | None] | None = None,
    ) -> None: ...
    def step(
        self,
        rates: list[float],
        momenta: list[float | None] | None = None,
        gains: list[float] | None = None,
        *,
        kept: bool = True,
    ) -> None: ...
    def skip(self) -> None: ...
    def take(self, rows: int) -> tuple[npt.NDArray[np.float64], list[npt.NDArray[np.float64]]]: ...
    def sum(self, sum: int) -> tuple[float, list[tuple[list[float], float]]]: ...
    def read(self, kind: str, value: Any, *, answer: str = "regularized", precision: str = "f64") -> Reading: ...
    def doubt(self, reason: str) -> None: ...
    def group_l2(self, l2: float) -> list[float]: ...
    def table(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...
    def after(self, steps: int) -> Tracker: ...
    def state(self) -> str: ...
    @staticmethod
    def restore(state: str) -> Tracker: ...
    def added_in(self, block: int) -> None: ...
    @property
    def waiting(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def sums(self) -> int: ...
    @property
    def sequences(self) -> int: ...
    @property
    def sequence_of(self) -> list[int]: ...
    @property
    def masses(self) -> str: ...
    @property
    def every(self) -> int: ...
    @property
    def families(self) -> list[tuple[str, float, float, int]]: ...
    @property
    def rates(self) -> list[list[float]]: ...

@final
class Reading:
    @property
    def remaining(self) -> float | None: ...
    @property
    def standing(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def certificate(self) -> float: ...
    def mix(self, sequence: int) -> tuple[list[float], list[float], float]: ...
    def error(self, reach: list[float]) -> float: ...

@final
class DialWriter:
    def __new__(
        cls,
        path: str,
        tracker: Tracker,
        *,
        precision: str,
        parts: list[tuple[str, list[int], str, int]],
        copied: list[tuple[str, str, list[int]]],
        tied: list[tuple[str, str]],
        remarks: list[str],
        replace: bool = True,
    ) -> DialWriter: ...
    def write(self, copy: str, part: int, bytes: npt.NDArray[np.uint8]) -> None: ...
    def write_copied(self, at: int, bytes: npt.NDArray[np.uint8]) -> None: ...
    def finish(self, reach: list[float]) -> int: ...

@final
class DialFile:
    def __new__(cls, path: str) -> DialFile: ...
    def tracker(self) -> Tracker: ...
    @property
    def precision(self) -> str: ...
    @property
    def reach(self) -> list[float]: ...
    @property
    def parts(self) -> list[tuple[str, list[int], str, int]]: ...
    def read(self, copy: str, part: int) -> npt.NDArray[np.float64]: ...

def plan_nodes(
    family: str,
    start: float,
    end: float,
    tolerance: float,
    *,
    optimizer: tuple[str, dict[str, float]],
    rate: float,
    steps: int = 0,
) -> int: ...
def choose(l2: list[float], losses: list[float], errors: list[float]) -> tuple[int, int]: ...
def mean_and_error(losses: list[float]) -> tuple[float, float]: ...

PAGE_MODULE: str
PAGE_STYLE: str

def page(path: Path, fields: str) -> str: ...
def page_of_dial(path: str | os.PathLike[str]) -> str: ...
