"""Many machines give what one gives, also when one of them dies."""

from __future__ import annotations

import itertools
import json
import math
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pytest
import ray
import ray.data
from moto.server import ThreadedMotoServer
from ray.cluster_utils import Cluster
from safetensors.numpy import load, load_file, save_file

import afterfit
import afterfit.ray as many
from afterfit._afterfit import Moments, learn

#: Objects of a node; all that these tests make fits.
STORE = 80 * 2**20


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """Objects on loopback, in a bucket called runs, which whatever is started from here knows by its variables."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (keys | {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_DEFAULT_REGION": "us-east-1"}).items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="runs")
        yield client
    server.stop()


@pytest.fixture(scope="module")
def cluster(store: Any) -> Iterator[Cluster]:
    """Three nodes on this machine: a head, where the driver is and no task goes, and two workers."""
    head = {"object_store_memory": STORE, "include_dashboard": False, "num_cpus": 0}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(object_store_memory=STORE, num_cpus=1)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def checkpoints(folder: Path, tensors: int = 12, length: int = 40_000) -> Path:
    """Folders of shards, each with a configuration beside it."""
    rng = np.random.default_rng(1)
    for step in range(4):
        home = folder / f"checkpoint-{step}"
        home.mkdir(parents=True)
        weights = {f"layer.{k}.weight": rng.normal(size=length).astype(np.float32) for k in range(tensors)}
        names = {}
        for shard in range(3):
            own = {name: value for at, (name, value) in enumerate(weights.items()) if at % 3 == shard}
            file = f"model-{shard + 1:05}-of-00003.safetensors"
            save_file(own, home / file)
            names |= dict.fromkeys(own, file)
        (home / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
        (home / "config.json").write_text(json.dumps({"model_type": "none", "step": step}))
    return folder


def adapters(folder: Path) -> Path:
    """Files of one module's two factors."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    for step in range(4):
        shapes = {"layer.lora_A.weight": (2, 12), "layer.lora_B.weight": (9, 2)}
        save_file(
            {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}, folder / f"step-{step}.safetensors"
        )
    return folder


