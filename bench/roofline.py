"""Figure 10 of the TVM paper: ResNet-18's layers with one and two virtual threads under the
roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from ..isa.memory import MemoryParams
from ..isa.params import HwParams


def draw_roofline(
    rows: Sequence[dict[str, Any]], hw: HwParams, memory: MemoryParams, path: str | Path
) -> None:
    """Draw rows of :func:`~vdla.bench.table2.table2_rows` into a picture file: MACs a cycle over
    MACs a compulsory byte, with one marker for one virtual thread and another for two.
    """
    matplotlib.use("Agg")
    from matplotlib import pyplot

    peak = hw.peak_macs_per_cycle
    bytes_per_cycle = hw.bus_bytes / memory.cycles_per_beat
    intensities = {row["layer"]: row["macs"] / row["compulsory_bytes"] for row in rows}
    low, high = min(intensities.values()) / 2, max(intensities.values()) * 2
    ridge = peak / bytes_per_cycle
    figure, axes = pyplot.subplots(figsize=(8, 5))
    corners = [low, ridge, max(high, ridge)]
    axes.plot(corners, [min(peak, x * bytes_per_cycle) for x in corners], "k-", label="roofline")
    styles = {1: ("o", "tab:orange"), 2: ("s", "tab:blue")}
    for threads, (marker, colour) in styles.items():
        mine = [row for row in rows if row["vthreads"] == threads]
        axes.plot(
            [intensities[row["layer"]] for row in mine],
            [row["macs"] / row["cycles"] for row in mine],
            marker, color=colour, label=f"{threads} virtual thread{'s' * (threads > 1)}",
        )  # fmt: skip
    for row in rows:
        if row["vthreads"] == 1:
            place = (intensities[row["layer"]], row["macs"] / row["cycles"])
            axes.annotate(row["layer"], place, textcoords="offset points", xytext=(4, -10), size=7)
    axes.set(xscale="log", yscale="log", xlabel="MACs / compulsory byte", ylabel="MACs / cycle")
    axes.set_title(f"configuration {hw.hash}, memory {memory.label}")
    axes.legend(loc="lower right")
    axes.grid(True, which="both", alpha=0.2)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
