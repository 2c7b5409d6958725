"""What a core does in a second, measured here, and what follows for sizes that nobody has here: docs/scale.json → docs/scale.md.

python tests/bench_scale.py PATH_TO_AFTERFIT    # measures (`make bench-scale`), stores, writes the page's part
python tests/bench_scale.py                     # writes the page's part from what is stored
python tests/bench_scale.py --check             # refuses a page that is not what is stored
"""

import heapq
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
STORED, PAGE = ROOT / "docs" / "scale.json", ROOT / "docs" / "scale.md"
# What a machine of the simulations has. (These are choices, not measurements.)
CORES, GIGABYTES_A_SECOND, SHARD = 64, 12.5, 5e9
STRENGTHS, CHECKPOINTS = 16, 100
# Blocks of a file in memory, and the most they have (crates/afterfit/src/files/stores/object.rs).
HELD, BLOCK = 3, 8 << 20


# ------------------------------------------------------------------ what is measured


def of_averages(binary):
    """Seconds of one core for a gigabyte of checkpoints: `fixed + each · strengths`, by element type."""
    import numpy as np
    from safetensors.numpy import save_file

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for dtype, view in [("f32", np.float32), ("bf16", None)]:
            run = folder / dtype
            run.mkdir()
            generator = np.random.default_rng(0)
            for step in range(8):
                values = generator.standard_normal(16 << 20, np.float32)
                if view is None:  # (bf16 through f16's writer: the same bytes with another name in the header)
                    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
                    save_file({"w": bits.view(np.float16)}, run / f"step-{step}.safetensors")
                    bytes = (run / f"step-{step}.safetensors").read_bytes()
                    (run / f"step-{step}.safetensors").write_bytes(renamed(bytes))
                else:
                    save_file({"w": values}, run / f"step-{step}.safetensors")
            size = sum(path.stat().st_size for path in run.iterdir())
            taken = {}
            for strengths in (1, 16):
                ratios, seconds = ",".join(str(0.5 + 0.02 * at) for at in range(strengths)), []
                for turn in range(3):
                    watch = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True); u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime)"
                    command = [binary, "--threads", "1", "average", run, "-o", folder / f"out-{dtype}-{strengths}-{turn}/", "--ratio", ratios, "-q", "--json"]
                    done = subprocess.run([sys.executable, "-S", "-c", watch, *map(str, command)], capture_output=True, text=True, check=True)
                    seconds.append(float(done.stdout.splitlines()[-1]))
                taken[strengths] = 1e9 * statistics.median(seconds) / size
            each = (taken[16] - taken[1]) / 15
            found[dtype] = {"fixed": taken[1] - each, "each": each}
    return found


def renamed(bytes):
    """A safetensors file of F16 as one of BF16."""
    length = int.from_bytes(bytes[:8], "little")
    header = bytes[8 : 8 + length].decode().rstrip().replace('"F16"', '"BF16"')
    header += " " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header.encode() + bytes[8 + length :]


def of_rows():
    """Seconds of one core: moments for a row and d² columns, a pass of a logistic loss for a row, column and model."""
    import numpy as np
    from afterfit._afterfit import Moments, Rows

    generator, found = np.random.default_rng(0), {}
    for columns, rows in [(100, 200_000), (1000, 20_000)]:
        x = generator.standard_normal((rows, columns), np.float32)
        y, seconds = x[:, :1].astype(np.float64), []
        for _ in range(3):
            start = time.perf_counter()
            Moments(columns).add(x, y)
            seconds.append(time.perf_counter() - start)
        found[f"moments_{columns}"] = statistics.median(seconds) / (rows * columns**2)
        part = Rows(columns, 2)
        part.add(x, (y[:, 0] > 0).astype(np.uint32))
        models, seconds = np.zeros((20, columns + 1)), []
        for _ in range(3):
            start = time.perf_counter()
            part.evaluate(models)
            seconds.append(time.perf_counter() - start)
        found[f"pass_{columns}"] = statistics.median(seconds) / (rows * columns * 20)
    return found


