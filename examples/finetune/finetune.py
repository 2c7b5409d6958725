"""Fine-tune once, choose afterwards how much to forget. See README.md beside this; --steps and --width make it smaller."""

import argparse
import lzma
import math
import sys
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn

from afterfit.torch import Dial

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--steps", type=int, default=600, help="of the pretraining; the tuning has a third of them")
options.add_argument("--width", type=int, default=96)
options.add_argument("--may-forget", type=float, default=0.1, help="how much the loss on the old text may rise")
options.add_argument("--out", default="finetuned.pt")
options.add_argument("--judge", metavar="FILE", help="only print both losses of a model read off the dial (.safetensors)")
given, begun = options.parse_args(), time.monotonic()
torch.manual_seed(0)
LENGTH, ROWS = 64, 16

scripture = lzma.decompress((Path(__file__).parents[2] / "studies" / "data" / "kjv.txt.xz").read_bytes())
modules = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
code = b"".join(file.read_bytes() for file in modules[:60:2])[:200_000]
old, new = (torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in (scripture, code))
old, old_held, new, new_held = old[:-50_000], old[-50_000:], new[:100_000], new[100_000:]  # half of the code is tuned on


def batch(text: torch.Tensor, rows: int = ROWS) -> torch.Tensor:
    return text[torch.randint(len(text) - LENGTH, (rows, 1)) + torch.arange(LENGTH + 1)]


class Gpt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Parameter(0.02 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks, self.head = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(width, 256)
        self.mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.blocks(self.token(ids[:, :-1]) + self.place, mask=self.mask, is_causal=True))
        return nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())


judges = {"old": batch(old_held, 200), "new": batch(new_held, 200)}


def losses(model: nn.Module) -> tuple[float, float]:
    with torch.no_grad():
        return model(judges["old"]).item(), model(judges["new"]).item()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, text: torch.Tensor, steps: int) -> None:
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(batch(text)).backward()
        optimizer.step()
        if step % 100 == 0 or step == steps:
            print(f"step {step} of {steps}", file=sys.stderr)


model = Gpt(given.width)
if given.judge:
    from safetensors.torch import load_file

    model.load_state_dict(load_file(given.judge))
    print("old {:.4f} new {:.4f}".format(*losses(model)))
    raise SystemExit
train(model, torch.optim.Adam(model.parameters(), lr=2e-3), old, given.steps)
before = losses(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
dial = Dial(model, optimizer, l2=(0.3, 3000.0))  # the one line that is not ordinary
train(model, optimizer, new, given.steps // 3)
print("            λ   old text   new text")
print(f"   pretrained {before[0]:10.3f} {before[1]:10.3f}\n        tuned {losses(model)[0]:10.3f} {losses(model)[1]:10.3f}")
best, chosen = math.inf, 3000.0
for l2 in [0.3 * 10 ** (at / 4) for at in range(17)]:
    with dial.applied(l2):
        forgot, learned = losses(model)
    print(f"{l2:13.4g} {forgot:10.3f} {learned:10.3f}")
    if forgot <= before[0] + given.may_forget and learned < best:
        best, chosen = learned, l2
torch.save(dial.read(chosen).state_dict(), given.out)
dial.save(Path(given.out).with_suffix(".dial"))
print(f"the best on the new text that forgets at most {given.may_forget}: λ = {chosen:.4g}, in {given.out}")
print(f"{time.monotonic() - begun:.0f} s, {time.process_time():.0f} s of CPU time, {torch.get_num_threads()} threads")
