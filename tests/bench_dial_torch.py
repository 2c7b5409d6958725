"""What a dial costs in a PyTorch loop, beside its peers in the same run: time of a step, memory, error of what is read off.

    python tests/bench_dial_torch.py [--device cuda] [--steps 100] [--only resnet-18] [--model-scale small]

Prints Markdown. Needs afterfit, torch and torchvision; ema-pytorch and timm where installed. On a CPU take --model-scale small.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from afterfit.torch import Dial

NODES = 16


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.into, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.into(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.wide(self.second(x))


class Gpt(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, length: int, vocabulary: int = 256) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


Setup = tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], Tensor]]


def resnet(device: str, small: bool) -> Setup:
    import torchvision

    model = torchvision.models.resnet18(num_classes=10)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()  # as for 32 × 32 pixels
    model = model.to(device, memory_format=torch.channels_last)
    rows = 10 if small else 100
    images = torch.randn(rows, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (rows,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    return model, optimizer, lambda model: nn.functional.cross_entropy(model(images), labels)


def gpt(device: str, small: bool) -> Setup:
    length, rows = (32, 2) if small else (256, 32)
    model = Gpt(384, 6, 6, length).to(device)
    ids = torch.randint(256, (rows, length + 1), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")

    def loss(model: nn.Module) -> Tensor:
        scores = model(ids[:, :-1])
        return nn.functional.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())

    return model, optimizer, loss


class Alone:
    """No averaging."""

    name = "nothing"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model

    def after(self) -> None:
        pass


class WithDial(Alone):
    name = f"afterfit dial, {NODES} sums"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.dial = Dial(model, optimizer, l2=(1e-3, 1.0), nodes=NODES)


class Offloaded(Alone):
    name = f"afterfit dial, {NODES} sums on the CPU"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.dial = Dial(model, optimizer, l2=(1e-3, 1.0), nodes=NODES, device="cpu")


class Averaged(Alone):
    name = f"{NODES} × torch AveragedModel"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        decays = [1 - 10 ** -(1 + 3 * at / (NODES - 1)) for at in range(NODES)]
        self.kept = [AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)) for decay in decays]

    def after(self) -> None:
        for kept in self.kept:
            kept.update_parameters(self.model)


class PostHoc(Alone):
    name = "ema-pytorch PostHocEMA, 2 averages and files"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from ema_pytorch import PostHocEMA

        self.folder = tempfile.TemporaryDirectory()
        self.kept = PostHocEMA(
            model, sigma_rels=(0.05, 0.28), update_every=1, checkpoint_every_num_steps=100, checkpoint_folder=self.folder.name
        )

    def after(self) -> None:
        self.kept.update()


class Timm(Alone):
    name = "timm ModelEmaV3, 1 average"

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        from timm.utils import ModelEmaV3

        self.model, self.kept = model, ModelEmaV3(model, decay=0.999)

    def after(self) -> None:
        self.kept.update(self.model)


class Loop:
    """A model in training, and whoever watches it."""

    def __init__(self, setup: Callable[[str, bool], Setup], device: str, small: bool) -> None:
        torch.manual_seed(0)
        self.model, self.optimizer, self.loss = setup(device, small)
        self.bf16 = torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda")
        self.watch = Alone(self.model, self.optimizer)

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with self.bf16:
            value = self.loss(self.model)
        value.backward()
        self.optimizer.step()
        self.watch.after()

    def timed(self, steps: int) -> float:
        """Milliseconds of a step."""
        ready()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        ready()
        return 1e3 * (time.perf_counter() - start) / steps


def ready() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure(
    setup: Callable[[str, bool], Setup], kind: type[Alone], device: str, steps: int, small: bool
) -> tuple[float, float, float]:
    """Milliseconds of a step alone and with averaging, taken in turns (machines drift), and the MB that averaging takes."""
    alone, watched = Loop(setup, device, small), Loop(setup, device, small)
    for loop in (alone, watched):
        loop.timed(5)
    watched.optimizer.state.clear()  # (a dial begins with the optimizer)
    ready()
    before = torch.cuda.memory_allocated() if device == "cuda" else 0
    watched.watch = kind(watched.model, watched.optimizer)
    for loop in (alone, watched):
        loop.timed(10)
    rounds = [(alone.timed(steps // 10), watched.timed(steps // 10)) for _ in range(10)]
    memory = float("nan")
    if device == "cuda":
        memory = (torch.cuda.memory_allocated() - before) / 1e6
    elif hasattr(watched.watch, "dial"):
        memory = watched.watch.dial.memory / 1e6
    usual = statistics.median(alone for alone, _ in rounds)
    return usual, usual * statistics.median(watched / alone for alone, watched in rounds), memory


def errors() -> list[tuple[str, str, float]]:
    """How far an average that nobody asked for before training is from what is read off, as a share of the farthest move."""
    steps, size, sigma, decay = 2000, 400, 0.12, 0.9973
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(size, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.randn(1, size, generator=generator))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    target = torch.randn(1, size, generator=generator)
    dial = Dial(model, optimizer, l2=(0.1, 10.0), power_ema=(0.05, 0.28), ema=(0.99, 0.9999), nodes=NODES)
    averaged = Averaged(model, optimizer)
    peers: list[Any] = [averaged]
    try:
        peers.append(PostHoc(model, optimizer))
    except ImportError:
        pass
    iterates = [model.weight.detach().double().clone()]
    for _ in range(steps):
        optimizer.zero_grad()
        noise = 0.3 * torch.randn(1, size, generator=generator)
        (0.5 * (model.weight - target - noise).square().sum()).backward()
        optimizer.step()
        for peer in peers:
            peer.after()
        iterates.append(model.weight.detach().double().clone())
    path = torch.stack(iterates)[:, 0]
    reach = (path - path[0]).abs().max()
    exponent = float(torch.tensor(dial._courses[0].tracker.read("sigma_rel", sigma).certificate))  # (that it can be read)
    assert exponent < 1e-3
    # Exact weights: an EMA that starts at w_0, and Karras' power function of this width.
    times = torch.arange(steps + 1, dtype=torch.float64)
    ema = (1 - decay) * decay ** (steps - times)
    ema[0] = decay**steps
    low, high = 0.0, 1e4  # σ² = (γ+1)/((γ+2)²(γ+3)) falls with γ
    for _ in range(200):
        gamma = (low + high) / 2
        wide = ((gamma + 1) / ((gamma + 2) ** 2 * (gamma + 3))) ** 0.5 > sigma
        low, high = (gamma, high) if wide else (low, gamma)
    power = torch.diff((times / steps) ** (gamma + 1), prepend=torch.zeros(1, dtype=torch.float64))
    off = lambda made, weights: float(((made.double().flatten() - weights @ path).abs().max()) / reach)  # noqa: E731
    rows = [
        (WithDial.name, "EMA 0.9973", off(dial.read(ema=decay).state_dict()["weight"], ema)),
        (WithDial.name, f"power EMA {sigma}", off(dial.read(sigma_rel=sigma).state_dict()["weight"], power)),
    ]
    nearest = min(averaged.kept, key=lambda kept: off(kept.module.weight.detach(), ema))
    rows.append((Averaged.name, "EMA 0.9973, the nearest kept", off(nearest.module.weight.detach(), ema)))
    for peer in peers[1:]:
        made = peer.kept.synthesize_ema_model(sigma_rel=sigma)
        weights = next(p for name, p in made.named_parameters() if name.endswith("weight") and p.numel() == size)
        rows.append((PostHoc.name, f"power EMA {sigma}", off(weights.detach().cpu(), power)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--only")
    parser.add_argument("--model-scale", choices=["small", "full"], default="full")
    args = parser.parse_args()
    small = args.model_scale == "small"
    name = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"### A dial in a PyTorch loop ({name}, torch {torch.__version__})\n")
    kinds: list[type[Alone]] = [WithDial, Averaged, PostHoc, Timm]
    if args.device == "cuda":
        kinds.insert(1, Offloaded)
        torch.backends.cudnn.benchmark = True
    for title, setup in (("resnet-18", resnet), ("gpt-10m", gpt)):
        if args.only not in (None, title):
            continue
        print(f"{title}\n\n| | ms a step alone | ms a step with it | more | MB |\n|---|---|---|---|---|")
        # (Nothing beside nothing: what this machine's noise looks like.)
        for kind in [Alone, *kinds]:
            try:
                gc.collect()
                alone, taken, memory = measure(setup, kind, args.device, args.steps, small)
            except ImportError as missing:
                print(f"| {kind.name} | not installed: {missing.name} | | | |")
                continue
            print(f"| {kind.name} | {alone:.2f} | {taken:.2f} | {100 * (taken / alone - 1):+.1f} % | {memory:.0f} |", flush=True)
        print()
    print("| read off | average | off by, of the farthest move |\n|---|---|---|")
    for kind_name, what, off in errors():
        print(f"| {kind_name} | {what} | {off:.1e} |")


if __name__ == "__main__":
    main()
