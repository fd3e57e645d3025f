"""Loop programs to kernels: the passes of every loop program, and the text of its launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...dumps import Dumps
from ...te.errors import ScheduleError
from ...te.schedule import Schedule
from ...te.tensor import Tensor
from ...tir import ir as T
from ...tir.arrivals import check_arrivals
from ...tir.bounds import surrounding
from ...tir.lower import lower
from ...tir.passes.asynchronous import await_products
from ...tir.passes.barriers import insert_barriers
from ...tir.passes.double_buffer import double_buffer
from ...tir.passes.expand import expand_intrinsics
from ...tir.passes.launch import launch_kernels, raise_guards
from ...tir.passes.pipeline import pipeline_loops
from ...tir.passes.vthread import interleave_vthreads
from ...tir.printer import print_func
from ...tir.races import check_threads
from ...tir.scopes import check_scopes
from ...tir.verify import verify
from .dialects import Dialect
from .overlays import part_buffers, shared_memory
from .scopes import (
    BLOCK,
    GRID,
    LOCAL_BYTES,
    MODEL,
    MOST_BLOCKS,
    MOST_SHARED_BYTES,
    MOST_THREADS,
    SCOPES,
    SHARED_BYTES,
    element_bytes,
    element_count,
)
from .tensor_cores import NATIVE, check_tensor_cores
from .text import Box, c_name, find_boxes, print_kernel

#: The passes of every loop program, in order.
GPU_PASSES: tuple[Callable[[T.PrimFunc], T.PrimFunc], ...] = (
    partial(expand_intrinsics, native=NATIVE),
    double_buffer,
    interleave_vthreads,
    partial(launch_kernels, model=MODEL),
    pipeline_loops,
    partial(insert_barriers, model=MODEL),
    raise_guards,
    await_products,
    part_buffers,
)
Size = tuple[int, int, int]


def lower_kernels(schedule: Schedule, args: list[Tensor], name: str) -> T.PrimFunc:
    """The loop program of a schedule. A stage that is computed inside another one, and whose memory
    nobody chose, goes where the threads need it: to "local" inside a loop of a block's threads, to
    "shared" inside a loop of blocks only.
    """
    for stage in schedule.stages:
        if stage.attach is None or stage.scope != "global":
            continue
        kinds = {around.kinds.get(a, "") for around, axes in surrounding(stage, 0) for a in axes}
        if kinds & set(BLOCK):
            stage.set_scope("local")
        elif kinds & set(GRID):
            stage.set_scope("shared")
    return lower(schedule, args, name, MODEL.sharing)


def to_launches(func: T.PrimFunc, dumps: Dumps | None = None) -> T.PrimFunc:
    """Verify, then apply the passes; verify again and check the threads at the end.

    Raises
    ------
    ScheduleError
        For a program that no kernels can compute.
    """
    dumps = dumps or Dumps()
    verify(func)
    check_scopes(func, SCOPES, (*GRID, *BLOCK))
    dumps.write(func.name, "lower", partial(print_func, func))
    for apply in GPU_PASSES:
        func = apply(func)
    verify(func)
    dumps.write(func.name, "launches", partial(print_func, func))
    check_threads(func, MODEL)
    check_arrivals(func)
    check_tensor_cores(func)
    for launch in find_launches(func):
        _check_size(launch)
    return func


def find_launches(func: T.PrimFunc) -> list[T.Launch]:
    """The kernels of a program, in order."""
    return [stmt for stmt in T.walk_stmt(func.body) if isinstance(stmt, T.Launch)]


def find_temporaries(func: T.PrimFunc) -> list[T.Buffer]:
    """The buffers between a program's kernels."""
    between, _ = T.hoist(func.body)
    return [allocated.buffer for allocated in between]


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel as text, its size, and its arguments: buffers, and boxes of buffers."""

    name: str
    text: str
    grid: Size
    block: Size
    arguments: tuple[T.Buffer | Box, ...]
    launch: T.Launch

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that its launch must ask for; 0 where it has as many anyway."""
        size = shared_memory(self.launch).size_bytes
        return size if size > SHARED_BYTES else 0


def make_kernels(func: T.PrimFunc, prefix: str, dialect: Dialect) -> list[Kernel]:
    """The kernels of a program that :func:`to_launches` made. ``prefix`` begins their names."""
    known = [*func.params, *find_temporaries(func)]
    found = []
    for launch in find_launches(func):
        used, written = _buffers(launch), T.stored_buffers(launch.body)
        params = [b for b in known if b in used]
        name = c_name(f"{prefix}{launch.name}")
        sizes = {t.axis: t.extent for t in launch.threads}
        grid, block = (_size(sizes, axes) for axes in (GRID, BLOCK))
        text = print_kernel(launch, params, written, name, dialect)
        arguments = (*params, *find_boxes(launch))
        found.append(Kernel(name, text, grid, block, arguments, launch))
    return found


def _size(sizes: dict[str, int], axes: Sequence[str]) -> Size:
    x, y, z = (sizes.get(axis, 1) for axis in axes)
    return x, y, z


def _buffers(launch: T.Launch) -> set[T.Buffer]:
    """The buffers that a kernel uses."""
    return T.stored_buffers(launch.body) | {read.source for read in T.find_reads(launch.body)}


def _check_size(launch: T.Launch) -> None:
    """Raise ScheduleError for a kernel that is too large for every GPU."""
    sizes = {t.axis: t.extent for t in launch.threads}
    threads = 1
    for axis in BLOCK:
        threads *= sizes.get(axis, 1)
    most = {GRID[0]: 2**31 - 1, GRID[1]: MOST_BLOCKS, GRID[2]: MOST_BLOCKS, BLOCK[2]: 64}
    for axis, limit in most.items():
        if sizes.get(axis, 1) > limit:
            raise ScheduleError(
                f"kernel {launch.name}: expected at most {limit} along {axis}, got {sizes[axis]}"
            )
    if threads > MOST_THREADS:
        raise ScheduleError(
            f"kernel {launch.name}: expected at most {MOST_THREADS} threads a block, got {threads}"
        )
    shared = shared_memory(launch)
    local = [s.buffer for s in T.walk_stmt(launch.body)
             if isinstance(s, T.Allocate) and s.buffer.scope == "local"]  # fmt: skip
    local_size = sum(element_count(b) * element_bytes(b.dtype) for b in local)
    for scope, held, size, limit in (
        ("shared", shared.places, shared.size_bytes, MOST_SHARED_BYTES),
        ("local", local, local_size, LOCAL_BYTES),
    ):
        if size > limit:
            names = ", ".join(f"{b.name}{list(b.shape)}" for b in held)
            raise ScheduleError(
                f"kernel {launch.name}: {scope} memory holds {limit} bytes, {names} need {size}"
            )
