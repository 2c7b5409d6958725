"""Progress bars, where tqdm is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Move = Callable[[int, int], None]


@contextmanager
def bar(shown: bool, what: str, unit: str) -> Iterator[Move | None]:
    """A bar that is told how much is done of how much; nothing if none is asked for, or there is no tqdm."""
    if not shown:
        yield None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield None
        return
    with tqdm(desc=what, unit=unit, unit_scale=True) as line:

        def move(done: int, total: int) -> None:
            line.total = total
            line.update(done - line.n)

        yield move
