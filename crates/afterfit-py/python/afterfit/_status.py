"""How far a reading can be trusted, in words."""

from typing import NamedTuple


class Status(NamedTuple):
    """How far a reading is backed by a theorem, and why."""

    standing: str
    reason: str

    def __str__(self) -> str:
        return f"{self.standing}: {self.reason}"
