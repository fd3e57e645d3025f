"""A Dask scheduler with two workers, each a process of its own, over TCP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: How long processes may take to appear, on a loaded machine too.
PATIENCE_S = 120.0


@dataclass
class Cluster:
    """A scheduler's address, and its workers."""

    address: str
    workers: list[subprocess.Popen]


@contextmanager
def two_workers(device: str, folder: Path) -> Iterator[Cluster]:
    """A cluster whose workers have a `device` each and write to `folder`, for the block."""
    file = folder / "scheduler.json"
    scheduler = ["dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]
    worker = ["dask_worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny"]
    worker += ["--no-dashboard", "--memory-limit", "0", "--local-directory", str(folder)]
    worker += ["--resources", f"{device}=1"]
    processes = [_started(*scheduler), _started(*worker), _started(*worker)]
    try:
        yield Cluster(_address(file), processes[1:])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _started(module: str, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", f"distributed.cli.{module}", *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _address(file: Path) -> str:
    """What the scheduler writes once it listens."""
    begun = time.monotonic()
    while time.monotonic() < begun + PATIENCE_S:
        try:
            return json.loads(file.read_text())["address"]
        except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or half written
            time.sleep(0.1)
    raise TimeoutError(f"no scheduler after {PATIENCE_S:.0f} s")
