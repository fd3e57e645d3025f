"""Refine a model: change the choices of its layers as long as its whole program becomes faster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import plugins
from ..compiler.choose.files import load_knobs
from ..compiler.targets.base import Options
from ..compiler.targets.registry import find_target
from ..compiler.targets.vdla.target import Accelerator
from ..compiler.tune.together import Together
from ..isa.memory import MemoryParams, load_platform
from ..isa.params import HwParams
from ..module import check_options
from ..runtime.files import write_text

#: Called before the first trial and after each: trials made, of how many, the least cycles so far.
Watch = Callable[[int, int, int], None]


def refine(
    model: Any,
    knobs: str | Path = "knobs.json",
    hw: HwParams | str | Path = "16x16",
    memory: MemoryParams | str | Path = "vta",
    trials: int = 200,
    seed: int = 0,
    time_s: float | None = None,
    vthreads: int = 2,
    watch: Watch = lambda made, of, best: None,
) -> dict[str, Any]:
    """Search the choices of all layers on the accelerator together, by the exact cycles of the
    model's programs, and keep the best ones in a file of knobs.

    ``vdla.compile(..., knobs=...)`` makes these programs again from the file. The same call with
    another seed goes on from there.

    Parameters
    ----------
    model : as for :func:`vdla.compile`
    knobs : path
        The file of knobs by layer (JSON). Where it exists, the search begins with its choices. It
        is written at the beginning and whenever cycles were saved.
    trials : int
        Each compiles and simulates a whole program.
    seed : int
        The same seed, with the same file, makes the same trials.
    time_s : float, optional
        Seconds after which to stop.
    watch : callable
        Told how many trials are made, of how many, and the least cycles so far.

    Returns
    -------
    dict
        ``before`` and ``best``, the cycles of all programs; ``trials``, of which ``failed`` gave no
        program; ``curve``, the least cycles before the first trial and after each; ``layers`` with
        their ``knobs``, and those that they had ``before`` if these are others; ``exhausted``,
        whether nothing new was left to try; ``interrupted``, whether Ctrl-C stopped it;
        ``time_ended``, whether ``time_s`` did.

    Raises
    ------
    VdlaError
        For a bad argument, a model that cannot be compiled or has no layer on the accelerator, and
        a file that has no knobs for it.
    """
    plugins.load_known()
    check_options("sim", None, trials=trials, vthreads=vthreads)
    params, memory = load_platform(hw, memory)
    target = find_target("sim", Options(params, memory, vthreads))
    assert isinstance(target, Accelerator)
    path = Path(knobs)
    given = load_knobs(path) if path.exists() else {}
    ends = None if time_s is None else time.monotonic() + time_s
    search = Together(model, target, given, seed)
    before, kept = search.knobs, 0

    def goes_on() -> bool:
        """Whether there is time for a trial; also keeps and tells what was found."""
        nonlocal kept
        if kept != search.curve[-1]:
            kept = search.curve[-1]
            write_text(path, json.dumps(search.knobs, indent=1) + "\n")
        watch(len(search.curve) - 1, trials, search.curve[-1])
        return ends is None or time.monotonic() < ends

    interrupted = False
    try:
        search.run(trials, goes_on)
    except KeyboardInterrupt:
        interrupted = True
    made = len(search.curve) - 1
    layers = [
        {"name": name, "knobs": found} | ({"before": before[name]} if before[name] != found else {})
        for name, found in search.knobs.items()
    ]
    return {
        "before": search.curve[0], "best": search.curve[-1], "trials": made,
        "failed": search.failed, "curve": search.curve, "knobs": str(path), "layers": layers,
        "exhausted": search.exhausted, "interrupted": interrupted,
        "time_ended": made < trials and not interrupted and not search.exhausted,
    }  # fmt: skip
