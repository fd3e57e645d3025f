"""The graph's meaning in NumPy, before fusion (float QDQ) and after (integers): the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...isa.errors import VdlaError
from .arithmetic.requant import INT8_MIN, shift_half_even
from .ir import Graph, Node
from .ops.fixed_point import FixedOp
from .ops.general import Primitive
from .ops.integer import (
    Add,
    AvgPool,
    Bounded,
    Clip,
    Conv2d,
    ConvTranspose2d,
    Dense,
    Dequantize,
    Identity,
    MaxPool,
    Op,
    Pads,
    Pair,
    QAdd,
    QAvgPool,
    QConv2d,
    QConvTranspose2d,
    QDense,
    QMaxPool,
    Quant,
    Quantize,
    Relu,
    Reshape,
)


def interpret(graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    """The graph's outputs for its inputs, in the graph's order; errors as :func:`evaluate`."""
    if len(inputs) != len(graph.inputs):
        raise VdlaError(
            f"graph {graph.name}: expected {len(graph.inputs)} inputs, got {len(inputs)}"
        )
    values = evaluate(graph, dict(zip(graph.inputs, inputs, strict=True)))
    return [values[name] for name in graph.outputs]


def evaluate(graph: Graph, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor's value by name, constants included.

    Raises
    ------
    VdlaError
        When an input is missing or has another shape or dtype than the graph declares.
    """
    values = {t.name: t.data for t in graph.tensors.values() if t.data is not None}
    for name in graph.inputs:
        tensor, value = graph[name], inputs.get(name)
        if value is None:
            raise VdlaError(f"graph {graph.name}: input {name!r} is missing, got {sorted(inputs)}")
        if value.shape != tensor.shape or str(value.dtype) != tensor.dtype:
            raise VdlaError(
                f"graph {graph.name}: input {name!r} expects {tensor.type_text},"
                f" got {value.dtype}{list(value.shape)}"
            )
        values[name] = value
    for node in graph.nodes:
        values[node.output] = evaluate_op(node.op, *(values[name] for name in node.inputs))
    return values


