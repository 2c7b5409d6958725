"""A case: a run made by its framework, what the command does with it, and the row of the table that says so."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from .record import Record, doubles

# Half the sum of the differences of two lists of weights: what the issue allows.
FAR = 0.01


@dataclass
class Case:
    function: Callable[[Trial], None]
    package: str
    by: str

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def module(self) -> str:
        return self.function.__module__.rpartition(".")[2]


CASES: list[Case] = []


def case(package: str, by: str = "") -> Callable:
    """Registers a function as a case made by an installed package; or by hand, and after what."""

    def register(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        CASES.append(Case(function, package, by))
        return function

    return register


@dataclass
class Trial:
    """A folder, the command, and what was seen so far."""

    case: Case
    folder: Path
    afterfit: Path
    disk: str = ""
    did: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    # -------------------------------------------------------------- the command

    def run(self, *arguments: object, limit: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(self.afterfit), *map(str, arguments)]
        if limit:
            command = ["bash", "-c", f'{limit} && exec "$@"', "-", *command]
        done = subprocess.run(command, check=False, cwd=self.folder, capture_output=True, text=True, timeout=60)
        assert done.returncode in (0, 1, 2) and "panicked" not in done.stderr, done.stderr
        return done

    def average(self, run: str, *arguments: object, limit: str = "") -> dict | str:
        """The command's JSON, or its message."""
        done = self.run("average", run, "--json", *arguments, limit=limit)
        return done.stderr if done.returncode else json.loads(done.stdout)

    # -------------------------------------------------------------- weights

    def weights(
        self, run: str, record: Record, *flags: object, otherwise: tuple[object, ...] = (), limit: str = ""
    ) -> tuple[object, ...]:
        """No flags but --l2: weights of the run's own rates, or (where there is a way on) a refusal that names it, and
        the right weights by that way. Returns the flags that were needed."""
        self.disk = self.disk or contents(self.folder / run)
        strengths = record.strengths()
        ask = ("-o", "never", "--dry-run", "--l2", ",".join(f"{l2:.17g}" for l2 in strengths))
        found = self.average(run, *ask, *flags, limit=limit)
        used = flags
        if isinstance(found, str):
            assert otherwise, f"refused: {found}"
            assert str(otherwise[0]) in found, f"does not name {otherwise[0]}: {found}"
            self.did.append(f"refused: “{first_line(found)}”")
            used = (*flags, *otherwise)
            found = self.average(run, *ask, *used, limit=limit)
            assert not isinstance(found, str), f"refused even with {used}: {found}"
        worst, where = farthest(found, record, strengths)
        assert worst <= FAR, f"weights are off by {worst:.3f} at λ = {where:.3g} ({summary(found, record, strengths)})"
        self.did.append("weights right" + (f" with `{spelled(used)}`" if used else ""))
        return used

    def written(self, run: str, out: str, record: Record, *flags: object) -> dict[str, np.ndarray]:
        """Writes the middle λ's average and returns what it should be, by the weights that the command printed (which
        must be right): what is loaded back is compared with it."""
        l2 = record.strengths()[1]
        found = self.average(run, "-o", out, "--l2", f"{l2:.17g}", *flags)
        assert not isinstance(found, str), f"refused: {found}"
        said = grouped(found["weights"][0])
        off = distance(said, record.weights(l2))
        assert off <= FAR, f"weights are off by {off:.3f} at λ = {l2:.3g} ({summary(found, record, [l2])})"
        return record.average(said)

    def loaded(self, by: str, state: dict, expected: dict[str, np.ndarray], tolerance: float = 2e-6) -> None:
        """What a framework loaded is the average, every tensor of it."""
        missing = set(expected) - set(state)
        assert not missing, f"{by} has no {sorted(missing)[:4]}; it has {sorted(state)[:4]}"
        for name, value in expected.items():
            error = np.abs(doubles(state[name]) - value).max(initial=0)
            assert error <= tolerance * max(1, np.abs(value).max(initial=0)), f"{by}: {name} is off by {error:.1e}"
        self.loads.append(by)

    def refused(self, run: str, *words: str | tuple[str, ...], flags: tuple[object, ...] = ("--l2", "1"), out: str = "never") -> str:
        """Fails, says why in these words (of a tuple, any), and leaves nothing."""
        self.disk = self.disk or contents(self.folder / run)
        found = self.average(run, "-o", out, *flags)
        assert isinstance(found, str), f"not refused: {str(found)[:600]}"
        choices = [(word,) if isinstance(word, str) else word for word in words]
        absent = [words for words in choices if not any(word.lower() in found.lower() for word in words)]
        assert not absent, f"says nothing of {absent}: {found}"
        assert not (self.folder / out).exists()
        self.did.append(f"refused: “{first_line(found)}”")
        return found

    def notes(self, run: str, record: Record, *words: str, flags: tuple[object, ...] = ()) -> None:
        """Says these words in its notes, or in its reasons."""
        found = self.average(run, "-o", "never", "--dry-run", "--l2", record.strengths()[1], *flags)
        assert not isinstance(found, str), f"refused: {found}"
        text = " ".join([*found["notes"], *(row["reason"] for row in found["outputs"])]).lower()
        absent = [word for word in words if word.lower() not in text]
        assert not absent, f"the notes say nothing of {absent}: {text}"

    def rates(self, record: Record) -> str:
        """Every step's rate in a file for --rates: what a user would take from a log."""
        rates = record.paths()[record.reference()][0].raw
        (self.folder / "lr.csv").write_text("step,lr\n" + "".join(f"{step},{rate:.17g}\n" for step, rate in enumerate(rates)))
        return "lr.csv"

    # -------------------------------------------------------------- the table

    def row(self, failed: bool) -> str:
        name = self.case.name.replace("_", " ")
        package = self.case.by or f"{self.case.package} {version(self.case.package)}"
        did = "**wrong**" if failed else "; ".join(dict.fromkeys(self.did))
        return f"| {name} | {package} | {self.disk} | {did} | {'; '.join(dict.fromkeys(self.loads))} |"


