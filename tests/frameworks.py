"""Real frameworks as judges of `afterfit average`: they train, they save, they load the average back.

    .venv-torch/bin/python tests/frameworks.py target/release/afterfit [NAME…] [--table docs/frameworks.md] [--keep FOLDER]

The weights are compared with those of a record of every step's rate that a hook took while the framework trained, never
with anything read from the files. A NAME is a part of a case's name or a whole module's (`torch_loops`); `--table` writes
what was seen; `--keep` leaves the runs in a folder, for a look. Needs no network. Prints `N passed, N failed`.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

# Before any framework is imported: no network, no progress bars, no advice.
os.environ |= {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false", "KERAS_BACKEND": "torch", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "WANDB_DISABLED": "true",
    "DIFFUSERS_VERBOSITY": "error", "ACCELERATE_USE_CPU": "1", "DISABLE_TELEMETRY": "1",
}  # fmt: skip
warnings.filterwarnings("ignore")

from frameworks import trial

MODULES = ["torch_loops", "torch_layouts", "torch_counters", "torch_between", "hf_trainer", "hf_family", "lightning_runs", "timm_runs", "foreign"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("afterfit", type=Path)
    parser.add_argument("names", nargs="*", help="parts of the names of cases, or modules")
    parser.add_argument("--table", type=Path, help="write a table of the cases here")
    parser.add_argument("--keep", type=Path, help="leave the runs in this folder")
    parser.add_argument("--brief", action="store_true", help="one line for a failure")
    args = parser.parse_intermixed_args()
    import torch

    torch.set_num_threads(1)
    cases = select(args.names)
    failed, rows = 0, []
    for one in cases:
        with tempfile.TemporaryDirectory() as temporary:
            folder = args.keep / one.name if args.keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            torch.manual_seed(1)
            start, this = time.monotonic(), trial.Trial(one, folder, args.afterfit.resolve())
            error = None
            try:
                one.function(this)
            except Exception as caught:  # noqa: BLE001 (whatever fails is counted, as in runner.py)
                error = caught
            rows.append(this.row(error is not None))
            print(f"{'FAIL' if error else 'ok  '}  {one.name}  ({time.monotonic() - start:.1f} s)", flush=True)
            if error:
                failed += 1
                if args.brief:
                    print(f"      {type(error).__name__}: {str(error)[:700]}", flush=True)
                else:
                    traceback.print_exception(error)
    if args.table:
        write_table(args.table, rows)
    print(f"{len(cases) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


def select(names: list[str]) -> list[trial.Case]:
    """All cases; or those of the modules, and those with the parts of names, that are given. Imports what it needs."""
    modules = [name for name in names if name in MODULES]
    for module in modules if modules and len(modules) == len(names) else MODULES:
        importlib.import_module(f"frameworks.{module}")
    parts = [name for name in names if name not in MODULES]
    return [one for one in trial.CASES if not names or one.module in modules or any(part in one.name for part in parts)]


def write_table(path: Path, rows: list[str]) -> None:
    head = [
        "# Checkpoints of real frameworks",
        "",
        "Made by `tests/frameworks.py` (`make test-heavy`), which trains with each framework, lets it save, and runs",
        "`afterfit average RUN -o OUT --l2 …` with no other flag. *Weights right*: within 0.01 (total variation, at three",
        "strengths) of those that follow from the rate of every step that the framework took. Where the last column names a way,",
        "the average was written, loaded back that way, and compared with the mean computed in numpy; the other cases are of",
        "refusals, and of weights and words alone.",
        "",
        "| case | made by | on disk | without a flag | loads back with |",
        "|---|---|---|---|---|",
    ]
    path.write_text("\n".join([*head, *rows, ""]))


if __name__ == "__main__":
    main()
