"""Products on tensor cores, emulated by PTX's tables of fragments; what is missing or wrong in such
a kernel is found by the static checkers, and by running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest
import vdla
from vdla.bench.net import Net
from vdla.cli.arrays import model_inputs
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.linear import Dense
from vdla.compiler.graph.ops.narrow import Narrow
from vdla.compiler.targets.gpu import target
from vdla.compiler.targets.gpu.architectures import find_architecture
from vdla.compiler.targets.gpu.dialects import CUDA, OPENCL
from vdla.compiler.targets.gpu.kernels import (
    find_launches,
    lower_kernels,
    make_kernels,
    to_launches,
)
from vdla.compiler.targets.gpu.lowering import template_of, templates_of
from vdla.compiler.targets.gpu.scopes import MODEL
from vdla.compiler.targets.gpu.templates.product import Product
from vdla.compiler.targets.gpu.templates.tensor_gemm import TensorGemm, tensor_tiled
from vdla.compiler.targets.gpu.tensor_cores import check_tensor_cores
from vdla.compiler.targets.gpu.text import print_module
from vdla.compiler.targets.gpu.traffic import count_traffic
from vdla.compiler.te.errors import ScheduleError
from vdla.compiler.te.expr import Expr
from vdla.compiler.te.tensor import placeholder
from vdla.compiler.tir.arrivals import check_arrivals
from vdla.compiler.tir.ir import (
    Barrier,
    Buffer,
    CopiesArrived,
    CopiesStarted,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    TensorCall,
    map_stmt,
    walk_stmt,
)
from vdla.compiler.tir.races import check_threads
from vdla.compiler.tir.verify import verify
from vdla.runtime.gpu.emulated import ORDERS, load_emulated
from vdla.runtime.gpu.program import KernelProgram

from .emulating import Emulated, emulate

RNG = np.random.default_rng(2)
KNOBS = {
    "rows": 32, "columns": 32, "warp_rows": 16, "warp_columns": 16, "stages": 3, "split_k": 1,
}  # fmt: skip


def product(
    dtype: str, by_column: bool = True, stages: int = 3, k: int = 208, parts: int = 1
) -> PrimFunc:
    """A product with edges in all directions. The second factor is [n, k] or [k, n]."""
    m, n = 40, 48
    a = placeholder((m, k), dtype, "a")
    b = placeholder((n, k) if by_column else (k, n), dtype, "b")

    def right(_: Expr, j: Expr, t: Expr, r: Expr) -> tuple[Expr, list[Expr]]:
        return (b[j, r] if by_column else b[r, j]), []

    found = Product(
        (1, m, n, k), lambda _, i, t, r: (a[i, r], []), right, lambda _, i, j, acc: acc, "float32",
        [a, b], right_by_column=by_column,
    )  # fmt: skip
    knobs = KNOBS | {"depth": 64 if dtype == "int8" else 32, "stages": stages, "split_k": parts}
    schedule = tensor_tiled(found, dtype, knobs)
    return to_launches(lower_kernels(schedule, [a, b, schedule.outputs[0]], "product"))


def arrays_for(func: PrimFunc) -> list[np.ndarray]:
    """Small integers, whose products float32 adds up exactly in any order."""
    return [RNG.integers(-8, 8, b.shape).astype(b.dtype) for b in func.params[:-1]]


def expected(arrays: list[np.ndarray]) -> np.ndarray:
    a, b = (array.astype(np.int32) for array in arrays)
    return (a @ (b.T if b.shape[1] == a.shape[1] else b))[None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "by_column", "stages"),
    [("float16", True, 3), ("bfloat16", False, 2), ("int8", True, 4), ("int8", False, 1)],
)
def test_product(dtype: str, by_column: bool, stages: int) -> None:
    func = product(dtype, by_column, stages)
    arrays = arrays_for(func)
    for result in emulate(func, arrays):
        np.testing.assert_array_equal(result, expected(arrays))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "by_column", "k", "parts"),
    [("float16", True, 192, 3), ("float16", False, 208, 4), ("int8", True, 208, 2)],
)
def test_sums_in_parts(dtype: str, by_column: bool, k: int, parts: int) -> None:
    """Parts that divide the steps, and parts of which the last one ends early."""
    func = product(dtype, by_column, k=k, parts=parts)
    assert len(find_launches(func)) == 2
    arrays = arrays_for(func)
    for result in emulate(func, arrays):
        np.testing.assert_array_equal(result, expected(arrays))


def chosen(dtype: str, m: int, n: int, k: int, arch: str) -> dict[str, object]:
    """The choices for a product of [m, k] and [n, k] that nobody made."""
    op = Narrow(Dense(transposed=True), dtype)
    tensors = {
        "x": Tensor("x", (m, k), dtype), "w": Tensor("w", (n, k), dtype),
        "y": Tensor("y", (m, n), dtype),
    }  # fmt: skip
    node = Node("dense", op, ("x", "w"), "y")
    graph = Graph("dense", ("x", "w"), ("y",), (node,), tensors)
    template = template_of(graph, node, templates_of(CUDA, dtype, find_architecture(arch)))
    assert isinstance(template, TensorGemm)
    return dict(next(template.space(template.workload(graph, node)).points()))


def test_a_tile_is_as_large_as_blocks_enough_allow() -> None:
    big = chosen("float16", 4096, 4096, 4096, "sm_90a")
    assert big == {
        "unit": "wgmma", "copies": "tma", "rows": 128, "columns": 256, "warp_rows": 64,
        "warp_columns": 256, "depth": 64, "stages": 4, "split_k": 1,
    }  # fmt: skip
    middle = chosen("float16", 2048, 1024, 512, "sm_90a")
    assert (middle["rows"], middle["columns"], middle["stages"]) == (128, 128, 3)
    old = chosen("float16", 4096, 4096, 4096, "sm_80")
    assert (old["rows"], old["columns"], old["warp_rows"], old["depth"]) == (128, 128, 64, 32)
    for arch in ("sm_80", "sm_90a"):
        few = chosen("float16", 1, 512, 3136, arch)
        assert (few["rows"], few["columns"], few["depth"], few["split_k"]) == (16, 64, 64, 16)


def test_single_elements_are_left_to_other_templates() -> None:
    with pytest.raises(AssertionError):
        chosen("float16", 64, 64, 65, "sm_90a")  # no two of them are one copy
    assert chosen("float16", 64, 64, 66, "sm_90a")


def text_of(func: PrimFunc) -> str:
    return print_module([k.text for k in make_kernels(func, "", CUDA)], CUDA)


def test_both_factors_come_by_asynchronous_copies_and_the_result_goes_by_16_bytes() -> None:
    func = product("float16")
    text = text_of(func)
    kernel = text[text.index("// product") :]
    assert kernel.count("copy_async_16(&left") == kernel.count("copy_async_16(&right") == 2
    assert "copy_16(&out[" in kernel
    assert "mma_m16n8k16_f16(" in kernel
    with pytest.raises(vdla.VdlaError, match="OpenCL C has no tensor cores"):
        make_kernels(func, "", OPENCL)


def test_a_single_thread_waits_for_what_its_warp_stores() -> None:
    a, b = placeholder((1, 32), "int8", "a"), placeholder((64, 32), "int8", "b")
    found = Product(
        (1, 1, 64, 32), lambda _, i, t, r: (a[i, r], []), lambda _, j, t, r: (b[j, r], []),
        lambda _, i, j, acc: acc.astype("int8"), "int32", [a, b], right_by_column=True,
    )  # fmt: skip
    knobs = KNOBS | {"rows": 16, "columns": 16, "depth": 32, "stages": 1}
    schedule = tensor_tiled(found, "int8", knobs)
    func = to_launches(lower_kernels(schedule, [a, b, schedule.outputs[0]], "row"))
    assert count(func, Barrier) == 2


# ---- networks ----------------------------------------------------------------------------------


def residual(quantized: bool) -> onnx.ModelProto:
    """Convolutions with channels enough for copies of 16 bytes, and what can stand between them."""
    net = Net("residual", quantized)
    x = net.conv(net.input(1, 3, 12, 12), 16, 3, 2)
    y = net.conv(net.conv(x, 16, 3), 16, 3, relu=False)
    x = net.max_pool(net.add(y, x), 3, 2)
    x = net.conv(net.conv(x, 16, 3, groups=16), 32, 1)
    net.output(net.dense(net.global_average(x), 10))
    return net.model()


@pytest.mark.slow
def test_channels_last() -> None:
    model = residual(True).SerializeToString()
    module = vdla.compile(model, "cuda", emulate=True)
    names = [node.op.name for node in module.compiled.graph.nodes]
    assert names.count("QConv2d, channels last") == 5
    assert names.count("PadLast") == names.count("Transpose") == 1
    [pool] = [n for n in module.compiled.layers if n.op == "QMaxPool, channels last"]
    assert len(pool.kernels) == 1
    arrays = model_inputs(module, None, 0)
    [got], [wanted] = module.run(*arrays), vdla.compile(model, "cpu").run(*arrays)
    assert np.ptp(got) > 0
    np.testing.assert_array_equal(got, wanted)


def shifted() -> bytes:
    """A convolution with a border, one without and a dense layer on int8 whose 0 is at -7."""
    rng = np.random.default_rng(4)
    constants = {
        "s": np.float32(0.05), "z": np.int8(-7), "sw": np.float32(0.01), "zw": np.int8(0),
        "w1": rng.integers(-90, 90, (16, 16, 3, 3)).astype(np.int8),
        "w2": rng.integers(-90, 90, (32, 16, 1, 1)).astype(np.int8),
        "w3": rng.integers(-90, 90, (10, 32 * 49)).astype(np.int8),
    }  # fmt: skip
    text = """<ir_version: 8, opset_import: ["" : 13]>
    shifted (float[1, 16, 7, 7] x) => (float[1, 10] y) {
      q0 = QuantizeLinear(x, s, z)      d0 = DequantizeLinear(q0, s, z)
      f1 = DequantizeLinear(w1, sw, zw) c1 = Conv<pads = [1, 1, 1, 1]>(d0, f1)
      q1 = QuantizeLinear(c1, s, z)     d1 = DequantizeLinear(q1, s, z)
      f2 = DequantizeLinear(w2, sw, zw) c2 = Conv(d1, f2)
      q2 = QuantizeLinear(c2, s, z)     d2 = DequantizeLinear(q2, s, z)
      r = Flatten(d2)                   f3 = DequantizeLinear(w3, sw, zw)
      g = Gemm<transB = 1>(r, f3)
      q3 = QuantizeLinear(g, s, z)      y = DequantizeLinear(q3, s, z)
    }"""
    model = onnx.parser.parse_model(text)
    for name, value in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model.SerializeToString()


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize("parts", [(1, 1), (3, 4), (9, 7)])
def test_zero_points_on_tensor_cores(parts: tuple[int, int]) -> None:
    """What a zero point adds to each sum is subtracted at the end, also where taps or steps of a
    sum are in parts."""
    knobs = {name: {"split_k": n} for name, n in zip(("Conv_3", "Gemm_12"), parts, strict=True)}
    module = vdla.compile(shifted(), "cuda", emulate=True, knobs=knobs)
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    assert step.source.count("mma_m16n8k32_s8(&acc") == 3
    arrays = model_inputs(module, None, 0)
    [got], [wanted] = module.run(*arrays), vdla.compile(shifted(), "cpu").run(*arrays)
    assert np.ptp(got) > 0
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize(("precision", "bits"), [("float16", 11), ("bfloat16", 8), ("tf32", 10)])
def test_precision_of_factors(precision: str, bits: int) -> None:
    """Rounding both factors of every product changes it by less than 2 ** (1 - bits) of it; six
    layers follow one another. What tf32 leaves out of a factor is below 2 ** -10 of it."""
    model = residual(False).SerializeToString()
    module = vdla.compile(model, "cuda", emulate=True, precision=precision)
    arrays = model_inputs(module, None, 0)
    [got], [wanted] = module.run(*arrays), vdla.compile(model, "cpu").run(*arrays)
    error = np.abs(got - wanted).max() / np.abs(wanted).max()
    assert 0 < error < 6 * 2.0 ** (1 - bits)


def shared() -> onnx.ModelProto:
    """An input and results that products and others read, or that are outputs, too."""
    net = Net("shared", quantized=False)
    x = net.input(2, 16, 5, 7)
    y = net.add(net.conv(x, 16, 3, 1), net.conv(x, 16, 1))
    z = net.conv(net.conv(y, 24, 1), 16, 3, 2)
    r = net.dense(net.global_average(z), 24)
    for output in (y, r, net.dense(r, 8), net.conv(net.max_pool(y, 2, 2), 8, 1)):
        net.output(output)
    return net.model()


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: residual(False), ["relu_1_y.last"]),
        (shared, ["relu_5_y.last", "gemm_12_y"]),
    ],
)
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_narrow_tensors_change_no_bit(
    make: Callable[[], onnx.ModelProto],
    names: list[str],
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What products read is stored in the dtype that they round it to; of what others read, too,
    there is one copy."""
    model = make().SerializeToString()
    module = vdla.compile(model, "cuda", emulate=True, precision=precision)
    graph = module.compiled.graph
    copies = [n.inputs[0] for n in graph.nodes if n.op.name == f"Copy to {precision}"]
    assert copies == names
    monkeypatch.setattr(target, "narrow_tensors", lambda graph, dtype, is_product: graph)
    plain = vdla.compile(model, "cuda", emulate=True, precision=precision)
    assert len(plain.compiled.graph.nodes) == len(graph.nodes) - len(copies)
    arrays = model_inputs(module, None, 0)
    for got, wanted in zip(module.run(*arrays), plain.run(*arrays), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.slow
def test_all_factors_of_half_come_at_once() -> None:
    model = residual(False).SerializeToString()
    module = vdla.compile(model, "cuda", emulate=True, precision="float16")
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    parts = step.source.split("__global__")[1:]
    products = [part for part in parts if "acc_shared" in part.partition("(const")[0]]
    wide = [part for part in products if "16(&left" in part and "16(&right" in part]
    assert len(products) == len(wide) == 5


def test_precision_needs_tensor_cores() -> None:
    model = residual(False).SerializeToString()
    with pytest.raises(vdla.VdlaError, match="precision: expected target 'cuda' with 'float16'"):
        vdla.compile(model, "opencl", precision="float16")
    with pytest.raises(vdla.VdlaError, match=r"expected float32 or .* got 'tf'"):
        vdla.compile(model, "cuda", emulate=True, precision="tf")


# ---- mutants -----------------------------------------------------------------------------------


def changed(func: PrimFunc, change: Callable[[Stmt], Stmt | None]) -> PrimFunc:
    return replace(func, body=map_stmt(func.body, lambda expr: expr, on_stmt=change))


def without(func: PrimFunc, kind: type[Stmt], which: int) -> PrimFunc:
    """The program without one of its statements of a kind."""
    gone = [s for s in walk_stmt(func.body) if isinstance(s, kind)][which]
    return changed(func, lambda stmt: Seq(()) if stmt is gone else None)


def count(func: PrimFunc, kind: type[Stmt]) -> int:
    return sum(isinstance(s, kind) for s in walk_stmt(func.body))


def check(func: PrimFunc) -> None:
    """All static checkers of kernels."""
    verify(func)
    check_threads(func, MODEL)
    check_arrivals(func)
    check_tensor_cores(func)


def computes_wrong(mutants: list[PrimFunc], arrays: list[np.ndarray]) -> list[bool]:
    """Of each mutant, whether its result is wrong in some order of threads."""
    made = [Emulated.of(func, f"m{number}_") for number, func in enumerate(mutants)]
    code = load_emulated(print_module([k.text for m in made for k in m.kernels], CUDA))
    wanted = expected(arrays)
    return [
        any(not np.array_equal(m.run(code, arrays, order), wanted) for order in ORDERS)
        for m in made
    ]


@pytest.mark.slow
def test_what_is_dropped_is_found() -> None:
    func = product("int8")
    kinds = (Barrier, CopiesStarted, CopiesArrived)
    assert [count(func, kind) for kind in kinds] == [3, 2, 2]
    mutants = [without(func, kind, n) for kind in kinds for n in range(count(func, kind))]
    for mutant in mutants:
        with pytest.raises(ScheduleError, match=r"race on|is read before its copy"):
            check(mutant)
    assert all(computes_wrong(mutants, arrays_for(func)))


def late(stmt: Stmt) -> Stmt | None:
    """A wait that leaves a group too many under way."""
    return CopiesArrived(stmt.but + 1) if isinstance(stmt, CopiesArrived) else None


def renamed(stmt: Stmt) -> Stmt | None:
    """Both factors of a product exchanged."""
    if isinstance(stmt, TensorCall) and stmt.variant == "update":
        return replace(stmt, inputs=stmt.inputs[::-1])
    return None


def moved(by: int) -> Callable[[Stmt], Stmt | None]:
    """The tile of the second factor that a warp loads begins some rows later."""

    def change(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, TensorCall) and stmt.intrinsic.name == "load_b":
            [region] = stmt.inputs
            *outer, row, column = region.start
            return replace(stmt, inputs=(Region(region.buffer, (*outer, row + by, column)),))
        return None

    return change


def one_off(stmt: Stmt) -> Stmt | None:
    """The tile of the sums that a product adds to begins one column later."""
    if isinstance(stmt, TensorCall) and stmt.variant == "update":
        *outer, column = stmt.output.start
        return replace(stmt, output=Region(stmt.output.buffer, (*outer, column + 1)))
    return None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (late, "left is read before its copy has arrived"),
        (renamed, "operand a is int8|expected .* in fragment_a|cannot be shown to lie in"),
        (moved(8), "cannot be shown to lie in"),
        (one_off, "cannot be shown to lie in|expected whole tiles"),
    ],
)
def test_what_is_wrong_is_found(change: Callable[[Stmt], Stmt | None], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(changed(product("int8"), change))


@pytest.mark.slow
def test_what_is_wrong_computes_wrong() -> None:
    func = product("int8")
    assert computes_wrong([changed(func, late), func], arrays_for(func)) == [True, False]


#: Lanes, registers and places of fragments exchanged, in the text of the functions.
SWAPPED = [
    ("lane % 16 * row_bytes + lane / 16 * 16", "lane / 16 * row_bytes + lane % 16 * 16"),
    ("lane % 8 * row_bytes + lane / 8 % 2 * 16", "lane % 8 * row_bytes + lane / 16 % 2 * 16"),
    ("copy_8(to + 8 * row, d + 2)", "copy_8(to + 8 * row, d)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "swapped"), SWAPPED)
def test_a_swapped_index_of_a_fragment_computes_wrong(text: str, swapped: str) -> None:
    func = product("int8")
    source = text_of(func)
    assert source.count(text) == 1
    arrays = arrays_for(func)
    code = load_emulated(source.replace(text, swapped))
    result = Emulated.of(func).run(code, arrays, ORDERS[0])
    assert not np.array_equal(result, expected(arrays))


@pytest.mark.slow
def test_a_warp_that_is_not_whole_is_an_error() -> None:
    func = product("int8")
    source = text_of(func).replace("mma_m16n8k32_s8(&acc", "if (tx) mma_m16n8k32_s8(&acc")
    with pytest.raises(vdla.VdlaError, match="not all threads of a warp or warpgroup reach"):
        Emulated.of(func).run(load_emulated(source), arrays_for(func), ORDERS[0])


# ---- what is counted ---------------------------------------------------------------------------


def without_swizzle(func: PrimFunc) -> PrimFunc:
    """The program with rows in shared memory as they are."""
    renewed: dict[Buffer, Buffer] = {}

    def buffer(b: Buffer) -> Buffer:
        if b.scope != "shared" or b.dtype != "int8":
            return b
        return renewed.setdefault(b, replace(b, swizzled=False))

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, TensorCall):
            return None
        inputs = tuple(Region(buffer(r.buffer), r.start) for r in stmt.inputs)
        return replace(stmt, inputs=inputs, output=Region(buffer(stmt.output.buffer),
                                                          stmt.output.start))  # fmt: skip

    return replace(func, body=map_stmt(func.body, lambda e: e, buffer, on_stmt))


@pytest.mark.slow
def test_rows_that_share_banks_are_reported_and_right() -> None:
    func = product("int8")
    mutant = without_swizzle(func)
    check(mutant)
    [before], [after] = find_launches(func), find_launches(mutant)
    assert count_traffic(before).conflicts["left read"] == 1
    assert count_traffic(after).conflicts["left read"] == 4
    assert computes_wrong([mutant], arrays_for(func)) == [False]


@pytest.mark.slow
@pytest.mark.parametrize("by_column", [True, False])
def test_what_is_counted_statically_is_what_the_emulation_counts(by_column: bool) -> None:
    func = product("float16", by_column)
    [kernel] = make_kernels(func, "", CUDA)
    arrays = [*arrays_for(func), np.zeros(func.params[-1].shape, np.float32)]
    code = load_emulated(print_module([kernel.text], CUDA), counting=True)
    addresses = [array.ctypes.data for array in arrays]
    counts = code.launch(kernel.name, kernel.grid, kernel.block, addresses)
    found = count_traffic(kernel.launch)
    assert counts.waits == found.barriers > 0
    assert (counts.bytes_read, counts.bytes_written) == (found.bytes_read, found.bytes_written)
    assert found.bytes_written == 40 * 48 * 4
    assert set(found.sectors.values()) == {1.0}
