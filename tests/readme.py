"""README, the guides and every --help, run as they are printed.

python tests/readme.py target/release/afterfit    # console blocks, and the examples under every --help
python tests/readme.py --python                   # Python blocks that need numpy and scikit-learn
python tests/readme.py --torch                    # those that need PyTorch, Lightning, Transformers, JAX and Ray

Each document runs from its first block to its last in a folder of its own with a few small files. Lines printed below a command
must be in its output, in that order, but for times. A block that is not to be run is `text`, not `console`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import runner
from safetensors.numpy import save_file

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    "README.md",
    *(f"docs/{name}.md" for name in ("table", "checkpoints", "pytorch", "fine-tuning", "paper", "page", "faq")),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# What a document may show and nobody needs to run here, besides comments.
ELSEWHERE = ("cargo run --release -p paper", "cargo install", "pip install")
DEMO = "cargo run --release -- demo"
SECONDS = 300
BINARY = Path()


# What the documents' commands find in their folder.
def files(folder: Path) -> None:
    houses(folder / "houses.csv", 60, True)
    houses(folder / "new-houses.csv", 8, False)
    lines = [
        f"{(i * 29 % 40) / 10 + 1.5 * (i % 2):.2f},{(i * 17 % 30) / 10 - 1.2 * (i % 2):.2f},{['rose', 'tulip'][i % 2]}"
        for i in range(80)
    ]
    (folder / "flowers.csv").write_text("\n".join(["long,wide,kind", *lines, ""]))
    checkpoints(folder)
    (folder / "evaluate.py").write_text(
        "import pathlib, sys\nimport numpy as np\nfrom safetensors.numpy import load_file\n"
        "path = pathlib.Path(sys.argv[1])\npath = next(path.glob('*.safetensors')) if path.is_dir() else path\n"
        "print('loss', float(np.sum((load_file(path)['w'] - 0.7) ** 2)))\n"
    )


def houses(path: Path, count: int, priced: bool) -> None:
    lines = ["size,age,town,price" if priced else "size,age,town"]
    for i in range(count):
        size, age, town = 40 + i * 37 % 90, i * 13 % 50, i % 3
        price = f",{3 * size - 1.5 * age + (10, 40, 0)[town] + i * 7 % 11}" if priced else ""
        lines.append(f"{size},{age},{('Ulm', 'Jena', 'Bonn')[town]}{price}")
    path.write_text("\n".join([*lines, ""]))


def checkpoints(folder: Path) -> None:
    """Descent toward 1 from `pretrained.safetensors`, a checkpoint every ten steps; `tuning/` lacks the start."""
    (folder / "checkpoints").mkdir()
    rate, curvature, w = 0.1, np.array([1.0, 0.3, 0.1, 0.03]), np.zeros(4)
    save_file({"w": w}, folder / "pretrained.safetensors")
    for step in range(101):
        if step % 10 == 0:
            said = {"step": str(step), "rate": str(rate), "momentum": "0"}
            save_file({"w": w}, folder / f"checkpoints/step-{step}.safetensors", metadata=said)
        w = w - rate * curvature * (w - 1)
    shutil.copytree(folder / "checkpoints", folder / "tuning")
    (folder / "tuning/step-0.safetensors").unlink()


def steady(line: str) -> str:
    """Without times, which differ, and the width that they take."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)? s\b", "# s", re.sub(r"\d+× as long", "#× as long", line))).strip()


