"""Trials that go wrong, as functions of a module, which a sandbox can call."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from vdla.isa.errors import VdlaError


def size_of(subject: Any, knobs: Any) -> float:
    """What the subject and the knobs say; some knobs go wrong."""
    match knobs.get("then"):
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(600)
        case "fill":
            return float(len(bytearray(1 << 40)))
        case "refuse":
            raise VdlaError("no such tile")
        case "bug":
            raise ZeroDivisionError("a bug\nof two lines")
        case "print":
            print("a trial says something")
    return float(subject["size"] + knobs["a"])


def slowly(subject: Any, knobs: Any) -> float:
    """A trial that leaves the id of its worker in a folder."""
    folder = Path(subject["folder"])
    (folder / str(os.getppid())).touch()
    time.sleep(0.2)
    return float(knobs["a"])


def doubled(subject: Any, knobs: Any) -> Any:
    """What is measured: the knobs with ``a`` doubled; some cannot be compiled."""
    if knobs.get("then") == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    return knobs | {"a": 2 * knobs["a"]}