def numbers(tensors: dict[str, Any]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in tensors.items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def a_machine_that_dies(cluster: Cluster, folder: Path) -> Iterator[Callable[[], None]]:
    """A third node, and what work is to call: the first call never comes back, and the node where it is dies."""
    file, stop = folder / "held", threading.Event()
    cluster.add_node(object_store_memory=STORE, num_cpus=1)

    def hold() -> None:
        mine = file.with_name(f"{os.getpid()}-{time.monotonic_ns()}")
        mine.write_text(ray.get_runtime_context().get_node_id())
        try:
            os.link(mine, file)
        except FileExistsError:
            return
        time.sleep(600)

    def kill() -> None:
        while not file.exists() and not stop.is_set():
            time.sleep(0.05)
        name = file.read_text() if file.exists() else None
        doomed = next((node for node in cluster.worker_nodes if node.node_id == name), max(cluster.worker_nodes, key=id))
        cluster.remove_node(doomed, allow_graceful=False)
        # (Else the next test would still find it among those that live.)
        while any(node["Alive"] and node["NodeID"] == doomed.node_id for node in ray.nodes()):
            time.sleep(0.1)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    try:
        yield hold
    finally:
        stop.set()
        killer.join()
    assert file.exists(), "nothing was held"


STRENGTHS: dict[str, Any] = {"ratio": [0.5, 0.9], "shard_size": "200KB"}


def test_a_machine_that_dies_costs_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, alone, together = checkpoints(tmp_path / "run"), tmp_path / "alone", tmp_path / "many"
    one = afterfit.average(run, alone, **STRENGTHS)
    work = many._run
    with a_machine_that_dies(cluster, tmp_path) as hold:

        def held(arguments: list[str]) -> str:
            done = work(arguments)
            hold()
            return done

        monkeypatch.setattr(many, "_run", held)
        found = many.average(run, together, num_workers=3, **STRENGTHS)
    assert contents(together) == contents(alone)
    assert len(contents(alone)) == 2 * (12 + 2)
    assert [(o.strength, o.status, o.path.name) for o in found.outputs] == [
        (o.strength, o.status, o.path.name) for o in one.outputs
    ]
    assert found.notes == one.notes and found.weights == one.weights
    assert sorted(path.name for path in together.iterdir()) == ["ratio-0.5", "ratio-0.9"]


def test_what_a_stopped_pass_has_is_taken_up(cluster: Cluster, tmp_path: Path) -> None:
    run, out = checkpoints(tmp_path / "run", 6, 4000), tmp_path / "out"
    alone = afterfit.average(run, tmp_path / "alone", ratio=0.5, shard_size="20KB")
    assert alone.outputs[0].path == tmp_path / "alone"
    # One tensor of the last file cannot be averaged: everything else is done and kept.
    bad = run / "checkpoint-2" / "model-00003-of-00003.safetensors"
    good, stamp = bad.read_bytes(), bad.stat()
    bad.write_bytes(good[:-4] + np.float32(np.nan).tobytes())
    os.utime(bad, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(afterfit.CheckpointError, match=r"NaN|nan") as caught:
        many.average(run, out, ratio=0.5, shard_size="20KB")
    assert any("--copy" in note for note in caught.value.__notes__) and any(
        "takes them up" in note for note in caught.value.__notes__
    )
    parts = tmp_path / "out.afterfit-parts"
    kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.safetensors")}
    assert 0 < len(kept) < 6 and not out.exists()
    bad.write_bytes(good)
    os.utime(bad, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    many.average(run, out, ratio=0.5, shard_size="20KB")
    assert contents(out) == contents(tmp_path / "alone") and not parts.exists()
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept


def test_options_and_whole_files(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = checkpoints(tmp_path / "run", 3, 100)
    # One file is one task; relative paths are the driver's.
    monkeypatch.chdir(tmp_path)
    found = many.average("run", "mean.npz", uniform=True)
    assert found.outputs[0].path == tmp_path / "mean.npz"
    afterfit.average(run, tmp_path / "alone.npz", uniform=True)
    assert (tmp_path / "mean.npz").read_bytes() == (tmp_path / "alone.npz").read_bytes()
    planned = many.average(run, tmp_path / "out", uniform=True, dry_run=True)
    assert planned.outputs[0].status and not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="evaluate is not for many machines"):
        many.average(run, tmp_path / "out", uniform=True, evaluate=lambda path: 0.0)
    with pytest.raises(TypeError, match="unknown"):
        many.average(run, tmp_path / "out", unknown=1)
    with pytest.raises(FileNotFoundError):
        many.average(tmp_path / "nowhere", tmp_path / "out", uniform=True)
    with pytest.raises(ValueError, match="num_workers is 0"):
        many.average(run, tmp_path / "out", uniform=True, num_workers=0)


def test_progress_is_shown(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpoints(tmp_path / "run", 6, 4000)
    many.average(run, tmp_path / "quiet", ratio=0.5, shard_size="20KB")
    assert "average" not in capsys.readouterr().err
    many.average(run, tmp_path / "out", ratio=0.5, shard_size="20KB", progress=True)
    said = capsys.readouterr().err
    assert "average" in said and "100%" in said


@pytest.mark.parametrize(
    "settings",
    [{"uniform": True, "format": "npz"}, {"uniform": True, "lora": "exact"}, {"dial": (1e-2, 1e1), "rate": 0.1, "nodes": 8}],
)
def test_a_task_that_dies_after_its_output_is_there_is_told_in_full(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    run = adapters(tmp_path / "run") if "lora" in settings else checkpoints(tmp_path / "run", 3, 100)
    mark, work = tmp_path / "died", many._run
    name = "run.dial" if "dial" in settings else f"mean.{settings.get('format', 'safetensors')}"
    one = afterfit.average(run, tmp_path / name, **settings)
    alone = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()

    def mortal(arguments: list[str]) -> str:
        done = work(arguments)
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return done

    monkeypatch.setattr(many, "_run", mortal)
    found = many.average(run, tmp_path / name, **settings)
    assert mark.exists() and (tmp_path / name).read_bytes() == alone
    assert found.outputs == [replace(output, skipped=True) for output in one.outputs]
    assert "lora" not in settings or found.outputs[0].lora_error
    assert (found.notes, found.weights) == (one.notes, one.weights)


def test_runs_in_an_object_store(cluster: Cluster, store: Any, tmp_path: Path) -> None:
    run, settings = checkpoints(tmp_path / "run", 6, 4000), {"ratio": [0.5, 0.9], "shard_size": "20KB"}
    for path in run.rglob("*"):
        if path.is_file():
            store.upload_file(str(path), "runs", str(path.relative_to(tmp_path)))
    afterfit.average(run, tmp_path / "alone", **settings)
    found = many.average("s3://runs/run", "s3://runs/out", num_workers=2, **settings)
    assert [output.path for output in found.outputs] == ["s3://runs/out/ratio-0.5", "s3://runs/out/ratio-0.9"]
    listed = [found["Key"] for found in store.list_objects_v2(Bucket="runs", Prefix="out/")["Contents"]]
    assert sorted(key.removeprefix("out/") for key in listed) == sorted(contents(tmp_path / "alone"))
    for key in listed:
        there, here = store.get_object(Bucket="runs", Key=key)["Body"].read(), tmp_path / "alone" / key.removeprefix("out/")
        assert b"hush" not in there
        if key.endswith(".safetensors"):
            # (Headers name other inputs.)
            assert numbers(load(there)) == numbers(load_file(here))
        else:
            assert there == here.read_bytes()
    with pytest.raises(ValueError, match=r"s3://runs/out/ratio-0.5 exists already"):
        many.average("s3://runs/run", "s3://runs/out", **settings)


def test_tables_and_dials_in_an_object_store(cluster: Cluster, store: Any, tmp_path: Path) -> None:
    columns = table()
    for part, rows in enumerate(np.array_split(np.arange(900), 3)):
        pyarrow.parquet.write_table(pa.table({name: value[rows] for name, value in columns.items()}), tmp_path / "part.parquet")
        store.upload_file(str(tmp_path / "part.parquet"), "runs", f"table/{part}.parquet")
    address = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    keys = {"access_key": "key", "secret_key": "hush", "region": "us-east-1"}
    files = pyarrow.fs.S3FileSystem(endpoint_override=address, scheme="http", **keys)
    found = many.ridge_path(ray.data.read_parquet("runs/table", filesystem=files), target="y", l2=[0.01, 1.0])
    near(found.coefs, many.ridge_path(dataset(columns), target="y", l2=[0.01, 1.0]).coefs)

    import torch

    from afterfit.torch import Dial

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dial = Dial(model, optimizer, l2=(1e-2, 1.0))
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
    dial.save("s3://runs/run.dial")
    again = Dial.load("s3://runs/run.dial", torch.nn.Linear(3, 1))
    for name, value in dial.read(0.1).state_dict().items():
        torch.testing.assert_close(again.read(0.1).state_dict()[name], value, rtol=1e-6, atol=1e-7)
    with pytest.raises(OSError, match=r"s3://nowhere/run.dial"):
        Dial.load("s3://nowhere/run.dial", model)


def table(rows: int = 900, classes: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    columns = {f"x{k}": rng.normal(size=rows) * 1.5**k + 10.0 * k for k in range(5)}
    score = columns["x0"] - 0.3 * columns["x1"] + rng.normal(size=rows)
    columns["y"] = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)) if classes else score
    return columns


def dataset(columns: dict[str, np.ndarray], blocks: int = 5) -> Any:
    ends = np.linspace(0, len(columns["y"]), blocks + 1).astype(int)
    return ray.data.from_arrow([pa.table({n: v[a:b] for n, v in columns.items()}) for a, b in itertools.pairwise(ends)])


def side_by_side(columns: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([columns[f"x{k}"] for k in range(5)], axis=1), np.asarray(columns["y"], dtype=np.float64)[:, None]


def near(found: np.ndarray, known: np.ndarray) -> None:
    """To 1e-12, as vectors."""
    assert found.shape == known.shape
    assert np.linalg.norm(found - known) <= 1e-12 * np.linalg.norm(known)


def test_ridge_is_that_of_one_machine(cluster: Cluster) -> None:
    columns = table()
    x, y = side_by_side(columns)
    data = dataset(columns)
    l2 = [1e-4, 1e-2, 1.0]
    found = many.ridge_path(data, target="y", l2=l2)
    for standardize in (False, True):
        one = learn(x, y, l2, model="linear", standardize=standardize).path
        path = found.moments.ridge(l2, standardize=standardize)
        near(path.weights, one.weights)
        near(path.biases, one.biases)
    np.testing.assert_array_equal(found.coefs, found.moments.ridge(l2).weights[:, 0])
    assert found.features == ["x0", "x1", "x2", "x3", "x4"] and found.rows == 900
    assert (found.errors < 1e-8).all()
    # In scikit-learn's unit, with weights, of several targets and fewer features.
    columns |= {"v": np.random.default_rng(6).uniform(0, 2, 900), "z": columns["x4"] + columns["y"]}
    data = dataset(columns)
    both = many.ridge_path(data, target=["y", "z"], features=["x1", "x3"], alphas=[3.0], sample_weight="v", fit_intercept=False)
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=3.0, fit_intercept=False, solver="cholesky")
    model.fit(x[:, [1, 3]], np.stack([columns["y"], columns["z"]], axis=1), sample_weight=columns["v"])
    np.testing.assert_allclose(both.coefs[0], model.coef_, rtol=1e-10)
    np.testing.assert_allclose(both.alphas, [3.0])
    assert not both.intercepts.any()


def test_a_lost_block_counts_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A task that dies with its process is run again, whatever it had made by then."""
    columns, mark, make = table(), tmp_path / "died", many._moments
    x, y = side_by_side(columns)

    def mortal(block: pa.Table, **settings: Any) -> pa.Table:
        made = make(block, **settings)
        if not mark.exists():
            mark.touch()
            os._exit(1)
        return made

    monkeypatch.setattr(many, "_moments", mortal)
    found = many.ridge_path(dataset(columns), target="y", l2=[1e-2])
    assert mark.exists() and found.rows == 900
    one = learn(x, y, [1e-2], model="linear").path
    near(found.coefs, one.weights[:, 0])


def spread(columns: dict[str, np.ndarray], cluster: Cluster, blocks: int = 18) -> Any:
    """A dataset whose blocks lie where they were made, some of them on every worker, and can be made again. (Ray keeps small ones
    with the driver: these are larger than 100 kB.)"""

    def rows(ids: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: value[ids["id"]] for name, value in columns.items()}

    count = len(columns["y"])
    data = ray.data.range(count, override_num_blocks=blocks)
    made = data.map_batches(rows, batch_size=None, scheduling_strategy="SPREAD").materialize()
    refs = [ref for bundle in made.iter_internal_ref_bundles() for ref in bundle.block_refs]
    places = ray.experimental.get_object_locations(refs).values()
    assert {node.node_id for node in cluster.worker_nodes} <= {name for place in places for name in place["node_ids"]}, places
    return made


def test_a_machine_with_blocks_dies_under_a_ridge_path(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    columns, make = table(60_000), many._moments
    with a_machine_that_dies(cluster, tmp_path) as hold:
        data = spread(columns, cluster)

        def held(block: pa.Table, **settings: Any) -> pa.Table:
            hold()
            return make(block, **settings)

        monkeypatch.setattr(many, "_moments", held)
        found = many.ridge_path(data, target="y", l2=[1e-2])
    assert found.rows == 60_000
    near(found.coefs, learn(*side_by_side(columns), [1e-2], model="linear").path.weights[:, 0])


def test_a_machine_with_blocks_dies_under_a_logistic_path(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    columns = table(60_000, classes=2)
    with a_machine_that_dies(cluster, tmp_path) as hold:
        data = spread(columns, cluster)

        class Held(many._Keeper):
            def evaluate(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                hold()
                return super().evaluate(models)

        monkeypatch.setattr(many, "_Keeper", Held)
        found = many.logistic_path(data, target="y", Cs=[1.0], num_workers=3)
    assert found.rows == 60_000
    one = learn(*side_by_side(columns), found.l2.tolist(), model="softmax", tolerance=1e-12).path
    assert np.linalg.norm(found.coefs[0] - one.weights[0]) <= found.distances[0] + one.errors[0] * np.linalg.norm(one.weights[0])


def test_moments_are_carried(cluster: Cluster) -> None:
    columns = table(50)
    x, y = side_by_side(columns)
    first, second = Moments(5), Moments(5)
    first.add(x[:20], y[:20])
    second.add(np.asfortranarray(x[20:]), y[20:])
    first.merge(pickle.loads(pickle.dumps(second)))
    whole = Moments(5)
    whole.add(x, y)
    assert first.rows == 50 and (first.columns, first.targets) == (5, 1)
    near(first.ridge([0.1]).weights, whole.ridge([0.1]).weights)
    single = Moments(5)
    single.add(x.astype(np.float32), y)
    np.testing.assert_allclose(single.ridge([0.1]).weights, whole.ridge([0.1]).weights, rtol=1e-4)
    for wrong in (lambda: whole.add(x[:, :4], y), lambda: whole.add(x, y[:3]), lambda: whole.merge(Moments(4)),
                  lambda: Moments.from_bytes(b"12345678"), lambda: whole.add(x, y * np.nan), lambda: Moments(3).ridge([0.1]),
                  lambda: whole.add(x, y, -np.ones(50)), lambda: whole.ridge([-1.0])):  # fmt: skip
        with pytest.raises(ValueError):
            wrong()


@pytest.mark.parametrize(("classes", "names"), [(2, None), (3, ["a", "b", "c"])])
def test_logistic_is_that_of_one_machine_within_its_certificate(cluster: Cluster, classes: int, names: list[str] | None) -> None:
    columns = table(classes=classes)
    x, y = side_by_side(columns)
    labels = columns["y"]
    columns["y"] = labels if names is None else np.array(names)[labels]
    l2 = [1e-4, 1e-2, 1.0]
    found = many.logistic_path(dataset(columns), target="y", l2=l2, num_workers=2, tolerance=1e-12)
    one = learn(x, y, l2, model="softmax", tolerance=1e-12).path
    assert found.classes == (names or [0, 1]) and found.rows == 900
    assert found.coefs.shape == one.weights.shape and found.passes < 60
    for at, strength in enumerate(l2):
        apart = np.linalg.norm(found.coefs[at] - one.weights[at])
        assert apart <= found.distances[at] + one.errors[at] * np.linalg.norm(one.weights[at])
        assert found.distances[at] < 1e-3 * np.linalg.norm(found.coefs[at])
        assert found.excesses[at] == pytest.approx(found.distances[at] ** 2 * strength / 2)
        scores = x @ found.coefs[at].T + found.intercepts[at]
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1) if classes == 2 else scores
        losses = np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1)) + scores.max(1) - scores[np.arange(900), labels]
        assert found.losses[at] == pytest.approx(losses.mean(), abs=1e-10)
    np.testing.assert_allclose(found.Cs, 1 / (np.array(l2) * 900))


def test_a_keeper_that_dies_is_made_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    columns, mark = table(classes=2), tmp_path / "died"

    homes = tmp_path / "homes"
    homes.mkdir()

    class Mortal(many._Keeper):
        def sums(self) -> np.ndarray:
            (homes / ray.get_runtime_context().get_node_id()).touch()
            return super().sums()

        def evaluate(self, models: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if not mark.exists():
                mark.touch()
                os._exit(1)
            return super().evaluate(models)

    monkeypatch.setattr(many, "_Keeper", Mortal)
    found = many.logistic_path(dataset(columns), target="y", Cs=[1.0], num_workers=2)
    assert mark.exists() and found.rows == 900
    # Not on the head, which has no CPUs.
    there = {home.name for home in homes.iterdir()}
    assert there and there <= {node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU")}
    one = learn(*side_by_side(columns), found.l2.tolist(), model="softmax", tolerance=1e-12).path
    assert np.linalg.norm(found.coefs[0] - one.weights[0]) <= found.distances[0] + one.errors[0] * np.linalg.norm(one.weights[0])


def test_columns_that_cannot_be_used_are_named(cluster: Cluster) -> None:
    columns = table(40, classes=2)
    hole = columns["x2"].copy()
    hole[7] = math.nan
    texts = np.array(["a", "b"] * 20)

    def refuse(changed: dict[str, Any], message: str, fit: Any = many.ridge_path, **settings: Any) -> None:
        data = dataset({**columns, **changed}, 2)
        with pytest.raises(ValueError, match=message):
            fit(data, **{"target": "y", "l2": [0.1], **settings})

    refuse({}, "there is no column 'w'", target="w")
    refuse({}, "there is no column 'q'", features=["x0", "q"])
    refuse({}, "l2 or alphas", alphas=[1.0])
    refuse({}, "twice", features=["x0", "y"])
    refuse({"x2": hole}, "column 'x2' holds nan")
    refuse({"x3": texts}, "column 'x3' holds string")
    refuse({"y": texts}, "column 'y' holds string")
    refuse({"x2": pa.array([None, 1.0] * 20)}, "column 'x2' has .* missing values")
    refuse({"v": -(columns["x0"] ** 2)}, "column 'v' holds -", sample_weight="v")
    refuse({"x2": hole}, "column 'x2' holds nan", many.logistic_path)
    refuse({"y": np.ones(40)}, "column 'y' has 1 different", many.logistic_path)
    refuse({"y": pa.array([None, 1.0] * 20)}, "column 'y' has .* missing", many.logistic_path)
    refuse({"y": columns["x0"]}, "", many.logistic_path, l2=[-1.0])
