"""Element-wise operators behind products are their epilogues: one kernel, and the same values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
import vdla
from vdla.bench.modern import FloatNet
from vdla.bench.net import Net
from vdla.compiler.graph.ops.linear import TransposedMatMul
from vdla.compiler.targets.cpu.graph_code import compile_func
from vdla.compiler.targets.cpu.processor import host_processor
from vdla.compiler.te.schedule import create_schedule
from vdla.compiler.te.tensor import placeholder
from vdla.compiler.tir.lower import lower
from vdla.module import Module
from vdla.runtime.gpu.program import KernelProgram

RNG = np.random.default_rng(8)
#: A row of each precision and generation whose templates differ, and its tolerance.
KINDS = [
    ("float32", "sm_80", 3e-6), ("float16", "sm_80", 2e-3), ("tf32", "sm_90a", 3e-3),
    ("float16", "sm_90a", 2e-3),
]  # fmt: skip


def count_kernels(module: Module) -> int:
    [step] = module.compiled.steps
    assert isinstance(step, KernelProgram)
    return len(step.calls)


def check(
    model: onnx.ModelProto, kernels: int | None, tolerance: float, target: str = "cuda", **options
) -> Module:
    """The kernels of a network, whose results are the CPU's."""
    data = model.SerializeToString()
    module = vdla.compile(data, target, **options)
    arrays = [
        RNG.integers(0, 30, t.shape).astype(t.dtype)
        if t.dtype.startswith("int") and t.dtype != "int8"
        else (RNG.normal(size=t.shape) * 2).astype(t.dtype)
        for t in module.compiled.inputs
    ]
    if kernels is not None:
        assert count_kernels(module) == kernels
    for got, wanted in zip(
        module.run(*arrays), vdla.compile(data, "cpu").run(*arrays), strict=True
    ):
        if tolerance:
            most = np.abs(wanted).max()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * most)
        else:
            np.testing.assert_array_equal(got, wanted)
    return module


def tanh_gelu(net: FloatNet, x: str) -> str:
    """GELU by the hyperbolic tangent, as GPT-2 has it."""
    cube = net.binary("Mul", x, net.binary("Mul", x, x))
    inner = net.binary("Add", x, net.scaled(cube, 0.044715))
    raised = net.unary("Tanh", net.scaled(inner, math.sqrt(2 / math.pi)))
    return net.scaled(
        net.binary("Mul", x, net._node("Add", [raised, net.number(1.0)], net.shapes[x])), 0.5
    )


@pytest.mark.parametrize(("precision", "arch", "tolerance"), KINDS)
@pytest.mark.parametrize(
    ("shape", "form"), [((1, 37, 24), "erf"), ((1, 1, 256), "tanh"), ((70, 136), "tanh")]
)
def test_bias_and_gelu_are_one_kernel(
    shape: Sequence[int], form: str, precision: str, arch: str, tolerance: float
) -> None:
    """With odd sizes, also behind a Reshape to three dimensions and with one row; a long sum is in
    parts, and a second kernel adds them up."""
    net = FloatNet("mlp")
    x = net.linear(net.input(*shape), 44)
    y = net.gelu(x) if form == "erf" else tanh_gelu(net, x)
    model = net.model(y)
    module = check(model, None, tolerance, emulate=True, precision=precision, arch=arch)
    [*copy, layer] = [layer for layer in module.compiled.layers if layer.kernels]
    assert [c.op for c in copy] == (["Copy to float16"] if precision == "float16" else [])
    assert len(layer.kernels) == (1 if layer.knobs["split_k"] == 1 else 2)


@pytest.mark.parametrize(("precision", "arch", "tolerance"), KINDS)
def test_a_residual_connection_is_one_kernel(precision: str, arch: str, tolerance: float) -> None:
    """Also with the sums in parts."""
    net = FloatNet("residual")
    x = net.input(1, 33, 128)
    model = net.model(net.binary("Add", x, net.linear(x, 128)))
    kinds = {"emulate": True, "precision": precision, "arch": arch}
    for parts in (1, 2):
        knobs = {"matmul_0.1": {"split_k": parts, "depth": 32}}
        kernels = parts + (precision == "float16")  # a copy of x
        check(model, kernels, tolerance, knobs=knobs, **kinds)


def residual(quantized: bool, channels: int, groups: int = 1, batch: int = 1) -> onnx.ModelProto:
    net = Net("residual", quantized)
    x = net.conv(net.input(batch, channels, 9, 7), channels, 3)
    y = net.conv(x, channels, 3, relu=False, groups=groups)
    net.output(net.add(y, x))
    return net.model()


@pytest.mark.parametrize(
    ("quantized", "channels", "groups"),
    [(True, 20, 1), (True, 16, 1), (False, 20, 1), (False, 16, 1), (False, 12, 3)],
)
def test_residual_convolutions_are_one_kernel(quantized: bool, channels: int, groups: int) -> None:
    """Of images in both layouts (16 channels lie side by side), of groups, and of batches; integers
    have the CPU's bits."""
    model = residual(quantized, channels, groups, batch=2)
    module = check(model, None, 0 if quantized else 3e-6, emulate=True)
    if groups == 1 and not quantized:
        module = check(model, None, 3e-3, emulate=True, precision="float16", arch="sm_90a")
    assert [len(layer.kernels) for layer in module.compiled.layers if "Add" in layer.op] == [0]


