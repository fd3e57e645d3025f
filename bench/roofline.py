"""Figure 10 of the TVM paper: ResNet-18's layers with one and two virtual threads under the
roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.transforms import Bbox

from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..report import config_name, memory_name


def draw_roofline(
    rows: Sequence[dict[str, Any]], hw: HwParams, memory: MemoryParams, path: str | Path
) -> None:
    """Draw rows of :func:`~vdla.bench.table2.table2_rows`, or of :func:`model_rows`, into a picture
    file: MACs a cycle over MACs a byte of the bus's busier channel. One virtual thread has another
    marker than more.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    peak = hw.peak_macs_per_cycle
    bytes_per_cycle = hw.bus_bytes / memory.cycles_per_beat
    intensities = {row["layer"]: row["macs"] / row["channel_bytes"] for row in rows}
    low, high = min(intensities.values()) / 2, max(intensities.values()) * 2
    ridge = peak / bytes_per_cycle
    figure, axes = pyplot.subplots(figsize=(8, 5))
    corners = [low, ridge, max(high, ridge)]
    axes.plot(corners, [min(peak, x * bytes_per_cycle) for x in corners], "k-", label="roofline")
    counts = sorted({row["vthreads"] for row in rows})
    for threads in counts:
        marker, colour = ("o", "tab:orange") if threads == 1 else ("s", "tab:blue")
        mine = [row for row in rows if row["vthreads"] == threads]
        axes.plot(
            [intensities[row["layer"]] for row in mine],
            [row["macs"] / row["cycles"] for row in mine],
            marker, color=colour, label=f"{threads} virtual thread{'s' * (threads > 1)}",
        )  # fmt: skip
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="MACs / byte that the bus must read, or write if that is more",
        ylabel="MACs / cycle",
    )
    axes.set_title(f"configuration {config_name(hw)}, memory {memory_name(memory)}")
    axes.legend(loc="lower right")
    axes.grid(True, which="both", alpha=0.2)
    figure.tight_layout()
    _label(figure, axes, {
        row["layer"]: (intensities[row["layer"]], row["macs"] / row["cycles"])
        for row in rows if row["vthreads"] == counts[0]
    })  # fmt: skip
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def model_rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of a report of ``vdla run`` that multiply, as rows to draw.

    Raises VdlaError where no layer on the accelerator does.
    """
    rows = [
        {"layer": layer["name"], "macs": layer["macs"], "channel_bytes": layer["channel_bytes"],
         "cycles": layer["active_cycles"], "vthreads": report["vthreads"]}
        for layer in report["layers"]
        if layer["macs"] and layer["active_cycles"]
    ]  # fmt: skip
    if not rows:
        raise VdlaError("roofline: expected a layer that multiplies on the accelerator, got none")
    return rows


def _label(figure: Any, axes: Any, points: dict[str, tuple[float, float]]) -> None:
    """Write names beside their points, each where it covers no point and no other name: below it,
    above it, further away.
    """
    to_pixels = axes.transData.transform
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in map(to_pixels, points.values())]
    for name, point in points.items():
        note = axes.annotate(
            name, point, textcoords="offset points", xytext=(0, 0), size=7,
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "gray"},
        )  # fmt: skip
        for offset in _OFFSETS:
            note.set_position(offset)
            box = note.get_window_extent(figure.canvas.get_renderer())
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(note.get_window_extent(figure.canvas.get_renderer()))


#: Where a name may stand, in points from its marker, the nearest first.
_OFFSETS = [
    (x * distance, y * distance)
    for distance in (6, 14, 24, 36, 50, 66)
    for x, y in ((0.6, -1.7), (0.6, 1.0), (-2.2, -1.7), (-2.2, 1.0), (1.5, -0.4), (-3.2, -0.4))
]
