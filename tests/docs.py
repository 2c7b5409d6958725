"""The documents hold together, without a network: links and anchors lead somewhere, tests named in the theory exist, Python blocks
parse, README is short, what it counts is what its sources count, its copy for packages is README with addresses, and the table of
frameworks has a row for every case.

python tests/docs.py
python tests/docs.py --write    # rewrites that copy, crates/afterfit/README.md
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_WORDS = 700
REPOSITORY = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["repository"]
COPY = ROOT / "crates/afterfit/README.md"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def documents() -> list[Path]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [ROOT / name for name in names if not (ROOT / name).is_symlink()]


def prose(text: str) -> str:
    """Without code blocks, comments, and the addresses of links."""
    text = re.sub(r"<!--.*?-->", "", FENCE.sub("", text), flags=re.DOTALL)
    return re.sub(r"<[a-z/][^>]*>", "", re.sub(r"\]\([^)]*\)", "]", text))


def words(text: str) -> int:
    """Words of a document's prose and tables: code, pictures and addresses do not count."""
    return sum(1 for word in prose(text).split() if re.search(r"\w", word))


def anchors(text: str) -> set[str]:
    """The anchors that GitHub and mkdocs both give a document's headings."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    plain = (re.sub(r"[`*]|\]\([^)]*\)", "", head).replace("[", "") for head in heads)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in plain}


def addressed(markdown: str) -> str:
    """README for readers who have no repository beside it (crates.io, rustdoc): its links lead to the repository's files."""

    def address(target: str, kind: str) -> str:
        if re.match(r"[a-z]+:|#", target):
            return target
        kind = "tree" if kind == "blob" and (ROOT / target.partition("#")[0]).is_dir() else kind
        return f"{REPOSITORY}/{kind}/main/{target}"

    text = re.sub(r"\]\(([^)\s]+)\)", lambda link: f"]({address(link[1], 'blob')})", markdown)
    return re.sub(r'\b(src|srcset)="([^"]+)"', lambda link: f'{link[1]}="{address(link[2], "raw")}"', text)


def stale_copy() -> list[str]:
    fresh = addressed((ROOT / "README.md").read_text())
    name = COPY.relative_to(ROOT)
    return [] if COPY.read_text() == fresh else [f"{name} is not README.md with addresses: python tests/docs.py --write"]


def broken_links() -> list[str]:
    found = []
    ours = re.compile(re.escape(REPOSITORY) + "/(?:blob|tree|raw)/main/(.+)")
    for document in documents():
        text = FENCE.sub("", document.read_text())
        text = re.sub(r"`[^`\n]*`", "", text)
        for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text):
            own = ours.match(target)
            if re.match(r"[a-z]+:", target) and not own:
                continue
            path, _, anchor = (own[1] if own else target).partition("#")
            file = (ROOT if own else document.parent) / path if path else document
            where = f"{document.relative_to(ROOT)}: {target}"
            if not file.exists():
                found.append(f"{where}: there is no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
                found.append(f"{where}: there is no such heading")
    return found


def unknown_tests() -> list[str]:
    """Names in backticks that look like tests', in sentences and lines that speak of tests."""
    known = set()
    for file in [*ROOT.glob("crates/*/tests/**/*.rs"), *ROOT.glob("tests/*.py")]:
        known |= set(re.findall(r"\b(?:fn|def) (\w+)", file.read_text()))
    theory = (ROOT / "docs/theory.md").read_text()
    named = {name for part in re.findall(r"(?:Tests?|test)\b[^∎]*?(?:\n\n|$)", theory) for name in re.findall(r"`(\w+_\w+)`", part)}
    parameters = {"weight_decay", "afterfit_core"}
    if len(named) < 30:
        raise SystemExit(f"docs/theory.md names only {len(named)} tests")
    return [f"docs/theory.md: there is no test {name}" for name in sorted(named - known - parameters)]


def unparsed() -> list[str]:
    found = []
    for document in documents():
        for language, block in FENCE.findall(document.read_text()):
            if language == "python":
                try:
                    ast.parse(textwrap.dedent(block))
                except SyntaxError as error:
                    found.append(f"{document.relative_to(ROOT)}: {error}: {block[:80]}")
    return found


def uncounted() -> list[str]:
    """README's bold numbers that are not in the file their row links to."""
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\|.*\*\*.*\]\(([^)]+)\) \|$", readme, re.MULTILINE)
    lines = [line for line in readme.splitlines() if line.startswith("|") and "**" in line]
    found = []
    if len(rows) != 3 or len(lines) != 3:
        raise SystemExit(f"README has {len(rows)} of 3 rows that say how good it is, with a link")
    for line, source in zip(lines, rows, strict=True):
        text = (ROOT / source).read_text()
        found += [f"README: {number} is not in {source}" for number in re.findall(r"\*\*([^*]+)\*\*", line) if number not in text]
    return found


def cases_without_a_row() -> list[str]:
    """The rows of docs/frameworks.md are the cases of tests/frameworks: functions with `@case`, and calls of `loop` and `every`."""
    cases = set()
    for file in ROOT.glob("tests/frameworks/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            marks = node.decorator_list if isinstance(node, ast.FunctionDef) else []
            if any(isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "case" for mark in marks):
                cases.add(node.name)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"loop", "every"}:
                cases.add(ast.literal_eval(node.args[0]))
    table = (ROOT / "docs/frameworks.md").read_text()
    rows = {row.replace(" ", "_") for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)} - {"case"}
    if len(cases) < 100:
        raise SystemExit(f"tests/frameworks has only {len(cases)} cases")
    wrong = [(cases - rows, "has no row (make table)"), (rows - cases, "is no case any more (make table)")]
    return [f"docs/frameworks.md: {name} {what}" for names, what in wrong for name in sorted(names)]


def table_of_the_paper() -> list[str]:
    """Our half of Table 1 in docs/paper.md is that of paper/EXPECTED.md, rounded."""
    expected, found = (ROOT / "paper/EXPECTED.md").read_text(), []
    rows = {
        "ResNet-18 (2 seeds)": "resnet-18 on cifar-10, 300 epochs:",
        "VGG-16 (2 seeds)": "vgg-16 on cifar-10, 300 epochs:",
        "ResNet-18, no weight decay": "resnet-18 on cifar-10, 300 epochs, no weight decay:",
    }
    guide = (ROOT / "docs/paper.md").read_text()
    for name, stored in rows.items():
        row = next((line for line in guide.splitlines() if line.startswith(f"| {name} |")), "||||")
        for shown, what in zip(row.split("|")[2:4], ("as trained", "averaged with ratio 0.99"), strict=True):
            value = re.search(rf"^\| {re.escape(stored)} {re.escape(what)}, % .*?\| ([\d.]+) \|", expected, re.MULTILINE)
            number = re.search(r"[\d.]+", shown)
            if value is None or number is None or abs(float(value[1]) - float(number[0])) > 0.0051:
                found.append(f"docs/paper.md: {name}, {what}: {shown.strip()} is not what paper/EXPECTED.md has")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        COPY.write_text(addressed((ROOT / "README.md").read_text()))
    count = words((ROOT / "README.md").read_text())
    long = [f"README has {count} words; at most {MOST_WORDS}"] if count > MOST_WORDS else []
    checks = [stale_copy, broken_links, unknown_tests, unparsed, uncounted, cases_without_a_row, table_of_the_paper]
    found = long + [problem for check in checks for problem in check()]
    if found:
        sys.exit("\n".join(found))
    print(f"docs: {len(documents())} documents, README {count} words")


if __name__ == "__main__":
    main()
