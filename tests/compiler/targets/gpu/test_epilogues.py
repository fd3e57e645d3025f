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


def test_reshapes_sink_where_broadcasting_allows_it() -> None:
    """A bias lies along the last dimension of both shapes; a mask along the first two does not."""
    for size, kernels in (((24,), 1), ((1, 4, 1), 2)):
        net = FloatNet("sink")
        product = net.matmul(net.reshape(net.input(1, 4, 16), 4, 16), net.random("w", 16, 24))
        wide = net.reshape(product, 1, 4, 24)
        net.output(net.plus(wide, RNG.normal(size=size).astype(np.float32)))
        check(net.model(), kernels, 3e-6, emulate=True)


def test_a_transformer_has_few_kernels() -> None:
    """A layer of 16 heads' rows: normalisations and softmax are a kernel each, biases, GELU and
    residual connections are none."""
    net = FloatNet("layer")
    x = net.tokens(33, 30, 32)
    hidden = np.triu(np.full((33, 33), -np.inf, np.float32), 1)[None, None]
    x = net.binary("Add", x, net.attention(net.layer_norm(x), 2, hidden))
    model = net.model(net.binary("Add", x, net.mlp(net.layer_norm(x), 40)))
    # Tokens 2, normalisations 2, products 8, transpositions 4, softmax 1.
    check(model, 17, 3e-6, emulate=True)
