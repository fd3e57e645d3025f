"""What compute capability 9.0a adds: products of warpgroups, and boxes that a copy engine brings,
emulated by PTX's descriptors; what is missing or wrong is found by the static checkers, and by
running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import vdla
from vdla.bench.net import Net
from vdla.cli.arrays import model_inputs
from vdla.compiler.targets.gpu.dialects import CUDA
from vdla.compiler.targets.gpu.kernels import (
    find_launches,
    lower_kernels,
    make_kernels,
    to_launches,
)
from vdla.compiler.targets.gpu.templates.product import Product
from vdla.compiler.targets.gpu.templates.tensor_gemm import tensor_tiled
from vdla.compiler.targets.gpu.tensor_cores import element_of
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.targets.gpu.traffic import count_traffic
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.expr import Expr, select
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder
from vdla.compiler.tir.ir import (
    Barrier,
    CopiesArrived,
    CopiesStarted,
    For,
    PrimFunc,
    ProductsArrived,
    ProductsBegin,
    ProductsStarted,
    ProxyFence,
    SignalArrived,
    SignalExpects,
    SignalsReady,
    Stmt,
    walk_stmt,
)
from vdla.isa.errors import VdlaError
from vdla.runtime.gpu.emulated import ORDERS, load_emulated
from vdla.runtime.gpu.nvrtc import compile_cubin
from vdla.runtime.gpu.program import KernelProgram, TensorMap

from .emulating import Emulated, arguments, emulate
from .test_tensor_cores import (
    arrays_for,
    changed,
    check,
    count,
    expected,
    residual,
    without,
    without_swizzle,
)

KNOBS = {
    "unit": "wgmma", "rows": 64, "columns": 32, "warp_rows": 64, "warp_columns": 16, "stages": 3,
    "copies": "tma", "split_k": 1,
}  # fmt: skip
DEPTHS = {"float16": 32, "bfloat16": 32, "int8": 128, "tf32": 32}


def group_product(kind: str, k: int = 208, **knobs: object) -> PrimFunc:
    """A product with edges in all directions."""
    m, n, dtype = 70, 48, element_of(kind)
    a, b = placeholder((m, k), dtype, "a"), placeholder((n, k), dtype, "b")
    found = Product(
        (1, m, n, k), lambda _, i, t, r: (a[i, r], []), lambda _, j, t, r: (b[j, r], []),
        lambda _, i, j, acc: acc, "float32", [a, b], right_by_column=True,
    )  # fmt: skip
    schedule = tensor_tiled(found, kind, KNOBS | {"depth": DEPTHS[kind]} | knobs)
    return to_launches(lower_kernels(schedule, [a, b, schedule.outputs[0]], "product"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "knobs"),
    [
        ("float16", {}),
        ("bfloat16", {"copies": "cp.async", "depth": 64}),
        ("int8", {"stages": 1}),
        ("tf32", {"unit": "mma", "rows": 32, "warp_rows": 16, "depth": 8}),
    ],
)
def test_product(kind: str, knobs: dict[str, object]) -> None:
    func = group_product(kind, **knobs)
    arrays = arrays_for(func)
    for result in emulate(func, arrays):
        np.testing.assert_array_equal(result, expected(arrays))


@pytest.mark.slow
def test_what_is_counted_statically_is_what_the_emulation_counts() -> None:
    func = group_product("float16")
    [kernel] = make_kernels(func, "", CUDA)
    inputs = arrays_for(func)
    memory = dict(zip(func.params, [*inputs, np.zeros((1, 70, 48), np.float32)], strict=True))
    given = arguments(kernel, memory)
    code = load_emulated(print_module([kernel.text], CUDA), counting=True)
    counts = code.launch(kernel.name, kernel.grid, kernel.block, [a.ctypes.data for a in given])
    found = count_traffic(kernel.launch)
    assert counts.waits == found.barriers > 0
    assert (counts.bytes_read, counts.bytes_written) == (found.bytes_read, found.bytes_written)
    # Each block of columns reads all rows, each block of rows all columns; zeros are not read.
    assert found.bytes_read == (2 * 70 + 2 * 48) * 208 * 2
    assert set(found.conflicts.values()) == {1}


@pytest.mark.parametrize("kind", [*DEPTHS])
def test_nvidia_compiles_it(kind: str) -> None:
    funcs = [group_product(kind, copies=copies) for copies in ("tma", "cp.async")]
    kernels = [k.text for n, func in enumerate(funcs) for k in make_kernels(func, f"k{n}_", CUDA)]
    try:
        compile_cubin(print_module(kernels, CUDA), (9, 0))
    except VdlaError as error:
        if "found none" in str(error):
            pytest.skip("nvidia-cuda-nvrtc is not installed")
        raise


# ---- networks ----------------------------------------------------------------------------------


def two_convolutions(quantized: bool) -> bytes:
    """A window of 3 x 3 and one of a single place, whose image is a matrix as it is."""
    net = Net("two", quantized)
    x = net.conv(net.conv(net.input(1, 16, 9, 9), 16, 3), 32, 1)
    net.output(x)
    return net.model().SerializeToString()


def test_products_of_two_steps_are_under_way() -> None:
    """Where boxes alone fill buffers, a step's products end behind the next one's begin, before
    boxes come into their buffers."""
    [launch] = find_launches(group_product("float16"))
    [loop] = [s for s in walk_stmt(launch) if isinstance(s, For) and s.var.name.startswith("tap")
              and any(isinstance(inner, ProductsBegin) for inner in walk_stmt(s))]  # fmt: skip
    marks = (SignalArrived, ProductsStarted, ProductsArrived, Barrier, SignalExpects)
    order = [s for s in walk_stmt(loop.body) if isinstance(s, marks)]
    assert [type(s) for s in order] == list(marks)
    assert [s.but for s in order if isinstance(s, ProductsArrived)] == [1]
    [last] = [s.but for s in walk_stmt(launch) if isinstance(s, ProductsArrived) and not s.but]
    assert last == 0
    [waits] = [s for s in walk_stmt(find_launches(group_product("float16", copies="cp.async"))[0])
               if isinstance(s, ProductsArrived)]  # fmt: skip
    assert waits.but == 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "parts"), [("int8", 3), ("float16", 2)])
def test_sums_in_parts_come_by_boxes(kind: str, parts: int) -> None:
    func = group_product(kind, 384, parts=parts)
    assert count(func, SignalArrived) == 1
    arrays = arrays_for(func)
    for result in emulate(func, arrays):
        np.testing.assert_array_equal(result, expected(arrays))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_networks(precision: str) -> None:
    model = two_convolutions(precision == "float32")
    options: dict[str, Any] = {"emulate": True, "precision": precision, "arch": "sm_90a"}
    layers = vdla.compile(model, "cuda", **options).compiled.layers
    names = [layer.name for layer in layers if "channels last" in layer.op]
    assert len(names) == 2
    knobs = KNOBS | {"columns": 16, "depth": 32 if precision == "tf32" else 64}
    module = vdla.compile(model, "cuda", knobs=dict.fromkeys(names, knobs), **options)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    assert step.source.count("products_begin();") == 2
    assert len([a for call in step.calls for a in call.arguments if isinstance(a, TensorMap)]) == 3
    arrays = model_inputs(module, None, 0)
    [got], [wanted] = module.run(*arrays), vdla.compile(model, "cpu").run(*arrays)
    if precision == "float32":
        np.testing.assert_array_equal(got, wanted)
    else:
        assert 0 < np.abs(got - wanted).max() / np.abs(wanted).max() < 2 * 2.0**-9


def test_architectures_are_named() -> None:
    model = residual(True).SerializeToString()
    with pytest.raises(VdlaError, match=r"arch: expected sm_80 or sm_90a .* got 'sm_70'"):
        vdla.compile(model, "cuda", emulate=True, arch="sm_70")
    with pytest.raises(VdlaError, match="arch: expected target 'cuda'"):
        vdla.compile(model, "opencl", arch="sm_80")


@pytest.mark.parametrize("rows", ["i >= 3", "i < 61"])
def test_the_copy_engine_stores_zeros_beyond_the_end_alone(rows: str) -> None:
    x = placeholder((64, 32), "float32", "x")

    def rule(i: Expr, k: Expr) -> Expr:
        return select(i >= 3 if rows == "i >= 3" else i < 61, x[i, k], 0.0)

    s = compute((64, 32), rule, "s")
    y = compute((64, 32), lambda i, k: s[i, k] + 1.0, "y")
    schedule = create_schedule(y)
    schedule[y].bind(y.axes[0], "threadIdx.x")
    schedule[s].set_scope("shared")
    schedule[s].pragma(s.axes[0], "bulk")
    with pytest.raises(ScheduleError, match="stores zeros beyond the end of x alone"):
        to_launches(lower_kernels(schedule, [x, y], "edge"))


# ---- mutants -----------------------------------------------------------------------------------

BULK = (SignalsReady, Barrier, SignalExpects, SignalArrived)
GROUPS = (ProxyFence, Barrier, CopiesStarted, CopiesArrived, ProductsBegin, ProductsStarted,
          ProductsArrived)  # fmt: skip
FOUND = (
    r"race on|is read before its copy|is read by an asynchronous product|is used before|"
    r"another phase|begins a phase before|no 'products begin'|is stored to before"
)


def go_wrong(funcs: list[PrimFunc], wanted: np.ndarray, arrays: list[np.ndarray]) -> list[bool]:
    """Of each program, whether it computes something else, or fails, in some order of threads."""
    made = [Emulated.of(func, f"m{number}_") for number, func in enumerate(funcs)]
    code = load_emulated(print_module([k.text for m in made for k in m.kernels], CUDA))

    def is_wrong(program: Emulated, order: str) -> bool:
        try:
            return not np.array_equal(program.run(code, arrays, order), wanted)
        except VdlaError:
            return True

    return [any(is_wrong(m, order) for order in ORDERS) for m in made]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "knobs"), [(BULK, {"stages": 2}), (GROUPS, {"copies": "cp.async"})]
)
def test_what_is_dropped_is_found(kinds: tuple[type[Stmt], ...], knobs: dict[str, object]) -> None:
    func = group_product("int8", 304, **knobs)
    arrays = arrays_for(func)
    wanted = expected(arrays)
    assert all(count(func, kind) for kind in kinds)
    dropped = [(kind, which) for kind in kinds for which in range(count(func, kind))]
    mutants = [without(func, *what) for what in dropped]
    for mutant in mutants:
        with pytest.raises(ScheduleError, match=FOUND):
            check(mutant)
    wrong = go_wrong([func, *mutants], wanted, arrays)
    assert not wrong[0]
    assert [what for what, is_wrong in zip(dropped, wrong[1:], strict=True) if not is_wrong] == []


def short(stmt: Stmt) -> Stmt | None:
    """A signal that expects fewer bytes."""
    if isinstance(stmt, SignalExpects):
        return replace(stmt, size_bytes=stmt.size_bytes - 16)
    return None


def next_phase(stmt: Stmt) -> Stmt | None:
    """A wait for the other phase."""
    return replace(stmt, parity=1 - stmt.parity) if isinstance(stmt, SignalArrived) else None


def late(stmt: Stmt) -> Stmt | None:
    """A wait that leaves a group of products too many under way."""
    return ProductsArrived(stmt.but + 1) if isinstance(stmt, ProductsArrived) else None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [(short, "lacks -16 of its bytes"), (next_phase, "another phase"), (late, "is stored to")],
)
def test_what_is_wrong_is_found(change: Callable[[Stmt], Stmt | None], message: str) -> None:
    func = group_product("int8", 304, stages=2)
    arrays = arrays_for(func)
    mutant = changed(func, change)
    with pytest.raises(ScheduleError, match=message):
        check(mutant)
    assert go_wrong([mutant], expected(arrays), arrays) == [True]


#: Bits of a descriptor, and places of sums, exchanged in the text.
SWAPPED = [
    ("(u64)(8 * row_bytes >> 4) << 32", "(u64)(8 * row_bytes >> 4) << 33"),
    ("row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3", "row_bytes == 128 ? 2 : 3"),
    ("copy_8(to + 8 * row + 8 * i, d + 4 * i + 2)", "copy_8(to + 8 * row + 8 * i, d + 4 * i)"),
    ("place ^ (place >> 3 & mask)", "place ^ (place >> 4 & mask)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "swapped"), SWAPPED)
def test_a_swapped_bit_computes_wrong(text: str, swapped: str) -> None:
    func = group_product("int8", copies="cp.async")
    made, arrays = Emulated.of(func), arrays_for(func)
    source = print_module([k.text for k in made.kernels], CUDA)
    assert source.count(text) == 1
    try:
        result = made.run(load_emulated(source.replace(text, swapped)), arrays, ORDERS[0])
    except VdlaError as error:
        assert "a matrix that ends beyond shared memory" in str(error)
    else:
        assert not np.array_equal(result, expected(arrays))


def test_products_need_swizzled_rows() -> None:
    func = group_product("int8", copies="cp.async")
    [launch] = find_launches(func)
    buffers = {b for b in count_traffic(launch).conflicts if b.startswith("left")}
    assert buffers
    with pytest.raises(ScheduleError, match="expected swizzled rows"):
        check(without_swizzle(func))
