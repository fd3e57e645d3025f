"""``vdla check``, ``vdla asm`` and ``vdla disasm``: programs for the accelerator as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..isa.text_files import read_text
from ..runtime.files import whole_file
from .files import Reads, Writes, check_files
from .options import JsonFile, Output
from .output import emit, new_table, write_text


def check(
    program: Annotated[Path, typer.Argument(help="A program file."), Reads()],
    hw: Annotated[
        str | None, typer.Option("--hw", metavar="F", help="The core that is to run it.")
    ] = None,
    json_file: JsonFile = None,
) -> int:
    """Look for illegal instructions, unbalanced tokens, deadlocks and hazards without running."""
    from ..isa.check import check as find
    from ..isa.program import Program

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
    table = new_table(
        f"{len(report['findings'])} findings", "kind", "instruction", "unit", "detail"
    )
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
) -> int:
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
    return 0


def disasm(
    program: Annotated[Path, typer.Argument(help="A program file."), Reads()],
    output: Output = None,
    json_file: JsonFile = None,
) -> int:
    """A program file as assembly text, on standard output unless --output is given."""
    from ..isa.asm import disassemble
    from ..isa.program import Program

    loaded = Program.load(program)
    text = disassemble(loaded)
    if output is not None:
        write_text(output, text)
    body = {"instructions": len(loaded.insns), "text": text}
    shown = text if output is None else ""
    emit("disasm", body, json_file, lambda *_: print(shown, end=""), loaded.params)
    return 0
