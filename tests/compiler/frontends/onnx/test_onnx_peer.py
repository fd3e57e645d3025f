"""Operators as older operator sets write them, and options that ONNX's node tests leave out,
against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from vdla.compiler.onnx_backend import prepare

RNG = np.random.default_rng(11)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(
    kind: str,
    opset: int,
    arrays: list[np.ndarray | None],
    outputs: int = 1,
    constants: tuple[int, ...] = (),
    rtol: float = 1e-4,
    **attributes: Any,
) -> None:
    """One node on arrays; those at ``constants`` are initializers, None is an absent input."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(kind, names, results, "node", **attributes)
    given = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    stored = {f"x{i}" for i in constants}
    typed = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
        if n not in stored
    ]
    shaped = [helper.make_empty_tensor_value_info(name) for name in results]
    kept = [numpy_helper.from_array(a, n) for n, a in given.items() if n in stored]
    graph = helper.make_graph([node], "one", typed, shaped, kept)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {n: a for n, a in given.items() if n not in stored}
    expected = session.run(None, feed)
    for name, value in zip(results, expected, strict=True):
        made = np.asarray(value)
        typed_output = helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(made.dtype), made.shape
        )
        next(o for o in model.graph.output if o.name == name).CopyFrom(typed_output)
    got = prepare(model).run(feed)
    for a, b in zip(got, expected, strict=True):
        assert (a.dtype, a.shape) == (np.asarray(b).dtype, np.shape(b))
        np.testing.assert_allclose(a, b, rtol, 1e-5)


# ---- operands that were attributes ----


@pytest.mark.slow
@pytest.mark.parametrize("opset", [7, 9])
def test_old_slice_pad_squeeze_split(opset: int) -> None:
    x = floats(3, 1, 7)
    check("Slice", opset, [x], axes=[0, 2], starts=[1, -5], ends=[9, -1])
    check("Pad", opset, [x], pads=[0, 1, 2, 1, 0, 3], value=1.5)
    check("Pad", opset, [x], pads=[0, 0, 3, 0, 0, 2], mode="reflect")
    check("Squeeze", opset, [x], axes=[1])
    check("Unsqueeze", opset, [x], axes=[0, 4])
    check("Split", opset, [x], outputs=2, axis=2, split=[3, 4])
    check("Split", opset, [x], outputs=3, axis=0)
    check("Clip", opset, [x], min=-0.5, max=0.25)
    check("ReduceSum", opset, [x], axes=[0, -1], keepdims=0)
    check("Dropout", opset, [x])


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize("step", [-3, -1, 1, 2])
def test_slices_that_begin_or_end_beyond(step: int) -> None:
    x = floats(4, 3)
    for start in range(-7, 7):
        for end in (-9, -5, -4, -1, 0, 3, 4, 9):
            parts = [np.int64([n]) for n in (start, end, 0, step)]
            check("Slice", 13, [x, *parts], constants=(1, 2, 3, 4))


@pytest.mark.fast(2)
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_before_and_after_13(kind: str, opset: int, axis: int) -> None:
    check(kind, opset, [floats(2, 3, 4)], axis=axis)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_old_upsample(mode: str) -> None:
    scales = np.float32([1, 1, 2, 3])
    check("Upsample", 7, [floats(1, 2, 3, 4)], mode=mode, scales=scales.tolist())
    check("Upsample", 9, [floats(1, 2, 3, 4), scales], mode=mode, constants=(1,))
    check("Resize", 10, [floats(1, 2, 3, 4), scales * 0.75 + 0.25], mode=mode, constants=(1,))


def test_logic() -> None:
    a, b = RNG.random((2, 3)) < 0.5, RNG.random(3) < 0.5
    check("Not", 7, [a])
    for kind in ("And", "Or", "Xor"):
        check(kind, 7, [a, b])
    check("Where", 9, [a, floats(2, 3), floats(1, 3)])


