"""Loops that a schedule vectorizes, shares among threads or gives to an instruction compute the
same bits as one element after another.

The scalar program of a schedule has the same loops, with sums in the same order, but all loops are
serial and there are no intrinsics. So floats must be equal, too: no reduction loop becomes a
vector, and where a product and a sum may be rounded once ("contract"), both programs do so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.ir import Graph
from vdla.compiler.graph.passes import GRAPH_PASSES, run_passes
from vdla.compiler.targets.cpu import graph_code as cpu
from vdla.compiler.targets.cpu.graph_code import CpuModule, build_cpu, compile_func
from vdla.compiler.targets.cpu.llvm_parallel import has_threads
from vdla.compiler.targets.cpu.lowering import Lowered, lower_node
from vdla.compiler.targets.cpu.micro_kernels import TILE_REGISTERS
from vdla.compiler.targets.cpu.templates.bit_serial import schedule_planes
from vdla.compiler.te.expr import Expr, Read, rewrite
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import placeholder
from vdla.compiler.tir.ir import Buffer, For, PrimFunc, Stmt, TensorCall, map_stmt, walk_stmt
from vdla.compiler.tir.lower import lower
from vdla.compiler.tir.passes.expand import expand_intrinsics
from vdla.compiler.topi.bit_serial import bit_serial_dense, pack_weights

from ...frontends.onnx.cases.draw import Draw

CASES = 5


def scalar(func: PrimFunc) -> PrimFunc:
    """The same loops, one iteration after another, and no instruction for several."""

    def on_stmt(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For):
            return None
        body = map_stmt(stmt.body, lambda expr: expr, on_stmt=on_stmt)
        kind = "serial" if stmt.kind in ("vectorized", "parallel") else stmt.kind
        return replace(stmt, kind=kind, body=body)

    @cache
    def in_memory(buffer: Buffer) -> Buffer:
        """A register of an instruction is memory."""
        return replace(buffer, scope="global") if buffer.scope in TILE_REGISTERS else buffer

    def on_leaf(expr: Expr) -> Expr | None:
        match expr:
            case Read(Buffer() as source, indices):
                return Read(in_memory(source), indices)

    func = expand_intrinsics(func)
    body = map_stmt(func.body, lambda expr: expr, on_stmt=on_stmt)
    return replace(func, body=map_stmt(body, lambda expr: rewrite(expr, on_leaf), in_memory))


def features(func: PrimFunc) -> set[str]:
    """The features that a scalar program does not have."""
    stmts = list(walk_stmt(func.body))
    kinds = {stmt.kind for stmt in stmts if isinstance(stmt, For)} & {"vectorized", "parallel"}
    return kinds | {"tensorized" for stmt in stmts if isinstance(stmt, TensorCall)}


# ---- models ----


class Model:
    """Nodes one after another; ``x`` is the last result."""

    def __init__(self, d: Draw, *shape: int, dtype: str = "float32"):
        self.d, self.x, self.shape, self.dtype = d, "x", shape, dtype
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: Any, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def floats(self, *shape: int) -> str:
        """A constant whose low bits rounding loses."""
        return self.constant(self.d.rng.normal(0, 1, shape))

    def apply(self, kind: str, *rest: str, **attributes: Any) -> str:
        names = [self.x, *rest]
        self.x = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [self.x], f"n{self.x}", **attributes))
        return self.x

    def graph(self) -> Graph:
        number = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        x = helper.make_tensor_value_info("x", number, self.shape)
        outputs = [onnx.ValueInfoProto(name=self.x)]
        graph = helper.make_graph(self.nodes, "m", [x], outputs, self.constants)
        imports = [helper.make_opsetid("", 21)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return run_passes(import_onnx(model), GRAPH_PASSES)

    def conv(self, outputs: int, group: int = 1, size: int = 3, stride: int = 1) -> str:
        channels = self.channels
        weight = self.floats(outputs, channels // group, size, size)
        self.channels = outputs
        pads = [size // 2] * 4
        return self.apply(
            "Conv", weight, self.floats(outputs), group=group, strides=[stride] * 2, pads=pads
        )

    channels = 0


def image(d: Draw, channels: int, dtype: str = "float32") -> Model:
    model = Model(d, d.integer(1, 2), channels, d.integer(3, 6), d.integer(4, 20), dtype=dtype)
    model.channels = channels
    return model


def convolution(d: Draw) -> Model:
    """With a residual sometimes."""
    model = image(d, d.choice((3, 16, 20, 32)))
    first = model.conv(d.choice((16, 17, 32)))
    if d.flag():
        model.conv(model.channels, size=d.choice((1, 3)))
        model.apply("Add", first)
    else:
        model.conv(d.choice((16, 48)), stride=2)
    model.apply("Relu")
    return model


def depthwise(d: Draw) -> Model:
    channels = d.choice((16, 20, 32))
    model = image(d, channels)
    model.conv(channels, channels, d.choice((3, 5)), d.integer(1, 2))
    return model


def grouped(d: Draw) -> Model:
    """A grouped convolution, which is not put on blocks."""
    model = image(d, 12)
    model.conv(d.choice((12, 24)), d.choice((2, 3, 4)), stride=d.integer(1, 2))
    return model


def transposed(d: Draw) -> Model:
    model = image(d, d.choice((3, 16, 24)))
    weight = model.floats(model.channels, d.choice((3, 16)), 4, 4)
    model.apply("ConvTranspose", weight, strides=[2, 2], pads=[1, 1, 1, 1])
    return model


def pooling(d: Draw) -> Model:
    """On blocks of channels, behind a convolution."""
    model = image(d, 16)
    model.conv(16, size=1)
    return pooled(model)


def plain_pooling(d: Draw) -> Model:
    """In the model's own layout."""
    return pooled(image(d, d.integer(1, 16)))


