"""A core and the memory behind it, which have a bus in common."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .errors import VdlaError
from .memory import MemoryParams
from .params import PRESETS, HwParams


def load_platform(
    hw: HwParams | str | Path, memory: MemoryParams | str | Path
) -> tuple[HwParams, MemoryParams]:
    """Load the configuration and the memory, and make sure that their bus widths agree.

    A preset takes the bus width of the memory. A configuration of the user's own must state the
    same width as the memory.

    Raises
    ------
    VdlaError
        For unknown names, bad files, or widths that differ.
    """
    memory = memory if isinstance(memory, MemoryParams) else MemoryParams.load(memory)
    if not isinstance(hw, HwParams) and str(hw) in PRESETS:
        return replace(PRESETS[str(hw)], bus_bits=memory.bus_bits), memory
    params = hw if isinstance(hw, HwParams) else HwParams.load(hw)
    if params.bus_bits != memory.bus_bits:
        raise VdlaError(
            f"memory: expected a data bus of {params.bus_bits} bits as in the hardware "
            f"configuration, got {memory.bus_bits}; set bus_bits of one of them"
        )
    return params, memory
