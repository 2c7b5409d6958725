"""RESULTS.md, the guide's lines and README's sentence: stored results in words and tables. No number here is typed by hand but
those of FIRST."""

from __future__ import annotations

import math
import re
import textwrap

import plan
from claims import CLAIMS
from findings import BUDGETS, METHODS, Decay, Entry, anneal, curves, decay, frontier, kinds, mean, of, points, runs, seeds

SETTING = {("gpt", "adam", "full"): "Adam, all weights", ("gpt", "sgd", "full"): "SGD with momentum, all weights"}
SETTING |= {("gpt", "adam", "lora"): "Adam, LoRA (own adapter)", ("gpt", "sgd", "lora"): "SGD with momentum, LoRA (own adapter)"}
SETTING |= {("resnet", "adam", "full"): "ResNet-18, Adam", ("resnet", "sgd", "full"): "ResNet-18, SGD with momentum"}
FULL = {"model": "gpt", "optimizer": "adam", "weights": "full"}
ANY = 1e9
# The project's first numbers, of another program (Adam, all weights, three seeds): new loss where the old one rose by at most …
FIRST_LIMITS = [0.114, 0.164, 0.214, 0.264, 0.314, 0.414]
FIRST = {
    "dial": [2.37, 2.02, 1.76, 1.68, 1.68, 1.65],
    "stopping": [3.05, 3.05, 2.63, 1.81, 1.68, 1.61],
    "wise": [3.63, 3.30, 3.03, 2.82, 2.64, 2.50],
    "l2sp": [None, None, 2.13, 2.13, 2.13, 1.81],
    "l2sp-stopped": [2.24, 1.89, 1.75, 1.71, 1.65, 1.61],
}


def spread(values: list[float]) -> str:
    half = (max(values) - min(values)) / 2
    return f"{mean(values):.3f} ± {half:.3f}" if len(values) > 1 else f"{mean(values):.3f}"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def rule(columns: int) -> str:
    return "|" + "---|" * columns


def listed(texts: list[str]) -> str:
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 128, break_long_words=False, break_on_hyphens=False)


def forgetting_table(entries: list[Entry], budgets: list[float], short: bool = False, **which: str) -> list[str]:
    """A dash where some seed has nothing but the pretrained model."""
    limits = [*budgets, ANY]
    lines = [row("old loss may rise by", "runs", *[f"{budget:g}" for budget in budgets], "any"), rule(len(limits) + 2)]
    for name, rows in curves(entries, limits, **which).items():
        there = dict(rows)
        bold = "**" if name == "dial" else ""
        cells = [
            "–" if limit not in there else bold + (f"{mean(there[limit]):.2f}" if short else spread(there[limit])) + bold
            for limit in limits
        ]
        lines.append(row(f"{bold}{METHODS[name]}{bold}", str(runs(entries, name, **which)), *cells))
    return lines


def ahead(entries: list[Entry], **which: str) -> list[str]:
    """Where the dial loses: for each peer the limits at which its mean is lower."""
    limits = [*BUDGETS, ANY]
    tables = [frontier(entries, limit, **which) for limit in limits]
    lines = []
    for name, text in METHODS.items():
        if name != "dial" and name in tables[0]:
            at = [limit for limit, table in zip(limits, tables, strict=True) if mean(table[name]) < mean(table["dial"])]
            shown = ", ".join("any" if limit == ANY else f"{limit:g}" for limit in at)
            lines.append(f"- {text}: {'at every limit' if at == limits else f'at {shown}' if at else 'nowhere'}")
    return lines


def claims_table(entries: list[Entry], study: str) -> list[str]:
    lines = [row("claimed beforehand", "found: ours / theirs", "met"), rule(3)]
    for claim in CLAIMS[study]:
        verdict = claim.check(entries)
        found = ("not run", "–") if verdict is None else (verdict[0], "yes" if verdict[1] else "**no**")
        lines.append(row(claim.text, *found))
    return lines


def verdicts(entries: list[Entry]) -> str:
    """How many of all claims came true."""
    found = [claim.check(entries) for claims in CLAIMS.values() for claim in claims]
    judged = [verdict[1] for verdict in found if verdict is not None]
    return f"{len(found)} claims: {sum(judged)} met, {len(judged) - sum(judged)} not met, {len(found) - len(judged)} not judged"


def settings(entries: list[Entry]) -> str:
    """What the pieces were made with and by."""
    kind = "{machine}, torch {torch}, afterfit {afterfit}"
    made = sorted({kind.format(**one["versions"]) for one in entries})
    seconds = sum(one["seconds"] for one in entries)
    numbers = ", ".join(map(str, seeds(entries)))
    return f"{len(entries)} runs, seeds {numbers}; {'; '.join(made)}; {seconds:.0f} s of processes that shared the machine."


