"""Table 2 of the TVM paper: the convolutions of ResNet-18 and MobileNet, each alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..report.bounds import Bound
from ..report.report import join_programs, timed, utilisation
from .measure import Progress, measure, told
from .workloads import TABLE_2, ConvLayer


def choose_layers(names: Sequence[str]) -> list[ConvLayer]:
    """Layers by name; all layers if none is named.

    Raises VdlaError for an unknown name.
    """
    known = {layer.name: layer for layer in TABLE_2}
    for name in names:
        if name not in known:
            raise VdlaError(f"layers: expected names from {', '.join(known)}, got {name!r}")
    return [known[name] for name in names] or list(TABLE_2)


def table2_rows(
    layers: Sequence[ConvLayer],
    hw: HwParams,
    memory: MemoryParams,
    simulators: tuple[str, ...] = ("sim",),
    vthreads: Sequence[int] = (2,),
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """One row for each layer and number of virtual threads.

    ``mac_cycles`` is what a perfect tensor core takes for the true channels; a depthwise layer runs
    on the vector unit instead, which takes ``vector_cycles`` at one vector and kernel position a
    cycle. ``end_to_end`` is of the peak of the unit that does the MACs.
    """
    jobs = [(layer, threads) for layer in layers for threads in vthreads]
    return [_row(layer, hw, memory, simulators, n) for layer, n in told(jobs, progress)]


def _row(
    layer: ConvLayer, hw: HwParams, memory: MemoryParams, simulators: tuple[str, ...], threads: int
) -> dict[str, Any]:
    found = measure(layer.model(hw.batch), hw, memory, simulators, threads)
    (info,) = (info for info in found.compiled.layers if info.runs is not None)
    program = join_programs(found.compiled.programs)
    bound = Bound.of([info], program, memory)
    use = utilisation([info], program, program.insns, found.cycles)
    vector = None
    if layer.groups > 1:
        vector = -(-layer.out_channels // hw.block) * (layer.out_size * layer.kernel) ** 2
    return {
        "layer": layer.name,
        "cycles": found.cycles,
        **timed(found.cycles, hw, memory),
        "sim_cycles": found.cycles_of("sim"),
        "rtl_cycles": found.cycles_of("rtl"),
        "macs": info.macs,
        "mac_cycles": info.macs / hw.peak_macs_per_cycle,
        "vector_cycles": vector,
        "compulsory_bytes": info.compulsory_bytes,
        "compulsory_read_bytes": info.compulsory_read_bytes,
        "compulsory_written_bytes": info.compulsory_written_bytes,
        "channel_bytes": bound.channel_bytes,
        "roofline_cycles": bound.cycles,
        "roofline_fraction": bound.cycles / found.cycles,
        "bound_by": bound.by,
        "end_to_end": use["end_to_end"] or use["vector"],
        "vthreads": threads,
        "sim_wall_s": found.wall_s.get("sim"),
        "rtl_wall_s": found.wall_s.get("rtl"),
    }