@pytest.mark.fast(1)
@pytest.mark.parametrize("opset", [7, 11, 13])
def test_depth_and_space(opset: int) -> None:
    check("SpaceToDepth", opset, [floats(2, 3, 4, 6)], blocksize=2)
    check("DepthToSpace", opset, [floats(2, 12, 2, 3)], blocksize=2)
    if opset >= 11:
        check("DepthToSpace", opset, [floats(2, 12, 2, 3)], blocksize=2, mode="CRD")


# ---- windows ----


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_pads(mode: str) -> None:
    x = floats(1, 4, 9, 8)
    check("Conv", 11, [x, floats(6, 2, 4, 3)], auto_pad=mode, group=2, strides=[2, 1])
    check("MaxPool", 11, [x], auto_pad=mode, kernel_shape=[4, 3], strides=[3, 2])
    check("AveragePool", 11, [x], auto_pad=mode, kernel_shape=[4, 3], strides=[3, 2])


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_ranks(rank: int) -> None:
    size, ones = (8, 7, 6)[:rank], (1,) * rank
    x = floats(2, 4, *size)
    options: dict[str, Any] = {"strides": [2] * rank, "pads": [1, 0, 1][:rank] + [0, 1, 1][:rank]}
    check("Conv", 11, [x, floats(6, 2, *[3] * rank), floats(6)], group=2, **options)
    check("ConvTranspose", 11, [x, floats(4, 3, *[3] * rank), floats(6)], group=2, **options)
    check("MaxPool", 12, [x], outputs=2, kernel_shape=[3] * rank, **options)
    check("LpPool", 11, [x], kernel_shape=[3] * rank, p=3, strides=[2] * rank)
    check("GlobalMaxPool", 11, [x])
    check("GlobalAveragePool", 11, [x])
    check("InstanceNormalization", 11, [x, floats(4), floats(4)])
    check("PRelu", 11, [x, floats(4, *ones)])


@pytest.mark.slow
@pytest.mark.parametrize("strides", [[1, 1], [2, 3], [3, 2]])
@pytest.mark.parametrize("dilations", [[1, 1], [2, 1]])
def test_transposed_convolution(strides: list[int], dilations: list[int]) -> None:
    for extra in ([0, 0], [s - 1 for s in strides]):
        check(
            "ConvTranspose", 11, [floats(2, 3, 5, 4), floats(3, 2, 4, 3)],
            strides=strides, dilations=dilations, pads=[1, 2, 2, 0], output_padding=extra,
        )  # fmt: skip


# ---- recurrent networks ----

CELLS = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}


def recurrent(kind: str, directions: int, steps: int = 4, batch: int = 2) -> list:
    gates, width, hidden = CELLS[kind][0], 3, 5
    return [
        floats(steps, batch, width), floats(directions, gates * hidden, width),
        floats(directions, gates * hidden, hidden), floats(directions, 2 * gates * hidden),
    ]  # fmt: skip


@pytest.mark.fast(1)
@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_with_lengths_and_first_states(kind: str, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    states = [floats(directions, 2, 5) for _ in range(2 if kind == "LSTM" else 1)]
    lengths = np.array([4, 2], np.int32)
    operands = [*recurrent(kind, directions), lengths, *states]
    outputs = 3 if kind == "LSTM" else 2
    check(kind, 14, operands, outputs, (1, 2, 3), hidden_size=5, direction=direction)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CELLS)
def test_recurrent_options(kind: str) -> None:
    size = CELLS[kind][1]
    names = ["HardSigmoid", "Softsign", "LeakyRelu"][:size]
    operands = recurrent(kind, 1)
    check(
        kind, 14, operands, 1, (1, 2, 3), hidden_size=5, activations=names,
        activation_alpha=[0.3, 0.1], activation_beta=[0.4],
    )  # fmt: skip
    check(kind, 14, operands, 1, (1, 2, 3), hidden_size=5, clip=0.4)
    check(kind, 14, operands[:3], 1, (1, 2), hidden_size=5)