def ends(entries: list[Entry], **which: str) -> tuple[list[list[float]], list[list[float]]]:
    """Old and new losses before and after the tuning, a number a seed."""
    own = of(entries, study="finetune", method="dial", **which)
    found = [[points([one["result"]["stopping"][at]])[0] for one in own] for at in (0, -1)]
    before, after = ([[one.forgot_reported for one in some], [one.new_reported for one in some]] for some in found)
    return before, after


def first_look(entries: list[Entry], **which: str) -> tuple[int, list[float]]:
    """The first step at which stopping was looked at, and how much was forgotten by then."""
    own = of(entries, study="finetune", method="dial", **which)
    paths = [one["result"]["stopping"] for one in own]
    return paths[0][1][0], [path[1][1][1] - path[0][1][1] for path in paths]


def strongest(entries: list[Entry], **which: str) -> tuple[float, list[float]]:
    """The largest λ of the dial's range, and how much is forgotten there."""
    results = [one["result"] for one in of(entries, study="finetune", method="dial", **which)]
    return results[0]["dial"][-1][0], [one["dial"][-1][-2][1] - one["stopping"][0][1][1] for one in results]


def beside_first(entries: list[Entry]) -> list[str]:
    text = """Another program, three seeds, had a better pretrained model (0.886 on the old text) and six L2-SP strengths at
    one rate. Its number / found here, at the same rise of the old loss (Adam, all weights):"""
    lines = ["### Beside the project's first numbers", "", paragraph(text), ""]
    lines += [row("old loss may rise by", *[f"{limit:g}" for limit in FIRST_LIMITS]), rule(len(FIRST_LIMITS) + 1)]
    found = curves(entries, FIRST_LIMITS, **FULL)
    for name, numbers in FIRST.items():
        there = dict(found.get(name, []))
        cells = [
            f"{'–' if number is None else f'{number:.2f}'} / {f'{mean(there[limit]):.2f}' if limit in there else '–'}"
            for limit, number in zip(FIRST_LIMITS, numbers, strict=True)
        ]
        lines.append(row(METHODS[name], *cells))
    text = """What the first numbers said of the dial beside the line to the end and beside L2-SP runs at their ends is
    found again, and it is again about where those runs are if each is also stopped early; losses on the new text are mostly
    higher here. But two peers that need no other run either, EMAs and the line to the best iterate, were not among the
    first numbers: that nothing cheap comes near the dial is not so."""
    return [*lines, "", paragraph(text), ""]


def finetune_part(entries: list[Entry], model: str, network: str) -> list[str]:
    lines = [f"## Fine-tune once, choose afterwards how much to forget: {network}", ""]
    lines += [settings(of(entries, study="finetune", model=model)), ""]
    lines += [f"![new loss against old loss](pictures/forgetting-{model}.svg)", ""]
    for optimizer, weights in kinds(entries, model):
        which = {"model": model, "optimizer": optimizer, "weights": weights}
        before, after = ends(entries, **which)
        step, forgot = first_look(entries, **which)
        high, left = strongest(entries, **which)
        text = f"""Before: {spread(before[0])} old, {spread(before[1])} new. After: {spread(after[0])} old,
        {spread(after[1])} new. At step {step}, the first at which stopping was looked at, the old loss had risen by
        {spread(forgot)} (steps before it were not looked at); at the dial's largest λ, {high:g}, by {spread(left)} (a
        larger one was not planned). New loss; a dash where some seed has nothing but the pretrained model:"""
        lines += [f"### {SETTING[model, optimizer, weights]}", "", paragraph(text), ""]
        lines += [*forgetting_table(entries, BUDGETS, **which), ""]
        lines += ["Where the dial loses (its mean is above):", "", *ahead(entries, **which), ""]
    if model == "gpt" and runs(entries, "l2sp", **FULL):
        lines += beside_first(entries)
    text = "(Where stopping has a dash above, its number in a claim is the pretrained model's.)"
    return [*lines, *claims_table(entries, f"finetune/{model}"), "", paragraph(text), ""]


