"""Every ONNX operator by itself, over random shapes, dtypes, strides, dilations, groups, paddings
and other attributes, against ONNX Runtime.

One case of each, or as many as ``VDLA_FUZZ`` says (``make operators`` runs 300). Every case has a
number, and is the same each time.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import nullcontext

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from vdla.compiler.frontends.onnx.decoders import RULES
from vdla.compiler.frontends.onnx.importer import import_onnx
from vdla.compiler.frontends.onnx.ops import DOMAINS, READERS, deeploy, legacy
from vdla.compiler.graph.interpret import interpret
from vdla.compiler.graph.ops.base import Op
from vdla.compiler.graph.ops.bit_serial import BitSerialConv2d, BitSerialDense
from vdla.compiler.graph.ops.blocked.convolution import (
    BlockedConv2d,
    BlockedDepthwise,
    BlockedWinograd,
)
from vdla.compiler.graph.ops.blocked.dense import PackColumns, PackedDense
from vdla.compiler.graph.ops.blocked.four_bits import FourBitRows
from vdla.compiler.graph.ops.blocked.integer import BlockedDotConv2d, BlockedQConv2d
from vdla.compiler.graph.ops.blocked.matrix import BlockedMatrixConv2d
from vdla.compiler.graph.ops.blocked.pooling import BlockedPool
from vdla.compiler.graph.ops.blocked.transposed import BlockedConvTranspose2d
from vdla.compiler.graph.ops.channels_last import ChannelsLast, PadLast
from vdla.compiler.graph.ops.convolution import (
    Conv2d,
    Convolution,
    ConvolutionTranspose,
    ConvTranspose2d,
    QConv2d,
    QConvTranspose2d,
    StoredConv2d,
)
from vdla.compiler.graph.ops.elementwise import Add, Clip, Map, Relu, SubtractZeroPoint
from vdla.compiler.graph.ops.fused import Fused, FusedParts, FusedRows
from vdla.compiler.graph.ops.fused_pairs import (
    ProductChain,
    QConvAdd,
    QConvAddChannels,
    QConvTable,
    QConvWindow,
    QTableMean,
    QTableMul,
)
from vdla.compiler.graph.ops.group_matmul import (
    QAddChannels,
    QGroupMatMul,
    TransposeGroups,
)
from vdla.compiler.graph.ops.in_phases import InPhases
from vdla.compiler.graph.ops.integer import QAdd, QAddFixed, QMul, QSoftmax, QTable
from vdla.compiler.graph.ops.layout import (
    BlockReshape,
    FromBlocks,
    Interleave,
    PackWindows,
    ToBlocks,
)
from vdla.compiler.graph.ops.linear import Dense, MatMul, QDense, QMatMul, TransposedMatMul
from vdla.compiler.graph.ops.movement import (
    Concat,
    Gather,
    GatherElements,
    Identity,
    Interpolate,
    Pad,
    ReplaceEnd,
    Reshape,
    Slice,
    Transpose,
)
from vdla.compiler.graph.ops.narrow import Copy, Narrow
from vdla.compiler.graph.ops.normalisation import QLayerNorm, QNormalise, RowDigits
from vdla.compiler.graph.ops.pooling import (
    AvgPool,
    MaxPool,
    Pool,
    PoolArg,
    QAvgPool,
    QAvgPoolValid,
    QMaxPool,
)
from vdla.compiler.graph.ops.quantisation import Dequantize, Quantize, QuantizeAway, Recentre
from vdla.compiler.graph.ops.reduction import ArgReduce, Reduce
from vdla.compiler.graph.ops.rotation import QRotate
from vdla.compiler.graph.ops.shared_matmul import QSharedMatMul
from vdla.compiler.graph.ops.softmax import QTableSoftmax
from vdla.compiler.graph.passes import GRAPH_PASSES, run_passes
from vdla.compiler.targets.cpu.graph_code import build_cpu, on_blocks
from vdla.compiler.targets.cpu.lowering import new_chooser
from vdla.compiler.targets.cpu.processor import host_processor

from ....processors import DEFAULT, on_processor
from .cases import (
    decoders,
    elements,
    optimised,
    places,
    quantised,
    recurrent,
    reductions,
    shapes,
    signals,
    windows,
)
from .cases.draw import Draw, Maker, Operand, Refused, Sample, results, run_session

CASES = int(os.environ.get("VDLA_FUZZ", "1"))
#: How often a case is drawn anew because ONNX Runtime refuses the model.
TRIES = 30
#: From so many cases on, few may be refused, or have no kernel in ONNX Runtime.
MANY = 25
#: What this version of ONNX Runtime does not know: ``test_means_of_integers``.
UNKNOWN = "com.microsoft.QLinearReduceMean"
#: What it has no kernel for; ONNX's own cases test it.
OF_THE_SUITE = ("BitCast", "CumProd")
OPERATORS: dict[str, Maker] = (
    elements.MAKERS | optimised.MAKERS | places.MAKERS | quantised.MAKERS | recurrent.MAKERS
    | reductions.MAKERS | shapes.MAKERS | signals.MAKERS | windows.MAKERS
    | {f"com.microsoft.{kind}": maker
       for makers in (decoders, optimised, quantised) for kind, maker in makers.OWN_MAKERS.items()}
)  # fmt: skip


#: What only files of its quantiser have: ``test_ort_quantised.py``.
OF_FILES = (
    "com.microsoft.DynamicQuantizeLSTM", *deeploy.READERS, *legacy.READERS,
)  # fmt: skip
#: The operators of ``topi`` of which there are fewer cases than of ONNX operators, by the operator
#: that becomes them, or is blocked around them.
TOPI: dict[type[Op], str] = {
    AvgPool: "AveragePool", BlockedConv2d: "Conv", BlockedConvTranspose2d: "ConvTranspose",
    BlockedDepthwise: "Conv", BlockedDotConv2d: "QLinearConv", Clip: "Clip", Conv2d: "Conv",
    ConvTranspose2d: "ConvTranspose", Convolution: "ConvInteger",
    ConvolutionTranspose: "ConvTranspose", Dense: "MatMul", FromBlocks: "Conv",
    Interpolate: "Resize", MaxPool: "MaxPool", PackedDense: "Gemm",
    Pool: "MaxPool", PoolArg: "MaxPool", QAdd: "com.microsoft.QLinearAdd", QConv2d: "QLinearConv",
    QDense: "QLinearMatMul", QMatMul: "QLinearMatMul", QMaxPool: "MaxPool",
    StoredConv2d: "ConvInteger", SubtractZeroPoint: "MatMulInteger", ToBlocks: "Conv",
}  # fmt: skip
#: In every case of an ONNX operator.
COMMON = {
    Add, ArgReduce, Concat, Dequantize, Gather, GatherElements, Identity, Map, MatMul, Pad,
    Quantize, Recentre, Reduce, Relu, Reshape, Slice, Transpose,
}  # fmt: skip
#: Operators that are made of several ONNX operators, or only for other processors. They are tested
#: in ``test_random_operators.py``, ``test_cpu_blocks.py``, ``test_winograd.py``,
#: ``test_products.py`` and ``test_transposed_convolution.py``.
OF_SEVERAL = {PackColumns, BlockedPool, BlockedQConv2d, BlockedWinograd, QAvgPool, QConvTranspose2d}


def test_every_operator_of_topi_is_named() -> None:
    """Except those of TensorFlow Lite, of the accelerator and of GPUs, and those made of several
    operators, which have tests of their own. Others derive from some of these."""
    tflite = {QAddFixed, QMul, QAvgPoolValid, QTable, QSoftmax, QuantizeAway, Recentre}
    others = {BlockReshape, PackWindows, ChannelsLast, Fused, BitSerialConv2d, BitSerialDense}
    others |= {
        FusedParts,
        FusedRows,
        ProductChain,
        TransposedMatMul,
        Narrow,
        Interleave,
        BlockedMatrixConv2d,
        QAddChannels,
        QConvAddChannels,
    }
    others |= {QConvAdd, QConvTable, QGroupMatMul, TransposeGroups, QTableSoftmax, QLayerNorm}
    others |= {ReplaceEnd, FourBitRows, QSharedMatMul}
    others |= {
        Copy,
        PadLast,
        RowDigits,
        QNormalise,
        QTableMean,
        QTableMul,
        QConvWindow,
        InPhases,
        QRotate,
    }
    assert (
        operators(Op) | {BlockedDotConv2d, Fused, MatMul, QMatMul}
        == {*TOPI, *COMMON, *OF_SEVERAL} | tflite | others
    )


def operators(base: type) -> set[type]:
    """The package's operators that derive from a base class and are no base class themselves."""
    below = [kind for kind in base.__subclasses__() if kind.__module__.startswith("vdla.")]
    return set().union(*map(operators, below)) if below else {base}


