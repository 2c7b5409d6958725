"""Milliseconds of a training step: afterfit-nets with its dial beside PyTorch without one, on the same machine in one run.

    .venv-torch/bin/python tests/bench_nets.py target/release/afterfit-nets

Meant for a GPU (batch 100, full width); `--width 4 --epochs 2` tries it on a CPU.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from networks import modules
from torch.nn import functional as F

BATCH, NODES = 100, 16


def noise_images(folder, count):
    """CIFAR-10's format; what is in the pictures does not matter to the clock."""
    random = np.random.default_rng(1)
    for name, count in [(f"data_batch_{i}.bin", count // 5) for i in range(1, 6)] + [("test_batch.bin", 100)]:
        records = random.integers(0, 256, (count, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        records.tofile(folder / name)


def ours(binary, folder, net, width, epochs, *more):
    """Median of the epochs' milliseconds a step, the first (in which kernels are chosen) left out."""
    with tempfile.TemporaryDirectory() as run:
        common = ["--data-folder", folder, "--net", net, "--width", width, "--epochs", epochs, "-q", "--evaluate-every", 0]
        arguments = [binary, "train", "--out", Path(run) / "run", *common, *more]
        subprocess.run([str(item) for item in arguments], check=True, stdout=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (Path(run) / "run/log.jsonl").read_text().splitlines()]
    steps = lines[0]["step"]
    return statistics.median(1e3 * line["seconds"] / steps for line in lines[1:])


def pytorch(net, width, steps, graph, dial=False):
    """bf16 autocast, channels_last, fused SGD: what a careful user writes. No augmentation, no checkpoints; with `dial` each
    iterate is added to 16 sums, at once."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    torch.backends.cudnn.benchmark = True
    module = modules()[net](width).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=5e-4, fused=cuda)
    images = torch.randn(BATCH, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (BATCH,), device=device)
    parameters = list(module.parameters())
    sums = torch.zeros(NODES, sum(p.numel() for p in parameters), device=device) if dial else None
    masses = torch.full((NODES,), 1e-3, device=device)

    def step():
        if not graph:
            optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss = F.cross_entropy(module(images).float(), labels)
        loss.backward()
        optimizer.step()
        if dial:
            with torch.no_grad():
                sums.addr_(masses, torch.cat([p.reshape(-1) for p in parameters]))

    def wait():
        if cuda:
            torch.cuda.synchronize()

    if graph:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(5):
                step()
        wait()
        # Gradients that are not there are written; others would be zeroed and added to in every step.
        optimizer.zero_grad(set_to_none=True)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            step()
        step = recorded.replay
    for _ in range(5):
        step()
    times = []
    for _ in range(5):
        wait()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        wait()
        times.append(1e3 * (time.perf_counter() - began) / steps)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=Path)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    cuda = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if cuda else "CPU"
    count = 50_000 if cuda else 500
    steps = 100 if cuda else 5
    print(f"## A training step, batch {BATCH}, on {where}\n\n| | ms a step | afterfit-nets with the dial takes |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        noise_images(Path(folder), count)
        for net in ("resnet-18", "vgg-16"):
            run = lambda *more: ours(arguments.binary.resolve(), folder, net, arguments.width, arguments.epochs, *more)
            dial = run("--dial-from", 0)
            rows = [
                ("afterfit-nets without the dial", run("--no-dial")),
                ("PyTorch, step by step", pytorch(net, arguments.width, steps, False)),
            ]
            if cuda:
                rows.append(("PyTorch, recorded as a CUDA graph", pytorch(net, arguments.width, steps, True)))
                rows.append((f"PyTorch, CUDA graph, {NODES} sums of every iterate", pytorch(net, arguments.width, steps, True, True)))
            print(f"| **{net}: afterfit-nets, {NODES}-node dial of every iterate, augmentation** | **{dial:.2f}** | |")
            for name, value in rows:
                print(f"| {net}: {name} | {value:.2f} | {dial / value:.2f}× the time |")


main()