def decay_part(entries: list[Entry], model: str, network: str) -> list[str]:
    found = decay(entries, model)
    lines = [f"## AdamW's decay, chosen after training: {network}", "", settings(of(entries, study="decay", model=model)), ""]
    lines += [f"![over λ](pictures/decay-{model}.svg)", ""]
    heads = ["seed", "the run at its end", "dial's best (λ, unspent)", "AdamW's best (decay, of how many)"]
    heads += ["decay toward the start, best (of how many)", "stopped early", "best mean of 8 snapshots"]
    lines += [row(*heads), rule(len(heads))]
    for seed, one in found.items():
        ours = Decay.chosen(one.dial)
        unspent = one.unspent[one.dial.index(ours)]
        retrained = []
        for rows in (one.adamw, one.to_start):
            best = Decay.chosen(rows) if rows else None
            retrained.append("–" if best is None else f"{best[2]:.3f} ({best[0]:g}, {len(rows)})")
        cells = [f"{one.end:.3f}", f"**{ours[2]:.3f}** ({ours[0]:.2g}, {100 * unspent:.0f} %)", *retrained]
        lines.append(row(str(seed), *cells, f"{one.stopped:.3f}", f"{one.window:.3f}"))
    dial = mean(Decay.chosen(one.dial)[2] for one in found.values())
    end, stopped, window = (mean(getattr(one, name) for one in found.values()) for name in ("end", "stopped", "window"))
    better = [text for value, text in ((stopped, "stopping early"), (window, "the best mean of 8 snapshots")) if value < dial]
    told = f"Means: the end {end:.3f}, the dial's best {dial:.3f}, stopped {stopped:.3f}, 8 snapshots {window:.3f}."
    lines += ["", told + (f" Ahead of the dial: {listed(better)}." if better else ""), ""]
    own = of(entries, study="decay", model=model, method="dial")
    if model == "gpt":
        size, paths = own[0]["settings"], [one["result"]["stopping"] for one in own]
        quarter = len(paths[0]) // 4
        step = paths[0][quarter][0]
        share = 1 - math.exp(-size["rate"] * step)
        text = f"""The project's first numbers (1 MB, 4000 steps, one seed) had the dial's optimum where AdamW's was, λ = 1,
        and 1.03 below the end of the run. Here ({size["old_bytes"] // 1000} kB, {size["steps"]} steps) the optimum is at a
        smaller λ and the gain {end - dial:.2f}. These runs learn late: the loss at step {step} is still
        {mean(path[quarter][1][1] for path in paths):.2f}, and λ = 1 gives {100 * share:.0f} % of the weight to the steps
        before it."""
    else:
        text = """No retrained decay fitted into the time on the GPU. The checks of both claims, as written, ask for eight,
        so neither is judged; the first one's numbers are the means above. (The dial's readings and the means of snapshots
        have batch-norm statistics measured anew, the end and the stopped run have their own: part of the difference is
        that.)"""
    if model == "resnet" and all(one.adamw for one in found.values()):
        text = "The dial's readings and the means of snapshots have batch-norm statistics measured anew, the others their own."
    lines.append(paragraph(text))
    return [*lines, "", *claims_table(entries, f"decay/{model}"), ""]


def anneal_part(entries: list[Entry], model: str, network: str) -> list[str]:
    own = of(entries, study="anneal", model=model)
    lines = [f"## The rate's decay, chosen after training: {network}", "", settings(own), ""]
    lines += [f"![values](pictures/anneal-{model}.svg)", "", "(The picture has the last 20 %.)", ""]
    regimes = [one for one in ("improves", "overfits") if of(own, regime=one)]
    windows = sorted({window for one in own for window in one["result"]["windows"]})
    columns = [(regime, window) for regime in regimes for window in windows]
    tables = [anneal(entries, model, regime, window) for regime, window in columns]
    lines += [row("", *[f"{regime}, last {100 * float(window):.0f} %" for regime, window in columns]), rule(len(columns) + 1)]
    for name in next(table for table in tables if table):
        lines.append(row(name, *[spread(table[name]) if name in table else "–" for table in tables]))
    return [*lines, "", *claims_table(entries, f"anneal/{model}"), ""]


def missing(entries: list[Entry]) -> list[str]:
    """What the plan has and the results have not, for each study how many of what."""
    there = [one["piece"] for one in entries]
    lines = []
    for study in ("finetune", "finetune/resnet", "decay", "decay/resnet", "anneal", "anneal/resnet"):
        wanted = plan.pieces(study, "full", [0, 1, 2])
        left: dict[str, int] = {}
        for piece in wanted:
            if piece not in there:
                keys = ("method", "regime", "optimizer", "weights", "rate")
                name = ", ".join(f"{key} {piece[key]:g}" if key == "rate" else piece[key] for key in keys if key in piece)
                left[name] = left.get(name, 0) + 1
        if left:
            lines.append(f"- `{study}`: " + "; ".join(f"{count} of {name}" for name, count in left.items()))
    return lines


def results(entries: list[Entry]) -> str:
    text = f"""Written by `python studies/draw.py` from `studies/results/`. Losses are nats a byte (a picture); what is
    chosen is chosen on one half of the held-out windows (pictures) and reported on the other; ± is half of the range of the
    seeds. Claims were written into `studies/claims.py` before the runs on the GPU; nothing else has a verdict. One claim,
    that the dial is below every EMA of its run, was dropped after tiny runs on a CPU, before those on the GPU.
    {verdicts(entries)}."""
    lines = ["# What the studies found", "", paragraph(text), ""]
    gpt = ("gpt", "a GPT of 10.8 M weights")
    for model, network in (gpt, ("resnet", "ResNet-18")):
        lines += finetune_part(entries, model, network) if kinds(entries, model) else []
    for model, network in (gpt, ("resnet", "ResNet-18 with 40 % noisy labels (share of wrong answers)")):
        lines += decay_part(entries, model, network) if decay(entries, model) else []
    for model, network in (gpt, ("resnet", "ResNet-18 (share of wrong answers)")):
        lines += anneal_part(entries, model, network) if of(entries, study="anneal", model=model) else []
    return "\n".join([*lines, "## Planned and not run", "", *missing(entries), ""])


