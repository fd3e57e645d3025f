"""Memories and thread axes of a target: what a loop program may do with them, and where buffers lie
in them.
"""

from __future__ import annotations

import pytest
from vdla.compiler.targets.cpu import scopes as host
from vdla.compiler.targets.vdla.scopes import memory_scopes
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.expr import Const, Expr, Read, Var, cast, select
from vdla.compiler.te.intrinsic import TensorIntrin
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder
from vdla.compiler.tir.ir import (
    Allocate,
    Buffer,
    For,
    If,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    TensorCall,
)
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.scopes import MemoryScope, check_scopes, place_buffers
from vdla.compiler.tir.verify import verify
from vdla.isa.errors import VdlaError
from vdla.isa.params import MEMORIES, HwParams

from ..workloads import blur, matmul

#: A target with shared memory, registers that only intrinsics work on, and a mailbox.
SCOPES = {
    scope.name: scope
    for scope in (
        MemoryScope("global", "main memory"),
        MemoryScope("shared", "of a block of threads", entries=32),
        MemoryScope(
            "fragment", "registers of the matrix unit", entries=2, entry_elements=8,
            dtypes=("int32",), writers=("copy", "intrinsic"), readers=("intrinsic",),
        ),
        MemoryScope(
            "mail", "to the host", dtypes=("int8", "int32"),
            writers=("arithmetic",), readers=("copy",),
        ),
    )
}  # fmt: skip
A, Y = Buffer("a", (8,), "int32"), Buffer("y", (8,), "int32")
SMALL = Buffer("s", (8,), "int8")
I = Var("i")  # noqa: E741
ZERO = Const(0)


def func(body: Stmt) -> PrimFunc:
    return PrimFunc("f", (A, SMALL, Y), body)


def loop(body: Stmt, kind: str = "serial") -> For:
    return For(I, 8, kind, body)


def within(scope: str, value: Expr, dtype: str = "int32", size: int = 8) -> Stmt:
    """A value into a buffer of its own in some memory."""
    buffer = Buffer("b", (size,), dtype, scope)
    return Allocate(buffer, loop(Store(buffer, (I,), value)))


def out_of(scope: str, value: Expr | None = None) -> Stmt:
    """An element of a buffer in some memory, or a value with it, into the result."""
    buffer = Buffer("b", (8,), "int32", scope)
    read = Read(buffer, (I,))
    return Allocate(buffer, loop(Store(Y, (I,), read if value is None else read + value)))


def doubled(source: Buffer, target: Buffer) -> TensorCall:
    p = placeholder((8,), "int32", "p")
    intrinsic = TensorIntrin("double", compute((8,), lambda i: p[i] * 2, "t"))
    return TensorCall(intrinsic, "full", Region(target, (ZERO,)), (Region(source, (ZERO,)),))


def by_intrinsic(source: str, target: str) -> Stmt:
    first, second = Buffer("b", (8,), "int32", source), Buffer("c", (8,), "int32", target)
    return Allocate(first, Allocate(second, doubled(first, second)))


