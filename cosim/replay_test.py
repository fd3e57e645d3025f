"""The bench of ``vdla cosim --replay``: a recording on a block by itself."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import cocotb

from .bench import parameter
from .divergence import Diverged
from .recording import Recording
from .replaying import Replay


@cocotb.test()
async def recording(dut) -> None:
    """What the block does is what was recorded."""
    replay = Replay(dut, Recording.load(parameter("recording")), int(parameter("quiet_cycles")))
    began, found = time.perf_counter(), None
    try:
        await (replay.untimed() if parameter("untimed") == "True" else replay.timed())
    except Diverged as error:
        found = asdict(error.divergence)
    result = {
        "cycles": replay.cycles,
        "wall_s": time.perf_counter() - began,
        "first_divergence": found,
    }
    Path(parameter("result")).write_text(json.dumps(result))
