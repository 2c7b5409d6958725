"""The command's folds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.metadata_routing import MetadataRequest

from .._afterfit import folds


class Folds:
    """The folds of ``afterfit fit --cv``, for any ``cv=``.

    Parameters
    ----------
    n_splits : int
        How many.
    seed : int
        The same seed gives the same folds.
    stratify : bool
        Whether every fold gets its share of each class.

    Examples
    --------
    >>> from afterfit.sklearn import Folds
    >>> [len(held) for _, held in Folds(3, seed=1).split([[0.0]] * 7)]
    [2, 2, 3]
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0, stratify: bool = False) -> None:
        self.n_splits = n_splits
        self.seed = seed
        self.stratify = stratify

    def __repr__(self) -> str:
        return f"Folds({self.n_splits}, seed={self.seed}, stratify={self.stratify})"

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """How many folds there are."""
        return self.n_splits

    def get_metadata_routing(self) -> MetadataRequest:
        """That groups are taken, where there are any."""
        request = MetadataRequest(owner=type(self).__name__)
        request.split.add_request(param="groups", alias=True)
        return request

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Rows that train, and rows that are held out; rows of a group are held out together."""
        rows = X.shape[0] if hasattr(X, "shape") else len(X)
        strata = np.unique(y, return_inverse=True)[1].tolist() if self.stratify else None
        numbers: dict[Any, int] = {}
        of_groups = None if groups is None else [numbers.setdefault(group, len(numbers)) for group in groups]
        for held in folds(rows, self.n_splits, seed=self.seed, groups=of_groups, strata=strata):
            trains = np.ones(rows, dtype=bool)
            trains[held] = False
            yield np.flatnonzero(trains), held