def test_gru_resets_after_the_product() -> None:
    check("GRU", 14, recurrent("GRU", 1), 2, (1, 2, 3), hidden_size=5, linear_before_reset=1)


@pytest.mark.slow
def test_lstm_with_peepholes_and_coupled_gates() -> None:
    operands = [*recurrent("LSTM", 1), None, None, None, floats(1, 15)]
    check("LSTM", 14, operands, 3, (1, 2, 3, 7), hidden_size=5)
    check("LSTM", 14, recurrent("LSTM", 1), 3, (1, 2, 3), hidden_size=5, input_forget=1)


# ---- integers ----


def test_division_of_integers_truncates() -> None:
    a = RNG.integers(-50, 50, 64).astype(np.int32)
    b = np.where(a % 7 == 0, 3, a % 7 - 9).astype(np.int32)
    check("Div", 14, [a, b])
    check("Mod", 13, [a, b])
    check("Mod", 13, [floats(8), floats(8)], fmod=1)


@pytest.mark.fast(1)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_quantised_convolution_per_channel(dtype: type) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = RNG.integers(low, high, (1, 4, 6, 5)).astype(dtype)
    weight = RNG.integers(-100, 100, (6, 2, 3, 3)).astype(np.int8)
    zero = np.array((low + high) // 2, dtype)
    operands = [
        x, np.array(0.02, np.float32), zero, weight, np.linspace(0.01, 0.05, 6, dtype=np.float32),
        np.zeros(6, np.int8), np.array(0.3, np.float32), zero,
        RNG.integers(-900, 900, 6).astype(np.int32),
    ]  # fmt: skip
    check("QLinearConv", 10, operands, 1, tuple(range(1, 9)), 0, group=2, pads=[1, 0, 1, 2])


@pytest.mark.parametrize("rank", [2, 3])
def test_quantised_products(rank: int) -> None:
    a = RNG.integers(0, 255, (2, 3, 4)[-rank:]).astype(np.uint8)
    b = RNG.integers(-128, 127, (2, 4, 5)[-rank:]).astype(np.int8)
    zero_a, zero_b = np.array(113, np.uint8), np.array(-3, np.int8)
    check("MatMulInteger", 10, [a, b, zero_a, zero_b], 1, (2, 3), 0)
    scales = [np.array(value, np.float32) for value in (0.1, 0.02, 0.3)]
    operands = [a, scales[0], zero_a, b, scales[1], zero_b, scales[2], zero_a]
    check("QLinearMatMul", 10, operands, 1, tuple(range(4, 8)), 0)


def test_linear_quantisation() -> None:
    x, scale = floats(2, 3, 4) * 9, np.float32([0.1, 0.2, 0.3])
    zero = np.array([3, 128, 200], np.uint8)
    check("QuantizeLinear", 13, [x, scale, zero], 1, (1, 2), 0, axis=1)
    stored = RNG.integers(0, 255, (2, 3, 4)).astype(np.uint8)
    check("DequantizeLinear", 13, [stored, scale, zero], 1, (1, 2), 0, axis=1)
    check("DynamicQuantizeLinear", 11, [x], 3, (), 0)
    for zeros in (np.zeros((), np.float32), np.zeros((2, 3), np.float32)):
        check("DynamicQuantizeLinear", 11, [zeros], 3, (), 0)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_integers_are_shrunk_as_floats(dtype: str) -> None:
    """The bias has a fraction, which only the result loses."""
    check("Shrink", 21, [np.arange(0, 9).astype(dtype)], bias=0.75, lambd=1.5)


@pytest.mark.slow
def test_the_first_of_equal_elements_whichever_way_indices_count() -> None:
    x = np.zeros((1, 2, 3, 4, 3), np.float32)
    for order in 0, 1:
        check("MaxPool", 12, [x], 2, kernel_shape=[2, 3, 2], pads=[1] * 6, storage_order=order)
    x[..., 1, 0] = 1
    check("MaxPool", 12, [x], 2, kernel_shape=[3, 3, 3], storage_order=1)
