"""Makes the folder that a machine without a network needs: the new text, pictures, and this package.

    python studies/pack.py [--out target/carry] [--texts] [--wheel target/wheels/afterfit-….whl]

python.txt.xz  400 kB of Python's standard library, whole modules in an order that depends on their names alone
cifar.npz      10 000 training and 2000 test pictures of CIFAR-10, fetched by `afterfit data get cifar-10`; not with --texts
site/          the wheel, unpacked: PYTHONPATH=target/carry/site
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np

BYTES, TRAIN, TEST = 400_000, 10_000, 2_000


def python_text(bytes: int = BYTES) -> bytes:
    """Whole modules, of a size that leaves room for many."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    modules = [file for file in folder.glob("*.py") if 4_000 < file.stat().st_size < 60_000]
    modules.sort(key=lambda file: hashlib.sha256(file.name.encode()).hexdigest())
    text = b""
    for file in modules:
        text += file.read_bytes()
        if len(text) >= bytes:
            return text[:bytes]
    raise SystemExit(f"{folder} has only {len(text)} bytes of modules, and {bytes} are wanted")


def pictures() -> dict[str, np.ndarray]:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get("AFTERFIT_DATA") or Path(cache) / "afterfit") / "cifar-10"
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "afterfit", "data", "get", "cifar-10"], check=True)
    found = {}
    for name, file, count in (("train", "data_batch_1.bin", TRAIN), ("test", "test_batch.bin", TEST)):
        rows = np.fromfile(folder / file, np.uint8).reshape(-1, 3073)[:count]
        found[f"{name}_labels"], found[f"{name}_images"] = rows[:, 0], rows[:, 1:].reshape(-1, 3, 32, 32)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "target" / "carry")
    parser.add_argument("--texts", action="store_true", help="leave the pictures out")
    parser.add_argument("--wheel", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "python.txt.xz").write_bytes(lzma.compress(python_text(), preset=9))
    if not arguments.texts:
        np.savez_compressed(arguments.out / "cifar.npz", **pictures())
    if arguments.wheel:
        shutil.rmtree(arguments.out / "site", ignore_errors=True)
        with zipfile.ZipFile(arguments.wheel) as wheel:
            wheel.extractall(arguments.out / "site")
    for file in sorted(arguments.out.rglob("*")):
        if file.is_file():
            print(f"{file.stat().st_size:10d}  {file.relative_to(arguments.out)}")


if __name__ == "__main__":
    main()
