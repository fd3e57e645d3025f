"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..compiler.choose.records import RECORDS_VARIABLE
from ..isa.memory import MEMORY_PRESETS
from ..isa.params import PRESETS
from ..runtime import workers as pool
from .files import Merges, Reads, Writes

#: Bounds of numbers: what fits 64 bits, and repetitions and threads beyond which nobody waits.
MOST = 2**63 - 1
MOST_ROUNDS, MOST_THREADS, MOST_VTHREADS = 1_000_000, 1024, 64
MOST_SECONDS = 1e9

JsonFile = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Also write JSON ('-': JSON, no table)."),
    Writes(or_stdout=True),
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
    Reads(),
]
Records = Annotated[
    Path | None,
    typer.Option(
        "--records",
        metavar="FILE",
        envvar=RECORDS_VARIABLE,
        help="Measured choices (JSON lines), as vdla tune writes them.",
    ),
    Reads(),
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_THREADS, help="Processes; as many as processors without it."),
]
ResultsFile = Annotated[
    Path,
    typer.Option(metavar="F", help="File of what was measured, to read and to add to."),
    Merges(),
]
NamedModel = Annotated[
    str, typer.Argument(help="A model's file, a network of vdla bench, or a layer such as C8.")
]
Threads = Annotated[
    int, typer.Option(min=1, max=MOST_THREADS, help="Threads of the processor, for cpu.")
]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="ADDR", help="A Dask scheduler: tcp://host:8786."),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", min=0, max=MOST_THREADS,
        help="Worker processes on this machine; 0: no scheduler.",
    ),
]  # fmt: skip
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time", metavar="S", min=0, max=MOST_SECONDS, help="Seconds after which to stop."
    ),
]
Emulate = Annotated[
    bool, typer.Option("--emulate", help="With cuda: run the kernels on the processor.")
]
Precision = Annotated[
    str,
    typer.Option(
        "--precision", help="With cuda: tf32, float16 or bfloat16 for factors of products."
    ),
]
Arch = Annotated[
    str | None,
    typer.Option("--arch", help="With cuda: sm_80 or sm_90a; by default the GPU's."),
]
Vthreads = Annotated[
    int, typer.Option("--vthreads", min=1, max=MOST_VTHREADS, help="Virtual threads.")
]
Rounds = Annotated[
    int,
    typer.Option("--rounds", min=1, max=MOST_ROUNDS, help="Turns of each; their medians count."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=MOST, help="Seed of all that is random.")]
Inputs = Annotated[
    Path | None,
    typer.Option("--input", help="Inputs by name (.npz); by default random."),
    Reads(),
]
Clock = Annotated[
    float | None, typer.Option(min=0.001, max=10_000, help="MHz: also say milliseconds.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="F", help="Write a page with pictures (.html)."),
    Writes(".html"),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write."), Writes()]
CoverageFile = Annotated[
    Path | None,
    typer.Option("--coverage", metavar="F", help="Merge what was exercised into this file."),
    Merges(),
]


@contextmanager
def open_workers(device: str, scheduler: str | None, workers: int) -> Iterator[pool.Workers | None]:
    """The workers of a scheduler or of this process, None where neither was asked for.

    Raises
    ------
    VdlaError
        When there is no scheduler at that address, or none of its workers has the device.
    """
    if scheduler is None and not workers:
        yield None
        return
    if scheduler is not None:
        pool.check_address(scheduler)
    with closing(pool.Workers(device, scheduler, workers)) as found:
        yield found