def pooled(model: Model) -> Model:
    d = model.d
    kind, window = d.choice(("MaxPool", "AveragePool")), d.choice((2, 3))
    model.apply(kind, kernel_shape=[window] * 2, strides=[d.integer(1, 2)] * 2, pads=[1] * 4)
    return model


def dense(d: Draw) -> Model:
    rows, size, outputs = d.integer(1, 5), d.integer(3, 90), d.choice((1, 16, 20, 50, 130))
    model = Model(d, rows, size)
    model.apply("Gemm", model.floats(size, outputs), model.floats(outputs))
    return model


def softmax(d: Draw) -> Model:
    model = Model(d, *d.shape(1, 3, 40))
    model.apply(d.choice(("Softmax", "LogSoftmax")), axis=-1)
    return model


def lstm(d: Draw) -> Model:
    hidden = d.choice((3, 16, 20))
    model = Model(d, d.integer(1, 4), d.integer(1, 3), 5)
    weights = [model.floats(1, 4 * hidden, n) for n in (5, hidden)]
    model.apply("LSTM", *weights, model.floats(1, 8 * hidden), hidden_size=hidden)
    return model


def elements(d: Draw) -> Model:
    shape = d.shape(2, 4, 20)
    model = Model(d, *shape)
    model.apply("Add", model.floats(*shape))
    model.apply(d.choice(("Sigmoid", "Tanh", "Exp", "Relu", "Gelu")))
    model.apply("Mul", model.floats(shape[-1]))
    return model


# ---- integers ----


def requantised(model: Model, kind: str, weight: str, low: int, **attributes: Any) -> None:
    """QLinearConv or QLinearMatMul with a result that varies."""
    one = model.constant(model.d.integer(-9, 9), "int8")
    scales = [model.constant(s) for s in (0.05, 0.01, 0.05 * low)]
    zero, result = model.constant(0, "int8"), model.constant(model.d.integer(-9, 9), "int8")
    model.apply(kind, scales[0], one, weight, scales[1], zero, scales[2], result, **attributes)


def integer_weight(model: Model, *shape: int) -> str:
    return model.constant(model.d.rng.integers(-128, 128, shape), "int8")


def integer_convolution(d: Draw) -> Model:
    model = image(d, d.choice((3, 16, 20)), "int8")
    for outputs in (d.choice((16, 20)), 32):
        weight = integer_weight(model, outputs, model.channels, 3, 3)
        requantised(model, "QLinearConv", weight, 20, pads=[1] * 4, strides=[d.integer(1, 2)] * 2)
        model.channels = outputs
    if d.flag():
        model.apply("MaxPool", kernel_shape=[2, 2], strides=[1, 1])
    return model


def integer_depthwise(d: Draw) -> Model:
    model = image(d, d.choice((16, 20, 32)), "int8")
    weight = integer_weight(model, model.channels, 1, 3, 3)
    requantised(model, "QLinearConv", weight, 4, group=model.channels, pads=[1] * 4)
    return model


def integer_grouped(d: Draw) -> Model:
    model = image(d, 12, "int8")
    weight = integer_weight(model, 12, 4, 3, 3)
    requantised(model, "QLinearConv", weight, 10, group=3, pads=[1] * 4)
    return model