def blocks(text: str) -> list[tuple[str, list[str]]]:
    """Commands of a console block, each with the lines printed below it."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(BINARY.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def run(command: str, printed: list[str], folder: Path) -> None:
    command = command.split("      #")[0].rstrip()
    if command.startswith(ELSEWHERE):
        return
    if command.startswith("afterfit serve"):
        return serve(command, folder)
    assert command == DEMO or command.startswith("afterfit "), f"{command}: not run here; make the block `text`"
    typed = "afterfit demo" if command == DEMO else command
    done = subprocess.run(
        ["bash", "-c", typed], cwd=folder, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    lines = iter([steady(line) for line in done.stdout.splitlines()])
    for line in printed:
        assert steady(line) in lines, f"{command} does not print, or not in this place:\n{line}\n\nbut\n{done.stdout}"


def serve(command: str, folder: Path) -> None:
    """Starts it, reads its address, ends it as Ctrl-C does."""
    arguments = ["bash", "-c", f"exec {command} --json"]
    # (What runs in the background ignores Ctrl-C, and so would its children.)
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(arguments, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, preexec_fn=heard)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert "http://127.0.0.1:" in line, line
        assert process.wait(SECONDS) == 130
    finally:
        process.kill()
        process.communicate()


def documents(folder: Path) -> None:
    """Console blocks of README and the guides."""
    ran = 0
    for name in DOCUMENTS:
        own = folder / Path(name).stem
        own.mkdir()
        files(own)
        for language, block in FENCE.findall((ROOT / name).read_text()):
            if language == "console":
                for command, printed in blocks(block):
                    run(command, printed, own)
                    ran += 1
    assert ran >= 10, ran


def demo_is_shown_in_eight_lines(_: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    printed = [
        lines for _, block in FENCE.findall(readme) for command, lines in blocks(block if "$ " in block else "") if command == DEMO
    ]
    assert [len(lines) for lines in printed] == [8]


def commands(folder: Path, *above: str) -> list[list[str]]:
    """Every command with its subcommands, as --help lists them."""
    text = helped(folder, *above)
    names = re.findall(r"^  ([a-z-]+)  ", text.partition("Commands:\n")[2].partition("\n\n")[0], re.MULTILINE)
    found = [] if names else [list(above)]
    for name in names:
        if name != "help":
            found += commands(folder, *above, name)
    return found


def helped(folder: Path, *command: str) -> str:
    return subprocess.run([BINARY, *command, "--help"], cwd=folder, capture_output=True, text=True, check=True).stdout


def helps(folder: Path) -> None:
    """The examples under every command's --help; each command has one."""
    found = commands(folder)
    assert len(found) >= 15, found
    groups = sorted({tuple(command[:-1]) for command in found if len(command) > 1})
    assert len(groups) == 3, groups
    for command in [*found, *map(list, groups)]:
        text = helped(folder, *command)
        examples = re.findall(r"^  \$ (.+)$", text, re.MULTILINE)
        assert examples or "needs the network" in text, f"afterfit {' '.join(command)} --help has no example"
        assert not examples or any(line.startswith(f"afterfit {' '.join(command)}") for line in examples), examples
        own = folder / "-".join(command)
        own.mkdir()
        files(own)
        for line in examples:
            run(line, [], own)


def completions_and_manuals(folder: Path) -> None:
    """Shells take the completions; every command has a page, which is not replaced unasked."""
    scripts = {}
    for shell in ("bash", "zsh", "fish", "elvish", "powershell"):
        scripts[shell] = subprocess.run([BINARY, "completions", shell], capture_output=True, text=True, check=True).stdout
        assert "validation" in scripts[shell] and "--validation" in scripts["bash"], shell
    for shell in ("bash", "zsh", "fish"):
        if shutil.which(shell):
            (folder / shell).write_text(scripts[shell])
            subprocess.run([shell, "-n", folder / shell], check=True)
    manual = [BINARY, "man", folder / "man1"]
    subprocess.run(manual, check=True, capture_output=True)
    pages = {page.name for page in (folder / "man1").iterdir()}
    wanted = {"-".join(["afterfit", *command]) + ".1" for command in commands(folder)}
    assert wanted <= pages and "afterfit.1" in pages, wanted - pages
    assert r"\-\-validation" in (folder / "man1/afterfit-fit.1").read_text()
    again = subprocess.run(manual, capture_output=True, text=True, check=False)
    assert again.returncode == 1 and "--force" in again.stderr, again.stderr
    subprocess.run([*manual, "--force"], check=True, capture_output=True)


