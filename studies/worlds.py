"""What the studies learn from: two texts, or pictures in two colorings. A world makes models, draws batches and judges.

Whatever is judged is judged on the same held-out windows (or pictures), one half to choose by and the other to report.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import Gpt, resnet
from torch import Tensor, nn

HERE = Path(__file__).parent
Judged = list[float]


def autocast(device: torch.device) -> torch.autocast:
    """bf16 layers on a GPU; a CPU computes in f32. (Without its cache, as recording a graph requires it.)"""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)


def text(path: Path) -> Tensor:
    if not path.exists():
        raise SystemExit(f"{path} is not there: python studies/pack.py makes it")
    return torch.frombuffer(bytearray(lzma.decompress(path.read_bytes())), dtype=torch.uint8)


class Texts:
    """`old`: scripture, the last tenth of it held out. `new`: Python's standard library, other modules held out."""

    def __init__(self, size: dict[str, Any], seed: int, device: torch.device, data: Path) -> None:
        self.size, self.device = size, device
        old, new = text(HERE / "data" / "kjv.txt.xz"), text(data / "python.txt.xz")
        cut = len(old) * 9 // 10
        train = {"old": old[: min(cut, size.get("old_bytes", cut))], "new": new[: size["new_bytes"]]}
        held = {"old": old[cut:], "new": new[len(new) // 2 :]}
        if size["new_bytes"] > len(new) // 2:
            raise SystemExit(f"new_bytes is {size['new_bytes']}: half of the text, {len(new) // 2} bytes, is held out")
        self.train = {name: found.to(device) for name, found in train.items()}
        self.draws = torch.Generator().manual_seed(1000 + seed)
        self.steps = torch.arange(size["length"] + 1, device=device)
        fixed = torch.Generator().manual_seed(7)  # the same windows for every seed
        self.held = {name: self._windows(found.to(device), size["judged"], fixed) for name, found in held.items()}
        torch.manual_seed(seed)

    def _windows(self, source: Tensor, count: int, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(source) - len(self.steps), (count, 1), generator=generator)
        return source[starts.to(self.device, non_blocking=True) + self.steps].long()

    def model(self) -> nn.Module:
        size = self.size
        return Gpt(size["width"], size["layers"], size["heads"], size["length"]).to(self.device)

    def draw(self, source: str, rows: int | None = None) -> tuple[Tensor, Tensor]:
        ids = self._windows(self.train[source], self.size["rows"] if rows is None else rows, self.draws)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    @torch.no_grad()
    def judge(self, model: nn.Module, *sources: str) -> list[Judged]:
        """For each source: the loss on the half to choose by, and on the half to report."""
        found = []
        with autocast(self.device):
            for source in sources:
                losses = []
                for ids in self.held[source].split(128):
                    scores = model(ids[:, :-1]).float().transpose(1, 2)
                    losses.append(nn.functional.cross_entropy(scores, ids[:, 1:], reduction="none").mean(1))
                found.append(torch.stack([half.mean() for half in torch.cat(losses).chunk(2)]))
        return torch.stack(found).double().cpu().tolist()

    def refreshing(self) -> None:
        return None


class Pictures:
    """`old`: CIFAR-10. `new`: pictures of its first five classes with inverted colors."""

    CLASSES = 5

    def __init__(self, size: dict[str, Any], seed: int, device: torch.device, data: Path) -> None:
        self.size, self.device = size, device
        path = data / "cifar.npz"
        if not path.exists():
            raise SystemExit(f"{path} is not there: python studies/pack.py makes it")
        with np.load(path) as packed:
            arrays = {
                name: torch.from_numpy(packed[name]) for name in ("train_images", "train_labels", "test_images", "test_labels")
            }
        images, labels = arrays["train_images"][: size["images"]], arrays["train_labels"][: size["images"]].long()
        test, known = arrays["test_images"][: size["judged"]], arrays["test_labels"][: size["judged"]].long()
        self.draws = torch.Generator().manual_seed(1000 + seed)
        noise = size.get("noise", 0.0)
        if noise:
            labels, known = labels.clone(), known.clone()
            other = torch.Generator().manual_seed(seed)
            for some in (labels, known[: len(known) // 2]):  # the half to choose by is as noisy as the rest
                wrong = torch.rand(len(some), generator=other) < noise
                some[wrong] = torch.randint(10, (int(wrong.sum()),), generator=other)
        first = (labels < self.CLASSES).nonzero().flatten()[: size.get("new_images", 1000)]
        mine = (known < self.CLASSES).nonzero().flatten()
        self.train = {
            "old": (self._ready(images), labels.to(device)),
            "new": (self._ready(255 - images[first]), labels[first].to(device)),
        }
        self.held = {"old": (self._ready(test), known.to(device)), "new": (self._ready(255 - test[mine]), known[mine].to(device))}
        torch.manual_seed(seed)

    def _ready(self, images: Tensor) -> Tensor:
        scaled = (images.to(self.device).float() / 255 - 0.47) / 0.25
        return scaled.contiguous(memory_format=torch.channels_last)

    def model(self) -> nn.Module:
        return resnet(self.size["width"]).to(self.device, memory_format=torch.channels_last)

    def draw(self, source: str, rows: int | None = None) -> tuple[Tensor, Tensor]:
        images, labels = self.train[source]
        rows = self.size["rows"] if rows is None else rows
        chosen = torch.randint(len(images), (rows,), generator=self.draws).to(self.device, non_blocking=True)
        batch = nn.functional.pad(images[chosen], (4, 4, 4, 4))
        down, right = torch.randint(
            9, (2,), generator=self.draws
        ).tolist()  # one crop a batch: four lines shorter than one a picture
        batch = batch[:, :, down : down + 32, right : right + 32]
        flip = (torch.rand(rows, generator=self.draws) < 0.5).to(self.device, non_blocking=True)
        batch = torch.where(flip[:, None, None, None], batch.flip(3), batch)
        return batch.contiguous(memory_format=torch.channels_last), labels[chosen]

    @torch.no_grad()
    def judge(self, model: nn.Module, *sources: str) -> list[Judged]:
        """For each source: loss on the half to choose by and on that to report, then the share of wrong answers on both."""
        training = model.training
        model.eval()
        found = []
        with autocast(self.device):
            for source in sources:
                images, labels = self.held[source]
                scores = torch.cat([model(part).float() for part in images.split(500)])
                losses = nn.functional.cross_entropy(scores, labels, reduction="none")
                wrong = (scores.argmax(1) != labels).float()
                found.append(torch.stack([half.mean() for each in (losses, wrong) for half in each.chunk(2)]))
        model.train(training)
        return torch.stack(found).double().cpu().tolist()

    def refreshing(self) -> Iterator[Any] | list[Any] | None:
        """Augmented batches to measure batch norm's statistics with."""
        return [self.draw("old") for _ in range(self.size.get("refresh", 20))]


def world(size: dict[str, Any], seed: int, device: torch.device, data: Path) -> Texts | Pictures:
    return {"texts": Texts, "pictures": Pictures}[size["world"]](size, seed, device, data)
