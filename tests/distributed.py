"""`torch.distributed.checkpoint` as judge of `afterfit average`: processes save their shards, and load the averages back.

`make test-heavy` runs it as `python tests/distributed.py PATH_TO_AFTERFIT`. Two and four gloo processes; sums are compared with those
of whole tensors in torch. Prints `N passed, N failed`.
"""

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch import nn

import runner

warnings.filterwarnings("ignore")
AFTERFIT = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
STEPS = list(range(10, 90, 10))
# The first five were saved by two processes, the others by four.
BEFORE, AFTER = STEPS[:5], STEPS[5:]
RATE, DROP = 0.05, 40


def run(folder, *arguments, fails=False):
    done = subprocess.run([AFTERFIT, *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr or done.stdout
    return done.stderr if fails else done.stdout


# ------------------------------------------------------------------ what the processes save


def whole(step):
    """Rows that no number of processes shares evenly, fewer rows than processes, no rows at all; every kind of type."""
    generator = torch.Generator().manual_seed(step)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    return {
        "rows": normal(7, 5), "few": normal(3, 2), "columns": normal(6, 9), "grid": normal(9, 11), "deep": normal(5, 6, 7).double(),
        "half": normal(13, 3).bfloat16(), "eighth": normal(8, 4).to(torch.float8_e4m3fn), "same": normal(4, 4), "number": normal(1)[0], "counts": torch.arange(6) + step,
        "long": normal(70001, 3), "strided": normal(10, 12).t(),
    }  # fmt: skip


def sharded(step, mesh, grid):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    ways = {
        "rows": (mesh, [Shard(0)]), "few": (mesh, [Shard(0)]), "columns": (mesh, [Shard(1)]), "grid": (grid, [Shard(0), Shard(1)]),
        "deep": (grid, [Shard(2), Shard(0)]), "half": (mesh, [Shard(0)]), "eighth": (mesh, [Shard(0)]), "same": (mesh, [Replicate()]), "long": (mesh, [Shard(0)]),
        "strided": (mesh, [Shard(0)]),
    }  # fmt: skip
    # (Each process takes its own part of what all of them have.)
    cut = lambda name, value: distribute_tensor(value, *ways[name], src_data_rank=None) if name in ways else value
    return {name: cut(name, value) for name, value in whole(step).items()}


class Evil:
    """Something that is no data."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 3))

    def forward(self, x):
        return self.layers(x)


def rate(step):
    """Of the step that leaves this one."""
    return RATE if step < DROP else RATE / 10


def train(model, optimizer, first, last):
    for step in range(first, last):
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
    # What a scheduler leaves: the rate of the next step.
    optimizer.param_groups[0]["lr"] = rate(last)


def full(state):
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in state.items()}


def processes(rank, world, folder, steps):
    torch.set_num_threads(1)
    folder = Path(folder)
    store = dist.FileStore(str(folder / f"store-{world}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, grid = init_device_mesh("cpu", (world,)), init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("a", "b"))
    for step in steps:
        dcp.save({"model": sharded(step, mesh, grid), "epoch": step // 10}, checkpoint_id=folder / "tensors" / f"step-{step}")
        # Megatron-LM's: no way to the entries is kept, and its own file says the step.
        dcp.save(
            {f"decoder.{name}": value for name, value in sharded(step, mesh, grid).items()}
            | {"decoder.layers._extra_state/shard_0_1": io.BytesIO(bytes([step])), "decoder.other._extra_state": Evil()},
            checkpoint_id=folder / "megatron" / f"iter_{step:07d}",
            planner=dcp.DefaultSavePlanner(flatten_state_dict=False),
        )
        if rank == 0:
            common = {"iteration": step, "checkpoint_version": 3.0, "optimizer": {"optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}]}}}
            torch.save(common, folder / "megatron" / f"iter_{step:07d}" / "common.pt")
            (folder / "megatron" / f"iter_{step:07d}" / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    # A real training with FSDP2, which the larger group resumes.
    torch.manual_seed(0)
    model = Net()
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    first = 0
    if steps[0] != STEPS[0]:
        first = steps[0] - 10
        train(model, optimizer, 0, 1)
        weights, state = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": state}
        dcp.load(saved, checkpoint_id=folder / "plain" / f"step-{first}")
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    for step in steps:
        train(model, optimizer, first, step)
        first = step
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / "plain" / f"step-{step}")
        # torchtitan's: the model's names at the top, the optimizer's flat.
        flat = get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))[1]
        titan = {**weights, "optimizer": flat, "train_state": {"step": torch.tensor(step, dtype=torch.int32)}, "lr_scheduler": {"last_epoch": step}}
        dcp.save(titan, checkpoint_id=folder / "titan" / f"step-{step}")
        # accelerate's.
        dcp.save({"model": weights}, checkpoint_id=folder / "accelerate" / f"checkpoint-{step}" / "pytorch_model_fsdp_0")
        dcp.save({"optimizer": state}, checkpoint_id=folder / "accelerate" / f"checkpoint-{step}" / "optimizer_0")
        # Transformers': each process its own safetensors.
        writer = dcp.HuggingFaceStorageWriter(str(folder / "transformers" / f"checkpoint-{step}"), save_distributed=True)
        dcp.save(weights, storage_writer=writer)
        all_of_it = full(weights)
        if rank == 0:
            torch.save(all_of_it, folder / f"whole-{step}.pt")
    dist.barrier()
    leave()


def load_sharded(rank, world, folder, average, expected):
    """An average goes into an FSDP2 model of as many processes."""
    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(folder, "store-load"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(Net())
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=average)
    close(full(state["model"]), torch.load(expected))
    dist.barrier()
    leave()


def leave():
    dist.destroy_process_group()
    # (Gloo's threads may outlive the group, and abort the process while the interpreter is taken down: pytorch/pytorch#179291.)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


RUNS = None


def runs():
    """Saved once, by two processes and then by four."""
    global RUNS
    if RUNS is None:
        RUNS = tempfile.TemporaryDirectory()
        for world, steps in ((2, BEFORE), (4, AFTER)):
            runner.processes(processes, (world, RUNS.name, steps), world)
    return Path(RUNS.name)


# ------------------------------------------------------------------ what is compared


def weighted(weights, states):
    expected = {}
    for name, last in states[-1].items():
        if not last.dtype.is_floating_point:
            expected[name] = last
            continue
        expected[name] = sum(weight * state[name].double() for weight, state in zip(weights, states)).to(last.dtype)
    return expected


def close(found, expected):
    assert set(found) == set(expected), set(found) ^ set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        # (Half a step of the type: a sum in f64 may lie near a tie.)
        apart = (found[name].double() - value.double()).abs()
        step = torch.finfo(value.dtype).eps if value.dtype.is_floating_point else 0
        assert bool((apart <= step * value.double().abs() + 1e-12).all()), f"{name}: {apart.max()}"


def loaded(folder, like):
    """By torch's own reader."""
    state = {name: torch.empty_like(value) for name, value in like.items()}
    saved = {"model": state}
    dcp.load(saved, checkpoint_id=folder, no_dist=True)
    return saved["model"]




def chunks_are_joined_and_resharded(folder):
    """Uneven rows, columns, a grid, three dimensions, replicas, bf16 and f8; split by two processes, then by four."""
    source = runs() / "tensors"
    states = [whole(step) for step in STEPS]
    weights = 0.8 ** np.arange(len(STEPS))
    weights /= weights.sum()
    expected = weighted(weights, states)
    for out in ("average", "average.safetensors", "average.pt"):
        run(folder, "average", source, "-o", out, "--ratio", 0.8)
    close(loaded(folder / "average", expected), expected)
    close(load_file(folder / "average.safetensors"), expected)
    close(torch.load(folder / "average.pt", weights_only=True)["model"], expected)
    # In many small files, and read once more by us.
    run(folder, "average", source, "-o", "shards", "--ratio", 0.8, "--shard-size", "1kB", "--threads", 1)
    assert len(list((folder / "shards").glob("*.distcp"))) > 3
    close(loaded(folder / "shards", expected), expected)
    run(folder, "average", "shards", "-o", "again.safetensors", "--iterate", 0)
    close(load_file(folder / "again.safetensors"), expected)
    shown = json.loads(run(folder, "inspect", source / "step-10", "--json"))
    assert {row["name"]: row["shape"] for row in shown["tensors"]} == {name: list(value.shape) for name, value in states[0].items()}


def one_checkpoint_is_itself_to_the_bit(folder):
    for step in (10, 80):
        run(folder, "average", runs() / "tensors", "-o", f"step-{step}", "--iterate", step)
        run(folder, "average", f"step-{step}", "-o", f"{step}.safetensors", "--iterate", step)
        for found in (loaded(folder / f"step-{step}", whole(step)), load_file(folder / f"{step}.safetensors")):
            # (Integers are the last one's.)
            for name, value in whole(step).items():
                assert name == "counts" or torch.equal(found[name].double(), value.double()), name


def megatrons_merge(folder):
    """`schedule_to_merge_coefficients`: decay[i] = f(i/n), on `iter_%07d` without a word about nesting."""
    states = [{f"decoder.{name}": value for name, value in whole(step).items()} for step in STEPS]
    n = len(STEPS)
    for name, shape in {"linear": lambda x: 1 - x, "1-sqrt": lambda x: 1 - np.sqrt(x)}.items():
        decay = [shape(i / n) for i in range(n)]
        coefficients = np.zeros(n)
        coefficients[-1] = decay[-1]
        coefficients[1:-1] = [decay[i] - decay[i + 1] for i in range(1, n - 1)]
        coefficients[0] = 1 - coefficients.sum()
        run(folder, "average", runs() / "megatron", "-o", name, "--anneal", name, "--window", "100%")
        expected = weighted(coefficients, states)
        found = {key: torch.empty_like(value) for key, value in expected.items()}
        dcp.load(found, checkpoint_id=folder / name, no_dist=True, planner=dcp.DefaultLoadPlanner(flatten_state_dict=False))
        close(found, expected)
        assert (folder / name / "metadata.json").exists()
        # What layers keep besides is the last one's, if it is data.
        extra = {"decoder.layers._extra_state/shard_0_1": None}
        dcp.load(extra, checkpoint_id=folder / name, no_dist=True)
        assert extra.popitem()[1].getvalue() == bytes([STEPS[-1]])
        assert b"decoder.other" not in (folder / name / ".metadata").read_bytes()
    said = json.loads(run(folder, "inspect", runs() / "megatron" / "iter_0000010", "--json"))["training"]
    assert said["step"] == 10 and said["groups"][0]["rate"] == 0.1, said


def steps_and_rates_are_in_the_optimizers(folder):
    """FSDP2 trained with AdamW whose rate drops: the same weights from every layout, and those that every step's rate gives."""
    found = {}
    for layout in ("plain", "titan", "accelerate"):
        command = ["average", runs() / layout, "-o", "never", "--dry-run", "--l2", 0.5, "--rate", f"{RATE},{DROP}:{RATE / 10}", "--json"]
        found[layout] = json.loads(run(folder, *command))
        assert [row["step"] for row in found[layout]["inputs"]] == STEPS, found[layout]["inputs"]
        assert found[layout]["outputs"][0]["scheme"].startswith("adamw"), found[layout]["outputs"]
        said = json.loads(run(folder, "inspect", runs() / layout / ("checkpoint-50" if layout == "accelerate" else "step-50"), "--json"))
        group = said["training"]["groups"][0]
        assert said["training"]["optimizer_steps"] == 50 and abs(group["rate"] - rate(50)) < 1e-12, said["training"]
        assert sorted(group["names"]) == sorted(Net().state_dict()), group
    assert found["plain"]["weights"] == found["titan"]["weights"] == found["accelerate"]["weights"]


def averages_load_into_fsdp(folder):
    states = [torch.load(runs() / f"whole-{step}.pt") for step in STEPS]
    expected = weighted(np.full(len(STEPS), 1 / len(STEPS)), states)
    torch.save(expected, folder / "expected.pt")
    run(folder, "average", runs() / "plain", "-o", "mean", "--uniform")
    runner.processes(load_sharded, (2, str(folder), str(folder / "mean"), str(folder / "expected.pt")), 2)
    run(folder, "average", runs() / "titan", "-o", "titan", "--uniform")
    state = {name: torch.empty_like(value) for name, value in expected.items()}
    dcp.load(state, checkpoint_id=folder / "titan", no_dist=True)
    close(state, expected)
    run(folder, "average", runs() / "transformers", "-o", "transformers", "--uniform")
    close(load_file(folder / "transformers" / "model.safetensors"), expected)
    run(folder, "average", runs() / "accelerate", "-o", "accelerate", "--uniform")
    close(loaded(folder / "accelerate" / "pytorch_model_fsdp_0", expected), expected)


def averages_load_with_from_pretrained(folder):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=20, n_positions=8))
    total = None
    for step in (1, 2, 3):
        with torch.no_grad():
            [parameter.add_(torch.randn_like(parameter)) for parameter in model.parameters()]
        state = {name: value.double() / 3 for name, value in model.state_dict().items()}
        total = state if total is None else {name: total[name] + value for name, value in state.items()}
        at = folder / "run" / f"checkpoint-{step}"
        dcp.save({"model": model.state_dict()}, checkpoint_id=at / "pytorch_model_fsdp_0", no_dist=True)
        model.config.save_pretrained(at)
    run(folder, "average", "run", "-o", "hf", "--uniform", "--format", "safetensors")
    found = GPT2LMHeadModel.from_pretrained(folder / "hf").state_dict()
    close(found, {name: value.float() for name, value in total.items()})


