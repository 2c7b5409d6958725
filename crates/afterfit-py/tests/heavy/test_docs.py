"""The examples in the documentation of what needs heavy friends."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

#: Each with what its users meet first.
MAIN = {
    "afterfit.torch": None,
    "afterfit.torch.dial": "Dial",
    "afterfit.torch.checkpoints": "average",
    "afterfit.lightning": "DialCallback",
    "afterfit.transformers": "DialCallback",
    "afterfit.jax": "dial",
    "afterfit.ray": "average",
    "afterfit.widget": "Dial",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MAIN)
def test_examples_in_the_documentation(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module)
    assert tried and not failed
    if MAIN[name] is not None:
        assert "\n    Examples\n    --------\n    >>> " in getattr(module, MAIN[name]).__doc__
