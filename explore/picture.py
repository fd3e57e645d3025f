"""The front as a picture: ``vdla explore --png``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

#: Inches of each chart.
_WIDTH, _HEIGHT = 6.0, 4.5


def draw_front(report: dict[str, Any], path: Path) -> None:
    """Draw every other objective of an exploration's report against its first: all designs that
    were measured, the first one, and the front as steps.
    """
    from matplotlib.figure import Figure

    x, *others = report["objectives"]
    figure = Figure((_WIDTH * len(others), _HEIGHT), layout="constrained")
    for axes, y in zip(figure.subplots(1, len(others), squeeze=False)[0], others, strict=True):
        known = [d["values"] for d in report["designs"] if {x, y} <= set(d["values"])]
        axes.scatter([v[x] for v in known], [v[y] for v in known], s=8, color="0.7", label="others")
        front = [d["values"] for d in report["front"]]
        points = [v[x] for v in front], [v[y] for v in front]
        if len(others) == 1:
            axes.step(*points, where="post", color="C0", linewidth=1)
        axes.scatter(*points, s=20, color="C0", label="front")
        first = report["first"]["values"]
        axes.scatter([first[x]], [first[y]], s=40, marker="x", color="C1", label="first")
        axes.set(xlabel=f"{x}, {report['units'][x]}", ylabel=f"{y}, {report['units'][y]}")
        axes.set(xscale="log", yscale="log")
        axes.legend()
    figure.savefig(path, dpi=150, format="png")
