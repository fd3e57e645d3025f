"""QONNX's operators against their definition, in NumPy as the qonnx package has it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.convolution import QConv2d
from vdla.compiler.graph.ops.quantisation import Quantize
from vdla.compiler.graph.passes import run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu
from vdla.isa.errors import VdlaError

DOMAIN = "qonnx.custom_op.general"
RNG = np.random.default_rng(7)
#: Ties and values beyond all bounds of few bits.
X = np.concatenate([np.arange(-24, 24) / 8, RNG.normal(size=72) * 9]).astype(np.float32)
X = X.reshape(2, 3, 4, 5)


def model(
    *nodes: onnx.NodeProto, x: np.ndarray = X, domain: str = DOMAIN, **constants: object
) -> onnx.ModelProto:
    """Nodes from ``x`` to ``y``; constants are float32."""
    graph = helper.make_graph(
        nodes, "qonnx", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 13), helper.make_opsetid(domain, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def run(made: onnx.ModelProto, x: np.ndarray = X) -> np.ndarray:
    """What the imported graph computes, which passes and the CPU's code do not change."""
    graph = import_onnx(made)
    (y,) = interpret(graph, x)
    np.testing.assert_array_equal(build_cpu(run_passes(graph)).run(x)[0], y)
    return y


ROUNDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ROUND": np.round,
    "half_even": np.round,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "DOWN": np.fix,
    "UP": lambda v: np.sign(v) * np.ceil(np.abs(v)),
    "HALF_UP": lambda v: np.sign(v) * np.floor(np.abs(v) + np.float32(0.5)),
    "HALF_DOWN": lambda v: np.sign(v) * np.ceil(np.abs(v) - np.float32(0.5)),
}


def quant(
    x: np.ndarray, scale: np.ndarray, zero: int, bits: int, signed: int, narrow: int, mode: str
) -> np.ndarray:
    steps = x / scale + np.float32(zero)
    if bits == 1 and signed:
        steps = np.where(steps >= 0, np.float32(1), np.float32(-1))
    else:
        low = -(2 ** (bits - 1)) + narrow if signed else 0
        high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
        steps = ROUNDED[mode](np.clip(steps, np.float32(low), np.float32(high)))
    return (steps - np.float32(zero)) * scale


def quant_node(source: str, result: str, scale: str, bits: str, **attributes: object):  # type: ignore[no-untyped-def]
    given = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"} | attributes
    operands = [source, scale, "zero", bits]
    return helper.make_node("Quant", operands, [result], domain=DOMAIN, **given)


@pytest.mark.parametrize("mode", ROUNDED)
@pytest.mark.parametrize("bits", [1, 3, 8, 16])
@pytest.mark.parametrize("signed, narrow, zero", [(0, 0, 0), (0, 1, 3), (1, 0, 3), (1, 1, 0)])
def test_quant(signed: int, narrow: int, bits: int, mode: str, zero: int) -> None:
    scale = np.float32(0.25)
    node = quant_node("x", "y", "s", "bits", signed=signed, narrow=narrow, rounding_mode=mode)
    found = run(model(node, s=scale, zero=zero, bits=bits))
    np.testing.assert_array_equal(found, quant(X, scale, zero, bits, signed, narrow, mode))


