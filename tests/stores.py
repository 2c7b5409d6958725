"""A real S3 server on loopback (moto) as judge of object stores: the same answers as from a disk, also where requests fail.
Azure's own emulator (Azurite) is another.

`make test-heavy` runs it as `python tests/stores.py PATH_TO_AFTERFIT`. Prints `N passed, N failed`.
"""

import base64
import hmac
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from email.utils import formatdate
from pathlib import Path

import boto3
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from moto.server import DomainDispatcherApplication, create_backend_app
from safetensors.numpy import load_file, save_file
from werkzeug.serving import WSGIRequestHandler, make_server

import runner

AFTERFIT = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None
SECRET = "hush-f5b1c0d2"
STEPS = [10, 20, 30, 40, 50]


# ------------------------------------------------------------------ the server, and what goes wrong on the way to it


class Faults:
    """Between the command and the store: `fault(method, path, count)` says what becomes of a request."""

    def __init__(self):
        self.app, self.fault, self.seen, self.lock = DomainDispatcherApplication(create_backend_app), None, [], threading.Lock()

    def __call__(self, environ, start):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self.lock:
            self.seen.append((method, path, environ.get("HTTP_RANGE")))
            count = len(self.seen)
        what = self.fault and self.fault(method, path, count)
        if callable(what):
            what = what()
        if what == "busy":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>busy</Message></Error>"]
        if what == "broken":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("500 Internal Server Error", [("Content-Type", "application/xml")])
            return [b"<Error><Code>InternalError</Code><Message>broken</Message></Error>"]
        if what == "slow":
            time.sleep(0.3)
        # (Google's client: its store shares this interface with S3, but for what stands for a signature.)
        if environ.get("HTTP_AUTHORIZATION", "").startswith("Bearer"):
            del environ["HTTP_AUTHORIZATION"]
        answer = self.app(environ, start)
        if what == "cut":
            bytes = b"".join(answer)
            return iter([bytes[: len(bytes) // 2]])  # less than its Content-Length says, then the connection ends
        return answer


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_):
        pass

    def log(self, *_):
        pass


FAULTS = Faults()
SERVER = make_server("127.0.0.1", 0, FAULTS, threaded=True, request_handler=Quiet)
threading.Thread(target=SERVER.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{SERVER.port}"
# A temporary folder of these runs alone: what they leave in it is theirs.
HOME = tempfile.TemporaryDirectory()
TEMPORARY = Path(HOME.name)
VARIABLES = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": URL, "TMPDIR": str(TEMPORARY),
}  # fmt: skip
S3 = boto3.client("s3", endpoint_url=URL, aws_access_key_id="key", aws_secret_access_key="other", region_name="us-east-1")


def run(*arguments, fails=False, cwd=None, **more):
    before = set(TEMPORARY.iterdir())
    # (The peak is this machine's; a store has no more to say about it.)
    done = subprocess.run(
        [AFTERFIT, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, env={**os.environ, **VARIABLES, **more}
    )
    said = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, said
    assert SECRET not in said and ".afterfit-" not in said, said
    # (Outputs that could not be sent are kept, as the error says.)
    left = {path.name.split("-")[0] for path in set(TEMPORARY.iterdir()) - before}
    assert left <= ({"unsent"} if fails else set()), left
    return done.stderr if fails else done.stdout


def bucket():
    name = f"b{time.monotonic_ns()}"
    S3.create_bucket(Bucket=name)
    return name


def send(folder, name, prefix=""):
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            S3.upload_file(str(path), name, f"{prefix}{path.relative_to(folder)}")


def keys(name, prefix=""):
    found = S3.list_objects_v2(Bucket=name, Prefix=prefix).get("Contents", [])
    return [object["Key"] for object in found]


def fetch(name, key, folder):
    path = Path(folder) / Path(key).name
    S3.download_file(name, key, str(path))
    content = path.read_bytes()
    assert SECRET.encode() not in content
    assert b"/.afterfit-" not in content, content[content.index(b"/.afterfit-") - 200 :][:400]
    return path


def weights(step, size=70_001):
    generator = np.random.default_rng(step)
    return {"layer.weight": generator.standard_normal((size // 7, 7), np.float32), "layer.bias": generator.standard_normal(7, np.float32)}


def checkpoints(folder, size=70_001):
    for step in STEPS:
        save_file(weights(step, size), folder / f"step-{step}.safetensors")


def same(a, b):
    a, b = load_file(a), load_file(b)
    return a.keys() == b.keys() and all(a[name].tobytes() == b[name].tobytes() for name in a)


L2 = ["--l2", "0.01,1", "--rate", "0.1"]


def here(folder, source, *arguments):
    """What the disk gives."""
    run("average", source, "-o", folder / "expected", *arguments)
    return folder / "expected"


# ------------------------------------------------------------------ checks


def averages_are_those_of_a_disk_bit_for_bit(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run")
    send(folder / "run", name, "deep/run/")
    expected = here(folder, folder / "run", *L2)
    for source in [f"s3://{name}/deep/run", f"s3://{name}/deep/run/", f"s3://{name}/deep/run/step-*.safetensors"]:
        out = f"s3://{name}/out{time.monotonic_ns()}"
        said = json.loads(run("average", source, "-o", out, *L2, "--json"))
        assert [row["path"] for row in said["outputs"]] == [f"{out}/l2-{l2}.safetensors" for l2 in ("0.01", "1")], said
        assert said["inputs"][0]["path"] == f"s3://{name}/deep/run/step-10.safetensors", said["inputs"][0]
        for l2 in ("0.01", "1"):
            found = fetch(name, f"{out.split('/')[-1]}/l2-{l2}.safetensors", folder)
            assert same(found, expected / f"l2-{l2}.safetensors")
            assert f"s3://{name}/deep/run/step-10.safetensors".encode() in found.read_bytes()[:5000]
    # From a store to a disk, and one alone.
    run("average", f"s3://{name}/deep/run", "-o", folder / "one.safetensors", "--l2", "1", "--rate", "0.1")
    assert same(folder / "one.safetensors", expected / "l2-1.safetensors")
    assert "step-30" in run("inspect", f"s3://{name}/deep/run/step-30.safetensors")


def every_format_is_read_from_a_store(folder):
    name = bucket()
    (folder / "pt").mkdir()
    (folder / "hf").mkdir()
    (folder / "dcp").mkdir()
    for step in STEPS:
        state = {key: torch.from_numpy(value) for key, value in weights(step).items()}
        group = {"lr": 0.1, "momentum": 0.0, "params": [0, 1]}
        torch.save({"model": state, "optimizer": {"state": {}, "param_groups": [group]}, "global_step": step}, folder / "pt" / f"ckpt_{step}.pt")
        part = folder / "hf" / f"checkpoint-{step}"
        part.mkdir()
        shards = {"layer.weight": "model-00001-of-00002.safetensors", "layer.bias": "model-00002-of-00002.safetensors"}
        for key, file in shards.items():
            save_file({key: weights(step)[key]}, part / file)
        (part / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
        (part / "config.json").write_text('{"hidden": 7}')
        history = [{"step": at, "learning_rate": 0.1} for at in range(1, step + 1)]
        (part / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": history}))
        dcp.save(state, checkpoint_id=folder / "dcp" / f"step-{step}", no_dist=True)
    for kind, more in [("pt", []), ("hf", ["--optimizer", "sgd"]), ("dcp", ["--rate", "0.1"])]:
        send(folder / kind, name, f"{kind}/")
        expected = folder / f"expected-{kind}"
        arguments = ["--l2", "0.1", "--uniform", *more, "--format", "safetensors"]
        run("average", folder / kind, "-o", f"{expected}/", *arguments)
        run("average", f"s3://{name}/{kind}", "-o", f"s3://{name}/out-{kind}/", *arguments)
        made = sorted(str(path.relative_to(expected)) for path in expected.rglob("*") if path.is_file())
        assert [key.removeprefix(f"out-{kind}/") for key in keys(name, f"out-{kind}/")] == made, (keys(name, f"out-{kind}/"), made)
        for file in made:
            found = fetch(name, f"out-{kind}/{file}", folder)
            if file.endswith(".safetensors"):
                assert same(found, expected / file), (kind, file)
            else:
                assert found.read_bytes() == (expected / file).read_bytes(), (kind, file)


def dials_and_tables_live_in_stores(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run")
    send(folder / "run", name, "run/")
    run("average", folder / "run", "-o", folder / "run.dial", "--dial", "1e-3..1", "--rate", "0.1")
    run("average", f"s3://{name}/run", "-o", f"s3://{name}/run.dial", "--dial", "1e-3..1", "--rate", "0.1")
    run("dial", "read", folder / "run.dial", "--l2", "0.05", "-o", folder / "read.safetensors")
    run("dial", "read", f"s3://{name}/run.dial", "--l2", "0.05", "-o", f"s3://{name}/read.safetensors")
    (folder / "there").mkdir()
    assert same(fetch(name, "read.safetensors", folder / "there"), folder / "read.safetensors")
    assert "nodes" in run("dial", "info", f"s3://{name}/run.dial")

    import pyarrow as pa
    import pyarrow.parquet

    generator = np.random.default_rng(0)
    x = generator.standard_normal((3000, 6))
    y = x @ generator.standard_normal(6) + generator.standard_normal(3000)
    columns = {**{f"x{i}": x[:, i] for i in range(6)}, "y": y}
    pa.parquet.write_table(pa.table(columns), folder / "table.parquet")
    np.savetxt(folder / "table.csv", np.column_stack([x, y]), delimiter=",", header=",".join(columns), comments="")
    for file in ["table.parquet", "table.csv"]:
        S3.upload_file(str(folder / file), name, file)
        run("fit", folder / file, "--target", "y", "-o", folder / "model.safetensors", "--force", "--seed", "1")
        run("fit", f"s3://{name}/{file}", "--target", "y", "-o", f"s3://{name}/model.safetensors", "--force", "--seed", "1", "--report", f"s3://{name}/report.html")
        ours = run("predict", f"s3://{name}/model.safetensors", f"s3://{name}/{file}")
        assert ours == run("predict", folder / "model.safetensors", folder / file)
        assert b"<html" in fetch(name, "report.html", folder).read_bytes()


def busy_stores_cut_connections_and_slow_ones_change_nothing(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run", 3_500_000)
    send(folder / "run", name, "run/")
    expected = here(folder, folder / "run", *L2)
    kinds = ["busy", "broken", "cut", "slow"]
    happened = set()

    def fault(method, path, count):
        kind = kinds[count // 3 % len(kinds)]
        if method not in ("GET", "PUT") or not path.endswith("safetensors") or count % 3 or (method, kind) == ("PUT", "cut"):
            return None
        happened.add((method, kind))
        return kind

    FAULTS.fault = fault
    try:
        run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2)
    finally:
        FAULTS.fault = None
    for l2 in ("0.01", "1"):
        assert same(fetch(name, f"out/l2-{l2}.safetensors", folder), expected / f"l2-{l2}.safetensors")
    assert {("GET", kind) for kind in kinds} <= happened, happened


def kept_by(said):
    """Where outputs are that could not be sent."""
    return Path(re.search(r"the outputs are kept in ([^)]*)\)", said)[1])


def what_fails_for_good_is_said_and_leaves_nothing(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run")
    send(folder / "run", name, "run/")
    FAULTS.fault = lambda method, path, count: "busy" if method == "GET" and path.endswith("step-30.safetensors") else None
    try:
        said = run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2, fails=True)
        assert f"s3://{name}/run/step-30.safetensors" in said and "503" in said, said
        assert keys(name, "out") == []
        # The second output cannot be sent: the first does not appear either.
        FAULTS.fault = lambda method, path, count: "busy" if method == "PUT" and path.endswith("l2-1.safetensors") else None
        said = run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2, fails=True)
        assert f"s3://{name}/out/l2-1.safetensors" in said, said
    finally:
        FAULTS.fault = None
    # What was made is not lost.
    kept = kept_by(said)
    expected = here(folder, folder / "run", *L2)
    for l2 in ("0.01", "1"):
        assert same(kept / "s3" / name / "out" / f"l2-{l2}.safetensors", expected / f"l2-{l2}.safetensors")
    shutil.rmtree(kept)
    assert keys(name, "out") == [] and not S3.list_multipart_uploads(Bucket=name).get("Uploads"), S3.list_multipart_uploads(Bucket=name)
    said = run("average", f"s3://{name}/nothing", "-o", folder / "out", *L2, fails=True)
    assert f"s3://{name}/nothing" in said, said
    said = run("average", "s3://no-such-bucket-anywhere/run", "-o", folder / "out", *L2, fails=True)
    assert "s3://no-such-bucket-anywhere/run" in said and "no such" in said, said
    said = run("average", f"s3://key:{SECRET}@{name}/run", "-o", folder / "out", *L2, fails=True)
    assert "credentials" in said
    said = run("average", f"s3://{name}/run", "-o", folder / "out", *L2, fails=True, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert f"s3://{name}/run" in said, said
    assert not (folder / "out").exists()


def an_object_that_is_replaced_during_the_run_is_noticed(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run", 5_600_000)
    send(folder / "run", name, "run/")
    path = folder / "run" / "step-30.safetensors"

    def fault(method, at, count):
        beyond = any(seen[2] and re.match(r"bytes=8388608-", seen[2]) for seen in FAULTS.seen[-1:])
        if method == "GET" and at.endswith("step-30.safetensors") and beyond:
            FAULTS.fault = None
            # (The listing's etag is the old one's.)
            return lambda: S3.put_object(Bucket=name, Key="run/step-30.safetensors", Body=path.read_bytes()[:-1] + b"x") and None
        return None

    FAULTS.fault = fault
    try:
        said = run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2, fails=True)
    finally:
        FAULTS.fault = None
    assert "step-30.safetensors changed while it was read" in said, said
    assert keys(name, "out") == []


def outputs_in_a_store_are_kept_unless_said_otherwise(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run")
    send(folder / "run", name, "run/")
    run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2)
    said = run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2, fails=True)
    assert "exists already" in said and f"s3://{name}/out/l2-0.01.safetensors" in said, said
    before = S3.head_object(Bucket=name, Key="out/l2-1.safetensors")["LastModified"]
    FAULTS.seen.clear()
    run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2, "--skip-existing")
    # (An upload is begun and taken back, to see whether there may be one.)
    assert sorted(seen[0] for seen in FAULTS.seen if seen[0] not in ("GET", "HEAD")) == ["DELETE", "POST"]
    assert S3.head_object(Bucket=name, Key="out/l2-1.safetensors")["LastModified"] == before
    run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", "--l2", "0.01,1", "--rate", "0.2", "--force")
    run("average", folder / "run", "-o", folder / "expected", "--l2", "0.01,1", "--rate", "0.2")
    assert same(fetch(name, "out/l2-1.safetensors", folder), folder / "expected" / "l2-1.safetensors")
    # Best alone is kept: the others never appear.
    run("average", f"s3://{name}/run", "-o", f"s3://{name}/best", *L2, "--eval", "echo {} | grep -c l2-1.safe || true", "--best", "max", "--keep", "best")
    assert keys(name, "best") == ["best/l2-1.safetensors"]


def peak_of(*arguments, **more):
    """Megabytes."""
    # (By way of a small process: a child's peak begins with its parent's, and the server of this one holds all objects.)
    watch = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=2); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    command = [sys.executable, "-S", "-c", watch, AFTERFIT, *map(str, arguments)]
    return int(subprocess.run(command, env={**os.environ, **VARIABLES, **more}, capture_output=True, text=True, check=True).stdout) / 1e3


def fetched_bytes():
    """Of all requests for a stretch since the list was cleared."""
    ranges = [seen[2].removeprefix("bytes=").split("-") for seen in FAULTS.seen if seen[0] == "GET" and seen[2]]
    return sum(int(end) - int(start) + 1 for start, end in ranges)


RANKS, LIMIT = 4, 32


def save_shards(rank, folder):
    """As FSDP does: of every tensor each process has some rows, in a file of its own."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    for step in range(12):
        generator = torch.Generator().manual_seed(step)
        whole = {f"layer.{at}": torch.randn(512, 1024, generator=generator) for at in range(10)}
        cut = {name: distribute_tensor(value, mesh, [Shard(0)], src_data_rank=None) for name, value in whole.items()}
        dcp.save(cut, checkpoint_id=f"{folder}/run/step-{step}")
    dist.destroy_process_group()


def memory_is_bounded_for_any_number_of_files(folder):
    name = bucket()
    runner.processes(save_shards, (str(folder),), RANKS)
    files = sorted((folder / "run").rglob("*.distcp"))
    total = sum(path.stat().st_size for path in files)
    # All of them are read at the same time: without a limit, each would be in memory as a whole (5 MB are less than a block).
    assert len(files) == 12 * RANKS and min(path.stat().st_size for path in files) > 5_000_000
    send(folder / "run", name, "run/")
    average = ["average", f"s3://{name}/run", "-o", folder / "mean.safetensors", "--uniform"]
    # (What the program takes by itself, and its pages while it opens.)
    FAULTS.seen.clear()
    opened = peak_of(*average, "--dry-run", AFTERFIT_STORE_MB=str(LIMIT))
    opening = fetched_bytes()
    FAULTS.seen.clear()
    peak = peak_of(*average, AFTERFIT_STORE_MB=str(LIMIT))
    run("average", folder / "run", "-o", folder / "expected.safetensors", "--uniform")
    assert same(folder / "mean.safetensors", folder / "expected.safetensors")
    assert peak < opened + LIMIT + 64 < total / 1e6, f"{opened:.0f} MB opened, {peak:.0f} MB in all, {total / 1e6:.0f} MB of files"
    # Pages to open (here chunks are hardly larger than these), then blocks: no byte of one is fetched much more than once, but that
    # blocks shrink while files are begun.
    fetched = fetched_bytes()
    assert fetched < opening + 1.5 * total, f"{fetched / 1e6:.0f} MB, {opening / 1e6:.0f} to open {total / 1e6:.0f}"
    said = run(*average, "--force", fails=True, AFTERFIT_STORE_MB="2GB")
    assert "AFTERFIT_STORE_MB is `2GB`" in said, said


def memory_is_a_few_blocks_a_checkpoint_and_requests_are_large(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run", 20_000_001)  # 80 MB each
    send(folder / "run", name, "run/")
    FAULTS.seen.clear()
    peak = peak_of("average", f"s3://{name}/run", "-o", folder / "out", *L2)
    # (32 MB each, and two more blocks on their way, since five files are few.)
    assert peak < (32 + 2 * 8) * len(STEPS) + 64, f"{peak:.0f} MB"
    ranges = [seen[2] for seen in FAULTS.seen if seen[0] == "GET" and seen[2]]
    sizes = sorted(int(end) - int(start) + 1 for start, end in (found.removeprefix("bytes=").split("-") for found in ranges))
    # Headers, then blocks: none is fetched twice, but for a worker that the system let wait while the other went on.
    assert sum(sizes) < 1.25 * sum(path.stat().st_size for path in (folder / "run").iterdir()), sum(sizes)
    assert sum(size >= 8 << 20 for size in sizes) >= 8 * len(STEPS), sizes


def distributed_checkpoints_are_opened_by_what_is_between_their_numbers(folder):
    name, tensors = bucket(), 10
    for step in STEPS[:2]:
        state = {f"layer.{at}": torch.full((1 << 19,), float(step + at)) for at in range(tensors)}
        dcp.save({"model": state}, checkpoint_id=folder / "run" / f"step-{step}")
    send(folder / "run", name, "run/")

    def asked():
        return [seen for seen in FAULTS.seen if seen[0] == "GET" and seen[2]]

    FAULTS.seen.clear()
    run("average", f"s3://{name}/run", "-o", folder / "out.safetensors", "--uniform", "--dry-run")
    # The list; then one request where a chunk ends and the next one begins, of what is no number: kilobytes.
    opening = len(asked())
    assert opening == 2 * (1 + tensors + 1), asked()
    assert 0 < fetched_bytes() < 2 * (tensors + 2) * 8192, fetched_bytes()
    FAULTS.seen.clear()
    run("average", f"s3://{name}/run", "-o", folder / "out.safetensors", "--uniform")
    # Once: all else are numbers, in blocks.
    small = [seen for seen in asked() if int(seen[2].split("-")[1]) - int(seen[2].removeprefix("bytes=").split("-")[0]) < 1 << 15]
    assert len(small) == opening, asked()
    run("average", folder / "run", "-o", folder / "expected.safetensors", "--uniform")
    assert same(folder / "out.safetensors", folder / "expected.safetensors")


def the_nodes_of_a_dial_are_read_side_by_side(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run", 2_100_000)
    run("average", folder / "run", "-o", folder / "run.dial", "--dial", "1e-3..1", "--rate", "0.1")
    S3.upload_file(str(folder / "run.dial"), name, "run.dial")
    size = (folder / "run.dial").stat().st_size
    assert size > 30 * 8 << 20, size
    read = ["--l2", "0.05", "-o"]
    run("dial", "read", folder / "run.dial", *read, folder / "expected.safetensors")
    FAULTS.seen.clear()
    run("dial", "read", f"s3://{name}/run.dial", *read, folder / "read.safetensors")
    # (More nodes than blocks that a file has in memory as a rule: each of these would be fetched anew for every piece of it.)
    assert fetched_bytes() < 2.5 * size, fetched_bytes() / size
    assert same(folder / "read.safetensors", folder / "expected.safetensors")


def a_temporary_folder_that_is_cleared_removes_nothing_from_the_store(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run")
    send(folder / "run", name, "run/")
    run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2)
    before = {key: S3.head_object(Bucket=name, Key=key)["ETag"] for key in keys(name, "out")}
    # Whatever is older than a day, as those who tidy up do.
    tidy = f"find {TEMPORARY}/.afterfit-* -type f -mtime +1 -delete; echo 1 {{}}"
    more = ["--l2", "0.1,10", "--rate", "0.1", "--eval", tidy]
    said = run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *more, "--best", "max", fails=True)
    assert "cleared while it was in use" in said, said
    shutil.rmtree(kept_by(said))
    assert {key: S3.head_object(Bucket=name, Key=key)["ETag"] for key in keys(name, "out")} == before
    # A run that fails after its work removes nothing either.
    said = run("average", f"s3://{name}/run", "-o", f"s3://{name}/out", *L2, "--force", "--eval", "exit 1", fails=True)
    assert set(keys(name, "out")) == set(before), keys(name, "out")


def a_secret_with_a_line_end_is_named_and_not_shown(folder):
    checkpoints(folder)
    said = run("average", f"s3://{bucket()}/run", "-o", folder / "out", *L2, fails=True, AWS_SECRET_ACCESS_KEY=SECRET + "\n")
    assert "the variable AWS_SECRET_ACCESS_KEY holds a line's end" in said, said


def interrupted(run, name, by):
    """An upload that is sent a signal when its first part is on its way; how it ended, and what it said."""
    FAULTS.fault = lambda method, path, count: "slow" if method == "PUT" else None
    FAULTS.seen.clear()
    command = [AFTERFIT, "average", run, "-o", f"s3://{name}/out", *L2]
    process = subprocess.Popen(command, env={**os.environ, **VARIABLES}, stderr=subprocess.PIPE, text=True)
    try:
        while not any(seen[0] == "PUT" for seen in list(FAULTS.seen)) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(by)
        said = process.communicate(timeout=60)[1]
    finally:
        FAULTS.fault = None
        process.kill()
    return process.returncode, said


def a_killed_upload_names_nothing_and_is_done_again(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run", 12_000_003)
    ended, said = interrupted(folder / "run", name, signal.SIGKILL)
    assert ended == -signal.SIGKILL, (ended, said)
    assert keys(name, "out") == []
    # Its mirror goes with the next run, once it is old enough to be nobody's.
    [mirror] = TEMPORARY.iterdir()
    for path in [*mirror.rglob("*"), mirror]:
        os.utime(path, (time.time() - 3600,) * 2)
    run("average", folder / "run", "-o", f"s3://{name}/out", *L2)
    expected = here(folder, folder / "run", *L2)
    for l2 in ("0.01", "1"):
        assert same(fetch(name, f"out/l2-{l2}.safetensors", folder), expected / f"l2-{l2}.safetensors")


def files_of_workers_are_looked_at_refused_taken_up_and_replaced(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run")
    send(folder / "run", name, "run/")
    shared = ["--ratio", "0.5", "--shard-size", "100KB"]
    run("average", folder / "run", "-o", folder / "expected", *shared)
    names = sorted(path.name for path in (folder / "expected").iterdir())
    first, second = (part for part in names if part.endswith(".safetensors"))
    average = ["average", f"s3://{name}/run", "-o", f"s3://{name}/out", *shared]

    def is_complete():
        there = [fetch(name, f"out/{part}", folder) for part in names]
        assert keys(name, "out/") == [f"out/{part}" for part in names], keys(name, "out/")
        return all(same(path, folder / "expected" / path.name) if path.suffix == ".safetensors" else path.read_bytes() == (folder / "expected" / path.name).read_bytes() for path in there)

    def stamp(part):
        return S3.head_object(Bucket=name, Key=f"out/{part}")["LastModified"]

    # A worker has sent its file, and then everything stopped.
    run(*average, "--files=0")
    assert keys(name, "out/") == [f"out/{first}"]
    made = stamp(first)
    planned = json.loads(run(*average, "--dry-run", "--json"))
    assert [file["name"] for file in planned["files"]] == [first, second] and keys(name, "out/") == [f"out/{first}"], planned
    said = run(*average, fails=True)
    assert "several machines were making" in said and f"s3://{name}/out" in said, said
    said = run(*average, "--join", fails=True)
    assert second in said and keys(name, "out/") == [f"out/{first}"], said
    # Resumed: what is there stays.
    time.sleep(1.1)  # (The store's clock has seconds.)
    run(*average, "--files=0,1")
    run(*average, "--join")
    assert is_complete() and stamp(first) == made
    # Stopped again, and replaced as a whole by one machine.
    run(*average[:-4], "--ratio", "0.25", *average[-2:], "--force", "--files=1")
    assert keys(name, "out/") == [f"out/{first}", f"out/{second}"]
    run(*average, "--dry-run")
    run(*average, "--force")
    assert is_complete() and stamp(first) > made


def an_upload_that_is_stopped_takes_its_parts_back(folder):
    name = bucket()
    (folder / "run").mkdir()
    checkpoints(folder / "run", 12_000_003)  # 48 MB: six parts of each output
    ended, said = interrupted(folder / "run", name, signal.SIGTERM)
    assert ended == 143 and "stopped by SIGTERM" in said, (ended, said)
    assert keys(name, "out") == [] and not S3.list_multipart_uploads(Bucket=name).get("Uploads"), S3.list_multipart_uploads(Bucket=name)


def a_web_server_is_read_too(folder):
    import http.server

    cut = ["a-2.safetensors"]

    save_file(weights(1), folder / "a-1.safetensors")
    save_file(weights(2), folder / "a-2.safetensors")

    class Ranged(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            path = folder / Path(self.path).name
            if not path.is_file():
                return self.send_error(404)
            whole, asked = path.read_bytes(), re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            part = whole[int(asked[1]) : int(asked[2]) + 1] if asked else whole
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {asked[1]}-{int(asked[1]) + len(part) - 1}/{len(whole)}")
            self.send_header("Content-Length", str(len(part)))
            self.send_header("Last-Modified", "Thu, 19 Nov 2026 00:00:00 GMT")
            self.end_headers()
            if self.command == "GET" and path.name in cut and len(part) > 1:
                # Without a tag nobody but the command can ask again: the connection ends in the middle, once.
                cut.remove(path.name)
                self.wfile.write(part[: len(part) // 2])
                self.close_connection = True
            elif self.command == "GET":
                self.wfile.write(part)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranged)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{server.server_port}"
    run("average", f"{at}/x/a-1.safetensors", f"{at}/x/a-2.safetensors", "-o", folder / "mean.safetensors", "--uniform")
    run("average", folder / "a-1.safetensors", folder / "a-2.safetensors", "-o", folder / "here.safetensors", "--uniform")
    assert not cut and same(folder / "mean.safetensors", folder / "here.safetensors")
    said = run("average", f"{at}/x/a-1.safetensors", f"{at}/x/b-2.safetensors", "-o", folder / "no", "--uniform", fails=True)
    assert f"{at}/x/b-2.safetensors" in said, said
    server.shutdown()


def reads_and_writes(folder, at, put, get, **variables):
    """Averages in and out, dials, and what is there already."""
    for name, size in [("run", 3_500_000), ("small", 70_001)]:  # 14 MB: two blocks, and two parts
        (folder / name).mkdir()
        checkpoints(folder / name, size)
        for path in (folder / name).iterdir():
            put(f"{name}/{path.name}", path.read_bytes())
    expected = here(folder, folder / "run", *L2)
    run("average", f"{at}/run", "-o", f"{at}/out", *L2, **variables)
    for l2 in ("0.01", "1"):
        (folder / "back.safetensors").write_bytes(get(f"out/l2-{l2}.safetensors"))
        assert same(folder / "back.safetensors", expected / f"l2-{l2}.safetensors")
    said = run("average", f"{at}/run", "-o", f"{at}/out", *L2, fails=True, **variables)
    assert f"{at}/out/l2-0.01.safetensors exists already" in said, said
    run("average", f"{at}/small", "-o", f"{at}/run.dial", "--dial", "1e-2..1", "--rate", "0.1", **variables)
    run("average", folder / "small", "-o", folder / "run.dial", "--dial", "1e-2..1", "--rate", "0.1")
    run("dial", "read", f"{at}/run.dial", "--l2", "0.05", "-o", folder / "there.safetensors", **variables)
    run("dial", "read", folder / "run.dial", "--l2", "0.05", "-o", folder / "read.safetensors")
    assert same(folder / "there.safetensors", folder / "read.safetensors")
    said = run("average", f"{at}/nothing", "-o", folder / "no", *L2, fails=True, **variables)
    assert f"{at}/nothing" in said, said


def googles_client_reads_and_writes(folder):
    # (No emulator of Google's store that the registries have speaks the interface that the client uses. S3's is the same but for
    # credentials and some names, so that the S3 server stands in.)
    name = bucket()
    account = {"gcs_base_url": URL, "disable_oauth": True, "client_email": "", "private_key": SECRET, "private_key_id": ""}
    (folder / "account.json").write_text(json.dumps(account))
    variables = {"GOOGLE_SERVICE_ACCOUNT": str(folder / "account.json"), "GOOGLE_ALLOW_HTTP": "true"}
    put = lambda key, body: S3.put_object(Bucket=name, Key=key, Body=body, ACL="public-read")
    get = lambda key: S3.get_object(Bucket=name, Key=key)["Body"].read()
    reads_and_writes(folder, f"gs://{name}", put, get, **variables)


# The account and key that every copy of Azure's emulator has.
AZURE = "devstoreaccount1", "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azure(method, at, path, query="", body=b"", **headers):
    """A signed request, as Azure's documentation has it ("Authorize with Shared Key")."""
    account, key = AZURE
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06", **headers}
    ours = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    kind = "application/octet-stream" if body else ""
    length = str(len(body)) if body else ""
    asked = query.replace("=", ":")
    text = "\n".join([method, "", "", length, "", kind, *[""] * 7]) + ours + f"/{account}/{account}{path}" + (f"\n{asked}" if asked else "")
    signed = base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), "sha256")).decode()
    headers |= {"Authorization": f"SharedKey {account}:{signed}", **({"Content-Type": kind} if kind else {})}
    request = urllib.request.Request(f"{at}/{account}{path}?{query}", method=method, data=body or None, headers=headers)
    with urllib.request.urlopen(request) as answer:
        return answer.read()


def azures_client_reads_and_writes(folder):
    """Azurite, which Azure makes: `npm --prefix tests/azurite install`."""
    program = Path(__file__).parent / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--blobPort", str(port), "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent"]
    server = subprocess.Popen(["node", program, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert any("successfully listens" in line for line in server.stdout)
        at = f"http://127.0.0.1:{port}"
        azure("PUT", at, "/container", "restype=container")
        variables = {"AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": at}
        put = lambda key, body: azure("PUT", at, f"/container/{key}", body=body, **{"x-ms-blob-type": "BlockBlob"})
        get = lambda key: azure("GET", at, f"/container/{key}")
        reads_and_writes(folder, "az://container", put, get, **variables)
    finally:
        server.kill()


def what_was_read_is_not_fetched_again(folder):
    """Tensors that end amid blocks: a worker enters one whose first block another is through with."""
    name = bucket()
    (folder / "run").mkdir()
    for step in range(4):
        tensors = {f"layer.{at}": np.full(3_145_728, step + at, np.float32) for at in range(6)}
        save_file(tensors, folder / "run" / f"step-{step}.safetensors")
    send(folder / "run", name, "run/")
    FAULTS.seen.clear()
    run("average", f"s3://{name}/run", "-o", folder / "out", "--ratio", "0.9,0.8")
    total = sum(path.stat().st_size for path in (folder / "run").iterdir())
    # (Pages to open; and what a worker needs that the system let wait while the other went on.)
    assert fetched_bytes() < 1.15 * total, f"{fetched_bytes() / 1e6:.0f} MB of {total / 1e6:.0f}"


CHECKS = [
    what_was_read_is_not_fetched_again,
    memory_is_a_few_blocks_a_checkpoint_and_requests_are_large,
    memory_is_bounded_for_any_number_of_files,
    averages_are_those_of_a_disk_bit_for_bit,
    every_format_is_read_from_a_store,
    dials_and_tables_live_in_stores,
    busy_stores_cut_connections_and_slow_ones_change_nothing,
    what_fails_for_good_is_said_and_leaves_nothing,
    an_object_that_is_replaced_during_the_run_is_noticed,
    outputs_in_a_store_are_kept_unless_said_otherwise,
    distributed_checkpoints_are_opened_by_what_is_between_their_numbers,
    the_nodes_of_a_dial_are_read_side_by_side,
    a_temporary_folder_that_is_cleared_removes_nothing_from_the_store,
    a_secret_with_a_line_end_is_named_and_not_shown,
    an_upload_that_is_stopped_takes_its_parts_back,
    a_killed_upload_names_nothing_and_is_done_again,
    files_of_workers_are_looked_at_refused_taken_up_and_replaced,
    a_web_server_is_read_too,
    googles_client_reads_and_writes,
    azures_client_reads_and_writes,
]

if __name__ == "__main__":
    runner.run([check for check in CHECKS if len(sys.argv) < 3 or check.__name__ in sys.argv[2:]])