def what_is_damaged_is_refused(folder):
    """A byte, an end, a file, the list; chunks that overlap or are missing; paths that lead out; packed bytes."""
    source = runs() / "tensors" / "step-10"

    def broken(name, change, *words):
        copy = folder / name
        subprocess.run(["cp", "-r", source, copy], check=True)
        change(copy)
        said = run(folder, "average", copy, runs() / "tensors" / "step-20", "-o", "never", "--uniform", fails=True)
        assert all(word in said for word in words), said
        assert not (folder / "never").exists()

    def metadata(edit):
        def change(copy):
            # (Loaded by a pickle that its own test wrote.)
            listed = pickle.loads((copy / ".metadata").read_bytes())
            edit(listed)
            (copy / ".metadata").write_bytes(pickle.dumps(listed))

        return change

    def flip(copy):
        file = copy / "__1_0.distcp"
        listed = pickle.loads((copy / ".metadata").read_bytes())
        where = next(info for index, info in listed.storage_data.items() if index.fqn == "model.long" and info.relative_path == file.name)
        data = bytearray(file.read_bytes())
        data[where.offset + where.length // 2] ^= 1
        file.write_bytes(data)

    def first(listed, name):
        return next(info for index, info in listed.storage_data.items() if index.fqn == name)

    chunks = lambda listed, name: listed.state_dict_metadata[name].chunks
    broken("flipped", flip, "damaged", "__1_0.distcp")
    broken("short", lambda copy: os.truncate(copy / "__1_0.distcp", 5000), "__1_0.distcp", "beyond")
    broken("missing", lambda copy: (copy / "__1_0.distcp").unlink(), "__1_0.distcp is missing")
    broken("unfinished", lambda copy: (copy / ".metadata").unlink(), "never completed")
    broken("cut", lambda copy: os.truncate(copy / ".metadata", 500), ".metadata")
    broken("hole", metadata(lambda listed: chunks(listed, "model.rows").pop()), "model.rows", "elements")
    broken("twice", metadata(lambda listed: setattr(chunks(listed, "model.rows")[1], "offsets", torch.Size([1, 0]))), "model.rows")
    broken("outside", metadata(lambda listed: setattr(first(listed, "model.rows"), "relative_path", "../secret")), "../secret", "refused")
    broken("packed", metadata(lambda listed: setattr(first(listed, "model.rows"), "transform_descriptors", ["stream.zstd"])), "stream.zstd")
    broken("typed", metadata(lambda listed: setattr(listed.state_dict_metadata["model.rows"].properties, "dtype", torch.float64)), "model.rows")

    class Runs:
        def __reduce__(self):
            return os.system, (f"touch {folder}/pwned",)

    broken("evil", lambda copy: (copy / ".metadata").write_bytes(pickle.dumps(Runs())), "refused")
    assert not (folder / "pwned").exists()


def memory_stays_below_a_quarter_of_a_model(folder):
    """67 MB in pieces along rows and columns, 8 strengths: a quarter of it, and the program."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties

    class Cut(dcp.DefaultSavePlanner):
        """One process that saves what many would."""

        def create_local_plan(self):
            plan = super().create_local_plan()
            items = []
            for item in plan.items:
                shape = item.tensor_data.size
                parts = [(r, c) for r in range(8) for c in range(2)]
                for n, (r, c) in enumerate(parts):
                    rows, columns = shape[0] // 8, shape[1] // 2
                    at, sizes = torch.Size([r * rows, c * columns]), torch.Size([rows, columns])
                    data = TensorWriteData(ChunkStorageMetadata(at, sizes), TensorProperties(dtype=torch.float32), shape)
                    items.append(WriteItem(MetadataIndex(item.index.fqn, at, n), WriteItemType.SHARD, tensor_data=data))
            self.plan = type(plan)(items, planner_data=self.mappings)
            return self.plan

        def lookup_object(self, index):
            whole = self.state_dict[index.fqn]
            r, c = index.offset
            return whole[r : r + whole.shape[0] // 8, c : c + whole.shape[1] // 2].contiguous()

    def used(name, size, layers=4):
        """Bytes at the peak, by the command's own account: the shell that evaluates is its child."""
        for step in range(6):
            state = {f"w{n}": torch.full((size, size), float(step * n)) for n in range(layers)}
            dcp.save(state, checkpoint_id=folder / name / f"step-{step}", planner=Cut(), no_dist=True)
        peak = "awk '/VmHWM/ {print $2}' /proc/$PPID/status # {}"
        command = ["average", name, "-o", f"{name}-out", "--l2", "1e-4..1e-1:8", "--rate", "0.1", "--threads", 2, "--eval", peak, "--json"]
        return 1024 * json.loads(run(folder, *command))["outputs"][0]["score"], 4 * layers * size * size

    (program, _), (peak, model) = used("small", 16), used("large", 2048)
    print(f"      peak {peak / 1e6:.1f} MB, of which {program / 1e6:.1f} MB are the program; a model has {model / 1e6:.1f} MB")
    assert 1e6 < peak < program + model / 4


CHECKS = [
    chunks_are_joined_and_resharded,
    one_checkpoint_is_itself_to_the_bit,
    megatrons_merge,
    steps_and_rates_are_in_the_optimizers,
    averages_load_into_fsdp,
    averages_load_with_from_pretrained,
    what_is_damaged_is_refused,
    memory_stays_below_a_quarter_of_a_model,
]

if __name__ == "__main__":
    torch.set_num_threads(1)
    runner.run([check for check in CHECKS if len(sys.argv) < 3 or check.__name__ in sys.argv[2:]])