def evaluate_nodes(
    graph: Graph, nodes: Sequence[Node], wanted: Sequence[str], values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The ``wanted`` tensors that nodes compute, in running order, from ``values``.

    General operators run as machine code (which is their meaning): then all the nodes do, at once.
    """
    if any(isinstance(node.op, Primitive) for node in nodes):
        from ..targets.cpu.graph_code import build_part

        module = build_part(graph, nodes, wanted)
        found = module.run(*(values[name] for name in module.graph.inputs))
        return dict(zip(wanted, found, strict=True))
    known = dict(values)
    for node in nodes:
        known[node.output] = evaluate_op(node.op, *(known[name] for name in node.inputs))
    return {name: known[name] for name in wanted}


def evaluate_op(op: Op, *args: np.ndarray) -> np.ndarray:
    """One operator on arrays of the shapes and dtypes that its docstring gives."""
    match op:
        case Quantize():
            return _quantize(args[0], op.quant)
        case Dequantize():
            return _dequantize(args[0], op.quant)
        case Reshape():
            return args[0].reshape(op.shape)
        case Identity():
            return args[0]
        case Relu():
            return np.maximum(args[0], np.float32(0))
        case Clip():
            return _clip(args[0], op)
        case Conv2d() | ConvTranspose2d() | Dense() | Add() | MaxPool() | AvgPool():
            return _clip(_float_op(op, *args), op)
        case QConv2d():
            x, weight, bias = args
            shifted = x.astype(np.float64) - op.x_zero_point
            acc = _conv(shifted, weight.astype(np.float64), op)
            return op.requant.apply(_int32(acc.astype(np.int64) + bias.reshape(1, -1, 1, 1)))
        case QConvTranspose2d():
            x, weight, bias = args
            shifted = x.astype(np.float64) - op.x_zero_point
            acc = _conv_transpose(shifted, weight.astype(np.float64), op)
            return op.requant.apply(_int32(acc.astype(np.int64) + bias.reshape(1, -1, 1, 1)))
        case QDense():
            x, weight, bias = args
            acc = (x.astype(np.float64) - op.x_zero_point) @ weight.T.astype(np.float64)
            return op.requant.apply(_int32(acc.astype(np.int64) + bias))
        case QAdd():
            a, b = (arg.astype(np.int64) for arg in args)
            total = a * op.mult_a + b * op.mult_b + op.const
            rounded = shift_half_even(total, op.shift) + op.zero_point
            return np.clip(rounded, op.lo, op.hi).astype(np.int8)
        case QMaxPool():
            seen = windows(args[0], op.kernel, op.strides, op.pads, fill=INT8_MIN)
            return np.clip(seen.max(axis=(4, 5)), op.lo, op.hi)
        case QAvgPool():
            shifted = args[0].astype(np.int64) - op.x_zero_point
            total = windows(shifted, op.kernel, op.strides, op.pads).sum(axis=(4, 5))
            return op.requant.apply(_int32(total))
        case FixedOp():
            return op.evaluate(*args)
        case Primitive():
            from ..targets.cpu.graph_code import run_op  # machine code is the meaning of all others

            return run_op(op, args)
        case _:
            raise VdlaError(f"the interpreter does not know operator {op!r}")


def windows(
    x: np.ndarray,
    kernel: Pair,
    strides: Pair,
    pads: Pads,
    dilations: Pair = (1, 1),
    fill: float = 0,
) -> np.ndarray:
    """The windows [N,C,OH,OW,KH,KW] of x [N,C,H,W], of its dtype, ``fill`` outside the image."""
    top, left, bottom, right = pads
    spread = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(x, spread, constant_values=fill) if any(pads) else x
    reach = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    return view[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


def _float_op(op: Bounded, *args: np.ndarray) -> np.ndarray:
    match op, args:
        case Conv2d(), (x, weight, *bias):
            y = _conv(x, weight, op)
            return y + bias[0].reshape(1, -1, 1, 1) if bias else y
        case ConvTranspose2d(), (x, weight, *bias):
            y = _conv_transpose(x, weight, op)
            return y + bias[0].reshape(1, -1, 1, 1) if bias else y
        case Dense(), (x, weight, *bias):
            y = x @ (weight.T if op.transposed else weight)
            return y + bias[0] if bias else y
        case Add(), (a, b):
            return a + b
        case MaxPool(), (x,):
            return windows(x, op.kernel, op.strides, op.pads, fill=-np.inf).max(axis=(4, 5))
        case AvgPool(), (x,):
            total = windows(x, op.kernel, op.strides, op.pads).sum(axis=(4, 5))
            image = np.ones((1, 1, *x.shape[2:]), x.dtype)
            fill = 1 if op.count_include_pad else 0
            counts = windows(image, op.kernel, op.strides, op.pads, fill=fill).sum(axis=(4, 5))
            return total / counts
        case _:
            raise VdlaError(f"the interpreter does not know operator {op!r}")


def _conv(x: np.ndarray, weight: np.ndarray, op: Conv2d | QConv2d) -> np.ndarray:
    """Convolution in the operands' float dtype; in float64, integers below 2**53 are exact."""
    kernel = (weight.shape[2], weight.shape[3])
    seen = windows(x, kernel, op.strides, op.pads, op.dilations)
    per_group = zip(
        np.split(seen, op.groups, axis=1), np.split(weight, op.groups, axis=0), strict=True
    )
    parts = [np.tensordot(s, w, axes=([1, 4, 5], [1, 2, 3])) for s, w in per_group]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def _conv_transpose(
    x: np.ndarray, weight: np.ndarray, op: ConvTranspose2d | QConvTranspose2d
) -> np.ndarray:
    """Convolution of the image, zeros between its elements, with the kernel turned around; in the
    operands' float dtype."""
    kernel = (weight.shape[2], weight.shape[3])
    spread = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], op.strides, strict=True)]
    after = [max(b + n - w, 0) for b, n, w in zip(op.before, op.size, spread, strict=True)]
    (top, left), (bottom, right) = ((k - 1 for k in kernel), after)
    apart = np.zeros((*x.shape[:2], *spread), x.dtype)
    apart[:, :, :: op.strides[0], :: op.strides[1]] = x
    seen = windows(apart, kernel, (1, 1), (top, left, bottom, right))
    rows, cols = (slice(b, b + n) for b, n in zip(op.before, op.size, strict=True))
    turned = weight[:, :, ::-1, ::-1]
    y = np.tensordot(seen[:, :, rows, cols], turned, axes=([1, 4, 5], [0, 2, 3]))
    return np.moveaxis(y, -1, 1)


def _clip(x: np.ndarray, op: Clip | Bounded) -> np.ndarray:
    if op.lo == -np.inf and op.hi == np.inf:
        return x
    return np.minimum(np.maximum(x, np.float32(op.lo)), np.float32(op.hi))


def _quantize(x: np.ndarray, quant: Quant) -> np.ndarray:
    limits = np.iinfo(quant.dtype)
    steps = np.rint(x / quant.broadcast(quant.scale, x.ndim)).astype(np.float64)
    stored = steps + quant.broadcast(quant.zero_point, x.ndim)
    return np.clip(stored, limits.min, limits.max).astype(quant.dtype)


def _dequantize(x: np.ndarray, quant: Quant) -> np.ndarray:
    shifted = x.astype(np.int64) - quant.broadcast(quant.zero_point, x.ndim)
    return shifted.astype(np.float32) * quant.broadcast(quant.scale, x.ndim)


def _int32(acc: np.ndarray) -> np.ndarray:
    """int64 wrapped to int32, as the machine's accumulators do."""
    return acc.astype(np.int32)
