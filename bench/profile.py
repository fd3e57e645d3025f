"""Where the time of a network on the CPU goes: to each loop program of its code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..isa.errors import VdlaError
from ..module import Module
from ..runtime.native import Call, TimedFunction
from .peak import peak_kernel, peak_ops

#: Runs of which the fastest counts, after one that warms up the caches.
ROUNDS = 15
#: Bytes of an array that no cache holds, and calls of which the fastest counts.
COPIED_BYTES, CALLS = 128 << 20, 5


def profile(module: Module, arrays: Sequence[np.ndarray], rounds: int = ROUNDS) -> dict[str, Any]:
    """The time of each loop program in the fastest of some runs of one batch.

    Parameters
    ----------
    module : that ``compile`` made for ``cpu`` with ``profile``
    arrays : one for each input, of the model's shapes

    Returns
    -------
    dict
        ``run_ms``, a whole run; ``rest_ms``, what of it is in no loop program; ``timer_ms``, about
        what the timers take; ``peaks``, billions of products and sums a second of all threads, by
        instruction, and ``copied_gb_per_s`` of memory, both measured; and ``rows``, one for each
        loop program: ``name``, ``op``, ``ms``, its ``share`` of the run, ``gb_per_s`` of operands
        and results, which may lie in caches; where it multiplies, ``gops`` and the ``reached`` part
        of its instruction's peak. A convolution counts as a direct one, whatever its algorithm.

    Raises
    ------
    VdlaError
        For a module that is not timed.
    """
    functions = [step for step in module.compiled.steps if isinstance(step, TimedFunction)]
    if not functions:
        raise VdlaError("profile: expected a module that was compiled with profile=True")
    module.run(*arrays)
    for function in functions:
        function.seconds.clear()
    run_s, fastest = min((_seconds(lambda: module.run(*arrays)), n) for n in range(rounds))
    calls = [call for function in functions for call in function.calls]
    calls_s = [seconds for function in functions for seconds in function.seconds[fastest]]
    used = sorted({call.instruction for call in calls if call.instruction})
    peaks = {name: module.settings.threads * _peak_gops(name) for name in used}
    rows = [_row(call, seconds, run_s, peaks) for call, seconds in zip(calls, calls_s, strict=True)]
    return {
        "rounds": rounds,
        "run_ms": 1000 * run_s,
        "rest_ms": 1000 * (run_s - sum(calls_s)),
        "timer_ms": 1000 * _fastest_s(lambda: [time.monotonic_ns() for _ in calls]),
        "peaks": peaks,
        "copied_gb_per_s": _copied_gb_per_s(),
        "rows": rows,
    }


def _row(call: Call, seconds: float, run_s: float, peaks: dict[str, float]) -> dict[str, Any]:
    seconds = max(seconds, 1e-9)  # what the clock does not see
    gops = call.ops / seconds / 1e9 if call.instruction else None
    return {
        "name": call.name, "op": call.op, "ms": 1000 * seconds, "share": seconds / run_s,
        "gops": gops, "gb_per_s": call.moved_bytes / seconds / 1e9,
        "instruction": call.instruction,
        "reached": gops / peaks[call.instruction] if gops and call.instruction else None,
    }  # fmt: skip


@cache
def _peak_gops(instruction: str) -> float:
    """The measured peak of one thread, in billions of products and sums a second."""
    peak_kernel(instruction)  # compiles it
    return peak_ops(instruction) / _fastest_s(lambda: peak_kernel(instruction)) / 1e9


@cache
def _copied_gb_per_s() -> float:
    """Bytes that are read and written in a second where memory is copied, in billions."""
    source, target = (np.ones(COPIED_BYTES, np.uint8) for _ in range(2))
    return 2 * COPIED_BYTES / _fastest_s(lambda: np.copyto(target, source)) / 1e9


def _fastest_s(run: Callable[[], object]) -> float:
    return min(_seconds(run) for _ in range(CALLS))


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
