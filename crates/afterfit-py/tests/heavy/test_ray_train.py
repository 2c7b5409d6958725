"""The dial of a run of Ray Train that died once is that of one that did not."""

from __future__ import annotations

import runpy
from pathlib import Path

import ray
import torch
from problem import flat

EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_run.py"


def test_the_dial_survives_a_restart(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLE))
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, logging_level="ERROR", log_to_driver=False)
    try:
        result = example["run"](tmp_path)
    finally:
        ray.shutdown()
    # It died behind its third epoch, and did not begin anew.
    assert result.error is None and result.metrics["first"] > 0
    threads = torch.get_num_threads()
    model, optimizer, whole = example["make"]()
    for number in range(example["EPOCHS"]):
        example["epoch_of"](number, model, optimizer)
    again = example["make"]()
    with result.checkpoint.as_directory() as folder:
        state = torch.load(Path(folder) / "run.pt", weights_only=True)
    for part, kept in zip(again, state["parts"], strict=True):
        part.load_state_dict(kept)
    torch.set_num_threads(threads)
    resumed = again[2]
    assert torch.equal(flat(model.state_dict()), flat(again[0].state_dict()))
    for l2 in (1e-3, 0.05, 1.0):
        one, two = whole.read(l2=l2), resumed.read(l2=l2)
        assert torch.equal(flat(one.state_dict()), flat(two.state_dict()))
        assert (one.error, one.unspent, one.status) == (two.error, two.unspent, two.status)
    for first, second in zip(whole._courses[0].banks, resumed._courses[0].banks, strict=True):
        assert torch.equal(first.sums, second.sums)
