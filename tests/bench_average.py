"""Benchmarks of `afterfit average` beside PyTorch and the raw speed of the files, in turns in one run.

Run by `make bench` as `python tests/bench_average.py PATH_TO_AFTERFIT`; prints a part of BENCHMARKS.md. Needs torch and
7 GB of disk, and memory for the page cache (everything is read warm). Progress goes to stderr.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

AFTERFIT = Path(sys.argv[1]).resolve()
STRENGTHS = 16
torch.set_num_threads(2)


def say(text):
    print(text, file=sys.stderr, flush=True)


def resnet18():
    """Names and shapes of the CIFAR ResNet-18."""
    shapes = {"conv1.weight": (64, 3, 3, 3)}

    def norm(name, width):
        shapes.update({f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    before = 64
    for layer, width in enumerate((64, 128, 256, 512), 1):
        for block in range(2):
            name = f"layer{layer}.{block}"
            shapes[f"{name}.conv1.weight"] = (width, before, 3, 3)
            norm(f"{name}.bn1", width)
            shapes[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if block == 0 and layer > 1:
                shapes[f"{name}.shortcut.0.weight"] = (width, before, 1, 1)
                norm(f"{name}.shortcut.1", width)
            before = width
    shapes["linear.weight"], shapes["linear.bias"] = (10, 512), (10,)
    return shapes


def make(folder, count, dtype=torch.float32, ending="safetensors"):
    generator = torch.Generator().manual_seed(0)
    folder.mkdir()
    base = {name: torch.randn(shape, generator=generator) * 0.05 for name, shape in resnet18().items()}
    for step in range(count):
        state = {}
        for name, value in base.items():
            if name.endswith("tracked"):
                state[name] = torch.tensor(500 * step)
            else:
                value.add_(torch.randn(value.shape, generator=generator), alpha=0.002)
                state[name] = value.to(dtype, copy=True)
        if ending == "safetensors":
            save_file(state, folder / f"epoch-{step}.safetensors")
        else:
            torch.save({"epoch": step, "state_dict": state}, folder / f"checkpoint-{step}.pth")


def in_two_threads(work, items):
    threads = [threading.Thread(target=work, args=(items[i::2],)) for i in range(2)]
    start = time.perf_counter()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return time.perf_counter() - start


def read_files(folder, block):
    """A two-thread buffered read of every byte; the interpreter's lock is free while the kernel copies."""

    def work(paths):
        view = memoryview(bytearray(block))
        for path in paths:
            handle = os.open(path, os.O_RDONLY)
            while os.readv(handle, [view]):
                pass
            os.close(handle)

    return in_two_threads(work, sorted(folder.iterdir()))


def write_files(folder, count, size):
    """A two-thread write of `count` new files, as the outputs are new."""
    folder.mkdir()

    def work(names):
        chunk = bytes(1 << 20)
        for name in names:
            with open(folder / str(name), "wb", buffering=0) as file:
                for _ in range(size >> 20):
                    file.write(chunk)

    seconds = in_two_threads(work, list(range(count)))
    subprocess.run(["rm", "-r", folder], check=True)
    return seconds


def afterfit(folder, out, *strengths, checkpoints=None):
    """Wall seconds and peak memory, told by the process itself."""
    peak = "awk '/VmHWM/ {print $2}' /proc/$PPID/status # {}"
    command = [AFTERFIT, "average", folder, "-o", out, *strengths, "-q", "--threads", "2", "--json"]
    command += ["--to", str(checkpoints - 1)] if checkpoints else []
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - start
    subprocess.run(["rm", "-r", out], check=True)
    done = subprocess.run([*command, "--eval", peak], check=True, capture_output=True, text=True)
    subprocess.run(["rm", "-r", out], check=True)
    return seconds, 1024 * json.loads(done.stdout)["outputs"][0]["score"]


def ladder(count):
    return ["--l2", f"1e-5..1e-2:{count}" if count > 1 else "1e-3", "--rate", "0.1", "--step-regex", r"(\d+)", "--steps-per-epoch", "500"]


