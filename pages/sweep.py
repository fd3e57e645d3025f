"""The page of a sweep: ``vdla sweep --html``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..isa.params import MEMORIES
from ..report.report import on_host
from .layers import run_bars
from .page import write_page
from .parts import Facts, Page, Point, Scatter, Section, Series, Table

Row = dict[str, Any]


def sweep_page(report: dict[str, Any], labels: Sequence[str]) -> str:
    """The page of a sweep as HTML.

    Parameters
    ----------
    report : of the sweep, as ``vdla sweep --json`` writes it
    labels : a name of the machine of each row
    """
    rows = report["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    machines = list(dict.fromkeys(labels))
    facts = {
        "Models": ", ".join(models), "Machines": str(len(machines)),
        "Results": Path(report["results"]).name, "VDLA": report["vdla"],
    }  # fmt: skip
    named = [(label, row) for label, row in zip(labels, rows, strict=True)]
    sections = [_all_rows(named)]
    for model in models:
        mine = [(label, row) for label, row in named if row["model"] == model and row.get("cycles")]
        if mine:
            sections.append(_model_section(model, mine))
    return write_page(Page("Sweep", _summary(named, models), Facts(facts), sections))


def _summary(named: Sequence[tuple[str, Row]], models: Sequence[str]) -> list[str]:
    """The fastest machine of each model, and how many machines are not legal."""
    text = []
    for model in models:
        mine = [(label, row) for label, row in named if row["model"] == model and row.get("cycles")]
        if not mine:
            continue
        timed = all("time_ms" in row for _, row in mine)
        label, best = min(mine, key=lambda pair: pair[1]["time_ms" if timed else "cycles"])
        ms = f" ({best['time_ms']:.3f} ms)" if timed else ""
        moved = sum(row["changed"]["moved"] for _, row in mine)
        text.append(
            f"{model}: {moved} of {len(mine) - 1} other machines move the cycles; fastest"
            f" {label}: {best['cycles']:,}{ms}, {best['changed']['ratio']:.3f} of the first."
        )
    if failed := sum(row["error"] is not None for _, row in named):
        text.append(f"{failed} of {len(named)} combinations have no result; the table says why.")
    return text


def _all_rows(named: Sequence[tuple[str, Row]]) -> Section:
    columns = ("model", "machine", "configuration", "cycles", "cycles / first", "ms",
               "images a second", "programs")  # fmt: skip
    cells = [
        (
            row["model"], label, row["config_hash"] or "", row.get("cycles"),
            row["changed"] and row["changed"]["ratio"], row.get("time_ms"), row.get("images_per_s"),
            row.get("programs"), on_host(row["coverage"]) if row.get("cycles") else "",
            (row.get("utilisation") or {}).get("end_to_end"),
            (row.get("resources") or {}).get("macs_per_cycle"),
            (row.get("resources") or {}).get("scratchpad_bytes"),
            row["changed"]["why"] if row["changed"] else row["error"],
        )
        for label, row in named
    ]  # fmt: skip
    more = ("operators on host", "end to end %", "MACs a cycle at most", "bytes on chip", "why")
    return Section(
        "All results",
        "Each model on each machine. The first row of a model is what its others are compared with."
        " The last column says what limits the run, and where nothing changed, what was not used.",
        [Table("Results", (*columns, *more), cells)],
    )


def _model_section(model: str, mine: Sequence[tuple[str, Row]]) -> Section:
    labels, rows = zip(*mine, strict=True)
    note = (
        "All bars of a machine are as long as its run. gemm is the tensor core: if it works all the"
        " time, only more multipliers help."
    )
    return Section(
        f"Model {model}",
        "Where the cycles go on each machine, and what the memory on chip buys.",
        [run_bars(model, "machine", labels, rows, note), _costs(model, mine)],
    )


def _costs(model: str, mine: Sequence[tuple[str, Row]]) -> Scatter:
    points = [
        Point(
            label,
            row["resources"]["scratchpad_bytes"] / 1024,
            row["cycles"],
            facts={
                "cycles": f"{row['cycles']:,}",
                "of the first": f"{row['changed']['ratio']:.3f}",
                "on chip": f"{row['resources']['scratchpad_bytes'] / 1024:,.0f} KiB",
                "why": row["changed"]["why"],
            },
        )
        for label, row in mine
    ]
    rows = [
        (
            label,
            row["cycles"],
            *(f"{most} of {depth}" for most, depth in row["most_in_use"].values()),
        )
        for label, row in mine
    ]
    return Scatter(
        title=f"Cycles of {model} against memory on chip",
        note="Further down is faster, further left is smaller. The table says how many entries of"
        " each scratchpad are in use at most.",
        table=Table(f"Entries in use, {model}", ("machine", "cycles", *MEMORIES), rows),
        x_title="KiB on chip",
        y_title="cycles",
        points=points,
        series=[Series(model, 2)],
        log_axes=False,
    )
