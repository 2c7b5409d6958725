"""A dial for PyTorch: one line before the training loop, any regularization strength after it.

>>> import torch
>>> from afterfit.torch import Dial
>>> _ = torch.manual_seed(0)
>>> model, x = torch.nn.Linear(3, 1), torch.randn(64, 3)
>>> y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
>>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
>>> dial = Dial(model, optimizer, l2=(1e-2, 1.0), steps=300)
>>> for _ in range(300):
...     optimizer.zero_grad()
...     torch.nn.functional.mse_loss(model(x), y).backward()
...     optimizer.step()
>>> reading = dial.read(0.1)
>>> reading.error < 0.01, sorted(reading.state_dict())
(True, ['bias', 'weight'])

What enters a sum is the iterate *before* each step, with the rate of that step: the dial hooks ``optimizer.step``, so the loop
stays as it is. All masses, shares and combinations are made by afterfit's Rust core; here vectors are added up:
``S_j ← scale_j S_j + share_j (w_k − c)``, a block of iterates at a time, in one matrix product.

Some facts about steps:

- Gradient accumulation, closures and plain ``GradScaler`` need nothing: a step that is skipped does not call ``optimizer.step``.
- *Fused* optimizers under a ``GradScaler`` are called with ``found_inf`` on the device. The dial keeps a copy of that flag with the
  iterate and looks at it a block later, when it has long arrived: nothing waits for the device, and a skipped step is no step at
  all, which is what the theory requires. A rate that is a tensor on a device (``capturable=True``) is kept the same way.
- CUDA graphs never call hooks: call :meth:`Dial.push` before ``graph.replay()``.
- DeepSpeed's optimizers move shards of their own (ZeRO-1 and 2; of ZeRO-3 the model has no weights to read, which is refused):
  make the dial without an optimizer, say what it is like, and call ``dial.push(rate)`` before each ``engine.step()`` that ends an
  accumulation.
- Parameters get sums with their first gradient (or, where ``step`` is given a closure, once they require one). Those that come
  later, unfrozen or in a group that was added, have masses of their own from then on, and their value then as center.
- Sharded parameters (FSDP2, ``DTensor``) have sharded sums and nothing is communicated while training; `read`, `save` and
  `state_dict` are to be called on all ranks.
"""

from .._status import Status
from .checkpoints import average
from .dial import Dial
from .reading import Reading, Sweep, refresh

__all__ = ["Dial", "Reading", "Status", "Sweep", "average", "refresh"]
