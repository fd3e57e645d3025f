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
from .replay_in_order import replay_in_order
from .replaying import ReplayedBlock, replay_timed


@cocotb.test()
async def recording(dut) -> None:
    """What the block does is what was recorded."""
    block = ReplayedBlock(dut, Recording.load(parameter("recording")))
    began, found = time.perf_counter(), None
    try:
        if parameter("untimed") == "True":
            await replay_in_order(block, int(parameter("quiet_cycles")))
        else:
            await replay_timed(block)
    except Diverged as error:
        found = asdict(error.divergence)
    result = {
        "cycles": block.cycles,
        "wall_s": time.perf_counter() - began,
        "first_divergence": found,
    }
    Path(parameter("result")).write_text(json.dumps(result), "utf-8")
