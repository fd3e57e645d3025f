"""The page of an exploration: ``vdla explore --html``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..report.report import roofline_macs, significant
from . import parts as P
from .layers import BOUNDS, roof, run_bars
from .page import write_page

Design = dict[str, Any]
#: Name of the machine that the search begins at.
_FIRST = "first"
#: Colours of designs on the front, of the first and of the others.
_SERIES = (P.Series("front", 0), P.Series("first", 1), P.Series("others", 6))


def explore_page(report: dict[str, Any]) -> str:
    """The page of an exploration as HTML, from its report (``vdla explore --json``)."""
    named = _named(report)
    facts = {
        "Networks": ", ".join(f"{name} x {times:g}" for name, times in report["networks"].items()),
        "Search": f"{report['search']}, seed {report['seed']}",
        "Designs possible": f"{report['space']:,}",
        "Compiled and simulated": f"{report['evaluated']:,}",
        "On the front": str(len(report["front"])),
        "Hypervolume": f"{report['hypervolume'][-1]:.4f}",
        "Limits": ", ".join(f"{n} {most:,g}" for n, most in report["limits"].items()) or "none",
        "Board": report["board"],
        "Results": Path(report["results"]).name,
        "VDLA": report["vdla"],
    }
    sections = [
        _front(report, named), _knobs(report, named), _beside(report, named),
        _energy(report, named),
        *(_network(name, named) for name in report["networks"]),
    ]  # fmt: skip
    return write_page(P.Page("Exploration", _summary(report), P.Facts(facts), sections))


def _summary(report: dict[str, Any]) -> list[str]:
    """What was found, and how it is known."""
    text = []
    for name in report["objectives"]:
        best = min((design["values"][name] for design in report["front"]), default=None)
        if best is not None:
            first = report["first"]["values"][name]
            text.append(
                f"Least {name}: {significant(best)} {report['units'][name]}, {best / first:.3f} of"
                " the first design's."
            )
    if not report["front"]:
        text.append("No design is within all limits.")
    text.append(
        "Cycles are those of the simulator, which are the RTL's. Of"
        f" {len(report['front'])} designs on the front {_count(report, 'rtl_cycles')} ran in RTL,"
        f" and {_count(report, 'fpga')} went through placement."
    )
    return text


def _count(report: dict[str, Any], proof: str) -> int:
    """Designs on the front of which something was proved."""
    return sum(proof in (design["proof"] or {}) for design in report["front"])


def _named(report: dict[str, Any]) -> list[tuple[str, Design]]:
    """The designs of the front by their numbers, and the first, if it is not among them."""
    named = [(f"design {n}", design) for n, design in enumerate(report["front"], 1)]
    first = report["first"]
    if all(d["config_hash"] != first["config_hash"] for _, d in named):
        named.append((_FIRST, first))
    return named


def _values(report: dict[str, Any], design: Design) -> dict[str, str]:
    values = {name: significant(design["values"][name]) for name in report["shown"]}
    return values | {"proved": _proved(design)}


def _proved(design: Design) -> str:
    return (design.get("proof") or {}).get("text", "nothing yet")


def _front(report: dict[str, Any], named: Sequence[tuple[str, Design]]) -> P.Section:
    shown, knobs = report["shown"], list(named[0][1]["knobs"])
    rows = [
        (label, *(d["values"][n] for n in shown), *(d["knobs"][n] for n in knobs), _proved(d))
        for label, d in named
    ]
    marks = [(name, report["units"][name], report["marks"][name]) for name in shown]
    x, *others = report["objectives"]
    return P.Section(
        "Front",
        "Designs within the limits that no other beats in everything. Choose one to see its knobs"
        " below.",
        [
            *(_scatter(report, named, x, y) for y in others or ["scratchpad_bytes"]),
            P.Table("Designs", ("design", *shown, *knobs, "proved"), rows),
            P.Table("How each value is known", ("value", "in", "known"), marks),
        ],
    )


def _scatter(
    report: dict[str, Any], named: Sequence[tuple[str, Design]], x: str, y: str
) -> P.Scatter:
    known = {design["config_hash"] for _, design in named}
    front = [
        P.Point(label, d["values"][x], d["values"][y], int(label == _FIRST), _values(report, d))
        for label, d in named
    ]
    others = [
        P.Point(
            "", d["values"][x], d["values"][y], 2, {"not on the front": d["reason"] or "beaten"}
        )
        for d in report["designs"]
        if d["config_hash"] not in known and x in d["values"] and y in d["values"]
    ]
    points = [*others, *front]  # the last ones are drawn over the others
    rows = [(p.name or "other", p.x, p.y) for p in (*front, *others)]
    return P.Scatter(
        title=f"{y} against {x}",
        note="Further left and further down is better.",
        table=P.Table(f"Values of {x} and {y}", ("design", x, y), rows),
        x_title=x,
        y_title=y,
        points=points,
        series=_SERIES,
        log_axes=all(min(p.x, p.y) > 0 for p in points),
    )


def _knobs(report: dict[str, Any], named: Sequence[tuple[str, Design]]) -> P.Section:
    knobs, objectives = list(named[0][1]["knobs"]), report["objectives"]
    lines = [
        P.Across(
            label,
            [*(d["knobs"][n] for n in knobs), *(d["values"][n] for n in objectives)],
            int(label == _FIRST),
        )
        for label, d in named
    ]
    return P.Section(
        "Knobs",
        "A line is a design: where it crosses an axis is its value. What designs of the front have"
        " in common matters; where they differ is the trade.",
        [
            P.Parallel(
                title="Knobs and objectives of each design",
                note="Each axis reaches from the least to the largest value among these designs.",
                table=P.Table(
                    "Knobs", ("design", *knobs, *objectives), [(x.name, *x.values) for x in lines]
                ),
                axes=[P.Axis(name) for name in (*knobs, *objectives)],
                lines=lines,
                series=_SERIES[:2],
            )
        ],
    )


def _beside(report: dict[str, Any], named: Sequence[tuple[str, Design]]) -> P.Section:
    designs = [P.Described(label, _values(report, d), d["toml"]) for label, d in named]
    return P.Section(
        "Two designs",
        "The text is the whole configuration: save it as a file for --hw of any command.",
        [
            P.Designs(
                title="Designs side by side",
                note="A design that is chosen in a picture above comes to the left.",
                table=P.Table(
                    "Configurations",
                    ("design", "configuration"),
                    [(label, d["config_hash"]) for label, d in named],
                ),
                designs=designs,
            )
        ],
    )


def _energy(report: dict[str, Any], named: Sequence[tuple[str, Design]]) -> P.Section:
    parts = list(next(iter(named[0][1]["networks"].values()))["picojoules"])
    networks = list(named[0][1]["networks"])
    labels = [label for label, _ in named]
    told = ". ".join(
        f"{one['of']}: {one['agreement']}" for one in report["rankings"] if len(one["by"]) > 1
    )
    views = [
        P.View(
            network,
            labels,
            [
                [d["networks"][network]["picojoules"][part] / 1e6 for part in parts]
                for _, d in named
            ],
        )
        for network in networks
    ]
    rows = [
        (network, label, *values)
        for network, view in zip(networks, views, strict=True)
        for label, values in zip(labels, view.values, strict=True)
    ]
    return P.Section(
        "Energy",
        "Counts of accesses are exact; energies are published ones of another technology than an"
        f" FPGA's, so compare designs and do not read joules. {told}.",
        [
            P.Bars(
                title="Microjoules a run, by what takes them",
                note="A small memory takes less for a byte than a large one.",
                table=P.Table("Microjoules", ("network", "design", *parts), rows),
                series=[P.Series(part, number) for number, part in enumerate(parts)],
                views=views,
            ),
            *(
                P.Table(
                    f"{ranking['of']} by each table",
                    ("design", *ranking["by"]),
                    [(str(n), *each) for n, each in enumerate(ranking["values"], 1)],
                )
                for ranking in report["rankings"]
            ),
        ],
    )


def _network(network: str, named: Sequence[tuple[str, Design]]) -> P.Section:
    labels = [label for label, _ in named]
    runs = [design["networks"][network] for _, design in named]
    layers = [
        (its[0]["name"], *(one["cycles"] for one in its), *(one["chosen_by"] for one in its))
        for its in zip(*(run["layers"] for run in runs), strict=False)
    ]
    by = [f"{label}, chosen by" for label in labels]
    return P.Section(
        f"Network {network}",
        "Where the cycles of a run go on each design.",
        [
            run_bars(
                network, "design", labels, runs, "All bars of a design are as long as its run."
            ),
            _roofline(network, named),
            P.Table(f"Cycles by layer, {network}", ("layer", *labels, *by), layers),
        ],
    )


def _roofline(network: str, named: Sequence[tuple[str, Design]]) -> P.Scatter:
    """The designs under what their arithmetic and their bus allow."""
    points, rows, roofs = [], [], dict[tuple[int, float], None]()
    for label, design in named:
        run = design["networks"][network]
        busier = max(run["dram"]["read_bytes"], run["dram"]["written_bytes"])
        macs = roofline_macs(run)
        intensity, rate = macs / busier, macs / run["cycles"]
        facts = {
            "cycles": f"{run['cycles']:,}",
            "of bound": f"{100 * run['roofline_fraction']:.1f} %",
            "bound by": run["bound_by"],
        }
        points.append(P.Point(label, intensity, rate, list(BOUNDS).index(run["bound_by"]), facts))
        rows.append((label, intensity, rate, run["roofline_fraction"], run["bound_by"]))
        roofs[run["roof"]["macs_per_cycle"], run["roof"]["bytes_per_cycle"]] = None
    columns = ("design", "MACs a byte", "MACs a cycle", "of bound %", "bound by")
    return P.Scatter(
        title=f"Roofline of {network}",
        note="To the right: MACs for each byte that was read from DRAM, or written there if that is"
        " more. Upwards: MACs in a cycle. A line is what MACs and bytes in a cycle allow.",
        table=P.Table(f"Roofline, {network}", columns, rows),
        x_title="MACs / byte",
        y_title="MACs / cycle",
        points=points,
        series=list(BOUNDS.values()),
        lines=[roof(macs, moved, [point.x for point in points]) for macs, moved in roofs],
    )
