"""Averages of checkpoints as state dicts are those that the command writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import afterfit
from afterfit._afterfit import main
from afterfit.torch import average


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Five checkpoints of a model with statistics and tied weights."""
    torch.manual_seed(0)
    folder, model = tmp_path / "run", Tied()
    folder.mkdir()
    for step in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            model.norm.running_mean.add_(0.1)
            model.norm.num_batches_tracked.add_(1)
        torch.save(model.state_dict(), folder / f"step-{step}.pt")
    return folder


def command(run: Path, out: Path, *flags: str) -> dict[str, torch.Tensor]:
    assert main(["afterfit", "average", str(run), "-o", str(out), "--json", *flags]) == 0
    return load_file(out)


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return sorted(one) == sorted(two) and all(
        torch.equal(one[name], two[name]) and one[name].dtype == two[name].dtype for name in one
    )


def test_one_strength_is_a_state_dict_and_fits_the_model(run: Path, tmp_path: Path) -> None:
    expected = command(run, tmp_path / "one.safetensors", "--l2=0.5", "--rate=0.3")
    model = Tied()
    found = average(run, l2=0.5, rate=0.3, model=model)
    assert same(found, expected)
    own = model.state_dict()
    assert all(torch.equal(own[name], tensor) for name, tensor in found.items())
    assert model.last.weight is model.first.weight and torch.equal(own["last.weight"], found["first.weight"])
    compiled = torch.compile(Tied())
    average(run, uniform=True, model=compiled)
    assert torch.equal(compiled.first.weight, command(run, tmp_path / "mean.safetensors", "--uniform")["first.weight"])
    narrow = average(run, l2=0.5, rate=0.3, dtype="bf16")
    assert narrow["first.weight"].dtype == torch.bfloat16
    found["first.weight"].add_(1.0)  # (is the caller's own, whatever it was read from)


def test_several_strengths_are_a_dictionary_of_them(run: Path, tmp_path: Path) -> None:
    found = average(run, l2=[0.2, 0.9], rate=0.3)
    assert list(found) == [0.2, 0.9]
    for l2, tensors in found.items():
        assert same(tensors, command(run, tmp_path / f"{l2}.safetensors", f"--l2={l2}", "--rate=0.3"))
    assert list(average(run, l2=[0.2], rate=0.3)) == [0.2]
    assert len(average(run, l2=(0.1, 1.0, 3), rate=0.3)) == len(average(run, l2="0.1..1:3", rate=0.3)) == 3
    assert len(average(run, anneal=["1-sqrt", "linear"])) == 2
    best = average(run, l2=[0.2, 0.9], rate=0.3, evaluate=lambda path: float("0.9" in path.name), best="max", keep="best")
    assert same(best, found[0.9])


def test_folders_of_shards_are_read_whole(tmp_path: Path) -> None:
    for step in range(3):
        home = tmp_path / "run" / f"checkpoint-{step}"
        home.mkdir(parents=True)
        save_file({"a": torch.full((3,), float(step)), "b": torch.ones(2, dtype=torch.float16) * step}, home / "model.safetensors")
    found = average(tmp_path / "run", uniform=True)
    assert torch.equal(found["a"], torch.ones(3)) and torch.equal(found["b"], torch.ones(2, dtype=torch.float16))


def test_what_does_not_fit_is_refused(run: Path) -> None:
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)[^\n]*0.weight"):
        average(run, uniform=True, model=nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match="several are asked for"):
        average(run, l2=[0.2, 0.9], rate=0.3, model=Tied())
    with pytest.raises(TypeError, match="dial= is about files"):
        average(run, dial="auto")
    with pytest.raises(TypeError, match="unexpected keyword argument 'ratee'"):
        average(run, l2=0.2, ratee=0.3)
    with pytest.raises(afterfit.CheckpointError, match="--rate"):
        average(run, l2=0.2)
    with pytest.raises(FileNotFoundError):
        average(run / "nothing", uniform=True)
