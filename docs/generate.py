"""Pages of the reference that are made from the package itself, so that they cannot be stale."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from typer.main import get_command
from vdla.cli.app import app
from vdla.isa.memory import MEMORY_LEGAL, MEMORY_PRESETS, MemoryParams
from vdla.isa.params import LEGAL, PRESETS, HwParams, legal_text

#: Units by the ends of names; names with other ends are in the second table.
UNITS = {"_bits": "bits", "_beats": "beats", "_cycles": "cycles", "_depth": "entries"}
OTHER_UNITS = {
    "batch": "rows", "block_in": "channels", "block_out": "channels",
    "queue_depth": "instructions", "fetch_depth": "instructions",
    "loads_in_flight": "instructions", "stores_in_flight": "instructions",
    "vector_passes": "cycles", "vector_table": "bytes", "vector_window": "products",
    "packed_weights": "flag", "outstanding": "bursts", "cycles_per_beat": "cycles",
}  # fmt: skip
#: What a larger value does to speed and area.
EFFECTS = {
    "batch": "Weights are read once for so many images; the tensor core is as many times larger.",
    "block_in": "The tensor core has block_in x block_out multipliers; few channels fill it badly.",
    "block_out": "As block_in.",
    "inp_depth": "Larger tiles of activations: fewer bytes are read again.",
    "wgt_depth": "More weights stay on chip: fewer bytes are read again.",
    "acc_depth": "Larger tiles of results, or more virtual threads.",
    "uop_depth": "Larger tiles without loading micro-ops again.",
    "par_depth": "More output channels' biases and multipliers on chip.",
    "tmp_depth": "Larger tiles of additions and poolings.",
    "out_depth": "More results wait for the bus while the vector unit goes on.",
    "bus_bits": "Bytes in a cycle: the bound of layers with many weights.",
    "max_burst_beats": "Fewer requests, which matters with a long latency.",
    "queue_depth": "Units run further apart, before one waits for another.",
    "fetch_depth": "Fetching interrupts other reads less often; longer instruction bursts.",
    "loads_in_flight": "Latency of the memory is hidden behind more loads.",
    "stores_in_flight": "Latency of the memory is hidden behind more stores.",
    "token_bits": "More tokens may wait, which programs rarely need.",
    "vector_passes": "The vector unit is as many times slower and smaller.",
    "vector_table": "Functions of one int8 take a cycle a vector, a block RAM more in each lane; "
    "with 2, sums of exponentials do, too.",
    "vector_window": "Depthwise convolutions take up to as many times fewer cycles; as many small "
    "multipliers and sums of 32 bits more in each lane.",
    "packed_weights": "Weights that are 4 bits times a scale may be read in little more than half "
    "of the time; 700 to 950 lookup tables more on a bus of 64 bits.",
    "read_latency_cycles": "Loads wait longer, unless others are in flight.",
    "write_latency_cycles": "Stores wait longer, unless others are in flight.",
    "outstanding": "More bursts hide the latency.",
    "cycles_per_beat": "The memory is as many times slower than the bus.",
}


def write_pages(folder: Path) -> None:
    """Write all pages into a folder, those that have changed."""
    folder.mkdir(exist_ok=True)
    for name, text in (("cli", cli_page()), ("configuration", configuration_page())):
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """A table in Markdown."""
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)]
    text = [f"| {' | '.join(cells)} |" for cells in lines]
    return [text[0], "|" + "---|" * len(lines[0]), *text[1:], ""]


# ---- commands ----


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the application by its words."""

    def visit(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                yield from visit(inner, f"{words} {name}")
        else:
            yield words, command

    yield from visit(get_command(app), "vdla")


def cli_page() -> str:
    """The page of all commands and options."""
    lines = [
        "# The command line", "",
        "*Generated from the commands themselves.* Every command takes `--json FILE` beside its "
        "table (`-`: JSON on standard output instead) and `--plugin FILE` "
        "([plugins](../plugins.md)). It exits with 0 if what was asked for holds, with 1 if it "
        "does not, and with 2 and one line on standard error for bad usage or bad input. What "
        "the JSON holds is in [reports](../reference/reports.md).", "",
    ]  # fmt: skip
    for words, command in commands():
        lines += [f"## {words}", "", _plain(command.help or ""), ""]
        shown = [p for p in command.params if p.name != "help"]
        lines += table(("option", "takes", "default", "what it does"), map(_option, shown))
    return "\n".join(lines)


def _option(parameter: Any) -> tuple[str, str, str, str]:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    kind = getattr(parameter.type_descriptor, "parameter_info", None)
    takes = parameter.metavar or _type_name(parameter)
    bounds = [getattr(kind, "min", None), getattr(kind, "max", None)]
    if bounds != [None, None]:
        takes += f", {bounds[0]}..{bounds[1]}" if bounds[1] is not None else f", from {bounds[0]}"
    empty = parameter.default is None or parameter.default is False
    default = "" if empty else f"`{parameter.default}`"
    if parameter.required:
        default = "must be given"
    return names, takes, default, _plain(parameter.help or "")


def _type_name(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    return "" if annotation is bool else getattr(annotation, "__name__", "text").lower()


def _plain(text: str) -> str:
    """A help text on one line, in which nothing is markup."""
    return re.sub(r"([<>*_\[\]`])", r"\\\1", " ".join(text.split()))


# ---- configuration ----


def parameter_docs(kind: type) -> Mapping[str, str]:
    """What the docstring of a dataclass says about each field."""
    docs: dict[str, str] = {}
    names: list[str] = []
    section = inspect.getdoc(kind).partition("----------\n")[2]  # type: ignore[union-attr]
    for line in section.splitlines():
        if line.startswith(" "):
            for name in names:
                docs[name] = f"{docs[name]} {line.strip()}".strip()
        elif " : " in line:
            names = line.partition(" : ")[0].split(", ")
            docs |= dict.fromkeys(names, "")
    return docs


def unit_of(name: str) -> str:
    """The unit of a knob."""
    if name in OTHER_UNITS:
        return OTHER_UNITS[name]
    return next(unit for end, unit in UNITS.items() if name.endswith(end))


def knob_table(kind: type, legal: Mapping[str, Any]) -> list[str]:
    """A table of the fields of a configuration."""
    docs = parameter_docs(kind)
    rows = (
        (f"`{f.name}`", f.default, unit_of(f.name), legal_text(legal[f.name]), docs[f.name],
         EFFECTS[f.name])
        for f in fields(kind) if f.name in legal
    )  # fmt: skip
    return table(("name", "default", "unit", "legal", "meaning", "a larger value"), rows)


def preset_table(presets: Mapping[str, Any]) -> list[str]:
    """A table of presets: the fields in which they differ from the default."""
    default = asdict(next(iter(presets.values())).__class__())
    rows = []
    for name, preset in presets.items():
        changed = [f"`{k} = {v}`" for k, v in asdict(preset).items() if v != default[k]]
        rows.append((f"`{name}`", ", ".join(changed) or "all defaults"))
    return table(("preset", "what differs from the defaults"), rows)


def configuration_page() -> str:
    """The page of the knobs of hardware and memory."""
    return "\n".join(
        (
            "# Configuration", "",
            "*Generated from `HwParams` and `MemoryParams`.* A configuration is a TOML file of "
            "knobs at top level; what is left out has its default. `vdla config FILE` shows what "
            "follows from it, and refuses an illegal one with the reason.", "",
            "## Hardware (`--hw`)", "", *knob_table(HwParams, LEGAL),
            "The scratchpads may take 2 MiB in all. A burst stays within 4 KiB, and half of the "
            "prefetch buffer must fit one burst.", "", *preset_table(PRESETS),
            "## Memory (`--memory`)", "", *knob_table(MemoryParams, MEMORY_LEGAL),
            "`bus_bits` must be that of the hardware; a preset of the hardware takes the memory's.",
            "", *preset_table(MEMORY_PRESETS),
            "A preset with a `part` is a chip behind the controller of a board; its rules are in "
            "[timing.md](../timing.md).",
        )
    )  # fmt: skip
