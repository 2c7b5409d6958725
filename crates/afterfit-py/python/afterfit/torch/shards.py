"""Tensors that may be shards of larger ones (DTensor), and their bytes."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # (whoever has such a tensor has imported it)
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def sharded_like(parameter: Tensor, local: Tensor) -> Tensor:
    """A tensor that is sharded as the parameter is. (Shapes are said: uneven shards would be guessed wrongly.)"""
    if not is_sharded(parameter):
        return local
    made: Tensor = sys.modules["torch.distributed.tensor"].DTensor.from_local(
        local,
        parameter.device_mesh,  # type: ignore[attr-defined]
        parameter.placements,  # type: ignore[attr-defined]
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return made


def whole_of(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def bytes_of(tensor: Tensor) -> Any:
    """A tensor's bytes as a numpy array."""
    return tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
