"""Fine-tune once, choose afterwards how much to forget. See README.md beside this; --steps makes it shorter."""

import argparse
import lzma
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from afterfit.torch import Dial

options = argparse.ArgumentParser(description=__doc__)
options.add_argument("--steps", type=int, default=600, help="of the pretraining; the tuning has a third of them")
options.add_argument("--may-forget", type=float, default=0.1, help="how much the loss on the old text may rise")
options.add_argument("--judge", metavar="FILE", help="only print both losses of a model read off the dial (.safetensors)")
given = options.parse_args()
torch.manual_seed(0)
LENGTH, WIDTH = 64, 96

scripture = lzma.decompress((Path(__file__).parents[2] / "studies" / "data" / "kjv.txt.xz").read_bytes())
code = b"".join(file.read_bytes() for file in sorted(Path(lzma.__file__).parent.glob("*.py"))[:60:2])[:200_000]  # Python's
old, new = (torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in (scripture, code))
old, old_held, new, new_held = old[:-50_000], old[-50_000:], new[:100_000], new[100_000:]  # half of the code is tuned on


def batch(text: torch.Tensor, rows: int) -> torch.Tensor:
    return text[torch.randint(len(text) - LENGTH, (rows, 1)) + torch.arange(LENGTH + 1)]


token, place, head = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH), nn.Linear(WIDTH, 256)
layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
blocks = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
model = nn.ModuleList([token, place, blocks, head])  # a small GPT


def loss(text: torch.Tensor) -> torch.Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    scores = head(blocks(token(text[:, :-1]) + place.weight, mask=mask, is_causal=True))
    return nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())


held = [batch(text, 200) for text in (old_held, new_held)]


@torch.no_grad()
def losses() -> list[float]:
    return [loss(text).item() for text in held]


def train(optimizer: torch.optim.Optimizer, text: torch.Tensor, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss(batch(text, 16)).backward()
        optimizer.step()
        print(f"\rstep {step + 1} of {steps} ", end="", file=sys.stderr)


if given.judge:
    model.load_state_dict(load_file(given.judge))
    print("old {:.4f} new {:.4f}".format(*losses()))
    raise SystemExit
train(torch.optim.Adam(model.parameters(), lr=2e-3), old, given.steps)
before = losses()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
dial = Dial(model, optimizer, l2=(0.3, 3000.0))  # the one line that is not ordinary
train(optimizer, new, given.steps // 3)
rows = {"pretrained": before, "tuned": losses()}
for l2 in [f"{0.3 * 10 ** (at / 4):.4g}" for at in range(17)]:
    with dial.applied(float(l2)):
        rows[l2] = losses()
print("\n            λ   old text   new text")
for name, (forgot, learned) in rows.items():
    print(f"{name:>13} {forgot:10.3f} {learned:10.3f}")
chosen = min((l2 for l2 in [*rows][2:] if rows[l2][0] <= before[0] + given.may_forget), key=lambda l2: rows[l2][1], default="3000")
torch.save(dial.read(float(chosen)).state_dict(), "finetuned.pt")
dial.save("finetuned.dial")
print(f"the best on the new text that forgets at most {given.may_forget}: λ = {chosen}, in finetuned.pt")
