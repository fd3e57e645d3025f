"""What ``vdla cosim`` does with single blocks: replacing, recording and replaying them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..runtime.files import whole_file
from .files import Writes, check_files
from .output import count, emit, new_table

if TYPE_CHECKING:
    from ..cosim.recording import Recording
    from ..cosim.replace import Replacement


def replacements(texts: list[str] | None, params: HwParams) -> list[Replacement] | None:
    """The blocks of ``--replace``; None where ports do not fit, which is said."""
    if not texts:
        return []
    from ..cosim.replace import PortMismatch, Replacement

    try:
        return [Replacement.parse(text, params) for text in texts]
    except PortMismatch as error:
        for line in error.lines:
            print(f"vdla: {line}", file=sys.stderr)
        return None


def recorded_block(text: str | None) -> tuple[str, Path | None]:
    """Block and file of ``--record``."""
    if text is None:
        return "", None
    from ..cosim.single import check_block

    block, equals, file = text.partition("=")
    if not equals or not file:
        raise VdlaError(f"record: expected BLOCK=FILE, got {text!r}")
    check_block(block)
    check_files({"record": (Writes(), Path(file))})
    return block, Path(file)


def save_recording(recordings: Sequence[Recording], source: Path, path: Path) -> dict[str, Any]:
    """Write what was recorded of all programs; the report's entry."""
    from ..cosim.recording import Recording

    whole = with_fields(Recording.join(recordings), source=source.name)
    with whole_file(path) as place:
        whole.save(place)
    return {
        "file": str(path), "block": whole.block, "programs": len(whole.runs),
        "cycles": whole.samples, "bytes": path.stat().st_size,
    }  # fmt: skip


def replay_block(
    source: Path | None, file: Path, replace: list[str] | None, untimed: bool,
    quiet_cycles: int | None, waves: Path | None, json_file: str | None,
) -> int:  # fmt: skip
    """``vdla cosim --replay``."""
    from ..cosim.recording import Recording
    from ..cosim.single import QUIET_CYCLES, replay

    if source is not None:
        raise VdlaError(f"replay: expected no model or program besides {file}, got {source}")
    if replace is not None and len(replace) > 1:
        raise VdlaError(f"replay: expected one block, got {len(replace)} of --replace")
    recording = Recording.load(file)
    if (blocks := replacements(replace, recording.params)) is None:
        return 2
    block = blocks[0] if blocks else None
    found = replay(recording, block, untimed, quiet_cycles or QUIET_CYCLES, waves)
    report = {
        "replay": str(file), "source": recording.source, "block": recording.block,
        "replaced": replace[0] if replace else None, "untimed": untimed,
        "programs": len(recording.runs), "recorded_cycles": recording.samples, **found,
    }  # fmt: skip
    emit("cosim", report, json_file, lambda out, told: _show(out, told, waves), recording.params)
    return 1 if report["first_divergence"] else 0


def _show(console: Console, report: dict[str, Any], waves: Path | None) -> None:
    compared = "in order" if report["untimed"] else "cycle by cycle"
    console.print(
        f"{report['block']} of {report['source'] or report['replay']}: "
        f"{count(report['recorded_cycles'])} cycles recorded, {count(report['cycles'])} replayed, "
        f"compared {compared}"
    )
    show_divergence(console, report["first_divergence"])
    if waves is not None:
        console.print(f"waveform: {waves} (10 ns a cycle)")


def show_divergence(console: Console, found: dict[str, Any] | None) -> None:
    """Where a core or a block first differs, if it does."""
    if found is None:
        console.print("no divergence")
        return
    table = new_table("first divergence", "", "", left=2)
    table.show_header = False
    rows = {
        "cycle": count(found["cycle"]),
        "instruction": "" if found["instruction"] is None else str(found["instruction"]),
        "unit": found["unit"], "text": found["text"], "layer": found["layer"],
        "stage": found["stage"], "tensor": found["tensor"], "what": found["what"],
        "address": "" if found["address"] is None else hex(found["address"]),
        "expected": found["expected"], "got": found["got"],
    }  # fmt: skip
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    console.print(table)
