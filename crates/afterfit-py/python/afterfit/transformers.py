"""A dial in one line of a Hugging Face trainer.

``Trainer(…, callbacks=[DialCallback(l2=(1e-3, 10))])``; after ``train``, ``callback.export(0.3, "folder")`` writes the model at
that strength as ``save_pretrained`` does. Around a pretrained model λ says how much of the fine-tuning to forget. With LoRA only
the adapter has sums, and the penalty is on its two factors.

The model's own weights are never replaced while it trains. The dial is saved in every ``checkpoint-N`` and found again when
training resumes from step N.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards

from .torch import Dial, Reading
from .torch.callback import KeepsDial
from .torch.checkpoints import loaded
from .torch.optimizers import unwrapped_model

__all__ = ["DialCallback"]

# Tensors do not fit into trainer_state.json. Shards are a folder of torch.distributed.checkpoint.
_FILE, _SHARDS = "afterfit-dial.pt", "afterfit-dial"


class DialCallback(KeepsDial, transformers.TrainerCallback):
    """Keeps a :class:`afterfit.torch.Dial` of every step a trainer takes.

    Parameters
    ----------
    l2
        The range of strengths to be read afterwards. Under AdamW λ is about its ``weight_decay``, pulling toward the start.
    save
        Write ``run.dial`` into the output folder when training ends: ``afterfit dial read`` reads it.
    **options
        Of :class:`afterfit.torch.Dial`; ``schedule="trainer"`` stands for the trainer's own scheduler, so that masses are exact
        under it.

    Attributes
    ----------
    dial
        The dial, once training has begun.

    Examples
    --------
    >>> import tempfile, torch
    >>> from transformers import Trainer, TrainingArguments
    >>> from afterfit.transformers import DialCallback
    >>> class Line(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = torch.nn.Parameter(torch.zeros(2))
    ...     def forward(self, x):
    ...         return {"loss": 0.5 * (self.w - 1.0).square().sum()}
    >>> arguments = TrainingArguments(
    ...     tempfile.mkdtemp(), max_steps=100, optim="sgd", learning_rate=0.1, lr_scheduler_type="constant", max_grad_norm=0.0,
    ...     save_strategy="no", logging_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    ... )
    >>> callback = DialCallback(l2=(0.1, 1.0))
    >>> trainer = Trainer(Line(), arguments, train_dataset=[{"x": 0.0}] * 100, callbacks=[callback])
    >>> trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...
    >>> callback.read(1.0).state_dict()["w"].round(decimals=2)
    tensor([0.5000, 0.5000])
    """

    def __init__(self, l2: tuple[float, float] | None = None, *, save: bool = True, **options: Any) -> None:
        self._set_options(l2=l2, **options)
        self.save = save
        self.dial: Dial | None = None
        self._beside: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch; resume the dial of the checkpoint that training resumes from."""
        if getattr(args, "deepspeed", None):
            raise ValueError("under DeepSpeed no hook sees the weights: use FSDP2 or DDP, or a loop of your own with Dial.push")
        if self.dial is not None:
            self.dial.close()
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        self._beside = kwargs.get("processing_class")
        options = dict(self.options)
        if options.get("steps") is None:
            options["steps"] = int(state.max_steps) if state.max_steps > 0 else None
        if options.get("schedule") == "trainer":
            # (accelerate's wrapper has torch's scheduler inside.)
            scheduler = kwargs["lr_scheduler"]
            options["schedule"] = getattr(scheduler, "scheduler", scheduler)
        self.dial = Dial(model, optimizer, **options)
        if args.save_total_limit is not None:
            warnings.warn(
                f"save_total_limit={args.save_total_limit} removes the oldest checkpoints first: the dial needs none of them, "
                "but `afterfit average` weighs them most",
                stacklevel=2,
            )
        if state.global_step > 0:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            file = folder / (_SHARDS if self.dial.sharded else _FILE)
            if not file.exists():
                # (It may be any folder that training was told to resume from.)
                warnings.warn(f"{file} is not there: this dial begins at step {state.global_step}", stacklevel=2)
            elif self.dial.sharded:
                load_shards({"dial": self.dial}, checkpoint_id=file)
            else:
                self.dial.load_state_dict(loaded(file))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the dial into the checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.dial is None or not (self.dial.sharded or (state.is_world_process_zero and folder.is_dir())):
            return
        kept = self._unless_diverged(self.dial.state_dict, "this checkpoint")
        if kept is None:
            return
        if self.dial.sharded:
            save_shards({"dial": kept}, checkpoint_id=folder / _SHARDS)
        else:
            draft = folder / f".{_FILE}.new"
            torch.save(kept, draft)
            os.replace(draft, folder / _FILE)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the dial's file."""
        if self.dial is None:
            return
        self.dial.close()
        if self.save and self.dial.steps > 0 and (state.is_world_process_zero or self.dial.sharded):
            Path(args.output_dir).mkdir(parents=True, exist_ok=True)
            dial, file = self.dial, Path(args.output_dir) / "run.dial"
            self._unless_diverged(lambda: dial.save(file), str(file))

    def export(self, l2: float | Reading, folder: str | os.PathLike[str], **options: Any) -> Reading:
        """Write the model at a strength into a folder, as ``save_pretrained`` does, with its tokenizer or processor.

        Parameters
        ----------
        l2
            λ, or a reading.
        folder
            Where to.
        **options
            Of ``save_pretrained``.
        """
        dial = self._made()
        with dial.applied(l2) as reading:
            model: Any = unwrapped_model(dial.model)
            getattr(model, "_orig_mod", model).save_pretrained(folder, **options)
        if self._beside is not None:
            self._beside.save_pretrained(folder)
        found: Reading = reading
        return found
