"""Tensor intrinsics as instructions: the same results as their loops, on processors with and
without them."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from llvmlite import ir
from vdla.bench.peers import in_uint8
from vdla.bench.workloads import TABLE_2
from vdla.compiler.frontends.load import load_graph
from vdla.compiler.graph.arithmetic.requant import Requant
from vdla.compiler.graph.interpret import interpret as interpret_graph
from vdla.compiler.graph.ops.blocked.integer import BlockedDotConv2d
from vdla.compiler.graph.passes import run_passes as run_graph_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu, run_passes
from vdla.compiler.targets.cpu.llvm import emit_function
from vdla.compiler.targets.cpu.micro_kernels import DOT, DOT_EACH, DOT_FOUR_BITS
from vdla.compiler.targets.cpu.processor import Processor, host_processor, load, optimise
from vdla.compiler.te.expr import Call
from vdla.compiler.te.intrinsic import TensorIntrin
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import compute, placeholder
from vdla.compiler.tir.ir import PrimFunc, TensorCall, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.isa.vector_ops import requantize_even
from vdla.runtime.native import aligned_memory

from ....processors import count_instructions, on_processor
from ...interpret import interpret
from . import one_operator

#: Image, weight, bias; columns for rescaling are like it.
SHAPES = [(1, 2, 4, 20, 16), (3, 2, 3, 3, 4, 16, 4), (3, 16)]
DTYPES = ["int8", "int8", "int32"]

pytestmark = pytest.mark.each_processor


def lacking(*features: str) -> Processor:
    """This processor without some of its features."""
    known = host_processor()
    kept = tuple(f"-{f[1:]}" if f[1:] in features else f for f in known.features)
    return replace(known, features=kept)


def run_on(processor: Processor, func: PrimFunc, *arrays: np.ndarray) -> str:
    """Run a loop program, compiled for a processor; returns its code."""
    module = ir.Module("test")
    function, workspace_bytes = emit_function(
        run_passes(func, processor), module, "kernel", processor
    )
    code = load(optimise(module, processor), function.name, len(function.args))
    code.entry(*(a.ctypes.data for a in (*arrays, aligned_memory(workspace_bytes))))
    return code.llvm_ir


def convolution(scheduled: bool, scales: tuple[str, ...] = ("int32", "int32")) -> PrimFunc:
    one = np.ones(1, np.int32)
    requant = Requant(one, 40 * one, -3, -120, 119)
    op = BlockedDotConv2d((1, 1), (1, 1, 1, 1), (1, 1), False, -7, requant)
    shapes = [*SHAPES, *[SHAPES[2]] * len(scales)]
    types = list(zip(shapes, [*DTYPES, *scales], strict=True))
    return one_operator.scheduled(op, types) if scheduled else one_operator.plain(op, types)


@pytest.mark.slow
def test_products_of_four_compute_what_plain_loops_do() -> None:
    """Plain, scheduled with the instruction, scheduled without it, without fused products."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in SHAPES[:2])
    columns = [
        rng.integers(-(2**16), 2**16, SHAPES[2]), rng.integers(2**30, 2**31, SHAPES[2]),
        rng.integers(40, 44, SHAPES[2]),
    ]  # fmt: skip
    arrays = [x, w, *(column.astype(np.int32) for column in columns)]
    results = [np.zeros((1, 3, 4, 20, 16), np.int8) for _ in range(4)]
    scheduled = convolution(True)
    run_on(host_processor(), convolution(False), *arrays, results[0])
    code = run_on(host_processor(), scheduled, *arrays, results[1])
    without = run_on(lacking("avx512vnni"), scheduled, *arrays, results[2])
    run_on(lacking("avx512vnni", "fma"), scheduled, *arrays, results[3])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    assert np.unique(results[0]).size > 200
    assert "vpdpbusd" not in without
    if host_processor().has("avx512vnni"):
        products = count_instructions(code, "avx512.vpdpbusd.512")
        assert products == 20  # of a tile, which is a whole row
        assert "%acc = alloca" not in code


