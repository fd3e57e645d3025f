"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..isa.memory import MEMORY_PRESETS
from ..isa.params import PRESETS

JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write JSON ('-': standard output).")
]
Hw = Annotated[
    str, typer.Option("--hw", metavar="F", help=f"Preset ({', '.join(PRESETS)}) or TOML file.")
]
Memory = Annotated[
    str,
    typer.Option("--memory", metavar="M", help=f"Preset ({', '.join(MEMORY_PRESETS)}) or TOML."),
]
Knobs = Annotated[
    Path | None,
    typer.Option(
        "--knobs", metavar="FILE", help="Choices by layer: JSON, or the report of an earlier run."
    ),
]
#: The environment variable that names a file of records.
RECORDS_VARIABLE = "VDLA_RECORDS"
Records = Annotated[
    Path | None,
    typer.Option(
        "--records",
        metavar="FILE",
        envvar=RECORDS_VARIABLE,
        help="Measured choices (JSON lines), as vdla tune writes them.",
    ),
]
Threads = Annotated[int, typer.Option(help="Threads of the processor, for cpu.")]
Emulate = Annotated[
    bool, typer.Option("--emulate", help="With cuda: run the kernels on the processor.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write.")]
CoverageFile = Annotated[
    Path | None,
    typer.Option("--coverage", metavar="F", help="Merge what was exercised into this file."),
]
