"""Figure 10 of the TVM paper: ResNet-18's layers with one and two virtual threads under the
roofline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from ..isa.errors import VdlaError
from ..isa.memory import MemoryParams
from ..isa.params import HwParams
from ..report.report import config_name, memory_name, roofline_macs

#: Pixels of an inch; points nearer than so many pixels share a label; free space around a label.
DPI, MARKER_PIXELS, MARGIN_PIXELS = 150, 8.0, 3.0


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
    figure, axes = pyplot.subplots(figsize=(8, 5), dpi=DPI)
    corners = [low, ridge, max(high, ridge)]
    roof = [min(peak, x * bytes_per_cycle) for x in corners]
    (line,) = axes.plot(corners, roof, "k-", label="roofline")
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
    }, line)  # fmt: skip
    figure.savefig(path)
    pyplot.close(figure)


def model_rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of a report of ``vdla run`` that multiply, as rows to draw.

    Raises VdlaError where no layer on the accelerator does.
    """
    rows = [
        {"layer": layer["name"], "macs": roofline_macs(layer),
         "channel_bytes": layer["channel_bytes"], "cycles": layer["active_cycles"],
         "vthreads": report["vthreads"]}
        for layer in report["layers"]
        if layer["macs"] and layer["active_cycles"]
    ]  # fmt: skip
    if not rows:
        raise VdlaError("roofline: expected a layer that multiplies on the accelerator, got none")
    return rows


def _label(figure: Any, axes: Any, points: dict[str, tuple[float, float]], roof: Any) -> None:
    """Write names beside their points, each where it covers no point, no other name and not the
    roof. Points that lie on each other share a label. A name without any such place is left out.
    """
    to_pixels = axes.transData.transform
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in map(to_pixels, points.values())]
    taken += [Bbox.from_bounds(x - 2, y - 2, 4, 4) for x, y in _along(to_pixels(roof.get_xydata()))]
    taken.append(axes.get_legend().get_window_extent())
    renderer, inside = figure.canvas.get_renderer(), axes.get_window_extent()
    for names in _together({name: to_pixels(point) for name, point in points.items()}):
        more = f" +{len(names) - 2}" if len(names) > 2 else ""
        note = axes.annotate(
            ", ".join(names[:2]) + more, points[names[0]], textcoords="offset points",
            xytext=(0, 0), size=7, arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "gray"},
        )  # fmt: skip
        for offset in _OFFSETS:
            note.set_position(offset)
            note.update_positions(renderer)
            box = Text.get_window_extent(note, renderer)  # an annotation's has its arrow in it
            box = box.padded(MARGIN_PIXELS)
            fits = Bbox.intersection(box, inside)
            if (
                fits is not None
                and np.allclose(fits.bounds, box.bounds)
                and not any(box.overlaps(other) for other in taken)
            ):
                taken.append(box)
                break
        else:
            note.remove()


def _together(places: dict[str, Any]) -> list[list[str]]:
    """Names whose points are nearer than their markers are wide, together."""
    groups: list[list[str]] = []
    for name, place in places.items():
        near = (g for g in groups if np.hypot(*(places[g[0]] - place)) < MARKER_PIXELS)
        group = next(near, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def _along(corners: np.ndarray) -> np.ndarray:
    """Places along a line, a few pixels apart: float64 [places, 2]."""
    parts = [
        np.linspace(a, b, 2 + int(np.hypot(*(b - a)) / 4)) for a, b in pairwise(corners)
    ]  # fmt: skip
    return np.concatenate(parts)


#: Where a name may stand, in points from its marker, the nearest first.
_OFFSETS = [
    (x * distance, y * distance)
    for distance in (6, 10, 14, 20, 28, 36, 46, 58, 70, 85, 100, 120, 140)
    for x, y in ((0.6, -1.7), (0.6, 1.0), (-2.2, -1.7), (-2.2, 1.0), (1.5, -0.4), (-3.2, -0.4))
]