@pytest.mark.slow
def test_opencl_has_epilogues() -> None:
    pytest.importorskip("pyopencl")
    check(residual(False, 12), 2, 3e-6, "opencl")
    check(residual(True, 12), 3, 0, "opencl")  # with that of Quantize


def test_products_keep_what_is_not_theirs() -> None:
    """Two products that are added: the second one adds. A product that is an output, or that two
    operators read, is stored."""
    net = Net("two", False)
    x = net.input(3, 20)
    a = net.dense(x, 8)
    total = net.add(a, net.dense(x, 8), relu=False)
    net.output(total)
    check(net.model(), 2, 3e-6, emulate=True)
    net.output(a)
    check(net.model(), 2, 3e-6, emulate=True)
    net = Net("two readers", False)
    a = net.dense(net.input(3, 20), 8)
    net.output(net.unary("Tanh", a))
    net.output(net.unary("Sigmoid", a))
    check(net.model(), 3, 3e-6, emulate=True)


def test_rows_become_matrices_before_what_follows() -> None:
    """A bias lies along columns; a mask of the matrices' rows is an epilogue, too."""
    for size in ((24,), (1, 4, 1), (2, 4, 24)):
        net = FloatNet("matrices")
        rows = net.reshape(net.input(2, 4, 4, 4), 8, 16)
        wide = net.reshape(net.matmul(rows, net.random("w", 16, 24)), 2, 4, 24)
        check(net.model(net.plus(wide, RNG.normal(size=size).astype(np.float32))), 1, 3e-6,
              emulate=True)  # fmt: skip


PLAIN = (0, 1, 2, 3)
HEADS = {  # orders of the first factor, the second one and the result; kernels
    "attention": ((0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 2, 3), 1),
    "values": ((0, 1, 2, 3), (0, 2, 1, 3), (0, 2, 1, 3), 1),
    "steps apart": ((0, 2, 3, 1), (0, 2, 1, 3), (0, 1, 2, 3), 2),
    "columns apart": ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 3, 2), 2),
}


@pytest.mark.parametrize(("precision", "arch", "tolerance"), KINDS)
@pytest.mark.parametrize("name", HEADS)
def test_products_read_and_store_other_orders(
    name: str, precision: str, arch: str, tolerance: float
) -> None:
    """Transpositions are a part of the product where steps and columns stay side by side."""
    orders, kernels = HEADS[name][:3], HEADS[name][3]
    logical = [(1, 3, 70, 32), (1, 3, 32, 40)]
    net = FloatNet("heads")
    factors = []
    for number, (shape, order) in enumerate(zip(logical, orders, strict=False)):
        stored = [0] * 4
        for i, d in enumerate(order):
            stored[d] = shape[i]
        given = net.input(*stored, name=f"x{number}")
        factors.append(given if order == PLAIN else net.transpose(given, *order))
    product = net.matmul(*factors)
    model = net.model(net.transpose(product, *orders[2]) if orders[2] != PLAIN else product)
    module = check(model, None, tolerance, emulate=True, precision=precision, arch=arch)
    found = [layer for layer in module.compiled.layers if layer.kernels and "Copy" not in layer.op]
    assert len(found) == kernels


def test_batches_of_heads_are_stored_in_order() -> None:
    """Results of two dimensions of matrices keep a transposition of their own."""
    net = FloatNet("two")
    a, b = net.input(2, 9, 3, 16, name="a"), net.input(2, 7, 3, 16, name="b")
    product = net.matmul(net.transpose(a, 0, 2, 1, 3), net.transpose(b, 0, 2, 3, 1))
    check(net.model(net.transpose(product, 0, 2, 1, 3)), 2, 3e-6, emulate=True)


def transformer_layer() -> onnx.ModelProto:
    """With a causal mask, 33 tokens and 2 heads."""
    net = FloatNet("layer")
    x = net.input(1, 33, 32)
    hidden = np.triu(np.full((33, 33), -np.inf, np.float32), 1)[None, None]
    x = net.binary("Add", x, net.attention(net.layer_norm(x), 2, hidden))
    return net.model(net.binary("Add", x, net.mlp(net.layer_norm(x), 40)))


@pytest.mark.parametrize(("precision", "arch", "tolerance"), KINDS)
def test_a_transformer_has_few_kernels(precision: str, arch: str, tolerance: float) -> None:
    """Normalisations and softmax are a kernel each, transpositions, biases, GELU and residual
    connections are none."""
    model = transformer_layer()
    # Normalisations 2, softmax 1, products 8.
    check(model, 11, tolerance, emulate=True, precision=precision, arch=arch)


def test_a_transposed_product_is_that_of_transposed_tensors() -> None:
    op = TransposedMatMul(((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    q, k = RNG.normal(size=(2, 5, 3, 4)), RNG.normal(size=(2, 7, 3, 4))
    wanted = np.einsum("nihd,njhd->nihj", q, k)
    np.testing.assert_allclose(op.evaluate(q, k), wanted)
    assert op.infer((q.shape, "float32"), (k.shape, "float32")) == (wanted.shape, "float32")
    assert op.macs(q.shape, k.shape) == wanted.size * 4
    tensors = [placeholder(x.shape, "float32", name) for x, name in ((q, "q"), (k, "k"))]
    found = op.expression(tensors, [x.shape for x in (q, k)])
    result = np.zeros(wanted.shape, np.float32)
    func = lower(create_schedule(found.output), [*tensors, found.output], "product")
    compile_func(func, host_processor())(*(x.astype(np.float32) for x in (q, k)), result)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
