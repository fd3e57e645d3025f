"""``vdla config``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from .options import JsonFile, Memory
from .output import emit, new_table


def config(
    hw: Annotated[str, typer.Argument(metavar="[CONFIG]", help="Preset or TOML file.")] = "16x16",
    memory: Memory = "vta",
    json_file: JsonFile = None,
) -> int:
    """Check a hardware configuration and show its knobs, its derived sizes and its hash."""
    from ..isa.platform import load_platform

    params, memory_params = load_platform(hw, memory)
    names = ("peak_macs_per_cycle", "scratchpad_bytes", "insn_bytes", "uop_bits", "bus_bytes")
    derived = {name: getattr(params, name) for name in names}
    emit("config", {"derived": derived}, json_file, _show_config, params, memory_params)
    return 0


def _show_config(console: Console, report: dict[str, Any]) -> None:
    table = new_table(f"configuration {report['config_hash']}", "knob", "value")
    for name, value in report["config"].items():
        table.add_row(name, str(value))
    table.add_section()
    for name, value in report["derived"].items():
        table.add_row(name, f"{value:,}")
    console.print(table)
    memory = report["memory"]
    fields = memory if isinstance(memory, str) else ", ".join(f"{k} {v}" for k, v in memory.items())
    console.print(f"memory {fields}")
