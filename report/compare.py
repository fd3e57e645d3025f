"""Two reports side by side: what ``vdla compare`` shows of two files that ``--json`` wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..isa.errors import VdlaError
from ..isa.text_files import read_text
from .report import covered, milliseconds, on_host

#: Wall-clock times of this machine, which change from run to run.
NOISE = ("wall_s", "host_s", "sim_wall_s", "rtl_wall_s", "cpu_ms", "cpu_float_ms")
#: Fields that describe what was measured; they are not results.
SETTINGS = ("target", "config_hash", "memory", "vthreads", "seed", "batches")
_HEADER = {"vdla", "command", "config", "plugins", "model", "model_sha256", *SETTINGS}
#: The lists of a report, and the fields that name their entries and measure them.
_LISTS = ("layers", "rows")
_LABELS = ("layer", "model", "name")
_MEASURES = ("cycles", "ours_ms")
#: In their place, where clocks differ: a machine with fewer cycles may be the slower one.
_TIME = "time_ms"


def load_report(path: str | Path) -> dict[str, Any]:
    """Read a report of ``vdla run`` or ``vdla bench``.

    Raises
    ------
    VdlaError
        Unless the file is such a report.
    """
    try:
        report = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise VdlaError(f"{path}: expected a JSON report, {error}") from None
    command = report.get("command") if isinstance(report, dict) else None
    if not isinstance(command, str) or command.split()[:1] not in (["run"], ["bench"]):
        raise VdlaError(
            f"{path}: expected a report of vdla run or vdla bench, got command {command!r}"
        )
    if not any(_is_list_of_objects(report.get(key)) for key in _LISTS):
        raise VdlaError(f"{path}: expected a list 'layers' or 'rows' in the report, got none")
    return report


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Two reports of the same command and model.

    Returns
    -------
    dict
        ``settings`` (name, then the values of a and b), ``host_changed`` (``{where, a, b}``, the
        ``coverage`` of models of which the host does not run as many operators or MACs in both, so
        that cycles are not of the same work), ``knobs_changed`` (``{where, knob, a, b}``:
        of the hardware, of the memory, of layers; those that are equal left out), ``rows``
        (``{metric, a, b, ratio}`` of every number in both but wall-clock times; a ratio is b / a,
        None where a is 0), ``layers_moved`` (``{layer, measure, a, b, delta, ratio}``, in cycles or
        milliseconds, the largest change first; those without a change left out),
        ``only_a`` and ``only_b`` (layers that the other report lacks).

    Raises
    ------
    VdlaError
        For reports of different commands or models, and for reports without a common layer.
    """
    _check_same(a, b, "command", "command")
    if a["command"] == "run":
        _check_same(a, b, "model_sha256", "model")
    items_a, items_b = _items(a), _items(b)
    layers_a, layers_b = (_layers(items, report.get("clock_mhz"))
                          for items, report in ((items_a, a), (items_b, b)))  # fmt: skip
    common = [label for label in items_a if label in items_b]
    if not common:
        raise VdlaError(
            f"compare: expected reports about the same layers, got {next(iter(items_a), None)!r}, "
            f"... and {next(iter(items_b), None)!r}, ..."
        )
    numbers_a, numbers_b = _metrics(a, items_a), _metrics(b, items_b)
    return {
        "settings": {name: [a[name], b[name]] for name in SETTINGS if name in a and name in b},
        "host_changed": _host_changed(a, b, items_a, items_b),
        "knobs_changed": _knobs_changed(a, b, layers_a, layers_b),
        "rows": [
            {"metric": name, **_pair(numbers_a[name], numbers_b[name])}
            for name in numbers_a
            if name in numbers_b
        ],
        "layers_moved": _moved(layers_a, layers_b, [x for x in layers_a if x in layers_b]),
        "only_a": [label for label in items_a if label not in items_b],
        "only_b": [label for label in items_b if label not in items_a],
    }


def _check_same(a: dict[str, Any], b: dict[str, Any], key: str, what: str) -> None:
    if a.get(key) is None or a.get(key) != b.get(key):
        shown = [f"{r.get(what)!r}" + _digest(r.get(key), what, key) for r in (a, b)]
        raise VdlaError(
            f"compare: expected two reports of one {what}, got {shown[0]} and {shown[1]}"
        )


