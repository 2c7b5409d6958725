"""Runs the studies, several pieces at once, and stores each as soon as it is done.

    python studies/run.py --device cuda --studies finetune --seconds 520 --out results
    python studies/run.py --studies finetune,decay,anneal --size tiny --seeds 0 --out /tmp/tiny

A study is finetune, decay or anneal; with /resnet its pictures instead of its texts. OUT/STUDY.jsonl gets a line a piece; pieces
that are there already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import plan

HERE = Path(__file__).parent
Piece = plan.Piece


def key(piece: Piece) -> str:
    return json.dumps(piece, sort_keys=True)


def stored(file: Path) -> dict[str, dict[str, Any]]:
    """What is in a file of results. A last line that was cut off is none."""
    found = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[key(entry["piece"])] = entry
    return found


class Store:
    """The results, and which piece is next. Workers' threads ask it one at a time."""

    def __init__(self, todo: list[Piece], size: str, out: Path, work: Path, deadline: float) -> None:
        self.todo, self.size, self.out, self.work, self.deadline = todo, size, out, work, deadline
        self.changed = threading.Condition()
        self.running: list[Piece] = []
        self.workers: list[subprocess.Popen[str]] = []
        self.pace: float | None = None  # seconds a step, as pieces really took
        self.done = self.failed = 0

    def blocked(self, piece: Piece) -> bool:
        if piece["study"] != "finetune" or piece["method"] == "pretrain":
            return False
        return not (self.work / f"pretrained-{piece['model']}-{piece['seed']}.pt").exists()

    def hopeless(self, piece: Piece) -> bool:
        left = self.deadline - time.time()
        return self.pace is not None and plan.steps(piece, self.size) * self.pace > left

    def next(self) -> Piece | None:
        with self.changed:
            while True:
                if time.time() > self.deadline:
                    return None
                self.todo = [piece for piece in self.todo if not self.hopeless(piece)]
                for piece in self.todo:
                    if not self.blocked(piece):
                        self.todo.remove(piece)
                        self.running.append(piece)
                        return piece
                if not self.todo or not self.running:
                    return None
                self.changed.wait(1.0)

    def put(self, piece: Piece, answer: dict[str, Any]) -> None:
        with self.changed:
            self.running.remove(piece)
            if "result" in answer:
                self.done += 1
                took = answer["seconds"] / max(1, plan.steps(piece, self.size))
                self.pace = took if self.pace is None else 0.7 * self.pace + 0.3 * took
                name = piece["study"] + ("" if piece["model"] == "gpt" else f"-{piece['model']}")
                with (self.out / f"{name}.jsonl").open("a") as file:
                    file.write(json.dumps({"piece": piece, "size": self.size, **answer}) + "\n")
            else:
                self.failed += "error" in answer
            said = answer.get("error") or ("done" if "result" in answer else "out of time")
            print(f"{self.deadline - time.time():6.0f} s left  {said}  {answer.get('seconds', 0):.1f} s  {key(piece)}", flush=True)
            self.changed.notify_all()


def work_off(store: Store, command: list[str], environment: dict[str, str]) -> None:
    """A worker process and its pieces, until there are none."""
    worker: subprocess.Popen[str] | None = None
    while (piece := store.next()) is not None:
        if worker is None:
            worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            store.workers.append(worker)
        assert worker.stdin is not None and worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(piece) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            store.put(piece, json.loads(line))
        else:
            store.put(piece, {"error": f"the worker ended with {worker.wait()}"})
            worker = None
    if worker is not None:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()


def versions(device: str, piece: Piece) -> dict[str, Any]:
    from importlib.metadata import version

    import torch

    import afterfit

    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    graphs = os.environ.get("STUDIES_GRAPHS") == "1"
    return {
        "afterfit": afterfit.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": machine,
        "graphs": graphs,
        **({"peft": version("peft")} if piece.get("weights") == "peft" else {}),
    }


def worker(arguments: argparse.Namespace) -> None:
    """Pieces come in line by line, results go out line by line; whatever else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import anneal
    import decay
    import finetune
    import torch
    from loop import Clock, OutOfTime

    if arguments.device == "cpu":
        torch.set_num_threads(arguments.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    studies = {"finetune": finetune.run, "decay": decay.run, "anneal": anneal.run}
    device = torch.device(arguments.device)
    for line in sys.stdin:
        piece, begun, clock = json.loads(line), time.time(), Clock(arguments.deadline)
        answer: dict[str, Any]
        try:
            size = plan.SIZES[arguments.size][plan.name(piece)]
            result = studies[piece["study"]](size, piece, device, clock, arguments.data, arguments.work)
            answer = {"result": result, "settings": size, "versions": versions(arguments.device, piece)}
        except OutOfTime:
            answer = {}
        except Exception as error:  # the driver is told, and continues with the next piece
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({**answer, "seconds": round(time.time() - begun, 2)}) + "\n")
        answers.flush()


def probe(data: Path) -> None:
    """Whether recorded graphs give the gradients that plain steps give; how fast both are."""
    import torch
    from loop import optimizer_of, step_loss
    from worlds import world

    def steps(graphs: str) -> tuple[float, torch.Tensor]:
        os.environ["STUDIES_GRAPHS"] = graphs
        here = world(plan.SIZES["full"]["finetune/gpt"], 0, torch.device("cuda"), data)
        model = here.model()
        loss, optimizer = step_loss(here, model), optimizer_of("adam", model, 1e-9)
        for step in range(60):
            if step == 20:
                torch.cuda.synchronize()
                begun = time.time()
            optimizer.zero_grad(set_to_none=True)
            loss(*here.draw("old")).backward()
            optimizer.step()
        torch.cuda.synchronize()
        return (time.time() - begun) / 40, torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    plain, slopes = steps("0")
    found: dict[str, Any] = {"graphs": False, "plain ms": 1e3 * plain}
    try:
        recorded, same = steps("1")
        off = float((slopes - same).norm() / slopes.norm())
        found |= {"graphs": off < 0.02, "recorded ms": 1e3 * recorded, "off": off}
    except Exception as error:  # whatever a driver says: plain steps work
        found["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


def sharing(work: Path) -> dict[str, str]:
    """Starts CUDA's multi-process service, with which processes share a GPU instead of taking turns."""
    folders = {f"CUDA_MPS_{name}_DIRECTORY": str(work / f"mps-{name.lower()}") for name in ("PIPE", "LOG")}
    for folder in folders.values():
        Path(folder).mkdir(exist_ok=True)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **folders}, check=True, timeout=20)
    return folders


