"""numpy, safetensors and PyTorch as independent judges of `afterfit average`.

`make test` runs it as `python tests/checkpoints.py PATH_TO_AFTERFIT`; `make test-heavy` adds `--torch`, which makes
checkpoints afresh with PyTorch and loads what comes out with it. Prints `N passed, N failed`.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import runner

AFTERFIT = Path(sys.argv[1]).resolve()
TORCH = "--torch" in sys.argv
RNG = np.random.default_rng(1)


def run(folder, *arguments, fails=False):
    done = subprocess.run([AFTERFIT, *map(str, arguments)], cwd=folder, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr or done.stdout
    return done.stderr if fails else done.stdout


def model(step):
    return {
        "conv.weight": RNG.normal(size=(8, 3, 3, 3)).astype(np.float32),
        "linear.weight": RNG.normal(size=(5, 72)).astype(np.float64),
        "half": RNG.normal(size=77).astype(np.float16),
        "bn.running_mean": RNG.normal(size=8).astype(np.float32),
        "bn.num_batches_tracked": np.array(step, np.int64),
        "mask": RNG.normal(size=4) > 0,
    }


def reference(models, weights):
    """Twenty lines that anyone can check."""
    out = {}
    for name, last in models[-1].items():
        if last.dtype.kind != "f" or name.endswith("running_mean"):
            out[name] = last
            continue
        total = np.zeros(last.shape, np.float64)
        for weight, state in zip(weights, models):
            total += weight * state[name].astype(np.float64)
        out[name] = total.astype(last.dtype)
    return out


def same(found, expected):
    assert set(found) == set(expected), set(found) ^ set(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape, name
        if value.dtype == np.float64:
            np.testing.assert_allclose(found[name], value, rtol=1e-13, atol=1e-14, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def geometric(ratio, count):
    weights = ratio ** np.arange(count)
    return weights / weights.sum()


def the_authors_weights_from_safetensors(folder):
    models = [model(step) for step in range(61, 101)]
    for step, state in zip(range(61, 101), models):
        save_file(state, folder / f"epoch-{step}.safetensors", metadata={"format": "pt"})
    out = json.loads(run(folder, "average", ".", "-o", "out", "--ratio", "0.9999,0.999,0.99,0.9", "--json"))
    for row, weights in zip(out["outputs"], out["weights"]):
        expected = geometric(row["strength"], 40)
        np.testing.assert_allclose(weights, expected, rtol=1e-13)
        same(load_file(folder / row["path"]), reference(models, expected))
    with safe_open(folder / "out" / "ratio-0.99.safetensors", "np") as opened:
        record = json.loads(opened.metadata()["afterfit"])
        assert opened.metadata()["format"] == "pt" and record["steps"] == list(range(61, 101)), record


def npz_in_and_out(folder):
    models = [model(step) for step in range(5)]
    for step, state in enumerate(models):
        # Packed, plain and column-major arrays.
        save = np.savez_compressed if step % 2 else np.savez
        save(folder / f"step{step}.npz", **{k: np.asarray(v, order="F") for k, v in state.items()})
    # (Not the plain mean: a fifth of a few f32 often lies halfway between two f32, where the last bit of f64 decides.)
    run(folder, "average", "step*.npz", "-o", "mean.npz", "--ratio", "0.9")
    same(dict(np.load(folder / "mean.npz")), reference(models, geometric(0.9, 5)))
    run(folder, "average", "step*.npz", "-o", "mean.safetensors", "--ratio", "0.9")
    same(load_file(folder / "mean.safetensors"), reference(models, geometric(0.9, 5)))


def strengths_follow_the_theory(folder):
    """λ over checkpoints every 10 steps with a rate that drops: weights from docs/theory.md, computed here step by step."""
    models = [model(step) for step in range(0, 50, 10)]
    for step, state in zip(range(0, 50, 10), models):
        save_file(state, folder / f"checkpoint-{step}.safetensors")
    command = ["average", ".", "-o", "out", "--l2", "1e-3,1e-2", "--rate", "0.1,20:0.05", "--json"]
    for more, answer in [([], "regularized"), (["--answer", "normalized", "--force"], "normalized")]:
        out = json.loads(run(folder, *command, *more))
        for row, weights in zip(out["outputs"], out["weights"]):
            mass, expected = 1.0, np.zeros(5)
            for k in range(40):
                decay = row["strength"] * (0.1 if k < 20 else 0.05)
                spent, mass = mass * decay / (1 + decay), mass / (1 + decay)
                left, share = divmod(k, 10)
                expected[left] += spent * (1 - share / 10)
                expected[left + 1] += spent * share / 10
            if answer == "regularized":
                expected[4] += mass
            else:
                expected /= expected.sum()
            np.testing.assert_allclose(weights, expected, rtol=1e-12)
            assert row["answer"] == answer
            same(load_file(folder / row["path"]), reference(models, expected))
        assert [row["rate"] for row in out["inputs"]] == [0.1, 0.1, 0.05, 0.05, None]


def dials_agree_with_direct_averages(folder):
    models = [model(step) for step in range(0, 100, 5)]
    for step, state in zip(range(0, 100, 5), models):
        save_file(state, folder / f"checkpoint-{step}.safetensors")
    run(folder, "average", "checkpoint-*.safetensors", "-o", "run.dial", "--dial", "1e-3..0.1", "--rate", "0.1", "--nodes", 12)
    run(folder, "average", "checkpoint-*.safetensors", "-o", "direct.safetensors", "--l2", "0.0173", "--rate", "0.1")
    out = json.loads(run(folder, "dial", "read", "run.dial", "--l2", "0.0173", "-o", "read.safetensors", "--json"))
    direct, read = load_file(folder / "direct.safetensors"), load_file(folder / "read.safetensors")
    assert {k: v.dtype for k, v in direct.items()} == {k: v.dtype for k, v in read.items()}
    for name in ["conv.weight", "linear.weight"]:
        error = np.abs(direct[name].astype(float) - read[name]).max()
        assert error <= out["outputs"][0]["error"] + 1e-6, (name, error, out)
    nodes = load_file(folder / "run.dial")
    assert nodes["sum-03/linear.weight"].shape == (5, 72) and nodes["copied/mask"].dtype == bool


def sharded_folders(folder):
    models = [model(step) for step in (100, 200)]
    for step, state in zip((100, 200), models):
        save_file(state, folder / f"whole-{step}.safetensors")
        run(folder, "average", f"whole-{step}.safetensors", "-o", f"checkpoint-{step}", "--iterate", step, "--shard-size", "2kB")
        # The trainer's own file beside the weights.
        (folder / f"checkpoint-{step}" / "config.json").write_text('{"hidden": 5}')
        names = list(json.loads((folder / f"checkpoint-{step}" / "model.safetensors.index.json").read_text())["weight_map"])
        assert sorted(names) == sorted(state)
    # What afterfit wrote counts as an average, not as a checkpoint: strip the record, as a trainer's file would be.
    for file in folder.glob("checkpoint-*/*.safetensors"):
        save_file(load_file(file), file)
    run(folder, "average", "checkpoint-100", "checkpoint-200", "-o", "mean", "--uniform")
    index = json.loads((folder / "mean" / "model.safetensors.index.json").read_text())
    assert index == json.loads((folder / "checkpoint-100" / "model.safetensors.index.json").read_text())
    assert (folder / "mean" / "config.json").exists()
    found = {}
    for shard in set(index["weight_map"].values()):
        found |= load_file(folder / "mean" / shard)
    same(found, reference(models, [0.5, 0.5]))


def memory_stays_below_a_quarter_of_a_model(folder):
    """45 MB of weights, 16 strengths; few checkpoints and many."""
    size = 11_200_000
    for step in range(40):
        save_file({"w": np.full(size // 40, step, np.float32).repeat(40)}, folder / f"step-{step}.safetensors")
    # The command's own account of its peak: the shell that evaluates is its child.
    peak = "awk '/VmHWM/ {print $2}' /proc/$PPID/status # {}"
    for count in (2, 40):
        command = ["average", ".", "-o", "out", "--l2", "1e-4..1e-1:16", "--rate", "0.1", "--to", count - 1, "--threads", 2, "--force", "--eval", peak, "--json"]
        used = 1024 * json.loads(run(folder, *command))["outputs"][0]["score"]
        assert 1e6 < used < size * 4 / 4, f"{used} bytes with {count} checkpoints; a model has {size * 4}"


def pytorch_files_made_afresh(folder):
    import torch

    fixtures = Path(__file__).resolve().parent.parent / "crates" / "afterfit" / "tests" / "fixtures"
    subprocess.run([sys.executable, fixtures / "make.py", folder], check=True)
    for kind, pattern in [("plain", "step-{}.pt"), ("legacy", "checkpoint_{}.pth.tar")]:
        states = [torch.load(folder / kind / pattern.format(step), weights_only=False) for step in (0, 10, 20, 30)]
        weights = geometric(0.9, 4)
        run(folder, "average", kind, "-o", f"{kind}.pt", "--ratio", "0.9")
        found = torch.load(folder / f"{kind}.pt", weights_only=True)
        assert list(found) == list(states[0])
        for name, last in states[-1].items():
            assert found[name].dtype == last.dtype and found[name].shape == last.shape, name
            if not last.dtype.is_floating_point or "running" in name:
                assert torch.equal(found[name], last), name
                continue
            total = sum(w * s[name].detach().double() for w, s in zip(weights, states))
            if last.dtype == torch.float64:
                torch.testing.assert_close(found[name], total, rtol=1e-13, atol=1e-14)
            else:
                # Through f32 first, as torch itself rounds narrow types: no tie is near in these numbers.
                assert torch.equal(found[name].double(), total.to(last.dtype).double()), name
        assert found["embed.weight"].data_ptr() == found["head.weight"].data_ptr(), "tied tensors stay tied"


def outputs_load_into_a_module(folder):
    import torch
    from safetensors.torch import load_file as load_torch

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.LazyLinear(2))
    optimizer = None
    for epoch in range(4):
        loss = net(torch.randn(8, 3, 6, 6)).square().mean()
        optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + epoch // 2)
        torch.save({"state_dict": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, folder / f"epoch-{epoch}.pth.tar")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # (Batch norm counts batches, which are not proof of steps.)
    strengths = ["--l2", "0.01,0.1", "--steps-per-epoch", "1", "--epochs-from", "1"]
    out = json.loads(run(folder, "average", ".", "-o", "out", *strengths, "--json"))
    assert [row["rate"] for row in out["inputs"]] == [0.1, 0.1, 0.05, None], out["inputs"]
    assert out["outputs"][0]["scheme"] == "heavy ball, momentum 0.9", out["outputs"]
    net.load_state_dict(load_torch(folder / "out" / "l2-0.1.safetensors"))
    run(folder, "average", ".", "-o", "out.pt", "--uniform", "--dtype", "bf16")
    state = torch.load(folder / "out.pt")["state_dict"]
    assert state["0.weight"].dtype == torch.bfloat16
    net.bfloat16().load_state_dict(state)
    run(folder, "average", ".", "-o", "f8.pt", "--uniform", "--dtype", "f8-e4m3", "--copy", "1.*")
    assert torch.load(folder / "f8.pt")["state_dict"]["0.weight"].dtype == torch.float8_e4m3fn


def outputs_have_the_shape_of_their_inputs(folder):
    import argparse
    from collections import defaultdict
    from pathlib import PurePosixPath

    import torch

    def state(step):
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        with torch.no_grad():
            [parameter.fill_(step) for parameter in net.parameters()]
        shared = {"depth": 3}
        plain = {
            "where": PurePosixPath("/x"), "sizes": (1, 2), "size": torch.Size([2]), "dtype": torch.bfloat16, "big": 2**80, "raw": b"\0\xff",
            "many": defaultdict(list, {"k": [1]}), "set": {1, 2}, "numpy": np.float64(0.5), "array": np.arange(3), "first": shared,
            "second": shared, "args": argparse.Namespace(x=1), "none": None, "optimizer": "adamw", "weights": torch.tensor([1.0, step]),
        }  # fmt: skip
        return {
            "epoch": step, "state_dict": net.state_dict(), "optimizer_states": [torch.optim.Adam(net.parameters()).state_dict()],
            "hyper_parameters": plain, "lists": [{"deep": [1.5]}], "ema_model": {"w": torch.ones(1)},
        }  # fmt: skip

    (folder / "run").mkdir()
    for step in range(200):
        torch.save(state(step), folder / "run" / f"step-{step}.ckpt")
        nested = {"layers": [torch.full((2,), 1.0 * step), (torch.ones(1) * step,)], "head": {"w": torch.nn.Parameter(torch.ones(2) * step)}}
        torch.save(nested, folder / f"nested-{step}.pt")
    said = run(folder, "average", "run", "-o", "mean.ckpt", "--uniform", "--json")
    assert "optimizer_states" in said and "ema_model" in said, said
    found, last = torch.load(folder / "mean.ckpt", weights_only=False), state(199)
    assert list(found) == ["epoch", "state_dict", "hyper_parameters", "lists"], list(found)
    assert type(found["state_dict"]) is type(last["state_dict"])
    assert found["state_dict"]._metadata == last["state_dict"]._metadata
    assert torch.equal(found["state_dict"]["0.weight"], torch.full((2, 3), 99.5))
    plain = found["hyper_parameters"]
    assert torch.equal(plain.pop("weights"), last["hyper_parameters"].pop("weights"))
    assert plain.pop("array").tolist() == last["hyper_parameters"].pop("array").tolist()
    assert plain == last["hyper_parameters"] and plain["first"] is plain["second"]
    run(folder, "average", *[f"nested-{step}.pt" for step in range(200)], "-o", "nested.pth", "--uniform")
    for options in [{"weights_only": True}, {"weights_only": True, "mmap": True}, {"weights_only": False}]:
        nested = torch.load(folder / "nested.pth", **options)
        assert nested["layers"][0].tolist() == [99.5, 99.5] and type(nested["layers"][1]) is tuple, nested
        assert type(nested["head"]["w"]) is torch.nn.Parameter and nested["head"]["w"].requires_grad
    run(folder, "average", *[f"nested-{step}.pt" for step in range(200)], "-o", "nested.npz", "--uniform")
    assert set(np.load(folder / "nested.npz").files) == {"layers.0", "layers.1.0", "head.w"}
    return 200


def a_hostile_pickle_runs_nothing(folder):
    import torch

    class Evil:
        def __reduce__(self):
            import os

            return os.system, (f"touch {folder}/pwned",)

    torch.save({"model": {"w": torch.ones(2)}, "evil": Evil()}, folder / "step-0.pt")
    message = run(folder, "average", "step-0.pt", "-o", "out.safetensors", "--uniform", fails=True)
    assert "posix.system: refused" in message and not (folder / "pwned").exists(), message


CHECKS = [
    the_authors_weights_from_safetensors,
    npz_in_and_out,
    strengths_follow_the_theory,
    dials_agree_with_direct_averages,
    sharded_folders,
    memory_stays_below_a_quarter_of_a_model,
]
TORCH_CHECKS = [pytorch_files_made_afresh, outputs_load_into_a_module, outputs_have_the_shape_of_their_inputs, a_hostile_pickle_runs_nothing]

runner.run(TORCH_CHECKS if TORCH else CHECKS)
