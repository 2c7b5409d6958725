"""A training loop of one's own: noisy labels, learned by heart, and the strength that forgets them chosen afterwards.

pip install './crates/afterfit-py[torch]' && python bare_loop.py
"""

import torch
from torch import nn

from afterfit.torch import Dial

torch.manual_seed(0)
x, directions = torch.randn(600, 20), torch.randn(20, 3)
y = (x @ directions).argmax(1)
noisy = torch.rand(600) < 0.4
y[:400][noisy[:400]] = torch.randint(3, (int(noisy[:400].sum()),))
train_x, train_y, test_x, test_y = x[:400], y[:400], x[400:], y[400:]

model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
epochs = 40
dial = Dial(model, optimizer, l2=(1e-3, 1.0), steps=epochs * 8)  # nothing else changes in the loop
for _ in range(epochs):
    for batch in torch.randperm(400).split(50):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train_x[batch]), train_y[batch]).backward()
        optimizer.step()


def losses(model: nn.Module) -> torch.Tensor:
    """A loss for each example: the sweep then knows how sure it can be."""
    with torch.no_grad():
        return nn.functional.cross_entropy(model(test_x), test_y, reduction="none")


path = dial.sweep(losses, l2=20)
print(f"as trained: {losses(model).mean():.3f}")
for l2, loss, unspent in zip(path.l2, path.value, path.unspent, strict=False):
    print(f"l2 {l2:8.2g}   loss {loss:.3f}   {100 * unspent:5.1f} % unspent")
print(f"best: {path.best:.2g}; the strongest within one standard error: {path.one_se:.2g}")
reading = dial.read(path.best)
print(f"largest error of any weight: {reading.error:.1e}; {reading.status}")
torch.save(reading.state_dict(), "best.pt")
dial.save("run.dial")  # afterfit dial read run.dial --l2 0.05 -o model.safetensors
assert min(path.value) < losses(model).mean()