def of_ray():
    """Seconds with one worker and with two, of a core each, and of one process with as many threads."""
    import logging

    import afterfit.ray
    import numpy as np
    import ray
    from safetensors.numpy import save_file

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    generator, found = np.random.default_rng(0), {}

    def timed(name, workers, work):
        seconds = []
        for turn in range(4):
            start = time.perf_counter()
            work(turn)
            seconds.append(time.perf_counter() - start)
        found.setdefault(name, {})[str(workers)] = statistics.median(seconds[1:])  # (the first starts processes)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "run").mkdir()
        for step in range(16):
            save_file({f"layer.{at}": generator.standard_normal(1 << 20, np.float32) for at in range(16)}, folder / "run" / f"step-{step}.safetensors")
        ratios, options = [0.5 + 0.02 * at for at in range(16)], {"shard_size": "8MB", "force": True}
        x = generator.standard_normal((200_000, 100), np.float32)
        columns = {f"x{at}": x[:, at] for at in range(100)} | {"y": (x[:, 0] + generator.standard_normal(len(x)) > 0).astype(np.int64)}
        import pyarrow as pa

        table = pa.table(columns)
        rows = ray.data.from_arrow([table.slice(at, 25_000) for at in range(0, len(x), 25_000)])
        for workers in (1, 2):
            timed("average", workers, lambda _, n=workers: afterfit.ray.average(folder / "run", folder / f"out-{n}", ratio=ratios, num_workers=n, **options))
            line = ["afterfit", "--threads", str(workers), "average", str(folder / "run"), "-o", str(folder / f"own-{workers}"), "--ratio", ",".join(map(str, ratios)), "--shard-size", "8MB", "--force", "-q", "--json"]
            timed("average, one process", workers, lambda _, line=line: subprocess.run([Path(sys.argv[1]).resolve(), *line[1:]], check=True, stdout=subprocess.DEVNULL))
            timed("logistic path", workers, lambda _, n=workers: afterfit.ray.logistic_path(rows, target="y", l2=(1e-4, 1.0, 10), num_workers=n))
    ray.shutdown()
    return found


# ------------------------------------------------------------------ what follows


def makespan(tasks, workers):
    """Seconds until the last of these tasks has ended, each given to whoever is free first."""
    free = [0.0] * workers
    for seconds in tasks:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


def of_model(known, parameters, workers):
    """A pass over all checkpoints of a bf16 model, a task for each file of the outputs."""
    size = 2 * parameters
    files = max(1, round(size / SHARD))
    share = size / files
    cpu = known["averages"]["bf16"]["fixed"] + known["averages"]["bf16"]["each"] * STRENGTHS + known["store"]["cpu_seconds_a_gb"]
    read = share * CHECKPOINTS / 1e9
    written = share * STRENGTHS / 1e9
    # (What is read is added up while it arrives; what is written is sent when a task has it all.)
    task = max(read / GIGABYTES_A_SECOND, read * cpu / CORES) + written / GIGABYTES_A_SECOND + written * known["store"]["cpu_seconds_a_gb"] / CORES
    return makespan([task] * files, workers), read * files, read * cpu / CORES > read / GIGABYTES_A_SECOND, files


