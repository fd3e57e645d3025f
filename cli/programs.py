"""``vdla check``, ``vdla asm`` and ``vdla disasm``: programs for the accelerator as files; ``vdla
config``: the configurations that they are for.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from ..isa.memory import load_platform
from ..isa.params import HwParams
from ..isa.program import Program
from ..isa.text_files import read_text
from ..runtime.files import whole_file, write_text
from .files import Reads, Writes, check_files
from .options import JsonFile, Memory, Output
from .output import emit, new_table


def check(
    program: Annotated[Path, typer.Argument(help="A program file."), Reads()],
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="F", help="The core that is to run it.")
    ] = None,
    json_file: JsonFile = None,
) -> int:
    """Look for illegal instructions, unbalanced tokens, deadlocks and hazards without running."""
    from ..isa.check import check as find

    loaded = Program.load(program)
    if hw is not None:
        loaded.check_params(HwParams.load(hw))
    rows = [finding.to_dict() for finding in find(loaded)]
    body = {"ok": not rows, "findings": rows, "instructions": len(loaded.insns)}
    emit("check", body, json_file, _show_check, loaded.params)
    return 1 if rows else 0


def _show_check(console: Console, report: dict[str, Any]) -> None:
    if report["ok"]:
        console.print(f"{report['instructions']:,} instructions, nothing found")
        return
    title = f"{len(report['findings'])} findings"
    table = new_table(title, "kind", "instruction", "unit", "detail")
    table.columns[2].justify = table.columns[3].justify = "left"
    for row in report["findings"]:
        table.add_row(row["kind"], str(row["instruction"]), row["unit"], row["detail"])
    console.print(table)


def asm(
    source: Annotated[Path, typer.Argument(help="Assembly text."), Reads()],
    output: Output = None,
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="F", help="Configuration, or as .config says.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Assemble text to a program file (SOURCE with the suffix .vdla unless --output is given)."""
    from ..isa.asm import assemble

    path = output or source.with_suffix(".vdla")
    check_files({"source": (Reads(), source), "output": (Writes(), path)})
    text, params = read_text(source), None if hw is None else HwParams.load(hw)
    try:
        program = assemble(text, params)
    except VdlaError as error:
        raise VdlaError(f"{source}: {error}") from None
    with whole_file(path) as place:
        program.save(place)
    body = {"program": str(path), "instructions": len(program.insns)}
    said = f"{path}: {len(program.insns):,} insns"
    emit("asm", body, json_file, lambda console, _: console.print(said), program.params)


def disasm(
    program: Annotated[Path, typer.Argument(help="A program file."), Reads()],
    output: Output = None,
    json_file: JsonFile = None,
) -> None:
    """A program file as assembly text, on standard output unless --output is given."""
    from ..isa.asm import disassemble

    loaded = Program.load(program)
    text = disassemble(loaded)
    if output is not None:
        write_text(output, text)
    body = {"instructions": len(loaded.insns), "text": text}
    shown = text if output is None else ""
    emit("disasm", body, json_file, lambda *_: print(shown, end=""), loaded.params)


def config(
    hw: Annotated[str, typer.Argument(metavar="[CONFIG]", help="Preset or TOML file.")] = "16x16",
    memory: Memory = "vta",
    json_file: JsonFile = None,
) -> None:
    """Check a hardware configuration and show its knobs, its derived sizes and its hash."""
    params, memory_params = load_platform(hw, memory)
    names = ("peak_macs_per_cycle", "scratchpad_bytes", "insn_bytes", "uop_bits", "bus_bytes")
    derived = {name: getattr(params, name) for name in names}
    emit("config", {"derived": derived}, json_file, _show_config, params, memory_params)


def _show_config(console: Console, report: dict[str, Any]) -> None:
    table = new_table(f"configuration {report['config_hash']}", "knob", "value")
    for name in (field.name for field in fields(HwParams)):
        table.add_row(name, str(report["config"].get(name, 0)))  # features that are off, too
    table.add_section()
    for name, value in report["derived"].items():
        table.add_row(name, f"{value:,}")
    console.print(table)
    memory = report["memory"]
    told = memory if isinstance(memory, str) else ", ".join(f"{k} {v}" for k, v in memory.items())
    console.print(f"memory {told}")
