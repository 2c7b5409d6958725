"""Pictures and tables of the stored results: studies/pictures/, docs/forgetting.svg, studies/RESULTS.md, lines of two documents:
docs/fine-tuning.md and README.md.

python studies/draw.py            # writes them
python studies/draw.py --check    # says whether they are what it would write
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from findings import METHODS, Decay, Entry, anneal, candidates, curves, decay, kinds, load, mean, of, runs, seeds
from matplotlib.axes import Axes
from report import SETTING, guide_lines, marked, readme_lines, results

HERE = Path(__file__).parent
ROOT = HERE.parent
# Okabe and Ito's colors, which color-blind readers tell apart; lines of the same color differ in their dashes.
RED, BLUE, GREEN, ORANGE, PINK, SKY, GRAY, BLACK = (
    "#d55e00", "#0072b2", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#8c8c8c", "#000000",
)  # fmt: skip
LOOKS: dict[str, tuple[str, str]] = {
    "dial": (RED, "-"), "stopping": (BLUE, "-"), "wise": (GRAY, "-"), "wise-stopped": (BLACK, "--"), "scaled": (SKY, "-."),
    "ema": (PINK, "-"), "l2sp": (GREEN, "s"), "l2sp-stopped": (GREEN, "--"), "replay": (ORANGE, "^"),
    "replay-stopped": (ORANGE, "--"),
}  # fmt: skip
SETTINGS = {
    "svg.hashsalt": "afterfit", "svg.fonttype": "path", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#ececec", "axes.axisbelow": True, "legend.frameon": False, "figure.facecolor": "white",
    "savefig.facecolor": "white",
}  # fmt: skip
FAR = {"gpt": 0.75, "resnet": 4.5}  # how far the axis of forgetting goes


def svg(figure: plt.Figure) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def forgetting(entries: list[Entry], axes: Axes, **which: str) -> None:
    """For each method the best new loss at a limit on forgetting: the mean of the seeds, and from the lowest to the highest. A
    curve begins where every seed has something to choose but the pretrained model."""
    far = FAR[which["model"]]
    limits = [at * far / 150 for at in range(151)]
    lowest, highest = [], []
    for name, rows in curves(entries, limits, **which).items():
        color, style = LOOKS[name]
        several = runs(entries, name, **which)
        label = METHODS[name] + (f" ({several} runs)" if several > 1 else "")
        if style in "s^":
            own = [one for seed in seeds(entries) for one in candidates(entries, seed, **which).get(name, [])]
            shown = [(one.forgot_reported, one.new_reported) for one in own if 0 < one.forgot_reported < far]
            at, values = [one[0] for one in shown], [one[1] for one in shown]
            axes.plot(at, values, style, color=color, markersize=3.5, alpha=0.8, label=label)
            continue
        if not rows:
            continue
        at, middle = [limit for limit, _ in rows], [mean(values) for _, values in rows]
        front = {"linewidth": 2.6, "zorder": 4} if name == "dial" else {"linewidth": 1.4, "zorder": 3}
        axes.plot(at, middle, style, color=color, label=label, **front)
        low, high = [min(values) for _, values in rows], [max(values) for _, values in rows]
        axes.fill_between(at, low, high, color=color, alpha=0.16, linewidth=0)
        lowest.append(middle[-1])
        highest += [value for limit, value in zip(at, middle, strict=True) if limit > far / 15]
    low, high = min(lowest), max(highest)
    axes.set(xlim=(0, far), ylim=(low - 0.06 * (high - low), high + 0.05 * (high - low)))
    axes.set(xlabel="how much the loss on the old task may rise", ylabel="best loss on the new task")


def headline(entries: list[Entry]) -> str:
    figure, axes = plt.subplots(figsize=(7.6, 4.6))
    forgetting(entries, axes, model="gpt", optimizer="adam", weights="full")
    axes.set_title("Fine-tune once, choose afterwards how much to forget", fontsize=11, loc="left")
    axes.legend(fontsize=8, loc="upper right", title="lower and further left is better; bands: three seeds", title_fontsize=8)
    return svg(figure)


def all_forgetting(model: str) -> Callable[[list[Entry]], str]:
    def draw(entries: list[Entry]) -> str:
        found = kinds(entries, model)
        columns = 2 if len(found) > 1 else 1
        rows = -(-len(found) // columns)
        figure, grid = plt.subplots(rows, columns, figsize=(4.8 * columns, 3.7 * rows), squeeze=False)
        labels = {}
        for axes, (optimizer, weights) in zip(grid.flat, found, strict=False):
            forgetting(entries, axes, model=model, optimizer=optimizer, weights=weights)
            axes.set_title(SETTING[model, optimizer, weights], fontsize=10, loc="left")
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                labels.setdefault(label.split(" (")[0], handle)
        for axes in list(grid.flat)[len(found) :]:
            axes.set_axis_off()
        figure.tight_layout()
        figure.legend(labels.values(), labels.keys(), ncols=2, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, 0.0))
        return svg(figure)

    return draw


def decays(model: str) -> Callable[[list[Entry]], str]:
    def draw(entries: list[Entry]) -> str:
        figure, axes = plt.subplots(figsize=(7.6, 4.2))
        found = decay(entries, model)
        for at, one in enumerate(found.values()):
            for rows, style, text, looks in (
                (one.dial, "-", "the dial of one Adam run", {"color": RED, "linewidth": 2}),
                (one.adamw, "o-", "AdamW, retrained with that decay", {"color": GREEN, "linewidth": 0.8, "markersize": 4}),
                (one.to_start, "s:", "retrained, decay toward the start", {"color": BLACK, "linewidth": 0.8, "markersize": 4}),
            ):
                if rows:
                    label = text + f" ({len(found)} seeds)" if at == 0 else None
                    axes.plot([row[0] for row in rows], [row[2] for row in rows], style, label=label, alpha=0.85, **looks)
            chosen = Decay.chosen(one.dial)
            label = "what its held-out half chooses" if at == 0 else None
            axes.plot([chosen[0]], [chosen[2]], "*", color=RED, markeredgecolor="white", markersize=13, zorder=5, label=label)
        for name, text, style in (
            ("end", "that run at its end", "-"),
            ("stopped", "that run stopped early", "--"),
            ("window", "its best mean of 8 snapshots", ":"),
        ):
            value = mean(getattr(one, name) for one in found.values())
            axes.axhline(value, color=BLUE, linestyle=style, linewidth=1.4, label=text)
        ylabel = "validation loss" if model == "gpt" else "share of wrong answers"
        axes.set(xscale="log", xlabel="λ, AdamW's weight_decay", ylabel=ylabel)
        axes.legend(fontsize=8, loc="upper left")
        return svg(figure)

    return draw


def anneals(model: str) -> Callable[[list[Entry]], str]:
    def draw(entries: list[Entry]) -> str:
        regimes = [one for one in ("improves", "overfits") if of(entries, study="anneal", model=model, regime=one)]
        figure, grid = plt.subplots(1, len(regimes), figsize=(5.4 * len(regimes), 3.8), squeeze=False, sharey=True)
        looks = {"WSM": (RED, "o"), "exact": (PINK, "D"), "really": (GREEN, "s")}
        for axes, regime in zip(grid[0], regimes, strict=True):
            table = anneal(entries, model, regime, "0.2")
            for row, (name, values) in enumerate(reversed(table.items())):
                color, mark = looks.get(name.replace(",", "").split()[0], (BLUE, "^"))
                axes.plot(values, [row] * len(values), mark, color=color, markersize=4.5, alpha=0.6, markeredgewidth=0)
                axes.plot([mean(values)], [row], "|", color=color, markersize=15, markeredgewidth=2.2)
            axes.set_yticks(range(len(table)), list(reversed(table)))
            axes.set_title(f"a run that {'still improves' if regime == 'improves' else regime}", fontsize=10, loc="left")
            axes.set_xlabel("validation loss" if model == "gpt" else "share of wrong answers")
        figure.tight_layout()
        return svg(figure)

    return draw


# Which results a picture needs: study and model.
PICTURES: dict[str, tuple[str, str, Callable[[list[Entry]], str]]] = {
    "docs/forgetting.svg": ("finetune", "gpt", headline),
    "studies/pictures/forgetting-gpt.svg": ("finetune", "gpt", all_forgetting("gpt")),
    "studies/pictures/forgetting-resnet.svg": ("finetune", "resnet", all_forgetting("resnet")),
    "studies/pictures/decay-gpt.svg": ("decay", "gpt", decays("gpt")),
    "studies/pictures/decay-resnet.svg": ("decay", "resnet", decays("resnet")),
    "studies/pictures/anneal-gpt.svg": ("anneal", "gpt", anneals("gpt")),
    "studies/pictures/anneal-resnet.svg": ("anneal", "resnet", anneals("resnet")),
}


def made(entries: list[Entry]) -> dict[str, str]:
    """Every file made from results alone, with its content."""
    files = {}
    with matplotlib.rc_context(SETTINGS):
        for name, (study, model, draw) in PICTURES.items():
            needed = of(entries, study=study, model=model)
            if any(one["piece"].get("method", "dial") == "dial" for one in needed):
                files[name] = draw(entries)
    return {**files, "studies/RESULTS.md": results(entries)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--to", type=Path, help="another folder, for a look at unfinished results (no documents there)")
    arguments = parser.parse_args()
    entries = load(arguments.results)
    if not entries:
        raise SystemExit(f"there are no results in {arguments.results}")
    files = made(entries)
    if arguments.to:
        arguments.to.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (arguments.to / Path(name).name).write_text(content)
        return
    for name, lines in (("docs/fine-tuning.md", guide_lines), ("README.md", readme_lines)):
        files[name] = marked(lines(entries), (ROOT / name).read_text(), name)
    stale = [name for name, content in files.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != content]
    if arguments.check and stale:
        raise SystemExit(f"not what python studies/draw.py makes of studies/results: {', '.join(stale)}")
    for name in stale:
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(files[name])
    print("written: " + ", ".join(stale) if stale else "everything is as it is")


if __name__ == "__main__":
    main()