def gpu_environment(arguments: argparse.Namespace) -> dict[str, str]:
    """What works on this GPU: graphs and the shared service if a probe succeeds with them, else without."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "STUDIES_GRAPHS": "0"}
    extras: dict[str, str] = {}
    if arguments.mps:
        try:
            extras = sharing(arguments.work)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"no shared service: {error}", flush=True)
    for more in [extras, {}] if extras else [{}]:
        try:
            said = subprocess.run(
                [sys.executable, __file__, "--probe", "--data", str(arguments.data)],
                env={**environment, **more},
                capture_output=True,
                text=True,
                timeout=60,
            )
            found = json.loads(said.stdout.splitlines()[-1])
        except (subprocess.SubprocessError, IndexError, json.JSONDecodeError) as error:
            print(f"probe failed ({'with' if more else 'without'} the shared service): {error}", flush=True)
            if isinstance(error, IndexError):
                print(said.stderr[-2000:], flush=True)
            continue
        print(f"probe ({'with' if more else 'without'} the shared service): {found}", flush=True)
        return {**environment, **more, "STUDIES_GRAPHS": "1" if found["graphs"] and arguments.graphs else "0"}
    return environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", default="finetune,anneal,decay", help="in this order, with commas")
    parser.add_argument("--size", default="full", choices=list(plan.SIZES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=1e9, help="after which nothing is started or finished")
    parser.add_argument("--workers", type=int, default=0, help="processes: by default 6 on a GPU, 1 on a CPU")
    parser.add_argument("--threads", type=int, default=2, help="of each worker on a CPU")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--data", type=Path, default=HERE.parent / "target" / "carry", help="what pack.py made")
    parser.add_argument("--work", type=Path, help="for pretrained models (a temporary folder)")
    parser.add_argument("--no-mps", dest="mps", action="store_false")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false")
    parser.add_argument("--adapters", default="lora", choices=["lora", "peft"], help="LoRA as models.py writes it out, or peft's")
    parser.add_argument("--only", default="", help="a text that the JSON of a piece must contain")
    parser.add_argument("--list", action="store_true", help="say what would be run")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return worker(arguments)
    if arguments.probe:
        return probe(arguments.data)
    begun = time.time()
    deadline = begun + arguments.seconds
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    arguments.out.mkdir(parents=True, exist_ok=True)
    there = {name for file in arguments.out.glob("*.jsonl") for name in stored(file)}
    todo: list[Piece] = []
    for study in arguments.studies.split(","):
        try:
            wanted = plan.pieces(study, arguments.size, seeds)
            plan.SIZES[arguments.size][plan.name(wanted[0])]
        except (KeyError, IndexError):
            raise SystemExit(f"there is no study {study!r} of size {arguments.size}") from None
        wanted = [{**piece, "weights": arguments.adapters} if piece.get("weights") == "lora" else piece for piece in wanted]
        wanted = [piece for piece in wanted if arguments.only in key(piece) or piece.get("method") == "pretrain"]
        missing = [piece for piece in wanted if key(piece) not in there]
        # Pretrained models are not kept: they are made again where something that starts from them is missing.
        again = {piece["seed"] for piece in missing if piece.get("method") != "pretrain"}
        todo += [piece for piece in wanted if piece in missing or (piece.get("method") == "pretrain" and piece["seed"] in again)]
    total = sum(plan.steps(piece, arguments.size) for piece in todo)
    print(f"{len(todo)} pieces, about {total} steps", flush=True)
    if arguments.list:
        for piece in todo:
            print(plan.steps(piece, arguments.size), key(piece))
        return None
    with tempfile.TemporaryDirectory() as temporary:
        arguments.work = arguments.work or Path(temporary)
        arguments.work.mkdir(parents=True, exist_ok=True)
        environment = gpu_environment(arguments) if arguments.device == "cuda" else dict(os.environ)
        command = [sys.executable, __file__, "--worker", "--size", arguments.size, "--device", arguments.device]
        command += ["--data", str(arguments.data), "--work", str(arguments.work), "--deadline", str(deadline)]
        command += ["--threads", str(arguments.threads)]
        store = Store(todo, arguments.size, arguments.out, arguments.work, deadline)
        count = arguments.workers or (6 if arguments.device == "cuda" else 1)
        threads = [threading.Thread(target=work_off, args=(store, command, environment)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline + 15 - time.time()))
        for process in store.workers:
            process.kill()  # one that is neither done nor looks at the time
        for thread in threads:
            thread.join()
        if "CUDA_MPS_PIPE_DIRECTORY" in environment:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, timeout=20, check=False)
    print(f"{store.done} done, {store.failed} failed, {len(store.todo)} left, {time.time() - begun:.0f} s", flush=True)
    raise SystemExit(1 if store.failed else 0)


if __name__ == "__main__":
    main()