@pytest.mark.slow
@pytest.mark.parametrize("products", [1, 2])
def test_sums_are_rescaled_by_floats(products: int) -> None:
    """In float32, the bias before the products; by loops, and without instructions for either."""
    rng = np.random.default_rng(4)
    x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in SHAPES[:2])
    bias = rng.integers(-(2**16), 2**16, SHAPES[2]).astype(np.int32)
    ranges = [(0, 0.002), (-1, 1), (0, 1e-9)][: products + 1]
    scales = [rng.uniform(*r, SHAPES[2]).astype(np.float32) for r in ranges]
    arrays, dtypes = [x, w, bias, *scales], ("float32",) * len(scales)
    scheduled = convolution(True, dtypes)
    results = [np.zeros((1, 3, 4, 20, 16), np.int8) for _ in range(3)]
    run_on(host_processor(), convolution(False, dtypes), *arrays, results[0])
    code = run_on(host_processor(), scheduled, *arrays, results[1])
    run_on(lacking("avx512vnni", "avx512f"), scheduled, *arrays, results[2])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    assert np.unique(results[0]).size > 200
    if host_processor().has("avx512vnni"):
        assert count_instructions(code, "avx512.vfmadd.ps.512") >= products * 4
        assert "%acc = alloca" not in code


@pytest.mark.parametrize("intrinsic", [DOT, DOT_EACH, DOT_FOUR_BITS], ids=lambda i: i.name)
def test_an_instruction_is_its_declared_behaviour(intrinsic: TensorIntrin) -> None:
    """On extreme values, against the interpreter; those on tiles: ``test_tiles.py``. And so is the
    function in its place."""
    # Of weights of 4 bits, too: -8 and 7 in both halves of a byte.
    extremes = {"uint8": (0, 0x77, 0x88, 255), "int8": (-128, 127)}
    operands = [placeholder(t.shape, t.dtype, t.name) for t in intrinsic.operands]
    rng = np.random.default_rng(1)
    arrays = [rng.choice(extremes[t.dtype], t.shape).astype(t.dtype) for t in operands]
    y = intrinsic.behaviour
    schedule = create_schedule(y)
    schedule[y].tensorize(y.axes[0], intrinsic)
    func = lower(schedule, [*intrinsic.operands, y])
    assert any(isinstance(s, TensorCall) for s in walk_stmt(func.body))
    results = [np.full(y.shape, 99, y.dtype) for _ in range(3)]
    run_on(host_processor(), func, *arrays, results[0])
    interpret(func, *arrays, results[1])
    with on_processor("avx512-vnni", emulated=["avx512vnni"]):
        assert "@vdla_avx512_vpdpbusd_512(" in run_on(host_processor(), func, *arrays, results[2])
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    assert results[0].any()


