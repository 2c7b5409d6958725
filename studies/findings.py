"""What stored results say: the numbers that pictures, tables and claims are made of. Chosen by one half of what was held out,
reported on the other."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Entry = dict[str, Any]

BUDGETS = [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6]  # how much higher the old loss may get
METHODS = {
    "dial": "the dial of one run",
    "stopping": "that run stopped early",
    "wise": "WiSE-FT: the line to its end",
    "wise-stopped": "WiSE-FT: the line to its best iterate",
    "scaled": "its adapter scaled",
    "ema": "EMAs of it, at every 20th step",
    "l2sp": "L2-SP, retrained, at their ends",
    "l2sp-stopped": "L2-SP, retrained, each stopped early",
    "replay": "replayed old data, at their ends",
    "replay-stopped": "replayed old data, each stopped early",
}


def load(folder: Path = HERE / "results") -> list[Entry]:
    """Every piece once, the latest."""
    found: dict[str, Entry] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            found[json.dumps(entry["piece"], sort_keys=True)] = entry
    return list(found.values())


def of(entries: Iterable[Entry], **wanted: Any) -> list[Entry]:
    return [entry for entry in entries if all(entry["piece"].get(name) == value for name, value in wanted.items())]


def seeds(entries: Iterable[Entry]) -> list[int]:
    return sorted({entry["piece"]["seed"] for entry in entries})


@dataclass(frozen=True)
class Point:
    """A model somebody could choose: how much it forgot, and its loss on the new, each on both halves."""

    forgot: float
    new: float
    forgot_reported: float
    new_reported: float


def points(rows: list[list[Any]]) -> list[Point]:
    """Of rows that end with [old, new], and begin with the start or are judged beside it."""
    return [Point(row[-2][0], row[-1][0], row[-2][1], row[-1][1]) for row in rows]


def candidates(entries: list[Entry], seed: int, model: str, optimizer: str, weights: str) -> dict[str, list[Point]]:
    """For each method all models it offers, of one seed; forgetting counted from the pretrained model each run began with."""
    mine = of(entries, study="finetune", seed=seed, model=model, optimizer=optimizer, weights=weights)
    found: dict[str, list[Point]] = {name: [] for name in METHODS}
    for entry in mine:
        result, method = entry["result"], entry["piece"]["method"]
        start = points(result["stopping"][:1])[0]

        def add(name: str, rows: list[list[Any]], start: Point = start) -> None:
            found[name] += [
                Point(one.forgot - start.forgot, one.new, one.forgot_reported - start.forgot_reported, one.new_reported)
                for one in [start, *points(rows)]  # the pretrained model can always be chosen
            ]

        if method == "dial":
            for name in ("dial", "stopping", "wise", "wise-stopped", "scaled", "ema"):
                add(name, result.get(name, []))
            add("ema", result["ema-stopping"])
            if "scaled" not in result:
                found["scaled"] = []
        else:
            add(method, result["stopping"][-1:])
            add(f"{method}-stopped", result["stopping"])
    return {name: some for name, some in found.items() if some}


def best(offered: list[Point], budget: float) -> Point:
    """The best on the new among those that forgot no more."""
    return min((one for one in offered if one.forgot <= budget), key=lambda one: one.new)


def frontier(entries: list[Entry], budget: float, **which: str) -> dict[str, list[float]]:
    """For each method the reported new loss at a budget, a number a seed."""
    table: dict[str, list[float]] = {}
    for seed in seeds(of(entries, study="finetune", method="dial", **which)):
        for name, offered in candidates(entries, seed, **which).items():
            table.setdefault(name, []).append(best(offered, budget).new_reported)
    return table


def curves(entries: list[Entry], limits: list[float], **which: str) -> dict[str, list[tuple[float, list[float]]]]:
    """For each method `frontier`'s numbers at those limits where every seed has something but the pretrained model to choose."""
    own = seeds(of(entries, study="finetune", method="dial", **which))
    offered = [candidates(entries, seed, **which) for seed in own]
    table: dict[str, list[tuple[float, list[float]]]] = {}
    for name in METHODS:
        if all(name in one for one in offered):
            rows = [(limit, [best(one[name], limit) for one in offered]) for limit in limits]
            began = [one[name][0] for one in offered]  # (the pretrained model is the first that a method offers)
            table[name] = [
                (limit, [one.new_reported for one in chosen])
                for limit, chosen in rows
                if all(one.new < first.new for one, first in zip(chosen, began, strict=True))
            ]
    return table