def guide_lines(entries: list[Entry]) -> list[str]:
    """What docs/fine-tuning.md says of the first study: numbers, and who is ahead."""
    limit, tight, wide = 0.2, 0.1, 0.6
    at, narrow, free = (
        {name: mean(values) for name, values in frontier(entries, to, **FULL).items()} for to in (limit, tight, ANY)
    )
    dials = frontier(entries, limit, **FULL)["dial"]
    apart = (max(dials) - min(dials)) / 2
    before, after = ends(entries, **FULL)
    several = runs(entries, "l2sp", **FULL)
    names = {
        "ema": "EMAs of the same run, stopped", "wise-stopped": "the line to its best iterate", "wise": "WiSE-FT's line to its end",
        "l2sp": f"{several} retrained L2-SP runs", "l2sp-stopped": f"{several} retrained L2-SP runs, each also stopped",
        "replay-stopped": "replaying old data",
    }  # fmt: skip

    def told(table: dict[str, float], better: bool) -> str:
        found = [f"{text} ({table[name]:.2f})" for name, text in names.items() if (table[name] < table["dial"]) == better]
        return listed(found) if found else "nobody"

    pictures = {"model": "resnet", "optimizer": "adam", "weights": "full"}
    other = {name: mean(values) for name, values in frontier(entries, wide, **pictures).items()}
    first = f"""A GPT of 10.8 M weights, pretrained on scripture, is tuned on 160 kB of Python: its loss there goes from
    {mean(before[1]):.2f} to {mean(after[1]):.2f}, and on scripture from {mean(before[0]):.2f} to {mean(after[0]):.2f}. The
    dial of **that one run** says afterwards what less forgetting would have cost. Where the old loss may rise by {limit:g},
    it has a new loss of {at["dial"]:.2f} (± {apart:.2f} over the seeds); behind it are {told(at, False)}."""
    second = f"""**Cheap peers are ahead of it**, though: {told(at, True)}. Where the old loss may rise by {tight:g} only,
    the dial has {narrow["dial"]:.2f}, and ahead are {told(narrow, True)}. Where forgetting does not matter, it has
    {free["dial"]:.2f} and early stopping {free["stopping"]:.2f}. On ResNet-18 and inverted colors even the plain line is
    ahead ({other["wise"]:.2f} against {other["dial"]:.2f}, rise {wide:g}). So: whoever evaluates both tasks during training, or
    keeps snapshots to evaluate, finds better models; whoever has the old data should replay them. The dial is for a run that nobody
    watched."""
    last = f"""New loss, means of {len(seeds(entries))} seeds; a dash: nothing yet but the pretrained model. SGD, LoRA,
    ResNet-18, AdamW's decay and the rate's decay chosen afterwards, and what was claimed beforehand ({verdicts(entries)}):
    [studies/RESULTS.md](../studies/RESULTS.md)."""
    table = forgetting_table(entries, [0.05, 0.1, 0.15, 0.2, 0.3, 0.4], short=True, **FULL)
    return [paragraph(first), "", paragraph(second), "", *table, "", paragraph(last)]


def readme_lines(entries: list[Entry]) -> list[str]:
    """README's sentence about the first study: the dial, what it replaces, and who is ahead of it."""
    limit = 0.2
    at = {name: mean(values) for name, values in frontier(entries, limit, **FULL).items()}
    several = runs(entries, "l2sp-stopped", **FULL)
    text = f"""Fine-tuning, where the old loss may rise by {limit:g}: the dial of one run reaches a new loss of {at["dial"]:.2f},
    {several} retrained runs {at["l2sp-stopped"]:.2f}, a stopped EMA {at["ema"]:.2f}, replayed data {at["replay-stopped"]:.2f}."""
    return [paragraph(text)]


def marked(lines: list[str], text: str, name: str) -> str:
    """A document with its lines, between marks, replaced by those of the results."""
    found, marks = re.subn(
        r"(<!-- studies/draw.py -->\n).*?(<!-- end -->)",
        lambda match: "\n".join([match[1].rstrip(), *lines, match[2]]),
        text,
        flags=re.DOTALL,
    )
    if marks != 1:
        raise SystemExit(f"{name} has {marks} places between <!-- studies/draw.py --> and <!-- end -->, not 1")
    return found