ALLOWED: dict[str, Stmt] = {
    "arithmetic": within("shared", Read(A, (I,)) + 1),
    "copy": within("fragment", Read(A, (I,))),
    "copy that widens": within("fragment", cast("int32", Read(SMALL, (I,)))),
    "copy with a border": within("fragment", select(I < 4, Read(A, (I,)), ZERO)),
    "intrinsic": by_intrinsic("fragment", "fragment"),
    "arithmetic may copy": within("mail", Read(A, (I,))),
    "constant": within("mail", Const(3)),
    "copy out": out_of("mail"),
    "thread axis": loop(Store(Y, (I,), Read(A, (I,))), "threadIdx.x"),
}
REFUSED: dict[str, tuple[Stmt, str]] = {
    "no such memory": (
        within("texture", Read(A, (I,))),
        "buffer b: expected a memory of global, shared, fragment, mail, got 'texture'",
    ),
    "dtype": (
        within("mail", Read(A, (I,)), "int16"),
        "buffer b in mail: expected elements of int8, int32, got int16",
    ),
    "part of an entry": (
        within("fragment", Read(A, (I,)), size=12),
        r"buffer b\[12\] in fragment: expected whole entries of 8 elements",
    ),
    "rows apart": (
        Allocate(Buffer("b", (2, 8), "int32", "fragment", ((-2, 4, 1),)), Seq(())),
        "buffer b in fragment: expected no storage_align in a memory of whole entries",
    ),
    "arithmetic into registers": (
        within("fragment", Read(A, (I,)) + 1),
        r"buffer b in fragment: expected to be written by copy or intrinsic, got arithmetic: "
        r"b\[i\] = a\[i\] \+ 1",
    ),
    "constant into registers": (
        within("fragment", ZERO),
        "buffer b in fragment: expected to be written by copy or intrinsic, got arithmetic",
    ),
    "border of another buffer": (
        within("fragment", select(I < 4, Read(A, (I,)), Read(A, (I,)))),
        "buffer b in fragment: expected to be written by copy or intrinsic, got arithmetic",
    ),
    "arithmetic on registers": (
        out_of("fragment", ZERO + Read(A, (I,))),
        "buffer b in fragment: expected to be read by intrinsic, got arithmetic",
    ),
    "copy out of registers": (
        out_of("fragment"),
        "buffer b in fragment: expected to be read by intrinsic, got copy",
    ),
    "intrinsic writes": (
        by_intrinsic("fragment", "mail"),
        "buffer c in mail: expected to be written by arithmetic, got intrinsic: double",
    ),
    "intrinsic reads": (
        by_intrinsic("mail", "fragment"),
        "buffer b in mail: expected to be read by copy, got intrinsic: double",
    ),
    "read as an index": (
        Allocate(
            b := Buffer("b", (8,), "int32", "mail"),
            loop(Store(Y, (I,), Read(A, (Read(b, (I,)) % 8,)))),
        ),
        "buffer b in mail: expected to be read by copy, got arithmetic",
    ),
    "stored where it says": (
        Allocate(b, loop(Store(Y, (Read(b, (I,)) % 8,), ZERO))),
        "buffer b in mail: expected to be read by copy, got arithmetic",
    ),
    "read in a guard": (
        Allocate(b, loop(If(Read(b, (I,)) < 3, Store(Y, (I,), ZERO)))),
        "buffer b in mail: expected to be read by copy, got arithmetic",
    ),
    "no such thread axis": (
        loop(Store(Y, (I,), ZERO), "warpIdx.x"),
        "loop i: expected one of threadIdx.x, threadIdx.y, got 'warpIdx.x'",
    ),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_allowed(case: str) -> None:
    program = func(ALLOWED[case])
    verify(program)
    check_scopes(program, SCOPES, ("threadIdx.x", "threadIdx.y"))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    body, message = REFUSED[case]
    with pytest.raises(ScheduleError, match=f"^f: {message}") as error:
        check_scopes(func(body), SCOPES, ("threadIdx.x", "threadIdx.y"))
    assert "\n" not in str(error.value)


def test_parameters_are_in_a_memory_too() -> None:
    with pytest.raises(ScheduleError, match="f: buffer a: expected a memory of shared, got 'glob"):
        check_scopes(func(Seq(())), {"shared": SCOPES["shared"]})


def test_a_schedule_meets_its_target() -> None:
    """Any name will do until then."""
    w = blur()
    s = w.schedule()
    s.cache_read(w.inputs[0], "l2", [w.stages["b"]])
    program = lower(s, w.args)
    verify(program)
    with pytest.raises(
        ScheduleError, match=r"main: buffer a\.l2: expected a memory of global, inp"
    ):
        check_scopes(program, memory_scopes(HwParams()))
    with pytest.raises(
        ScheduleError, match=r"main: buffer a\.l2: expected a memory of global, tile_sums"
    ):
        check_scopes(program, host.SCOPES, host.THREAD_AXES)


def test_thread_axes_meet_their_target() -> None:
    w = matmul()
    s = w.schedule()
    s[w.output].bind(w.output.axes[0], "blockIdx.z")
    program = lower(s, w.args)
    verify(program)
    check_scopes(program, host.SCOPES, host.THREAD_AXES)
    with pytest.raises(ScheduleError, match=r"loop i: expected no thread axis, got 'blockIdx\.z'"):
        check_scopes(program, host.SCOPES)


# ---- the accelerator's ----


def test_the_memories_of_the_accelerator() -> None:
    scopes = memory_scopes(HwParams(batch=2))
    assert {*scopes} == {"global", *MEMORIES} - {"uop"}
    sizes = {name: (s.entries, s.entry_elements) for name, s in scopes.items()}
    assert sizes == {
        "global": (None, 1), "inp": (2048, 32), "wgt": (1024, 256), "par": (128, 16),
        "acc": (2048, 32), "tmp": (128, 32), "out": (512, 32),
    }  # fmt: skip
    uses = {name: (s.writers, s.readers) for name, s in scopes.items()}
    assert uses["wgt"] == (("copy",), ("intrinsic",))
    assert uses["acc"] == (("intrinsic",), ("intrinsic", "arithmetic"))
    assert uses["out"] == (("arithmetic",), ("copy",))


def test_padded_rows_in_a_scratchpad_are_refused() -> None:
    x = placeholder((4, 16), "int8", "x")
    y = compute((4, 16), lambda i, j: x[i, j].astype("int32") + 1, "y")
    s = create_schedule(y)
    copy = s.cache_read(x, "inp", [y])
    s[copy].storage_align(copy.axes[0], 32, 16)
    with pytest.raises(ScheduleError, match=r"buffer x\.inp in inp: expected no storage_align"):
        check_scopes(lower(s, [x, y]), memory_scopes(HwParams()))


# ---- places ----


def test_what_lives_at_once_lies_side_by_side() -> None:
    b, c, d = (Buffer(n, (4, 4), "int32", "shared") for n in "bcd")
    e = Buffer("e", (16,), "int32", "fragment")
    placed = place_buffers(
        func(Allocate(b, Seq((Allocate(c, Allocate(e, Seq(()))), Allocate(d, Seq(())))))), SCOPES
    )
    assert placed == {b: 0, c: 16, e: 0, d: 16}


def test_a_memory_that_the_target_does_not_have() -> None:
    buffer = Buffer("b", (4, 16), "int8", "attic")
    with pytest.raises(VdlaError, match=r"buffer b: expected a memory of the target.*'attic'"):
        place_buffers(func(Allocate(buffer, Seq(()))), SCOPES)


def test_memories_without_entries_and_what_takes_none() -> None:
    b, c, d = (Buffer(n, (20,), "int32", "shared") for n in "bcd")
    g = Buffer("g", (99,), "int32")
    body = Allocate(b, Allocate(c, Allocate(g, loop(If(I < 3, Allocate(d, Seq(())))))))
    with pytest.raises(
        VdlaError, match=r"f: memory shared holds 32 entries, b\[20\], c\[20\] need 40"
    ):
        place_buffers(func(body), SCOPES)
    assert place_buffers(func(body), SCOPES, {b, c}) == {b: 0, c: 0, d: 0}
    with pytest.raises(VdlaError, match=r"b\[20\], d\[20\] need 40"):
        place_buffers(func(body), SCOPES, {c})
