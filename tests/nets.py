"""PyTorch as the judge of afterfit-nets: what it writes loads into torch modules and does what it says.

    .venv-torch/bin/python tests/nets.py target/debug/afterfit-nets
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from networks import modules
from runner import run
from safetensors.torch import load_file

NETS = Path(sys.argv[1]).resolve()
MEAN, DEVIATION = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])


def small_cifar(folder, count):
    """Noise with a color for each class."""
    random = np.random.default_rng(1)
    folder.mkdir()

    def batch(count):
        labels = np.arange(count) % 10
        pixels = random.integers(0, 120, (count, 3, 32, 32)) + 12 * ((labels[:, None] + [1, 4, 7]) % 10)[:, :, None, None]
        return np.concatenate([labels[:, None], pixels.reshape(count, -1)], axis=1).astype(np.uint8)

    for i in range(1, 6):
        batch(count // 5).tofile(folder / f"data_batch_{i}.bin")
    test = batch(count)
    test.tofile(folder / "test_batch.bin")
    images = torch.tensor(test[:, 1:].reshape(-1, 3, 32, 32)) / 255
    return (images - MEAN[:, None, None]) / DEVIATION[:, None, None], torch.tensor(test[:, 0].astype(np.int64))


def nets(*arguments):
    done = subprocess.run([NETS, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def torch_agrees(folder, net):
    images, labels = small_cifar(folder / "data", 200)
    common = ["--data-folder", folder / "data", "--device", "cpu"]
    nets("train", "--out", folder / "run", "--net", net, "--width", 4, "--epochs", 3, "--batch", 20, "-q", *common)
    checkpoint = folder / "run/checkpoints/epoch-0003.safetensors"
    module = modules()[net](width=4)
    module.load_state_dict(load_file(checkpoint))  # strict: every name and shape
    module.eval()
    with torch.no_grad():
        right = (module(images).argmax(1) == labels).float().mean().item() * 100
    said = float(nets("evaluate", checkpoint, "--run", folder / "run", "-q", *common))
    assert abs(right - said) <= 0.5 + 1e-6, f"PyTorch {right} %, afterfit-nets {said} %"
    assert said > 12, f"nothing was learned: {said} %"
    # And the other way round: what torch saves is read here.
    torch.save(module.state_dict(), folder / "torch.pt")
    assert float(nets("evaluate", folder / "torch.pt", "--run", folder / "run", "-q", *common)) == said


def resnet_18_loads_into_torch(folder):
    torch_agrees(folder, "resnet-18")


def vgg_16_loads_into_torch(folder):
    torch_agrees(folder, "vgg-16")


run([resnet_18_loads_into_torch, vgg_16_loads_into_torch])
