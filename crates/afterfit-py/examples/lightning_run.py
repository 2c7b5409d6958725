"""A dial in a Lightning trainer: one item in ``callbacks``.

pip install './crates/afterfit-py[lightning]' && python lightning_run.py
"""

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from afterfit.lightning import DialCallback


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.net(x).squeeze(1), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)


pl.seed_everything(0)
x = torch.randn(300, 10)
y = x[:, 0] - 2 * x[:, 1] + torch.randn(300)
loader = DataLoader(TensorDataset(x[:200], y[:200]), batch_size=20, shuffle=True)
model, callback = Regression(), DialCallback(l2=(0.01, 10.0), save="run.dial")
pl.Trainer(max_epochs=30, accelerator="cpu", callbacks=[callback], enable_progress_bar=False, logger=False).fit(model, loader)


def loss(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return (model.net(x[200:]).squeeze(1) - y[200:]).square()


path = callback.sweep(loss, l2=15)
print(f"as trained {loss(model).mean():.3f}, at l2 = {path.best:.2g} {min(path.value):.3f}")
with callback.applied(path.best) as reading:
    torch.save(model.state_dict(), "best.pt")
print(reading.status)
assert min(path.value) < loss(model).mean()
