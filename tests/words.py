"""One spelling and one glossary in what people read: documents, sources, messages.

python tests/words.py           # lists every line with a British spelling or a word of the list below
python tests/words.py --fix     # rewrites the spellings; the words are for a person to replace
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent

# British → American, as stems: `centred_rows` and `Centre` are found as well.
SPELLINGS = {
    "centred": "centered", "centring": "centering", "centre": "center", "colour": "color", "neighbour": "neighbor",
    "favour": "favor", "behaviour": "behavior", "honour": "honor", "licence": "license", "judgement": "judgment",
    "towards": "toward", "artefact": "artifact", "catalogue": "catalog", "greyscale": "grayscale", "grey": "gray",
    "labelled": "labeled", "labelling": "labeling", "modelled": "modeled", "modelling": "modeling", "cancelled": "canceled",
    "cancelling": "canceling", "analyse": "analyze", "normalise": "normalize",
    "regularise": "regularize", "normalisation": "normalization", "regularisation": "regularization", "optimise": "optimize",
    "optimisation": "optimization", "minimise": "minimize", "maximise": "maximize", "initialise": "initialize",
    "standardise": "standardize", "penalise": "penalize", "recognise": "recognize", "generalise": "generalize",
    "learnt": "learned", "whilst": "while", "memorise": "memorize", "summarise": "summarize", "quantise": "quantize",
    "serialise": "serialize",
    "parallelise": "parallelize", "organise": "organize", "visualise": "visualize",
}  # fmt: skip

# What readers stumble over → what the reader's verb is.
WORDS = {
    r"\bwants\b": "requires, needs",
    r"\b(?:says?|said|saying) (?:it )?aloud\b": "reports, is reported",
    r"\b[Gg]o(?:es)? on (?:where|from|with|at)\b": "resumes, continues",
    r"\bwith the way on\b": "with a hint",
    r"\b[Ww]ho judges\b": "whoever evaluates",
}

# Made elsewhere, or of other people's text.
SKIPPED = re.compile(
    r"(^|/)(page\.js|Cargo\.lock|package-lock\.json|LICENSE[^/]*|words\.py)$|^fuzz/corpus/|^studies/results/|^paper/nets/"
    r"|\.(svg|png|webp|gz|xz|ttf|pt|ckpt|tar|safetensors|distcp|metadata|csv|json|jsonl|f64)$"
)


def files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if not SKIPPED.search(name) and (ROOT / name).is_file()]


def american(text: str) -> str:
    for british, spelling in SPELLINGS.items():
        text = re.sub(british, spelling, text)
        text = re.sub(british.capitalize(), spelling.capitalize(), text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fix", action="store_true")
    fix = parser.parse_args().fix
    found, read = [], 0
    for path in files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        read += 1
        if fix and american(text) != text:
            path.write_text(american(text))
            text = american(text)
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{path.relative_to(ROOT)}:{number}"
            if american(line) != line:
                found.append(f"{where}: British spelling: {line.strip()[:120]}")
            found += [f"{where}: “{match[0]}”: {instead}" for word, instead in WORDS.items() for match in re.finditer(word, line)]
    if found or read < 300:
        raise SystemExit("\n".join([*found, f"{len(found)} places in {read} files"]))
    print(f"words: {read} files, one spelling and one glossary")


if __name__ == "__main__":
    main()
