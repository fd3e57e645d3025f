"""``vdla bench tokens``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from . import options
from .bench_int8 import read_numbers
from .files import Reads
from .output import count, decimals, emit, percent, progress_bar, show_table

#: The most tokens of a context.
MOST_CONTEXT = 1 << 16
#: What of a processor decides how it multiplies, by LLVM's names.
FEATURES = ("avx2", "avx512vnni", "amx-int8")


def tokens(
    model: Annotated[Path, typer.Argument(help="A GGUF file of the llama architecture."), Reads()],
    contexts: Annotated[
        str, typer.Option(help="Tokens that there is room for, such as 64,512.")
    ] = "64,512",
    weight_bits: Annotated[
        str, typer.Option(help="Of the weights of layers: 8, 4 or 8,4.")
    ] = "8,4",
    rounds: options.Rounds = 15,
    json_file: options.JsonFile = None,
) -> None:
    """Tokens a second on one thread of the CPU, and llama.cpp's in turns, if it is installed."""
    from ..bench.tokens import peer_text, token_rows
    from ..compiler.targets.cpu.processor import host_processor

    contexts_read = read_numbers("contexts", contexts, MOST_CONTEXT, "64,512")
    bits_read = read_numbers("weight bits", weight_bits, 8, "8,4")
    with progress_bar("tokens") as advance:
        found = token_rows(model, contexts_read, bits_read, rounds, advance)
    processor = host_processor()
    features = [name for name in FEATURES if processor.has(name)]
    body = {"model": model.name, "features": features, "rounds": rounds}
    emit("bench tokens", {**body, "note": peer_text(), "rows": found}, json_file, _show)


def _show(console: Console, report: dict[str, Any]) -> None:
    columns = (
        "weights", "context", "ms", "tokens/s", "llama.cpp", "its ms", "its tokens/s",
        "ratio", "control", "agreed",
    )  # fmt: skip
    rows = (
        (f"{row['weight_bits']} bits", count(row["context"]),
         decimals(row["ours_ms"]), decimals(row["tokens_per_s"], 1),
         (row["peer"] or "-").split()[-1], decimals(row["peer_ms"]),
         decimals(row["peer_tokens_per_s"], 1), decimals(row["ratio"], 2),
         decimals(row["control"], 2), "-" if row["agreed"] is None else percent(row["agreed"]))
        for row in report["rows"]
    )  # fmt: skip
    title = f"bench tokens: {report['model']}, {', '.join(report['features'])}, one thread, medians"
    show_table(console, title, columns, rows)
    if report["note"]:
        console.print(report["note"])
