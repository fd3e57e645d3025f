"""Options that several commands have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..compiler.choose.records import RECORDS_VARIABLE
from ..isa.errors import VdlaError
from ..isa.memory import MEMORY_PRESETS
from ..isa.params import PRESETS
from ..runtime import workers as pool
from ..runtime.processor import usable_cores
from .files import Merges, Reads, Writes

#: Bounds of numbers: what fits 64 bits, and repetitions and threads beyond which nobody waits.
MOST = 2**63 - 1
MOST_ROUNDS, MOST_THREADS, MOST_VTHREADS = 1_000_000, 1024, 64
MOST_SECONDS = 1e9
#: Processes beyond which a machine only swaps: each loads the package, and wants a core.
MOST_PROCESSES = 4 * usable_cores()

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
    typer.Option(min=1, max=MOST_PROCESSES, help="Processes; as many as processors without it."),
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
        "--workers", min=0, max=MOST_PROCESSES,
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
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="NAME=1x3x32", help="Shape of an input whose sizes are left open."
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim", metavar="NAME=N", help="Size of an open dimension, or a range such as 1..128."
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value", metavar="NAME=V", help="An input that is constant: a number, or a file (.npy)."
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state", metavar="INPUT=OUTPUT", help="An input that is this output of the run before."
    ),
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


def sizes_of(
    shapes: list[str] | None, dims: list[str] | None, values: list[str] | None
) -> dict[str, Any]:
    """Arguments of :func:`vdla.compile` from ``--shape``, ``--dim`` and ``--value``.

    Raises
    ------
    VdlaError
        For one that cannot be read.
    """
    return {
        "shapes": _pairs("--shape", shapes, _shape, "NAME=1x3x32"),
        "dims": _pairs("--dim", dims, _dim, "NAME=N or NAME=1..N"),
        "values": _pairs("--value", values, _value, "NAME=NUMBER or NAME=FILE.npy"),
    }


def states_of(states: list[str] | None) -> dict[str, str]:
    """The states of :func:`vdla.compile` from ``--state``. Errors as :func:`sizes_of`."""
    return _pairs("--state", states, str, "INPUT=OUTPUT")


def _pairs(
    option: str, given: list[str] | None, read: Callable[[str], Any], form: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in given or []:
        name, equals, value = text.rpartition("=")
        try:
            if not equals or not name or name in found:
                raise ValueError
            found[name] = read(value)
        except VdlaError:
            raise
        except ValueError:
            twice = " once" if name in found else ""
            raise VdlaError(f"{option}: expected {form}{twice}, got {text!r}") from None
    return found


def _shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("x"))) if text else ()


def _dim(text: str) -> int | tuple[int, int]:
    low, dots, high = text.partition("..")
    return (int(low), int(high)) if dots else int(low)


def _value(text: str) -> Any:
    if not text.endswith(".npy"):
        return json.loads(text)
    try:
        return np.load(text, allow_pickle=False)
    except (OSError, EOFError) as error:
        raise VdlaError(f"--value: {text}: {error}") from None


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