def integer_dense(d: Draw) -> Model:
    model = Model(d, d.integer(1, 4), d.integer(3, 60), dtype="int8")
    weight = integer_weight(model, model.shape[1], d.choice((10, 16, 33)))
    requantised(model, "QLinearMatMul", weight, 20)
    return model


def quantised(d: Draw) -> Model:
    """To integers and back, on rows of whole vectors and others."""
    model = Model(d, d.integer(1, 3), d.choice((5, 16, 48)), d.choice((7, 16, 32)))
    scale = [model.constant(0.05), model.constant(3, "int8")]
    model.apply("QuantizeLinear", *scale)
    model.apply("DequantizeLinear", *scale)
    return model


#: Models, and what is in their schedules that the scalar program has not. What a schedule leaves
#: to LLVM is scalar already.
MODELS: dict[Callable[[Draw], Model], set[str]] = {
    convolution: {"vectorized", "parallel"},
    depthwise: {"vectorized", "parallel"},
    grouped: {"vectorized"},
    transposed: {"vectorized", "parallel"},
    pooling: {"vectorized", "parallel"},
    plain_pooling: {"vectorized"},
    dense: {"vectorized", "parallel"},
    softmax: set(),
    lstm: set(),
    elements: set(),
    integer_convolution: {"vectorized", "parallel", "tensorized"},
    integer_depthwise: {"vectorized", "parallel", "tensorized"},
    integer_grouped: {"vectorized"},
    integer_dense: {"vectorized"},
    quantised: {"vectorized"},
}


def run(module: CpuModule, x: np.ndarray) -> bytes:
    return b"".join(np.ascontiguousarray(y).tobytes() for y in module.run(x))


@pytest.mark.slow
@pytest.mark.each_processor
@pytest.mark.parametrize("make", [make for make in MODELS if "tensorized" in MODELS[make]])
def test_schedules_give_the_bits_of_their_scalar_programs(
    make: Callable[[Draw], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where instructions of a processor take part."""
    check_scalar_program(make, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make for make in MODELS if "tensorized" not in MODELS[make]])
def test_vectors_give_the_bits_of_their_scalar_programs(
    make: Callable[[Draw], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_scalar_program(make, monkeypatch)


def check_scalar_program(make: Callable[[Draw], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    values: set[int] = set()
    for number in range(CASES):
        d = Draw(f"{make.__name__} {number}")
        model = make(d)
        graph = model.graph()
        is_float = model.dtype == "float32"
        x = d.rng.normal(0, 1, model.shape) if is_float else d.rng.integers(-128, 128, model.shape)
        x = x.astype(model.dtype)
        modules = [build_cpu(graph, threads) for threads in ((1, 3) if has_threads() else (1,))]
        seen |= set().union(*(features(func) for func in modules[0].code.kernels))
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "lower_node", scalar_lowered)
            plain = build_cpu(graph)
        assert not any(features(func) for func in plain.code.kernels)
        expected = run(plain, x)
        values |= set(expected)
        for module in modules:
            assert run(module, x) == expected, f"case {number}"
    wanted = MODELS[make] - (set() if cpu.host_processor().has("avx512vnni") else {"tensorized"})
    assert seen >= wanted
    assert len(values) > 3, "results that vary"


def scalar_lowered(*args: Any) -> Lowered:
    found = lower_node(*args)
    return replace(found, func=scalar(found.func))


@pytest.mark.slow
def test_bit_serial_products_give_the_bits_of_their_scalar_program() -> None:
    for number in range(CASES):
        d = Draw(f"bit-serial {number}")
        rows, size, outputs = d.integer(1, 3), d.integer(1, 100), d.integer(1, 40)
        bits, weight_bits = d.integer(1, 2), d.integer(1, 2)
        x = d.rng.integers(0, 1 << bits, (rows, size)).astype(np.uint8)
        weights = d.rng.integers(0, 1 << weight_bits, (outputs, size))
        packed = pack_weights(weights, weight_bits)
        args = [placeholder(x.shape, "uint8", "x"), placeholder(packed.shape, "uint32", "w")]
        y = bit_serial_dense(args[0], args[1], outputs, bits)
        schedule = create_schedule(y)
        schedule_planes(schedule)
        func = lower(schedule, [*args, y])
        assert features(func) == {"vectorized", "tensorized"}
        results = [np.full(y.shape, 85, np.int32) for _ in range(2)]
        for program, result in zip((func, scalar(func)), results, strict=True):
            compile_func(program)(x, packed, result)
        np.testing.assert_array_equal(*results)