@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (3, 1, 1), (1, 1, 4, 5)])
def test_quant_of_several_scales(shape: tuple[int, ...]) -> None:
    scale = np.linspace(0.2, 0.7, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    found = run(model(quant_node("x", "y", "s", "bits"), s=scale, zero=0, bits=8))
    np.testing.assert_array_equal(found, quant(X, scale, 0, 8, 1, 0, "ROUND"))


def test_bipolar() -> None:
    node = helper.make_node("BipolarQuant", ["x", "s"], ["y"], domain="onnx.brevitas")
    found = run(model(node, domain="onnx.brevitas", s=0.3))
    np.testing.assert_array_equal(found, np.where(X >= 0, np.float32(0.3), np.float32(-0.3)))


@pytest.mark.parametrize("mode", ["FLOOR", "ROUND"])
def test_trunc(mode: str) -> None:
    node = helper.make_node("Trunc", ["x", "s", "z", "i", "o"], ["y"], domain=DOMAIN,
                            rounding_mode=mode)  # fmt: skip
    steps = np.round(X / np.float32(0.25) + 2)
    right = (ROUNDED[mode](steps / 16) - 2) * np.float32(0.25)
    np.testing.assert_array_equal(run(model(node, s=0.25, z=2, i=8, o=4)), right)


def test_trunc_to_a_scale() -> None:
    node = helper.make_node("Trunc", ["x", "s", "z", "i", "t", "o"], ["y"], domain=DOMAIN,
                            rounding_mode="FLOOR", signed=1, narrow=0)  # fmt: skip
    steps = np.clip(np.round(X / np.float32(0.25) + 2) / 4, -8, 7)
    right = np.floor(steps) - np.float32(0.5)
    np.testing.assert_array_equal(run(model(node, s=0.25, z=2, i=8, t=1.0, o=4)), right)


def few_bits(
    x: np.ndarray, exponent: int, mantissa: int, bias: int, largest: float, mode: str
) -> np.ndarray:
    """The floats of few bits nearest to numbers, from their powers of two."""
    power = np.frexp(np.abs(x).astype(np.float64))[1] - 1
    step = 2.0 ** np.maximum(np.where(x == 0, -500, power) - mantissa, 1 - bias - mantissa)
    most = min((2 - 2.0**-mantissa) * 2.0 ** (2**exponent - 1 - bias), largest)
    return np.clip(ROUNDED[mode](x / step) * step, -most, most)


@pytest.mark.parametrize("mode", ["ROUND", "FLOOR"])
@pytest.mark.parametrize("form", [(4, 3, 7, 448), (5, 2, 15, 57344), (2, 1, 1, 6), (3, 0, 3, 1e9)])
def test_floats_of_few_bits(form: tuple[int, int, int, float], mode: str) -> None:
    wide = RNG.normal(size=300) * 10.0 ** RNG.uniform(-6, 5, 300)
    x = np.concatenate([wide, X.reshape(-1), 2.0 ** np.arange(-12, 12), [0.0]]).astype(np.float32)
    node = helper.make_node("FloatQuant", ["x", "s", *"embv"], ["y"], domain=DOMAIN,
                            rounding_mode=mode, has_inf=0, has_nan=0, saturation=1)  # fmt: skip
    found = run(model(node, x=x, s=0.5, **dict(zip("embv", form, strict=True))), x)
    np.testing.assert_array_equal(found, few_bits(x * 2, *form, mode) / 2)


@pytest.mark.parametrize("layout, axis", [("", 1), ("NCHW", 1), ("NHWC", 3)])
@pytest.mark.parametrize("shared", [True, False])
def test_multi_threshold(layout: str, axis: int, shared: bool) -> None:
    steps = np.sort(RNG.normal(size=(1 if shared else X.shape[axis], 7)), axis=1)
    steps = steps.astype(np.float32) * 5
    node = helper.make_node("MultiThreshold", ["x", "t"], ["y"], domain=DOMAIN, out_dtype="INT4",
                            out_scale=0.5, out_bias=-1.0, data_layout=layout)  # fmt: skip
    against = steps.reshape(-1, *[1] * (3 - axis), 7)
    right = (X[..., None] >= against).sum(-1).astype(np.float32) * 0.5 - 1
    np.testing.assert_array_equal(run(model(node, t=steps)), right)


def test_average_pool_loses_bits() -> None:
    x = np.round(X * 2)
    node = helper.make_node("QuantAvgPool2d", ["x"], ["y"], domain=DOMAIN, kernel=2, stride=2,
                            ibits=4, obits=4, signed=1)  # fmt: skip
    total = x[:, :, :, :4].reshape(2, 3, 2, 2, 2, 2).sum((3, 5))
    found = run(model(node, x=x), x)
    np.testing.assert_array_equal(found, np.floor(total / 4))


def network(weight_bits: int) -> onnx.ModelProto:
    weight = np.round(RNG.normal(size=(4, 3, 3, 3)) * 4) / 8
    scale = np.array([0.25, 0.125, 0.5, 0.25]).reshape(4, 1, 1, 1)
    return model(
        quant_node("x", "xq", "s", "eight"),
        quant_node("w", "wq", "t", "bits", narrow=1),
        helper.make_node("Conv", ["xq", "wq"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        quant_node("r", "y", "u", "four", signed=0),
        w=weight, s=0.0625, t=scale, u=0.5, zero=0, eight=8, four=4, bits=weight_bits,
    )  # fmt: skip


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_a_convolution_becomes_one_of_integers(bits: int) -> None:
    """Its scales are powers of two, so that floats and integers compute the same."""
    made = network(bits)
    graph = run_passes(import_onnx(made))
    kinds = [type(node.op) for node in graph.nodes]
    assert QConv2d in kinds and kinds.count(Quantize) == 1
    assert len(np.unique(run(made))) > 5


def test_refusals() -> None:
    with pytest.raises(VdlaError, match=r"rounding_mode is one of ROUND, .*, got 'ODD'"):
        run(model(quant_node("x", "y", "s", "b", rounding_mode="odd"), s=1, zero=0, b=8))
    with pytest.raises(VdlaError, match=r"expected 1 to 64 bits, got 0\.0"):
        run(model(quant_node("x", "y", "s", "b"), s=1, zero=0, b=0))
    node = helper.make_node("Quantum", ["x"], ["y"], domain=DOMAIN)
    with pytest.raises(VdlaError, match=f"'{DOMAIN}.Quantum' is not supported"):
        run(model(node))
