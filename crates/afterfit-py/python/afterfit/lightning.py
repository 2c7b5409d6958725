"""A dial in one line of a Lightning trainer.

``Trainer(callbacks=[DialCallback(l2=(1e-5, 1e-2))])``; after ``fit``, ``callback.read(3e-4)`` is the model at that strength. The
module's own weights are never replaced: what the trainer validates, saves and ends with is what it trained. The dial is saved with
every checkpoint and found again when training resumes from one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

try:
    import lightning.pytorch as pl
except ImportError:  # the package that Lightning was before
    import pytorch_lightning as pl  # type: ignore[no-redef]

from ._afterfit import url_of
from .torch import Dial
from .torch.callback import KeepsDial

__all__ = ["DialCallback"]

#: What a checkpoint says of a sharded dial, which is a folder of torch.distributed.checkpoint.
_SHARDED = "afterfit-dial"


def _beside(file: Path) -> Path:
    """Where the shards of a checkpoint's dial are: in it, if it is a folder, and so removed with it; else beside it."""
    return file / _SHARDED if file.is_dir() else file.with_name(f"{file.name}-{_SHARDED}")


class _Followed:
    """A strategy's ``save_checkpoint``, and then the dial's shards."""

    def __init__(self, write: Callable[..., None], strategy: Any, callback: DialCallback) -> None:
        self.write, self.strategy, self.callback = write, strategy, callback

    def __call__(self, checkpoint: dict[str, Any], filepath: Any, *args: Any, **options: Any) -> None:
        whole = "callbacks" in checkpoint
        self.write(checkpoint, filepath, *args, **options)
        dial = self.callback.dial
        if whole and dial is not None and dial.sharded:
            kept = self.callback._unless_diverged(dial.state_dict, "this checkpoint")
            if kept is not None:
                save_shards({"dial": kept}, checkpoint_id=_beside(Path(self.strategy.broadcast(filepath))))


class DialCallback(KeepsDial, pl.Callback):
    """Keeps a :class:`afterfit.torch.Dial` of every step a trainer takes.

    Parameters
    ----------
    l2
        The range of strengths to be read afterwards.
    save
        A file for the dial when training ends: ``afterfit dial read`` reads it. Its folder is made if need be.
    **options
        Of :class:`afterfit.torch.Dial`; ``schedule="trainer"`` stands for the trainer's own scheduler, which must then be stepped
        after every step (``"interval": "step"``).

    Attributes
    ----------
    dial
        The dial, once training has begun.

    Examples
    --------
    >>> import torch
    >>> import lightning.pytorch as pl
    >>> from afterfit.lightning import DialCallback
    >>> class Line(pl.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = torch.nn.Parameter(torch.zeros(2))
    ...     def training_step(self, batch, number):
    ...         return 0.5 * (self.w - 1.0).square().sum()
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> callback = DialCallback(l2=(0.1, 1.0))
    >>> trainer = pl.Trainer(
    ...     max_steps=100, callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False,
    ...     enable_progress_bar=False, enable_model_summary=False,
    ... )
    >>> trainer.fit(Line(), torch.utils.data.DataLoader(range(100)))
    >>> callback.read(1.0).state_dict()["w"].round(decimals=2)
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self, l2: tuple[float, float] | None = None, *, save: str | os.PathLike[str] | None = None, **options: Any
    ) -> None:
        self._set_options(l2=l2, **options)
        self.save = save
        self.dial: Dial | None = None
        self._restored: Any = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Refuse what cannot be watched."""
        strategy = type(trainer.strategy).__name__
        if stage == "fit" and strategy in ("FSDPStrategy", "DeepSpeedStrategy"):
            raise ValueError(f"{strategy} hides the parameters its optimizer moves: use ModelParallelStrategy (FSDP2) or DDP")
        if stage == "fit":
            self._follow(trainer.strategy)

    def _follow(self, strategy: Any) -> None:
        """Shards are no part of a checkpoint's dictionary. Where it is written no hook is told, but the strategy is."""
        write = strategy.save_checkpoint
        while isinstance(write, _Followed):
            if write.callback is self:
                return  # (an earlier fit of this trainer)
            write = write.write
        strategy.save_checkpoint = _Followed(strategy.save_checkpoint, strategy, self)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin to watch: weights and optimizers are restored by now."""
        if self.dial is not None:
            self.dial.close()
        options = dict(self.options)
        if options.get("steps") is None:
            planned = trainer.estimated_stepping_batches
            options["steps"] = int(planned) if planned not in (float("inf"), -1) else None
        if options.get("schedule") == "trainer":
            configured = trainer.lr_scheduler_configs
            if len(configured) != 1 or configured[0].interval != "step" or configured[0].frequency != 1:
                raise ValueError('schedule="trainer" needs one scheduler that is stepped after every step')
            options["schedule"] = configured[0].scheduler
        self.dial = Dial(pl_module, trainer.optimizers, **options)
        if self._restored == _SHARDED:
            folder = _beside(Path(str(trainer.ckpt_path)))
            if folder.is_dir():
                load_shards({"dial": self.dial}, checkpoint_id=folder)
            else:
                warnings.warn(f"{folder} is not there: this dial begins at step {trainer.global_step}", stacklevel=2)
        elif self._restored is not None:
            self.dial.load_state_dict(self._restored)
        self._restored = None

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the dial, if asked to."""
        if self.dial is not None:
            self.dial.close()
            if self.save is not None and (trainer.is_global_zero or self.dial.sharded):
                file = Path(self.save)
                if url_of(str(file)) is None:
                    file.parent.mkdir(parents=True, exist_ok=True)
                dial = self.dial
                self._unless_diverged(lambda: dial.save(file), str(file))

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        if self.dial is None:
            return {}
        if self.dial.sharded:
            return {"dial": _SHARDED}
        state = self._unless_diverged(self.dial.state_dict, "this checkpoint")
        return {} if state is None else {"dial": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a checkpoint kept: taken over when training begins."""
        self._restored = state_dict.get("dial")
