"""Runs checks, each in a folder of its own; prints `N passed, N failed` and exits accordingly."""

import multiprocessing
import sys
import tempfile
import traceback
from pathlib import Path


def run(checks):
    failed = 0
    for check in checks:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(Path(folder))
                print(f"ok    {check.__name__}")
            except Exception:
                failed += 1
                print(f"FAIL  {check.__name__}")
                traceback.print_exc()
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(failed > 0)


def processes(function, arguments, count):
    """`function(rank, *arguments)` in so many processes, forked from one that has imported PyTorch already: that takes seconds."""
    from torch.multiprocessing import start_processes

    multiprocessing.set_forkserver_preload(["torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint.state_dict"])
    start_processes(function, arguments, nprocs=count, start_method="forkserver")
