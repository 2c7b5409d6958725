"""Checkpoints as state dicts: their averages, and files of tensors."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from .. import _afterfit, _command
from .optimizers import clean, unwrapped_model

StateDict: TypeAlias = dict[str, Tensor]

#: What is about files, or makes none that are models.
_OF_FILES = ("out", "format", "shard_size", "force", "skip_existing", "dry_run", "dial", "nodes")
#: What may be several: then there are several averages.
_OF_AVERAGES = (
    "l2", "ratio", "last", "ema", "half_life", "power_ema", "power_ema_gamma", "anneal", "schedule", "wise", "iterate"
)  # fmt: skip


def average(
    paths: _command.PathLike | Iterable[_command.PathLike],
    *,
    model: nn.Module | None = None,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Any:
    """Average checkpoints into a state dict.

    Parameters
    ----------
    paths
        Checkpoints, as :func:`afterfit.average` takes them.
    model
        Gets the average. Its parameters and buffers must be just those of the checkpoints.
    device
        Where the tensors are to be.
    **options
        Of :func:`afterfit.average`, but for what is about output files. That function also says how far an average can be trusted.

    Returns
    -------
    dict
        Tensors by name; where several averages are asked for (a list, a range, ``l2="auto"``), such a dictionary for each strength
        instead. With ``keep="best"`` it is the best alone.

    Raises
    ------
    afterfit.CheckpointError, FileNotFoundError, ValueError
        As :func:`afterfit.average`.

    Examples
    --------
    >>> import pathlib, tempfile, torch
    >>> import afterfit.torch
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for step in range(4):
    ...     torch.save({"w": torch.full((2,), float(step))}, folder / f"step-{step}.pt")
    >>> afterfit.torch.average(folder, uniform=True)
    {'w': tensor([1.5000, 1.5000])}
    >>> averages = afterfit.torch.average(folder, l2=[0.1, 1.0], rate=0.5)
    >>> {l2: round(tensors["w"][0].item(), 2) for l2, tensors in averages.items()}
    {0.1: 2.72, 1.0: 1.41}
    """
    for name in _OF_FILES:
        if name in options:
            raise TypeError(f"{name}= is about files: a state dict has none, and afterfit.average writes them")
    one = options.get("keep") == "best"
    several = not one and any(
        np.ndim(value) > 0 or (name == "l2" and isinstance(value, str))
        for name, value in options.items()
        if name in _OF_AVERAGES and value is not None
    )
    if model is not None and several:
        raise ValueError("a model gets one average, and several are asked for: name one strength, or load the one that is best")
    with tempfile.TemporaryDirectory(prefix="afterfit-") as folder:
        made = _command.average(paths, f"{folder}/", format="safetensors", **options)
        found = {
            Path(output.path).stem if output.strength is None else output.strength: tensors_of(Path(output.path), device)
            for output in made.outputs
            if not one or output.best
        }
    if several:
        return found
    (tensors,) = found.values()
    if model is not None:
        load(model, tensors)
    return tensors


def load(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts tensors into a model which has just these, whatever it is wrapped in."""
    model = unwrapped_model(model)
    given = {clean(name): tensor for name, tensor in tensors.items()}
    complete: dict[str, Any] = {}
    first: dict[int, Tensor] = {}
    for name, own in model.state_dict(keep_vars=True).items():
        # (Of tied tensors a file may hold the first alone.)
        tensor = given.pop(clean(name), first.get(id(own)))
        if tensor is not None:
            complete[name] = first[id(own)] = tensor
    model.load_state_dict(complete | given)


def files_of(path: Path) -> list[Path]:
    """The files of a model: itself, or those of its folder."""
    if not path.is_dir():
        return [path]
    files = sorted(path.rglob("*.safetensors"))
    if not files:
        raise _afterfit.CheckpointError(f"{path}: no file of safetensors is in this folder")
    if len({file.parent for file in files}) > 1:
        raise _afterfit.CheckpointError(f"{path}: several models are in this folder: name one of them")
    return files


def tensors_of(path: Path, device: torch.device | str = "cpu") -> StateDict:
    """The tensors of a file, or of a folder of safetensors, by their names."""
    tensors: StateDict = {}
    for file in files_of(path):
        if file.suffix == ".safetensors":
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                tensors |= load_file(file, device=str(device))
            except SafetensorError as error:
                raise _afterfit.CheckpointError(f"{file}: {error}") from error
        else:
            found = loaded(file, device)
            if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
                raise _afterfit.CheckpointError(f"{file}: it is no state dict, which has tensors by their names")
            tensors |= found
    return tensors


def loaded(file: str | os.PathLike[str], device: torch.device | str = "cpu") -> Any:
    """What ``torch.load`` finds, if that is plain data; an error of ours says which file is broken."""
    try:
        return torch.load(file, map_location=device, weights_only=True)
    except OSError:
        raise  # (says its file)
    except Exception as error:  # (of zip, pickle or torch: whatever a broken file meets first)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _afterfit.CheckpointError(f"{os.fspath(file)}: it cannot be read, and may be cut short: {reason}") from error


class CenterFile:
    """A file that has the center of some parameters: what states refer to instead of holding a copy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names: set[str] = set()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file; of a folder, that of its files' own."""
        each = []
        for file in files_of(self.path):
            with open(file, "rb") as content:
                each.append(hashlib.file_digest(content, "sha256"))
        return each[0].hexdigest() if len(each) == 1 else hashlib.sha256(b"".join(one.digest() for one in each)).hexdigest()

    def state(self, names: list[str]) -> dict[str, Any]:
        return {"path": str(self.path), "sha256": self.digest, "names": names}