def distance(found: list[list[float]], expected: list[np.ndarray]) -> float:
    """Total variation, of the worst group. One list stands for as many equal ones."""
    count = max(len(found), len(expected))
    found, expected = (lists * count if len(lists) == 1 else lists for lists in (found, expected))
    if len(found) != len(expected) or any(len(a) != len(b) for a, b in zip(found, expected)):
        return np.inf
    return max(float(np.abs(np.array(a) - b).sum() / 2) for a, b in zip(found, expected))


def farthest(found: dict, record: Record, strengths: list[float]) -> tuple[float, float]:
    """The largest distance, and the strength that has it."""
    pairs = zip(strengths, found["weights"], strict=True)
    return max((distance(grouped(lists), record.weights(l2)), l2) for l2, lists in pairs)


def grouped(lists: list) -> list[list[float]]:
    return lists if lists and isinstance(lists[0], list) else [lists]


def summary(found: dict, record: Record, strengths: list[float]) -> str:
    """For whoever reads a failure: what was taken for what."""
    names = [f"{Path(row['path']).name}={row['step']}" for row in found["inputs"]]
    steps = [mark for _, marks in record.paths()[:1] for mark in marks]
    said, true = np.array(grouped(found["weights"][-1])[0]), record.weights(strengths[-1])[0]
    shown = " … ".join(", ".join(names[part]) for part in (slice(2), slice(-1, None)))
    return f"{len(names)} files: {shown}; really steps {steps}; first weight {said[0]:.3f}, really {true[0]:.3f}; notes: {found['notes']}"


def spelled(flags: tuple[object, ...]) -> str:
    return " ".join(map(str, flags))


def first_line(message: str) -> str:
    line = next((line for line in message.splitlines() if line.startswith("error")), message.splitlines()[0])
    return re.sub(r"/\S*/tmp\w+/", "", line.removeprefix("error: ")).replace("|", "\\|")


def contents(run: Path) -> str:
    """What lies in a folder, numbers and all, in one line: names that differ in their numbers only are shown by the first."""
    if run.is_file():
        return f"`{run.name}`"
    kinds: dict[str, list[Path]] = {}
    for path in sorted(run.iterdir(), key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]):
        kinds.setdefault(re.sub(r"\d+", "#", path.name), []).append(path)
    shown = []
    for paths in list(kinds.values())[:6]:
        first = paths[0]
        text = f"`{first.name}{'/' if first.is_dir() else ''}`" + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        if first.is_dir():
            inside = sorted(path.name + ("/" if path.is_dir() else "") for path in first.iterdir())
            text += f" ({', '.join(f'`{name}`' for name in inside[:9])}{', …' if len(inside) > 9 else ''})"
        shown.append(text)
    return "; ".join(shown) + ("; …" if len(kinds) > 6 else "")