def python_blocks(folder: Path, torch: bool) -> None:
    ran = 0
    for name in DOCUMENTS:
        own = folder / Path(name).stem
        own.mkdir()
        files(own)
        os.chdir(own)
        names: dict[str, Any] = {}
        for language, block in FENCE.findall((ROOT / name).read_text()):
            needs_torch = bool(re.search(r"torch|lightning|Dial\(", block))
            if language != "python" or needs_torch != torch:
                continue
            names = {**names, **(with_torch() if torch else tables())}
            exec(compile(block, name, "exec"), names)
            ran += 1
    assert ran >= (4 if torch else 2), ran


def tables() -> dict[str, Any]:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return {"X": X, "y": y, "score": lambda path: float(np.sum(np.asarray(first(path)) ** 2))}


def first(path: Path) -> Any:
    from safetensors.numpy import load_file

    return load_file(path if path.is_file() else next(path.glob("*.safetensors")))["w"]


def with_torch() -> dict[str, Any]:
    """A small network, and what the blocks call: losses on two tasks, a training loop."""
    import lightning
    import optax
    import torch
    import transformers
    from torch import nn

    import afterfit.jax
    import afterfit.lightning
    import afterfit.torch
    import afterfit.transformers

    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = x @ torch.randn(4, 1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()

    def evaluate(model: nn.Module) -> float:
        with torch.no_grad():
            return float(nn.functional.mse_loss(model(x), y))

    return {
        "torch": torch, "lightning": lightning, "transformers": transformers, "optax": optax, "afterfit": afterfit,
        "Dial": afterfit.torch.Dial, "model": model, "optimizer": optimizer, "train": train, "tune": train, "evaluate": evaluate,
        "evaluate_old": evaluate, "evaluate_new": evaluate, "schedule": optax.cosine_decay_schedule(0.1, 20), "N": 20,
    }  # fmt: skip


def blocks_of_python(folder: Path) -> None:
    python_blocks(folder, torch=False)


def blocks_of_torch(folder: Path) -> None:
    python_blocks(folder, torch=True)


def blocks_of_ray(folder: Path) -> None:
    """Those of docs/ray.md, on a cluster of this machine; what is /shared there is a folder here."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DATA_DISABLE_PROGRESS_BARS="1")
    import pyarrow
    import pyarrow.parquet
    import ray

    shared = folder / "shared"
    (shared / "table").mkdir(parents=True)
    checkpoints(shared)
    (shared / "checkpoints").rename(shared / "run")
    draws = np.random.default_rng(0)
    table = {name: draws.normal(size=400) for name in ("size", "age")}
    table["price"] = 3 * table["size"] - table["age"] + draws.normal(size=400)
    table["kind"] = (table["age"] + draws.normal(size=400) > 0).astype(np.int64)
    pyarrow.parquet.write_table(pyarrow.table(table), shared / "table/rows.parquet")
    names: dict[str, Any] = {}
    os.chdir(folder)  # (That of the blocks before is gone.)
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        for language, block in FENCE.findall((ROOT / "docs/ray.md").read_text()):
            if language == "python":
                exec(compile(block.replace("/shared", str(shared)), "docs/ray.md", "exec"), names)
    finally:
        ray.shutdown()
    found, linear, classes = (names[name] for name in ("found", "linear", "classes"))
    assert len(found.outputs) == 16 and all(output.path.is_dir() for output in found.outputs)
    assert linear.coefs.shape == (50, 3) and classes.coefs.shape == (20, 1, 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path, nargs="?", default=ROOT / "target/release/afterfit")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--python", action="store_true")
    which.add_argument("--torch", action="store_true")
    arguments = parser.parse_args()
    BINARY = arguments.binary.resolve()
    if arguments.python or arguments.torch:
        runner.run([blocks_of_torch, blocks_of_ray] if arguments.torch else [blocks_of_python])
    else:
        runner.run([documents, demo_is_shown_in_eight_lines, helps, completions_and_manuals])