def clock(seconds):
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def lines(known):
    averages, rows, store = known["averages"], known["rows"], known["store"]
    yield f"Measured on {known['machine']}, one thread, medians of three; the client of the store as in [Object stores](stores.md#how-fast):"
    yield ""
    yield "| work | seconds of a core |"
    yield "|---|---|"
    for dtype in ("f32", "bf16"):
        one = averages[dtype]
        yield f"| a GB of {dtype} checkpoints, S strengths | {one['fixed']:.2f} + {one['each']:.3f} S |"
    yield f"| a GB through the store's client (no TLS) | {store['cpu_seconds_a_gb']:.2f} |"
    for columns in (100, 1000):
        yield f"| moments of 10⁶ rows, {columns} columns | {1e6 * columns**2 * rows[f'moments_{columns}']:.1f} |"
    for columns in (100, 1000):
        yield f"| a logistic pass over 10⁶ rows, {columns} columns, 20 models | {2e7 * columns * rows[f'pass_{columns}']:.1f} |"
    yield ""
    yield "## One worker and two, on two cores"
    yield ""
    yield "16 checkpoints of 64 MB and 16 averages of them in files of 8 MB; 10 strengths of a table of 200 000 rows and 100 columns. Medians of three, processes started before:"
    yield ""
    yield "| | 1 | 2 | |"
    yield "|---|---|---|---|"
    names = {"average": "`afterfit.ray.average`, workers", "average, one process": "`afterfit average`, threads", "logistic path": "`afterfit.ray.logistic_path`, workers"}
    for name, shown in names.items():
        one, two = (known["ray"][name][str(workers)] for workers in (1, 2))
        yield f"| {shown} | {one:.2f} s | {two:.2f} s | {one / two:.2f}× |"
    yield ""
    yield "The driver, Ray's own processes and the page cache share these two cores with the workers: two workers cannot be twice as fast here."
    yield ""
    yield f"## {CHECKPOINTS} checkpoints of a large model, {STRENGTHS} strengths"
    yield ""
    yield (
        f"Simulated: bf16, workers of {CORES} cores and {8 * GIGABYTES_A_SECOND:.0f} Gbit/s each way, files of {SHARD / 1e9:.0f} GB, a task a file. "
        "What a store, Ray and TLS add is not in it, and a bucket must be able to give what the workers ask for together."
    )
    yield ""
    yield "| model | read | files | " + " | ".join(f"{workers} workers" if workers > 1 else "1 worker" for workers in (1, 8, 64)) + " |"
    yield "|---|---|---|---|---|---|"
    for name, parameters in [("70 B", 70e9), ("405 B", 405e9)]:
        found = [of_model(known, parameters, workers) for workers in (1, 8, 64)]
        yield f"| {name} | {found[0][1] / 1e3:.0f} TB | {found[0][3]} | " + " | ".join(clock(seconds) for seconds, *_ in found) + " |"
    bound = "the cores" if of_model(known, 70e9, 1)[2] else "the network"
    cpu = averages["bf16"]["fixed"] + averages["bf16"]["each"] * STRENGTHS + store["cpu_seconds_a_gb"]
    yield ""
    yield (
        f"A worker is bound by {bound}: its cores add up {CORES / cpu:.0f} GB/s at {STRENGTHS} strengths, its network brings {GIGABYTES_A_SECOND} GB/s. "
        f"With more workers than files the rest is idle: `shard_size` cuts finer. A task has up to {HELD * BLOCK * CHECKPOINTS / 1e9:.1f} GB of blocks in memory (one file of each checkpoint; "
        f"with more files it is no more than a quarter of the free memory) and {STRENGTHS * SHARD / 1e9:.0f} GB of outputs in its temporary folder. One strength instead of {STRENGTHS} saves cores and what is written, not what is read."
    )
    yield ""
    yield "## 10⁹ rows"
    yield ""
    yield "| table | moments, or a pass of 20 models | 1 worker | 8 workers | 64 workers |"
    yield "|---|---|---|---|---|"
    for columns in (100, 1000):
        read = 1e9 * columns * 4 / 1e9
        for what, core in [("moments", 1e9 * columns**2 * rows[f"moments_{columns}"]), ("a pass", 2e10 * columns * rows[f"pass_{columns}"])]:
            reading = read / GIGABYTES_A_SECOND if what == "moments" else 0.0
            times = [max(core / CORES, reading) / workers for workers in (1, 8, 64)]
            yield f"| {columns} columns of f32, {read:.0f} GB | {what} | " + " | ".join(clock(seconds) if seconds >= 10 else f"{seconds:.1f} s" for seconds in times) + " |"
    yield ""
    yield (
        "A ridge path is one pass of moments. A logistic path takes a few dozen passes over rows that stay in the workers' memory together: "
        f"{1e9 * 1000 * 4 / 1e12:.0f} TB for 10⁹ rows of 1000 columns, which is what bounds it."
    )


def main():
    known = json.loads(STORED.read_text()) if STORED.exists() else {}
    if len(sys.argv) > 1 and sys.argv[1] != "--check":
        os.environ["RAYON_NUM_THREADS"] = "1"
        model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "this machine")
        known |= {"averages": of_averages(Path(sys.argv[1]).resolve()), "rows": of_rows(), "ray": of_ray(), "machine": model}
        STORED.write_text(json.dumps(known, indent=2) + "\n")
    if not {"averages", "rows", "store", "ray"} <= known.keys():
        raise SystemExit("scale: no measurements stored: make bench-scale")
    text = PAGE.read_text()
    made = re.sub(r"(<!-- tests/bench_scale.py -->\n).*?(<!-- end -->)", lambda found: "\n".join([found[1].rstrip(), *lines(known), found[2]]), text, flags=re.DOTALL)
    if "--check" in sys.argv:
        if made != text:
            raise SystemExit("docs/scale.md is not what docs/scale.json says: python tests/bench_scale.py")
    else:
        PAGE.write_text(made)
    print("scale: the page is what was measured")


if __name__ == "__main__":
    main()