def test_a_scale_is_rounded_once_half_to_even() -> None:
    """Ties, neighbours of ties, and products that float64 cannot hold."""
    rng = np.random.default_rng(2)
    count = 4096
    multiplier = rng.integers(2**30, 2**31, count)
    shift = rng.integers(31, 62, count)
    half = (2 * rng.integers(-(2**7), 2**7, count) + 1) * 2.0 ** (shift - 1) / multiplier
    acc = np.clip(np.rint(half), -(2**31), 2**31 - 1).astype(np.int64)
    acc[: count // 2] += rng.integers(-1, 2, count // 2)
    acc[::64], multiplier[::64], shift[::64] = rng.integers(-999, 999, count // 64), 2**30, 31
    columns = [np.clip(v, -(2**31), 2**31 - 1).astype(np.int32) for v in (acc, multiplier, shift)]
    inputs = [placeholder((count,), "int32", f"x{i}") for i in range(3)]
    y = compute((count,), lambda i: Call("rescale", tuple(x[i] for x in inputs), "int32"), "y")
    schedule = create_schedule(y)
    _, lanes = schedule[y].split(y.axes[0], 16)
    schedule[y].vectorize(lanes)
    func = lower(schedule, [*inputs, y])
    expected = requantize_even(*columns)
    assert ((columns[0].astype(object) * 2**30) % 2**31 == 2**30)[::64].any()  # ties
    for processor in (host_processor(), lacking("fma")):
        result = np.zeros(count, np.int32)
        run_on(processor, func, *columns, result)
        np.testing.assert_array_equal(result, expected)


def scaled(name: str, count: int, vectors: bool) -> PrimFunc:
    dtypes = ("int32", "float32", "float32")
    inputs = [placeholder((count,), dtype, f"x{i}") for i, dtype in enumerate(dtypes)]
    result = "int32" if name == "scaled_floor" else "float32"
    y = compute((count,), lambda i: Call(name, tuple(x[i] for x in inputs), result), "y")
    schedule = create_schedule(y)
    if vectors:
        _, lanes = schedule[y].split(y.axes[0], 16)
        schedule[y].vectorize(lanes)
    return lower(schedule, [*inputs, y])


@pytest.mark.slow
@pytest.mark.parametrize("vectors", [True, False])
def test_a_sum_is_rounded_down_once(vectors: bool) -> None:
    """Of sums that are whole, a little less and a little more; of the nearest float32 of an int32
    that is none; by the instruction and by float64."""
    rng = np.random.default_rng(5)
    count = 4096
    factor = (2.0 ** rng.uniform(-14, 2, count)).astype(np.float32)
    x = rng.integers(-(2**24), 2**24, count).astype(np.int32)
    x[::8] = rng.integers(-(2**28), 2**28, x[::8].size)
    product = x.astype(np.float32).astype(np.float64) * factor
    offset = (np.ceil(product) - product).astype(np.float32)
    offset[1::3] = np.nextafter(offset[1::3], np.float32(-9))
    offset[2::3] = np.nextafter(offset[2::3], np.float32(9))
    offset[::64] = -product[::64]
    exact = [Fraction(float(p)) + Fraction(float(o)) for p, o in zip(product, offset, strict=True)]
    down, floor = np.zeros(count, np.float32), np.zeros(count, np.int32)
    for name, result in (("scaled_down", down), ("scaled_floor", floor)):
        func = scaled(name, count, vectors)
        interpret(func, x, factor, offset, result)
        for processor in (host_processor(), lacking("avx512f")):
            found = np.zeros_like(result)
            code = run_on(processor, func, x, factor, offset, found)
            np.testing.assert_array_equal(found, result)
            instructions = count_instructions(code, "avx512.vfmadd.ps.512")
            assert bool(instructions) == (vectors and processor.has("avx512f"))
    above = np.nextafter(down, np.float32(np.inf))
    for least, number, most in zip(down.tolist(), exact, above.tolist(), strict=True):
        assert Fraction(least) <= number < Fraction(most)
    np.testing.assert_array_equal(floor, np.floor(down.astype(np.float64)))
    once = np.array([float(e) for e in exact]).astype(np.float32)
    assert (down != once).sum() > 200 and (down == once).sum() > 200
    assert (np.floor(once) != floor).sum() > 200


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["C10", "C11", "D8", "D9"])
def test_layers_equal_the_interpreter(name: str) -> None:
    """In the form for ONNX Runtime, whose zero points are not 0: borders hold the zero point."""
    layer = next(layer for layer in TABLE_2 if layer.name == name)
    graph = run_graph_passes(load_graph(in_uint8(layer.model(1))))
    (source,) = graph.inputs
    x = np.random.default_rng(3).normal(1, 1, graph[source].shape).astype(np.float32)
    [ours], [expected] = build_cpu(graph).run(x), interpret_graph(graph, x)
    np.testing.assert_array_equal(ours, expected)
    assert np.unique(ours).size > 20
