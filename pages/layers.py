"""Charts and tables of the layers of one report of ``vdla run``; the report alone is enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..isa.memory import MEMORY_PRESETS, MemoryParams
from ..isa.opcodes import Unit
from ..isa.params import HwParams
from ..isa.regmap import CAUSES, STALL_NAMES
from ..report.report import config_name, host_text, memory_name, roofline_macs, time_text
from .parts import Bars, Facts, Line, Point, Scatter, Series, Table, View

Report = dict[str, Any]

UNITS = [unit.name.lower() for unit in Unit]
#: Causes of cycles as reports name them, in the order in which bars show them.
_CAUSES = [
    *dict.fromkeys(n for c in CAUSES for n in (STALL_NAMES.values() if c == "stalled" else [c]))
]
_WORDS = {"busy": "works", "dma": "waits for DRAM", "empty": "has no instruction"}
#: Reads, writes; and what a bound comes from.
_READS, _WRITES = Series("read", 2), Series("written", 1)
BOUNDS = {"compute": Series("bound by compute", 0), "reads": Series("bound by reads", 2)}
BOUNDS |= {"writes": Series("bound by writes", 1), "vector": Series("bound by the vector unit", 3)}
#: What a bound comes from, as the subject of a sentence.
_LIMITS = {"compute": "the tensor core is", "vector": "the vector unit is", "": "nothing is"}
_LIMITS |= {"reads": "reads are", "writes": "writes are"}


def read_platform(report: Report) -> tuple[HwParams, MemoryParams]:
    """The configuration and the memory that a report is about."""
    memory = report["memory"]
    params = MEMORY_PRESETS[memory] if isinstance(memory, str) else MemoryParams(**memory)
    return HwParams(**report["config"]), params


def report_facts(report: Report) -> Facts:
    """What was run, and on what."""
    facts = {"Model": report["model"], "Model SHA-256": report["model_sha256"][:16]}
    facts["Target"] = report["target"]
    if report["cycles"] is not None:
        params, memory = read_platform(report)
        facts["Configuration"] = f"{config_name(params)}, hash {params.hash}"
        facts["Memory"] = memory_name(memory)
        facts["Virtual threads"] = str(report["vthreads"])
    else:
        facts["Threads"] = str(report["threads"])
    if report.get("clock_mhz"):
        facts["Clock"] = f"{report['clock_mhz']:g} MHz"
    facts["Seed"] = str(report["seed"])
    return Facts(facts | {"VDLA": report["vdla"]})


def cause_name(cause: str) -> str:
    """A cause of cycles, in words."""
    unit = cause.removeprefix("token_")
    return f"waits for {unit}" if unit != cause else _WORDS.get(cause, cause)


def on_accelerator(report: Report) -> list[dict[str, Any]]:
    """The layers whose cycles were measured."""
    return [layer for layer in report["layers"] if layer["cycles"] is not None]


def cycle_table(report: Report) -> Table:
    """Where the cycles of the whole run went, layer by layer, and what each layer waited for."""
    columns = ("layer", "operator", "cycles", "active cycles", "MACs", "end to end %", "of bound %")
    return Table(
        "Layers",
        (*columns, "bound by", "busiest unit", "waits most for"),
        [
            (
                layer["name"], layer["op"], layer["cycles"], layer["active_cycles"], layer["macs"],
                layer["utilisation"]["end_to_end"], layer["roofline_fraction"], layer["bound_by"],
                layer["busiest_unit"] or "",
                cause_name(layer["main_stall"]) if layer["main_stall"] else "nothing",
            )
            for layer in on_accelerator(report)
        ],
    )  # fmt: skip


def cycle_bars(report: Report) -> Bars:
    """Cycles by layer, which sum to the whole run."""
    layers = on_accelerator(report)
    return Bars(
        title="Cycles by layer",
        note="A cycle belongs to the earliest layer that has not ended yet, so the bars sum to the"
        " whole run. A layer whose work hides behind that of earlier ones has a short bar or none.",
        table=cycle_table(report),
        series=[Series("cycles", 2)],
        views=[View("cycles", [x["name"] for x in layers], [[x["cycles"]] for x in layers])],
    )


def profile_bars(profile: dict[str, Any]) -> Bars:
    """Time by loop program of the CPU."""
    rows = profile["rows"]
    columns = ("loop program", "op", "ms", "share %", "GOP/s", "GB/s", "reached %")
    keys = ("name", "op", "ms", "share", "gops", "gb_per_s", "reached")
    return Bars(
        title="Milliseconds by loop program",
        note=f"The fastest of {profile['rounds']} runs. It takes {profile['run_ms']:.3f} ms, of"
        f" which {profile['rest_ms']:.3f} are in no loop program.",
        table=Table("Loop programs", columns, [tuple(row[key] for key in keys) for row in rows]),
        series=[Series("ms", 2)],
        views=[View("ms", [row["name"] for row in rows], [[row["ms"]] for row in rows])],
    )


def stall_bars(report: Report) -> Bars:
    """What the units did in each layer, by cause: the busiest unit, or one and the same."""
    layers = on_accelerator(report)
    series, causes = _stall_series(x for layer in layers for x in layer["stalls"].values())
    views = [_stall_view("busiest unit of each layer", layers, causes, None)]
    views += [_stall_view(unit, layers, causes, unit) for unit in UNITS]
    rows = [
        (layer["name"], unit, *_stall_values(stalls, causes))
        for layer in layers
        for unit, stalls in layer["stalls"].items()
    ]
    return Bars(
        title="What the units did, by layer",
        note="Cycles of a unit while it had the layer's instructions. Layers overlap: a unit that"
        " is ahead waits for one that still works on the layer before.",
        table=Table("Cycles by cause", ("layer", "unit", *(one.name for one in series)), rows),
        series=series,
        views=views,
    )


def run_bars(
    model: str, kind: str, labels: Sequence[str], runs: Sequence[dict[str, Any]], note: str
) -> Bars:
    """What the units did in whole runs of a model, by cause; ``labels`` name what is compared, a
    ``kind`` of things.
    """
    stalls = [run["stalls"] for run in runs]
    series, causes = _stall_series(one for units in stalls for one in units.values())
    columns = (kind, "unit", *(one.name for one in series))
    values = {unit: [_stall_values(units[unit], causes) for units in stalls] for unit in UNITS}
    rows = [(x, unit, *values[unit][i]) for i, x in enumerate(labels) for unit in UNITS]
    first = sorted(UNITS, key=lambda unit: unit != "gemm")
    return Bars(
        title=f"Cycles of {model}, by what a unit does",
        note=note,
        table=Table(f"Cycles by cause, {model}", columns, rows),
        series=series,
        views=[View(unit, labels, values[unit]) for unit in first],
    )


def _stall_series(stalls: Iterable[Mapping[str, int]]) -> tuple[list[Series], list[str]]:
    """The causes that take cycles in some of the units' stalls, as series and as reports name
    them.
    """
    known = list(stalls)
    causes = [cause for cause in _CAUSES if any(one.get(cause) for one in known)]
    return [Series(cause_name(cause), _colour(cause)) for cause in causes], causes


def _stall_values(stalls: Mapping[str, int], causes: Sequence[str]) -> list[int]:
    """The cycles of a unit by cause."""
    return [stalls.get(cause, 0) for cause in causes]


def _colour(cause: str) -> int:
    """busy 0, any stall of the unit itself 1, tokens 2 to 5, empty 6: as the order of CAUSES."""
    return CAUSES.index(cause) if cause in CAUSES else CAUSES.index("stalled")


def _stall_view(
    name: str, layers: Sequence[dict[str, Any]], causes: Sequence[str], unit: str | None
) -> View:
    labels, values = [], []
    for layer in layers:
        chosen = unit or layer["busiest_unit"]
        if chosen in layer["stalls"]:
            labels.append(layer["name"] if unit else f"{layer['name']} ({chosen})")
            values.append(_stall_values(layer["stalls"][chosen], causes))
    return View(name, labels, values)


def roofline(report: Report) -> Scatter:
    """The layers that multiply, and the whole model, under what hardware and memory allow."""
    params, memory = read_platform(report)
    peak, bytes_per_cycle = params.peak_macs_per_cycle, params.bus_bytes / memory.cycles_per_beat
    layers = [x for x in on_accelerator(report) if x["macs"] and x["channel_bytes"]]
    points = [_point(layer, layer["name"]) for layer in layers]
    columns = ("layer", "MACs a byte", "MACs a cycle", "of bound %", "bound by")
    rows = [
        (p.name, p.x, p.y, layer["roofline_fraction"], layer["bound_by"])
        for p, layer in zip(points, layers, strict=True)
    ]
    return Scatter(
        title="Roofline",
        note="To the right: MACs for each byte that the layer must read, or write if that is more."
        " Upwards: MACs in a cycle in which the layer is active. No layer can be above the line."
        " Layers on the vector unit multiply, too, far below it; where both units do, MACs are the"
        " tensor core's. Layers without MACs are not shown.",
        table=Table("Roofline", columns, rows),
        x_title="MACs / byte",
        y_title="MACs / cycle",
        points=points,
        series=list(BOUNDS.values()),
        lines=[roof(peak, bytes_per_cycle, [p.x for p in points])],
    )


def roof(peak: int, bytes_per_cycle: float, reach: Sequence[float]) -> Line:
    """What MACs and bytes in a cycle allow, from the least to the most MACs a byte of ``reach`` and
    a little beyond.
    """
    ridge = peak / bytes_per_cycle
    low, high = (
        min([ridge / 4, *(x / 1.5 for x in reach)]),
        max([ridge * 4, *(x * 1.5 for x in reach)]),
    )
    corners = [(low, low * bytes_per_cycle), (ridge, float(peak)), (high, float(peak))]
    return Line(f"{peak:,} MACs a cycle, {bytes_per_cycle:g} bytes a cycle", corners)


def _point(layer: dict[str, Any], name: str) -> Point:
    macs = roofline_macs(layer)
    facts = {
        "operator": layer["op"],
        "MACs": f"{layer['macs']:,}",
        "active cycles": f"{layer['active_cycles']:,}",
        "of bound": f"{100 * layer['roofline_fraction']:.1f} %",
        "busiest unit": layer["busiest_unit"] or "",
        "waits most for": cause_name(layer["main_stall"] or "") or "nothing",
    }
    return Point(
        name,
        macs / layer["channel_bytes"],
        macs / layer["active_cycles"],
        list(BOUNDS).index(layer["bound_by"]),
        facts,
    )


def dram_bars(report: Report) -> Bars:
    """Bytes that each layer reads from DRAM and writes there."""
    layers = on_accelerator(report)
    values = [[x["dram"]["read_bytes"], x["dram"]["written_bytes"]] for x in layers]
    labels = [layer["name"] for layer in layers]
    whole = report["dram"]
    fetched = whole["read_bytes"] - sum(read for read, _ in values)
    rows = [(name, *row) for name, row in zip(labels, values, strict=True)]
    rows.append(("(instructions)", fetched, 0))
    return Bars(
        title="DRAM bytes by layer",
        note=f"In all {whole['read_bytes']:,} bytes are read, {fetched:,} of them instructions,"
        f" and {whole['written_bytes']:,} written.",
        table=Table("DRAM bytes", ("layer", "bytes read", "bytes written"), rows),
        series=[_READS, _WRITES],
        views=[View("bytes", labels, values)],
    )


def placement_table(report: Report) -> Table:
    """Where each node runs, and why."""
    rows = [(x["name"], x["op"], x["target"], x["reason"]) for x in report["layers"]]
    return Table("Where each node runs, and why", ("node", "operator", "runs on", "why"), rows)


def choice_table(report: Report) -> Table:
    """The knobs of each layer, who chose them, and the cycles that were predicted."""
    rows = [
        (
            layer["name"],
            " ".join(f"{name}={value}" for name, value in layer["knobs"].items()),
            layer["chosen_by"],
            layer["predicted_cycles"],
            layer["active_cycles"],
        )
        for layer in report["layers"]
        if layer["knobs"]
    ]
    return Table(
        "What was chosen",
        ("layer", "knobs", "chosen by", "predicted cycles", "active cycles"),
        rows,
    )


def memory_table(report: Report) -> Table:
    """How tensors between operators share memory."""
    columns = ("where", "tensors", "side by side", "planned", "least possible")
    keys = ("where", "values", "sum_bytes", "planned_bytes", "bound_bytes")
    rows = [tuple(plan[key] for key in keys) for plan in report["memory_plan"]]
    return Table("Memory between operators, in bytes", columns, rows)


def summary(report: Report) -> list[str]:
    """What the report says first: how long, how good, and where to look."""
    if report["cycles"] is None:
        return [f"{report['wall_s']:.2f} s on {report['target']}, where nothing counts cycles."]
    layers = on_accelerator(report)
    use = report["utilisation"]["end_to_end"] or 0
    time = time_text(report)
    text = [
        f"{report['cycles']:,} cycles{time and f' ({time})'}: {100 * use:.1f} % of the tensor"
        f" core's peak, and {100 * report['roofline_fraction']:.1f} % of what hardware and memory"
        f" allow, where {_LIMITS[report['bound_by']]} the limit."
    ]
    slow = sorted(layers, key=lambda layer: -layer["cycles"])[:3]
    if slow:
        named = ", ".join(
            f"{layer['name']} ({100 * layer['cycles'] / report['cycles']:.0f} %)" for layer in slow
        )
        text.append(f"Most cycles: {named}.")
    return [*text, f"{host_text(report)}."]
