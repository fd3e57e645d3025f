"""What a schedule cannot do is refused in one line that names stage, loop and reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from vdla.compiler.targets.vdla.lower.codegen import Code
from vdla.compiler.te.errors import ScheduleError, own_schedules
from vdla.compiler.te.expr import Const
from vdla.compiler.te.schedule import Schedule, create_schedule
from vdla.compiler.te.tensor import IterVar, compute, placeholder
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.verify import verify
from vdla.isa.errors import VdlaError
from vdla.isa.params import HwParams

from ..workloads import Workload, blur, diamond, matmul


def split(w: Workload, s: Schedule) -> tuple[IterVar, IterVar]:
    """The output's first loop in two."""
    return s[w.output].split(w.output.axes[0], 2)


REFUSED: dict[str, tuple[str, Callable[[], Workload], Callable[[Workload, Schedule], object]]] = {
    "foreign loop": (
        r"split: k\[7\] is no loop of stage d \(its loops: \[i\[10\]\]\)",
        blur,
        lambda w, s: s[w.output].split(matmul().output.reduce_axes[0], 2),
    ),
    "loop that was split": (
        r"unroll.*i\[10\] is no loop of stage d .*may have been split",
        blur,
        lambda w, s: (s[w.output].split(w.output.axes[0], 2), s[w.output].unroll(w.output.axes[0])),
    ),
    "both factor and nparts": (
        "split of i.* in d: give factor or nparts",
        blur,
        lambda w, s: s[w.output].split(w.output.axes[0], 2, 3),
    ),
    "factor zero": (
        "split of i.* in d: expected at least 1, got factor=0",
        blur,
        lambda w, s: s[w.output].split(w.output.axes[0], 0),
    ),
    "name of an intrinsic": (
        "tensorize of d: expected a TensorIntrin, which says what it computes, got 'gemm'",
        blur,
        lambda w, s: s[w.output].tensorize(w.output.axes[0], "gemm"),  # type: ignore[arg-type]
    ),
    "no number": (
        "split of i.* in d: expected at least 1, got factor=2.5",
        blur,
        lambda w, s: s[w.output].split(w.output.axes[0], 2.5),  # type: ignore[arg-type]
    ),
    "tile of one loop": (
        r"tile in y: expected two loops, got i\[5\] twice",
        matmul,
        lambda w, s: s[w.output].tile(w.output.axes[0], w.output.axes[0], 2, 2),
    ),
    "fuse apart": (
        r"fuse in y: k\[7\] must be directly inside i\[5\]; reorder first",
        matmul,
        lambda w, s: s[w.output].fuse(w.output.axes[0], w.output.reduce_axes[0]),
    ),
    "fuse data with reduction": (
        r"fuse in y: j\[6\] and k\[7\] are a data and a reduction loop",
        matmul,
        lambda w, s: s[w.output].fuse(w.output.axes[1], w.output.reduce_axes[0]),
    ),
    "reorder twice": (
        "reorder in y: a loop is named twice",
        matmul,
        lambda w, s: s[w.output].reorder(w.output.axes[0], w.output.axes[0]),
    ),
    "vectorized reduction": (
        r"vectorize in y: k\[7\] is a reduction",
        matmul,
        lambda w, s: s[w.output].vectorize(w.output.reduce_axes[0]),
    ),
    "parallel reduction": (
        r"parallel in y: k\[7\] is a reduction",
        matmul,
        lambda w, s: s[w.output].parallel(w.output.reduce_axes[0]),
    ),
    "reduction as virtual threads": (
        r"vthread in y: k\[7\] is a reduction",
        matmul,
        lambda w, s: s[w.output].vthread(w.output.reduce_axes[0]),
    ),
    "inlined reduction": (
        "compute_inline: y is a placeholder or a reduction",
        matmul,
        lambda w, s: s[w.output].compute_inline(),
    ),
    "attached placeholder": (
        "compute_at: a is a placeholder",
        blur,
        lambda w, s: s[w.inputs[0]].compute_at(s[w.output], w.output.axes[0]),
    ),
    "attached to itself": (
        "compute_at: d cannot be computed inside itself",
        blur,
        lambda w, s: s[w.output].compute_at(s[w.output], w.output.axes[0]),
    ),
    "no name of a memory": (
        "set_scope of b: expected the name of a memory, such as global, got 'on chip'",
        blur,
        lambda w, s: s[w.stages["b"]].set_scope("on chip"),
    ),
    "copy into no memory": (
        r"set_scope of a\..*: expected the name of a memory, such as global, got ''",
        blur,
        lambda w, s: s.cache_read(w.inputs[0], "", [w.stages["b"]]),
    ),
    "result in no memory": (
        r"set_scope of d\.shared\.dyn: expected the name of a memory, .*, got 'shared\.dyn'",
        blur,
        lambda w, s: s.cache_write(w.output, "shared.dyn"),
    ),
    "tensor of another schedule": (
        "tensor y has no stage here",
        blur,
        lambda w, s: s[matmul().output],
    ),
    "late cache_write": (
        "cache_write of y: apply it before other primitives",
        matmul,
        lambda w, s: (s[w.output].split(w.output.axes[0], 2), s.cache_write(w.output, "acc")),
    ),
    "attached at a loop that was split later": (
        r"compute_at: c is attached in d at i\[10\], which has been split or fused since",
        blur,
        lambda w, s: (
            s[w.stages["c"]].compute_at(s[w.output], w.output.axes[0]),
            s[w.output].split(w.output.axes[0], 2),
        ),
    ),
    "reader outside": (
        r"compute_at: b is attached in e at i\[5\], but its consumer d is computed elsewhere",
        diamond,
        lambda w, s: (
            s[w.stages["c"]].compute_at(s[w.output], w.output.axes[1]),
            s[w.stages["b"]].compute_at(s[w.output], w.output.axes[0]),
        ),
    ),
    "no thread axis": (
        r"bind of i\[10\] in d: expected the name of a thread axis, such as .*, got 'warp'",
        blur,
        lambda w, s: s[w.output].bind(w.output.axes[0], "warp"),
    ),
    "thread axis bound twice": (
        r"bind of i.i\[2\] in d: threadIdx.x is bound to i.o\[5\] already",
        blur,
        lambda w, s: [s[w.output].bind(a, "threadIdx.x") for a in split(w, s)],
    ),
    "bound reduction": (
        r"bind in y: k\[7\] is a reduction, .* rfactor it first",
        matmul,
        lambda w, s: s[w.output].bind(w.output.reduce_axes[0], "threadIdx.x"),
    ),
    "thread axis bound inside itself": (
        r"main in loops i: loop j is bound to threadIdx.x, as a loop around it is",
        diamond,
        lambda w, s: (
            s[w.stages["c"]].compute_at(s[w.output], w.output.axes[0]),
            s[w.output].bind(w.output.axes[0], "threadIdx.x"),
            s[w.stages["c"]].bind(w.stages["c"].axes[1], "threadIdx.x"),
        ),
    ),
    "prefetch of what is not read": (
        r"prefetch of a at i\[10\]: d does not read it",
        blur,
        lambda w, s: s[w.output].prefetch(w.inputs[0], w.output.axes[0]),
    ),
    "prefetch of what comes inside": (
        r"prefetch of c at i\[10\] in d: c is computed inside that loop",
        blur,
        lambda w, s: (
            s[w.stages["c"]].compute_at(s[w.output], w.output.axes[0]),
            s[w.output].prefetch(w.stages["c"], w.output.axes[0]),
        ),
    ),
    "prefetch of the past": (
        r"prefetch of c at i\[10\] in d: expected an offset of at least 1 iteration, got 0",
        blur,
        lambda w, s: s[w.output].prefetch(w.stages["c"], w.output.axes[0], 0),
    ),
    "aligned last axis": (
        r"storage_align of b: expected one of its axes \(i\[6\],\), got j\[8\]",
        diamond,
        lambda w, s: s[w.stages["b"]].storage_align(w.stages["b"].axes[1], 16),
    ),
    "offset beyond the factor": (
        r"storage_align of b: expected 0 <= offset < factor, got factor=4 offset=4",
        diamond,
        lambda w, s: s[w.stages["b"]].storage_align(w.stages["b"].axes[0], 4, 4),
    ),
    "aligned parameter": (
        "storage_align of e: it is a parameter of main",
        diamond,
        lambda w, s: s[w.output].storage_align(w.output.axes[0], 4),
    ),
    "rfactor of a data loop": (
        r"rfactor of y at i\[5\]: expected one of its reduction loops \[k\[7\]\]",
        matmul,
        lambda w, s: s.rfactor(w.output, w.output.axes[0]),
    ),
    "rfactor to nowhere": (
        r"rfactor of y at k\[7\]: expected factor_axis of 0 .. 2, got 3",
        matmul,
        lambda w, s: s.rfactor(w.output, w.output.reduce_axes[0], 3),
    ),
    "late rfactor": (
        r"rfactor of y at k\[7\]: apply it before primitives of other loops",
        matmul,
        lambda w, s: (
            s[w.output].split(w.output.axes[0], 2),
            s.rfactor(w.output, w.output.reduce_axes[0]),
        ),
    ),
    "cache without readers": (
        r"cache_read of a: expected tensors that read it, got \[\]",
        blur,
        lambda w, s: s.cache_read(w.inputs[0], "inp", []),
    ),
    "cache for what does not read": (
        "cache_read of a: expected tensors that read it, got d, which does not",
        blur,
        lambda w, s: s.cache_read(w.inputs[0], "inp", [w.stages["b"], w.output]),
    ),
    "cache for a placeholder": (
        "cache_read of b: expected tensors that read it, got a, which does not",
        blur,
        lambda w, s: s.cache_read(w.stages["b"], "inp", [w.inputs[0]]),
    ),
    "cache of a placeholder": (
        "cache_write: a is a placeholder",
        blur,
        lambda w, s: s.cache_write(w.inputs[0], "inp"),
    ),
    "reader at a loop further out": (
        r"compute_at: b is attached in e at j\[7\], but its consumer c is computed elsewhere",
        diamond,
        lambda w, s: [
            s[w.stages[name]].compute_at(s[w.output], w.output.axes[place])
            for name, place in (("c", 0), ("d", 1), ("b", 1))
        ],
    ),
    "attached output": (
        "lower main: d is a parameter",
        blur,
        lambda w, s: s[w.output].compute_at(s[w.stages["c"]], w.stages["c"].axes[0]),
    ),
    "inlined output": (
        "lower main: d is a parameter",
        blur,
        lambda w, s: s[w.output].compute_inline(),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    message, make, use = REFUSED[case]
    workload = make()
    schedule = workload.schedule()
    with pytest.raises(ScheduleError, match=message) as error:
        use(workload, schedule)
        verify(lower(schedule, workload.args))
    assert "\n" not in str(error.value)


def test_missing_parameters() -> None:
    workload = blur()
    with pytest.raises(ScheduleError, match="placeholder a is missing in args"):
        lower(workload.schedule(), [workload.output])
    with pytest.raises(ScheduleError, match="output d is missing in args"):
        lower(workload.schedule(), list(workload.inputs))


def test_attached_without_reader() -> None:
    workload = blur()
    schedule = workload.schedule()
    copy = schedule.cache_read(workload.inputs[0], "inp", [workload.stages["b"]])
    schedule.cache_read(copy, "wgt", [workload.stages["b"]])
    schedule[workload.stages["b"]].compute_inline()
    schedule[copy].compute_at(schedule[workload.output], workload.output.axes[0])
    with pytest.raises(ScheduleError, match=r"its consumer a\.inp\.wgt is computed elsewhere"):
        lower(schedule, workload.args)


def test_attached_without_any_reader() -> None:
    """What is inlined makes the only reader's value 0, whatever it reads."""
    a = placeholder((10,), "int32", "a")
    b = compute((10,), lambda i: a[i] + 1, "b")
    zero = compute((10,), lambda i: Const(0) * i, "zero")
    y = compute((10,), lambda i: b[i] * zero[i], "y")
    schedule = create_schedule(y)
    schedule[zero].compute_inline()
    schedule[b].compute_at(schedule[y], y.axes[0])
    with pytest.raises(ScheduleError, match="compute_at: nothing reads b; outputs stay at the"):
        lower(schedule, [a, y])


def test_own_schedules_are_no_mistake_of_the_user() -> None:
    wrong = "^the compiler made a wrong schedule: main: gone$"
    with pytest.raises(AssertionError, match=wrong), own_schedules():
        raise ScheduleError("main: gone")
    with pytest.raises(VdlaError, match=r"^no such model$"), own_schedules():
        raise VdlaError("no such model")


def test_tensor_shapes_and_dtypes() -> None:
    with pytest.raises(VdlaError, match=r"tensor x: expected positive extents, got \(0, 2\)"):
        placeholder((0, 2), "int8", "x")
    with pytest.raises(VdlaError, match=r"tensor x: expected a dtype of .*, got 'int4'"):
        placeholder((2,), "int4", "x")
    with pytest.raises(VdlaError, match="tensor x: expected 2 indices, got 1"):
        placeholder((2, 2), "int8", "x")[0]


def test_prefetch_for_the_accelerator() -> None:
    workload = matmul()
    schedule = workload.schedule()
    schedule[workload.output].prefetch(workload.inputs[0], workload.output.axes[0])
    func = lower(schedule, workload.args)
    params = HwParams()
    with pytest.raises(VdlaError, match="main: prefetch of x: the accelerator has no such"):
        Code(func, params).object_code()