def test_every_operator_is_drawn() -> None:
    own = {*DOMAINS["com.microsoft"], *RULES}
    readers = {*READERS, *(f"com.microsoft.{kind}" for kind in own)}
    assert {*OPERATORS} == readers - {UNKNOWN, *OF_THE_SUITE, *OF_FILES}


@pytest.mark.parametrize("number", range(CASES))
def test_means_of_integers(number: int) -> None:
    """QLinearReduceMean is the mean of real values, as ONNX's own operators say it."""
    sample = quantised.integer_mean(Draw(f"{UNKNOWN} {number}"))
    plain = sample.model()
    del plain.graph.node[:], plain.opset_import[:]
    plain.opset_import.append(helper.make_opsetid("", 13))
    plain.graph.node.extend([
        helper.make_node("DequantizeLinear", ["x0", "x1", "x2"], ["real"]),
        helper.make_node("ReduceMean", ["real"], ["mean"], **sample.attributes),
        helper.make_node("QuantizeLinear", ["mean", "x3", "x4"], ["y0"]),
    ])  # fmt: skip
    compare(sample, results(plain, sample.feeds())[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_maximum_of_nothing(dtype: type) -> None:
    """Dilated windows of which some are all padding, as case 246 of MaxPool has them."""
    x = np.random.default_rng(0).normal(0, 1, (1, 2, 5, 1, 4)).astype(dtype)
    node = helper.make_node(
        "MaxPool", ["x"], ["y"], kernel_shape=[2, 2, 4], strides=[3, 3, 1], dilations=[2, 2, 3],
        pads=[0, 1, 3, 0, 1, 3], ceil_mode=1,
    )  # fmt: skip
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [node], "pool", [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    [wanted] = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert wanted.min() == np.finfo(dtype).min
    [got] = build_cpu(run_passes(import_onnx(model), GRAPH_PASSES)).run(x)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("size", [(5,), (3, 4, 2)], ids=["row", "volume"])
def test_channels_of_quantised_rows_and_volumes(size: tuple[int, ...]) -> None:
    """uint8 weights of an int8 image, a scale for each channel: ONNX Runtime has no kernel, and
    ONNX's evaluator places the scales as those of images of two dimensions."""
    rng, ones = np.random.default_rng(3), [1] * len(size)
    operands = [
        rng.integers(-128, 128, (1, 3, *size)).astype(np.int8), np.float32(0.1), np.int8(-5),
        rng.integers(0, 256, (4, 3, *(2 * n for n in ones))).astype(np.uint8),
        rng.uniform(0.01, 0.1, 4).astype(np.float32), np.full(4, 128, np.uint8),
        np.float32(3), np.int8(7), rng.integers(-5000, 5000, 4).astype(np.int32),
    ]  # fmt: skip
    held = [Operand(np.asarray(a), is_constant=i > 0) for i, a in enumerate(operands)]
    sample = Sample("QLinearConv", held, {"pads": [*ones, *ones]}, steps=quantised.ONE)
    plain = sample.model()
    del plain.graph.node[:]
    plain.graph.initializer.append(
        numpy_helper.from_array((operands[8] * operands[1] * operands[4]).astype("f4"), "bias")
    )
    plain.graph.node.extend([
        helper.make_node("DequantizeLinear", ["x0", "x1", "x2"], ["image"]),
        helper.make_node("DequantizeLinear", ["x3", "x4", "x5"], ["weight"], axis=0),
        helper.make_node("Conv", ["image", "weight", "bias"], ["sums"], **sample.attributes),
        helper.make_node("QuantizeLinear", ["sums", "x6", "x7"], ["y0"]),
    ])  # fmt: skip
    compare(sample, run_session(plain, sample.feeds()))


def drawn(name: str, number: int, seen: Counter[str]) -> tuple[Sample, list[np.ndarray]]:
    """A case that ONNX Runtime takes, and its results; ``seen`` counts who computed them, and what
    was refused."""
    for attempt in range(TRIES):
        sample = OPERATORS[name](Draw(f"{name} {number} {attempt}"))
        try:
            wanted, by = results(sample.model(), sample.feeds())
        except Refused:
            seen["refused"] += 1
            continue
        seen[by] += 1
        return sample, wanted
    raise AssertionError(f"ONNX Runtime refuses {TRIES} models in a row")


def compare(sample: Sample, wanted: list[np.ndarray]) -> None:
    """Machine code gives these results, and so does the interpreter, for blocks of channels too."""
    try:
        graph = run_passes(import_onnx(sample.model()), GRAPH_PASSES)
        feeds = sample.feeds()
        inputs = [feeds[name] for name in graph.inputs]
        for got in (
            build_cpu(graph).run(*inputs),
            interpret(graph, *inputs),
            interpret(on_blocks(graph, host_processor(), new_chooser(host_processor())), *inputs),
        ):
            for a, b in zip(got, wanted, strict=True):
                agree(a, b, sample.steps)
    except Exception as error:
        error.add_note(describe(sample))
        raise


def agree(got: np.ndarray, wanted: np.ndarray, steps: int) -> None:
    """The same type; integers equal up to ``steps``, floats up to rounding errors."""
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    if got.dtype.kind == "f":
        finite = wanted[np.isfinite(wanted)]
        atol = 2e-5 * float(np.abs(finite).max(initial=1))
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=atol)
    elif steps:
        assert np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max(initial=0) <= steps
    else:
        np.testing.assert_array_equal(got, wanted)


def describe(sample: Sample) -> str:
    """The case in a line."""
    operands = [
        f"{o.array.dtype}{list(o.array.shape)}{' constant' * o.is_constant}" if o else "absent"
        for o in sample.operands
    ]
    return f"{sample.kind}({', '.join(operands)}) {sample.attributes}"


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name: str) -> None:
    seen: Counter[str] = Counter()
    for number in range(CASES):
        try:
            compare(*drawn(name, number, seen))
        except Exception as error:
            error.add_note(f"case {number}")
            raise
    assert CASES < MANY or seen["refused"] <= CASES / 2, seen
    assert CASES < MANY or seen["ONNX Runtime"] >= CASES / 4, seen


#: Operators for processors with dot products of bytes.
NEEDS_DOTS = {BlockedDotConv2d, StoredConv2d}


@pytest.mark.slow
@pytest.mark.parametrize("op", TOPI, ids=lambda op: op.__name__)
def test_operator_of_topi(op: type[Op]) -> None:
    """Draw cases until ``CASES`` of them have this operator."""
    with on_processor(DEFAULT) if op in NEEDS_DOTS else nullcontext():
        draw_until_found(op)


def draw_until_found(op: type[Op]) -> None:
    name, found, number = TOPI[op], 0, CASES
    while found < CASES:
        number += 1
        assert number < 100 * (CASES + 1), f"{op.__name__} is in {found} of {number} cases"
        sample = OPERATORS[name](Draw(f"{name} {number} 0"))
        graph = run_passes(import_onnx(sample.model()), GRAPH_PASSES)
        blocked = on_blocks(graph, host_processor(), new_chooser(host_processor()))
        if not any(isinstance(node.op, op) for node in blocked.nodes):
            continue
        try:
            compare(sample, results(sample.model(), sample.feeds())[0])
        except Refused:
            continue
        except Exception as error:
            error.add_note(f"case {number}")
            raise
        found += 1