def kinds(entries: list[Entry], model: str) -> list[tuple[str, str]]:
    """Optimizers and weights of which a run with a dial is there."""
    own = of(entries, study="finetune", model=model, method="dial")
    there = {(one["piece"]["optimizer"], one["piece"]["weights"]) for one in own}
    return [key for key in (("adam", "full"), ("sgd", "full"), ("adam", "lora"), ("sgd", "lora")) if key in there]


def runs(entries: list[Entry], method: str, **which: str) -> int:
    """Training runs that a method took, for one seed."""
    own = of(entries, study="finetune", method=method.removesuffix("-stopped"), **which)
    return len(own) // max(1, len(seeds(own))) if method.startswith(("l2sp", "replay")) else 1


def mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


@dataclass(frozen=True)
class Decay:
    """Study 2 of one seed: rows of (strength, value to choose by, value reported)."""

    dial: list[tuple[float, float, float]]
    unspent: list[float]
    adamw: list[tuple[float, float, float]]
    to_start: list[tuple[float, float, float]]
    end: float
    stopped: float
    window: float

    @staticmethod
    def chosen(rows: list[tuple[float, float, float]]) -> tuple[float, float, float]:
        return min(rows, key=lambda row: row[1])


def decay(entries: list[Entry], model: str) -> dict[int, Decay]:
    """Of every seed whose run with the dial is there. Pictures are judged by their share of wrong answers, texts by their loss."""
    at = 0 if model == "gpt" else 2
    found = {}
    for entry in of(entries, study="decay", model=model, method="dial"):
        seed, result = entry["piece"]["seed"], entry["result"]

        def pick(rows: list[list[Any]], name: int = -1) -> list[tuple[float, float, float]]:
            return [(row[0], row[name][at], row[name][at + 1]) for row in rows]

        def retrained(method: str, seed: int = seed) -> list[tuple[float, float, float]]:
            own = of(entries, study="decay", model=model, method=method, seed=seed)
            rows = [(one["piece"]["decay"], *one["result"]["stopping"][-1][-1][at : at + 2]) for one in own]
            return sorted(rows)

        found[seed] = Decay(
            pick(result["dial"]), [row[1] for row in result["dial"]], retrained("adamw"), retrained("to-start"),
            pick(result["stopping"])[-1][2], Decay.chosen(pick(result["stopping"]))[2], Decay.chosen(pick(result["windows"]))[2],
        )  # fmt: skip
    return found


def anneal(entries: list[Entry], model: str, regime: str, window: str) -> dict[str, list[float]]:
    """Study 3: for each way the reported value, a number a seed."""
    at = 1 if model == "gpt" else 3
    table: dict[str, list[float]] = {}
    for entry in of(entries, study="anneal", model=model, regime=regime):
        result = entry["result"]
        row = result["windows"].get(window)
        if row is None:
            continue
        path = {step: judged for step, judged in result["path"]}
        table.setdefault("where the window begins", []).append(path[row["start"]][at])
        table.setdefault("the end at the constant rate", []).append(result["path"][-1][1][at])
        for shape, judged in row["decayed"].items():
            table.setdefault(f"really decayed, {shape}", []).append(judged[at])
        names = {"anneal": "WSM", "schedule": "exact weights"}
        for name, judged in row["averaged"].items():
            kind, _, shape = name.partition(" ")
            if kind in names:
                table.setdefault(f"{names[kind]}, {shape}", []).append(judged[at])
        emas = [judged for name, judged in row["averaged"].items() if name.startswith("ema")]
        table.setdefault("the best of four EMAs", []).append(min(emas, key=lambda judged: judged[at - 1])[at])
    return table