def pytorch_loop(folder, out, count, dtype):
    """A careful loop: every file read once, sums updated in place, everything else copied."""
    out.mkdir()
    paths = sorted(folder.iterdir())
    weights = torch.rand(count, len(paths), dtype=torch.float64)
    weights /= weights.sum(1, keepdim=True)
    start = time.perf_counter()
    sums = None
    for k, path in enumerate(paths):
        state = load_file(path)
        if sums is None:
            averaged = [name for name, value in state.items() if value.is_floating_point() and "running" not in name]
            sums = [{name: torch.zeros(state[name].shape, dtype=dtype) for name in averaged} for _ in range(count)]
        for name in averaged:
            value = state[name].to(dtype)
            for row, sum in enumerate(sums):
                sum[name].add_(value, alpha=float(weights[row, k]))
    for row, sum in enumerate(sums):
        save_file(state | {name: value.float() for name, value in sum.items()}, out / f"{row}.safetensors")
    seconds = time.perf_counter() - start
    subprocess.run(["rm", "-r", out], check=True)
    return seconds


def papers_way(folder, out):
    """One ratio as the authors' script goes about it: torch.load of each checkpoint, weights summed entry by entry."""
    start = time.perf_counter()
    weight, mass, sum = 1.0, 0.0, None
    for k in range(len(list(folder.iterdir()))):
        state = torch.load(folder / f"checkpoint-{k}.pth", weights_only=True)["state_dict"]
        if sum is None:
            sum = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in state.items()}
        for name, value in state.items():
            sum[name] += weight * value
        mass += weight
        weight *= 0.99
    torch.save({name: value / mass for name, value in sum.items()}, out)
    seconds = time.perf_counter() - start
    out.unlink()
    return seconds


def median(values):
    return statistics.median(values)