def _digest(value: object, what: str, key: str) -> str:
    return "" if what == key else f" ({key} {str(value)[:12]})"


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _items(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Layers, or rows of a benchmark, by name; the second entry of a name becomes ``NAME (2)``."""
    entries = next(report[key] for key in _LISTS if _is_list_of_objects(report.get(key)))
    seen: Counter[str] = Counter()
    items = {}
    for entry in entries:
        label = str(next((entry[key] for key in _LABELS if key in entry), ""))
        seen[label] += 1
        items[label if seen[label] == 1 else f"{label} ({seen[label]})"] = entry
    return items


def _layers(items: dict[str, dict[str, Any]], clock_mhz: float | None) -> dict[str, dict[str, Any]]:
    """The entries themselves; for those that have layers, as networks do, the layers of each. Where
    the clock is known, also that of the entry alone, with the time that its cycles take.
    """
    found: dict[str, dict[str, Any]] = {}
    for label, entry in items.items():
        clock = entry.get("clock_mhz", clock_mhz)
        if not _is_list_of_objects(entry.get("layers")):
            found[label] = _with_time(entry, clock)
            continue
        for name, layer in _items(entry).items():
            found[f"{label}/{name}"] = _with_time(layer, clock)
    return found


def _with_time(layer: dict[str, Any], clock_mhz: float | None) -> dict[str, Any]:
    if clock_mhz is None or layer.get("cycles") is None:
        return layer
    return layer | {"clock_mhz": clock_mhz, _TIME: milliseconds(layer["cycles"], clock_mhz)}


def _host_changed(
    a: dict[str, Any],
    b: dict[str, Any],
    items_a: dict[str, dict[str, Any]],
    items_b: dict[str, dict[str, Any]],
) -> list[dict[str, Any]]:
    pairs = [(str(a.get("model")), a, b)]
    pairs += [(label, item, items_b[label]) for label, item in items_a.items() if label in items_b]
    found = [(where, old.get("coverage"), new.get("coverage")) for where, old, new in pairs]
    return [
        {"where": where, "a": old, "b": new}
        for where, old, new in found
        if None not in (x := _of_host(old), y := _of_host(new)) and x != y
    ]


def _of_host(coverage: Any) -> tuple[int, int] | None:
    """Operators and MACs on the host; None in a report of an older version."""
    if not isinstance(coverage, dict) or "operators_on_host" not in coverage:
        return None
    macs = coverage["macs_total"] - coverage["macs_on_accelerator"]
    return coverage["operators_on_host"], macs


def moved_unit(compared: dict[str, Any]) -> str:
    """The unit of the layers that moved."""
    measures = {row["measure"] for row in compared["layers_moved"]}
    return "cycles" if measures <= {"cycles"} else "ms"


def host_lines(compared: dict[str, Any], names: tuple[str, str]) -> list[str]:
    """A sentence for each model of which the host runs more in one of the reports."""
    return [
        f"{row['where']}: not the same work, the host runs {_host_part(row['a'])} in {names[0]},"
        f" {_host_part(row['b'])} in {names[1]}, and its time is not in the cycles"
        for row in compared["host_changed"]
    ]


def _host_part(coverage: dict[str, int]) -> str:
    share = 1 - covered(coverage)
    macs = f" and {100 * share:.1f} % of the MACs" if share else ""
    return f"{on_host(coverage)} operators{macs}"


def _knobs_changed(
    a: dict[str, Any],
    b: dict[str, Any],
    layers_a: dict[str, dict[str, Any]],
    layers_b: dict[str, dict[str, Any]],
) -> list[dict[str, Any]]:
    """Knobs that differ: of the hardware, of the memory where it is no preset, of layers."""
    pairs = [("hw", a.get("config"), b.get("config")), ("memory", a.get("memory"), b.get("memory"))]
    pairs += [
        (label, layer.get("knobs"), layers_b[label].get("knobs"))
        for label, layer in layers_a.items()
        if label in layers_b
    ]
    rows = []
    for where, old, new in pairs:
        if isinstance(old, dict) and isinstance(new, dict):
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            rows += [{"where": where, "knob": n, "a": old.get(n), "b": new.get(n)} for n in names]
    return rows


def _metrics(report: dict[str, Any], items: dict[str, dict[str, Any]]) -> dict[str, float]:
    """The numbers of the whole report, and for a benchmark also those of its rows."""
    whole = {k: v for k, v in report.items() if k not in (*_HEADER, *_LISTS, "outputs")}
    numbers = dict(_numbers(whole)) | (dict(_numbers(items)) if "rows" in report else {})
    return {k: v for k, v in numbers.items() if k.rpartition(".")[2] not in NOISE}


def _numbers(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Dotted names and values of all numbers in nested objects."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{path}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{path}{key}", value


def _pair(a: float, b: float) -> dict[str, float | None]:
    return {"a": a, "b": b, "ratio": b / a if a else None}


def _moved(
    items_a: dict[str, dict[str, Any]], items_b: dict[str, dict[str, Any]], common: list[str]
) -> list[dict[str, Any]]:
    rows = []
    for label in common:
        a, b = items_a[label], items_b[label]
        measures = _MEASURES if a.get("clock_mhz") == b.get("clock_mhz") else (_TIME, *_MEASURES)
        measure = next((m for m in measures if a.get(m) is not None and b.get(m) is not None), None)
        if measure is not None and a[measure] != b[measure]:
            delta = b[measure] - a[measure]
            pair = _pair(a[measure], b[measure])
            rows.append({"layer": label, "measure": measure, **pair, "delta": delta})
    return sorted(rows, key=lambda row: -abs(row["delta"]))