def main(here):
    say("making 60 checkpoints, twice …")
    make(here / "st", 60)
    make(here / "pth", 60, ending="pth")
    size = next((here / "st").iterdir()).stat().st_size
    total = 60 * size
    out = here / "out"
    subprocess.run(f"cat {here}/st/* {here}/pth/* > /dev/null", shell=True, check=True)
    runs = {"read": [], "small": [], "write": [], "sixteen": [], "one": [], "four": []}
    memory = 0
    for turn in range(5):
        say(f"turn {turn + 1} of 5")
        runs["read"].append(read_files(here / "st", 1 << 20))
        runs["small"].append(read_files(here / "st", 16 << 10))
        runs["write"].append(write_files(here / "w", STRENGTHS, size))
        seconds, peak = afterfit(here / "st", out, *ladder(STRENGTHS))
        runs["sixteen"].append(seconds)
        memory = max(memory, peak)
        runs["four"].append(afterfit(here / "st", out, "--ratio", "0.9999,0.999,0.99,0.9")[0])
        runs["one"].append(afterfit(here / "st", out, "--ratio", "0.99")[0])
    say("PyTorch …")
    torch64 = [pytorch_loop(here / "st", out, STRENGTHS, torch.float64) for _ in range(2)]
    torch32 = [pytorch_loop(here / "st", out, STRENGTHS, torch.float32) for _ in range(2)]
    paper = [papers_way(here / "pth", here / "paper.pt") for _ in range(2)]
    pth = [afterfit(here / "pth", out, "--ratio", "0.99")[0] for _ in range(3)]
    runs["sixteen"] += [afterfit(here / "st", out, *ladder(STRENGTHS))[0] for _ in range(2)]
    read, small, write = median(runs["read"]), median(runs["small"]), median(runs["write"])
    ours = median(runs["sixteen"])
    print("\n## Checkpoints: 60 of ResNet-18, f32\n")
    print(f"{total / 1e9:.2f} GB of safetensors, page cache warm, 2 threads; medians of turns in one run. `afterfit average` with everything: opening, summing in f64, writing.\n")
    print("| | strengths | wall time | afterfit is |\n|---|---|---|---|")
    print(f"| **`afterfit average`** | **{STRENGTHS}** | **{ours:.2f} s** | |")
    print(f"| PyTorch, one careful pass, f64 sums | {STRENGTHS} | {median(torch64):.1f} s | **{median(torch64) / ours:.1f}× faster** |")
    print(f"| PyTorch, one careful pass, f32 sums | {STRENGTHS} | {median(torch32):.1f} s | {median(torch32) / ours:.1f}× faster |")
    print(f"| `afterfit average` of the paper's four ratios | 4 | {median(runs['four']):.2f} s | |")
    print(f"| `afterfit average` | 1 | {median(runs['one']):.2f} s | |")
    print(f"| `afterfit average` of .pth files | 1 | {median(pth):.2f} s | |")
    print(f"| the paper's way (`torch.load`, one ratio, .pth files) | 1 | {median(paper):.1f} s | **{median(paper) / median(pth):.1f}× faster** |")
    print(f"\nPeak memory at {STRENGTHS} strengths: {memory / 1e6:.1f} MB = **{memory / size:.3f} of one model** ({size / 1e6:.1f} MB), program and all.\n")
    print("What the machine allows, in the same run:\n")
    print("| | wall time |\n|---|---|")
    print(f"| two-thread buffered read of the inputs, 1 MB at a time | {read:.2f} s |")
    print(f"| the same, 16 kB at a time | {small:.2f} s |")
    print(f"| two-thread write of {STRENGTHS} outputs | {write:.2f} s ({min(runs['write']):.2f} to {max(runs['write']):.2f}) |")
    print(f"| **`afterfit average` ÷ (read + write)** | **{ours / (read + write):.2f}** (the aim is 1.2) |")
    fma = 60 * 11_173_962 * STRENGTHS
    print(f"\nReading the inputs and writing the outputs is all that is left: a program that did nothing else would be about {median(torch64) / (read + write):.1f}× faster than that PyTorch loop, and about {median(paper) / read:.0f}× faster than the paper's way at one strength. Besides copying, {STRENGTHS} strengths of 60 checkpoints are {fma / 1e9:.1f} billion f64 multiply-adds, {fma / 2 / 8 / 3.3e9:.2f} s for two cores with 256-bit registers at full rate (8 a cycle and core, at 3.3 GHz). The time to write new files varies a lot on this machine; the range is given.\n")
    say("growth …")
    print("### How it grows\n")
    print("| checkpoints (16 strengths) | " + " | ".join(str(k) for k in (8, 15, 30, 60)) + " |\n|---|---|---|---|---|")
    print("| seconds | " + " | ".join(f"{median([afterfit(here / 'st', out, *ladder(16), checkpoints=k)[0] for _ in range(3)]):.2f}" for k in (8, 15, 30, 60)) + " |\n")
    counts = (1, 2, 4, 8, 16, 32, 64)
    grown = [min((afterfit(here / "st", out, *ladder(s)) for _ in range(3)), key=lambda run: run[0]) for s in counts]
    print("| strengths (60 checkpoints) | " + " | ".join(map(str, counts)) + " |\n|" + "---|" * (len(counts) + 1))
    print("| seconds | " + " | ".join(f"{seconds:.2f}" for seconds, _ in grown) + " |")
    print("| peak memory, of one model | " + " | ".join(f"{peak / size:.2f}" for _, peak in grown) + " |\n")
    subprocess.run(["rm", "-r", here / "pth", here / "st"], check=True)
    print("| type (30 checkpoints, 16 strengths) | GB read | seconds | GB/s |\n|---|---|---|---|")
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        make(here / "typed", 30, dtype)
        bytes_read = sum(path.stat().st_size for path in (here / "typed").iterdir())
        read_files(here / "typed", 1 << 20)
        seconds = median([afterfit(here / "typed", out, *ladder(16))[0] for _ in range(3)])
        print(f"| {str(dtype).removeprefix('torch.')} | {bytes_read / 1e9:.2f} | {seconds:.2f} | {bytes_read / seconds / 1e9:.1f} |")
        subprocess.run(["rm", "-r", here / "typed"], check=True)


with tempfile.TemporaryDirectory() as folder:
    main(Path(folder))
