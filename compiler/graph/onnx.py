"""Import of ONNX models (opset 13 to 21), quantised ones in QDQ form, with shape inference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ...isa.errors import VdlaError
from .ir import DTYPES, Graph, Node, Tensor
from .ops import (
    Add,
    AvgPool,
    Clip,
    Conv2d,
    Dense,
    Dequantize,
    Identity,
    MaxPool,
    Op,
    Pads,
    Pair,
    Quant,
    Quantize,
    Relu,
    Reshape,
)
from .shapes import infer, window_extent
from .verify import verify

OPSETS = range(13, 22)


def import_onnx(source: str | Path | bytes | onnx.ModelProto, *, batch: int = 1) -> Graph:
    """Read a model into a graph of float and quantise/dequantise operators.

    Parameters
    ----------
    source
        A file, the bytes of one, or a loaded model.
    batch
        Value of a symbolic or missing first dimension of the inputs, at least 1.

    Raises
    ------
    VdlaError
        When the file is unreadable or damaged, or a node is not supported; the message names the
        node and the operator and says what is supported.
    """
    if batch < 1:
        raise VdlaError(f"expected a batch of at least 1, got {batch!r}")
    model, where = _load(source)
    try:
        graph = _Importer(where).run(model, batch)
    except (UnicodeDecodeError, DecodeError, OverflowError) as error:
        raise VdlaError(f"{where}: damaged ONNX model: {_first_line(error)}") from None
    verify(graph)
    return graph


def _load(source: str | Path | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    if isinstance(source, onnx.ModelProto):
        return source, "ONNX model"
    where = "ONNX model" if isinstance(source, bytes) else str(source)
    try:
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        else:
            model = onnx.load_model(str(source))
    except OSError as error:
        raise VdlaError(f"{where}: cannot read: {error.strerror or _first_line(error)}") from None
    except (DecodeError, ValueError, onnx.checker.ValidationError) as error:
        raise VdlaError(
            f"{where}: expected an ONNX model, got a damaged file: {_first_line(error)}"
        ) from None
    if not model.graph.node:
        raise VdlaError(f"{where}: expected an ONNX model with nodes, got none (is it truncated?)")
    return model, where


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass
class _Call:
    """One ONNX node while it is read: its operands, optional ones as None, and its attributes."""

    label: str
    operands: tuple[Tensor | None, ...]
    attributes: dict[str, Any]
    opset: int

    def refuse(self, why: str) -> VdlaError:
        return VdlaError(f"{self.label}: {why}")

    def operand(self, index: int) -> Tensor:
        """A required operand."""
        value = self.optional(index)
        if value is None:
            raise self.refuse(f"input {index} is missing")
        return value

    def optional(self, index: int) -> Tensor | None:
        return self.operands[index] if index < len(self.operands) else None

    def constant(self, index: int, what: str) -> np.ndarray:
        tensor = self.operand(index)
        if tensor.data is None:
            raise self.refuse(
                f"expected a constant {what}, got the computed tensor {tensor.name!r}"
            )
        return tensor.data

    def integer(self, name: str, default: int) -> int:
        """An attribute that is one integer."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise self.refuse(f"expected an integer {name}, got {value!r}")
        return value

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """An attribute that is a list of as many integers as the default."""
        value = self.attributes.get(name) or default
        is_list = isinstance(value, list | tuple) and all(isinstance(v, int) for v in value)
        if not is_list or len(value) != len(default):
            raise self.refuse(f"expected {len(default)} integers in {name} (2-D only), got {value}")
        return tuple(value)

    def only(self, **supported: object) -> None:
        """Refuse attributes with other values than these (an absent one is fine)."""
        for name, value in supported.items():
            got = self.attributes.get(name, value)
            if got != value:
                raise self.refuse(f"supported is {name} = {value!r}, got {got!r}")


@dataclass
class _Importer:
    where: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    def run(self, model: onnx.ModelProto, batch: int) -> Graph:
        opset = self.opset(model)
        for initializer in model.graph.initializer:
            self.define(Tensor.constant(initializer.name, self.array(initializer)))
        inputs = [i for i in model.graph.input if i.name not in self.tensors]
        for value in inputs:
            self.define(self.input(value, batch))
        for index, proto in enumerate(model.graph.node):
            self.node(proto, index, opset)
        outputs = tuple(value.name for value in model.graph.output)
        if not outputs:
            raise VdlaError(f"{self.where}: expected a model with outputs, got none")
        for name in outputs:
            if name not in self.tensors:
                raise VdlaError(f"{self.where}: output {name!r} is not computed by any node")
        name = model.graph.name or "main"
        return Graph(name, tuple(i.name for i in inputs), outputs, tuple(self.nodes), self.tensors)

    def opset(self, model: onnx.ModelProto) -> int:
        versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
        if len(versions) != 1 or versions[0] not in OPSETS:
            raise VdlaError(
                f"{self.where}: expected opset {OPSETS[0]} to {OPSETS[-1]},"
                f" got {versions or 'none'}; convert the model with onnx.version_converter"
            )
        return versions[0]

    def define(self, tensor: Tensor) -> None:
        if tensor.name in self.tensors:
            raise VdlaError(f"{self.where}: tensor {tensor.name!r} is defined twice")
        self.tensors[tensor.name] = tensor

    def array(self, proto: onnx.TensorProto) -> np.ndarray:
        try:
            data = np.ascontiguousarray(numpy_helper.to_array(proto)).reshape(tuple(proto.dims))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise VdlaError(
                f"{self.where}: constant {proto.name!r} is damaged: {_first_line(error)}"
            ) from None
        if str(data.dtype) not in DTYPES:
            raise VdlaError(
                f"{self.where}: constant {proto.name!r} has type {data.dtype},"
                f" supported are {', '.join(DTYPES)}"
            )
        return data

    def input(self, value: onnx.ValueInfoProto, batch: int) -> Tensor:
        kind = value.type.tensor_type
        if kind.elem_type != onnx.TensorProto.FLOAT or not kind.HasField("shape"):
            raise VdlaError(
                f"{self.where}: input {value.name!r}: expected a float32 tensor of known rank"
            )
        shape = [d.dim_value if d.HasField("dim_value") else 0 for d in kind.shape.dim]
        if shape and shape[0] == 0:
            shape[0] = batch
        if min(shape, default=1) < 1:
            raise VdlaError(
                f"{self.where}: input {value.name!r}: only the first dimension may be symbolic,"
                f" got shape {shape} (0 = unknown)"
            )
        return Tensor(value.name, tuple(shape), "float32")

    def node(self, proto: onnx.NodeProto, index: int, opset: int) -> None:
        name = proto.name or f"{proto.op_type}_{index}"
        label = f"node {name!r} ({proto.op_type})"
        reader = READERS.get(proto.op_type) if proto.domain in ("", "ai.onnx") else None
        if reader is None and not (proto.op_type == "Constant" and not proto.domain):
            operator = f"{proto.domain}.{proto.op_type}" if proto.domain else proto.op_type
            raise VdlaError(
                f"node {name!r}: operator {operator!r} is not supported;"
                f" supported are {', '.join(sorted([*READERS, 'Constant']))}"
            )
        for operand in proto.input:
            if operand and operand not in self.tensors:
                raise VdlaError(f"{label}: reads {operand!r}, which nothing before it defines")
        outputs = [output for output in proto.output if output]
        if len(outputs) != 1:
            raise VdlaError(f"{label}: expected one output, got {outputs!r}")
        try:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}
        except ValueError as error:
            raise VdlaError(f"{label}: damaged attributes: {_first_line(error)}") from None
        if reader is None:
            self.define(Tensor.constant(outputs[0], self.constant(attributes, label)))
            return
        operands = tuple(self.tensors[i] if i else None for i in proto.input)
        op, used = reader(_Call(label, operands, attributes, opset))
        shape, dtype = infer(op, used, name)
        quant = op.quant if isinstance(op, Quantize) else None
        self.define(Tensor(outputs[0], shape, dtype, quant=quant))
        self.nodes.append(Node(name, op, tuple(t.name for t in used), outputs[0]))

    def constant(self, attributes: dict[str, Any], label: str) -> np.ndarray:
        match attributes:
            case {"value": onnx.TensorProto() as proto}:
                return self.array(proto)
            case {"value_float": value} | {"value_floats": value}:
                return np.array(value, np.float32)
            case {"value_int": value} | {"value_ints": value}:
                return np.array(value, np.int64)
            case _:
                raise VdlaError(f"{label}: expected a tensor or numbers, got {sorted(attributes)}")


Read = tuple[Op, tuple[Tensor, ...]]


def _quant(call: _Call, default_dtype: str) -> Quant:
    call.only(block_size=0)
    rank = len(call.operand(0).shape)
    scale = call.constant(1, "scale")
    has_zero = call.optional(2) is not None
    zero = call.constant(2, "zero point") if has_zero else np.zeros(scale.shape, default_dtype)
    if scale.dtype != np.float32 or scale.ndim > 1 or zero.shape != scale.shape:
        raise call.refuse(
            f"expected float32 scales [] or [C] and as many zero points,"
            f" got {scale.dtype}{list(scale.shape)} and {zero.dtype}{list(zero.shape)}"
        )
    if str(zero.dtype) not in ("int8", "uint8", "int32"):
        raise call.refuse(f"supported are int8, uint8 and int32, got {zero.dtype}")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise call.refuse("expected positive finite scales")
    axis = call.integer("axis", 1)
    axis = None if scale.size == 1 else axis + rank if axis < 0 else axis
    return Quant(scale.reshape(-1), zero.reshape(-1).astype(np.int32), str(zero.dtype), axis)


def _quantize(call: _Call) -> Read:
    output = call.integer("output_dtype", 0)
    if output not in (0, onnx.TensorProto.INT8, onnx.TensorProto.UINT8):
        raise call.refuse(f"supported output types are int8 and uint8, got {output!r}")
    default = "int8" if output == onnx.TensorProto.INT8 else "uint8"
    return Quantize(_quant(call, default)), (call.operand(0),)


def _dequantize(call: _Call) -> Read:
    x = call.operand(0)
    if x.dtype not in ("int8", "uint8", "int32"):
        raise call.refuse(f"supported are int8, uint8 and int32, got {x.type_text}")
    return Dequantize(_quant(call, x.dtype)), (x,)


def _conv(call: _Call) -> Read:
    x, weight, bias = call.operand(0), call.operand(1), call.optional(2)
    if len(x.shape) != 4 or len(weight.shape) != 4:
        raise call.refuse(f"supported is 2-D convolution, got {x.type_text} and {weight.type_text}")
    kernel = (weight.shape[2], weight.shape[3])
    if call.integers("kernel_shape", kernel) != kernel:
        raise call.refuse(f"kernel_shape differs from the weight {weight.type_text}")
    strides, dilations = _pair(call, "strides"), _pair(call, "dilations")
    pads = _pads(call, kernel, strides, dilations)
    op = Conv2d(strides, pads, dilations, call.integer("group", 1))
    return op, (x, weight) if bias is None else (x, weight, bias)


def _pair(call: _Call, name: str) -> Pair:
    first, second = call.integers(name, (1, 1))
    if min(first, second) < 1:
        raise call.refuse(f"expected {name} >= 1, got {(first, second)!r}")
    return first, second


def _pads(call: _Call, kernel: Pair, strides: Pair, dilations: Pair) -> Pads:
    mode = call.attributes.get("auto_pad", b"NOTSET")
    if mode in (b"NOTSET", b""):
        top, left, bottom, right = call.integers("pads", (0, 0, 0, 0))
        return top, left, bottom, right
    if mode == b"VALID":
        return 0, 0, 0, 0
    if mode not in (b"SAME_UPPER", b"SAME_LOWER"):
        raise call.refuse(f"auto_pad {mode!r} is not supported")
    before, after = [], []
    sizes = call.operand(0).shape[2:]
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((math.ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
        small, large = total // 2, total - total // 2
        before.append(small if mode == b"SAME_UPPER" else large)
        after.append(large if mode == b"SAME_UPPER" else small)
    return before[0], before[1], after[0], after[1]


def _gemm(call: _Call) -> Read:
    call.only(transA=0, alpha=1.0, beta=1.0)
    op = Dense(transposed=bool(call.integer("transB", 0)))
    bias = call.optional(2)
    used = (call.operand(0), call.operand(1))
    return op, used if bias is None else (*used, bias)


def _matmul(call: _Call) -> Read:
    return Dense(transposed=False), (call.operand(0), call.operand(1))


def _window(call: _Call) -> tuple[Pair, Pair, Pads]:
    x = call.operand(0)
    if len(x.shape) != 4:
        raise call.refuse(f"supported is 2-D pooling, got {x.type_text}")
    if "kernel_shape" not in call.attributes:
        raise call.refuse("kernel_shape is missing")
    kernel, strides = _pair(call, "kernel_shape"), _pair(call, "strides")
    if _pair(call, "dilations") != (1, 1):
        raise call.refuse(f"supported is dilation 1, got {call.attributes['dilations']!r}")
    pads = _pads(call, kernel, strides, (1, 1))
    if call.integer("ceil_mode", 0):
        for dim in (0, 1):
            pad = pads[dim] + pads[dim + 2]
            size = x.shape[dim + 2]
            ceil = window_extent(size + strides[dim] - 1, kernel[dim], strides[dim], pad)
            if ceil != window_extent(size, kernel[dim], strides[dim], pad):
                raise call.refuse(
                    f"ceil_mode=1 is not supported where it rounds up, got {x.type_text}"
                )
    return kernel, strides, pads


def _max_pool(call: _Call) -> Read:
    call.only(storage_order=0)
    return MaxPool(*_window(call)), (call.operand(0),)


def _average_pool(call: _Call) -> Read:
    kernel, strides, pads = _window(call)
    include = bool(call.integer("count_include_pad", 0))
    return AvgPool(kernel, strides, pads, include), (call.operand(0),)


def _global_average_pool(call: _Call) -> Read:
    x = call.operand(0)
    if len(x.shape) != 4:
        raise call.refuse(f"supported is 2-D pooling, got {x.type_text}")
    return AvgPool((x.shape[2], x.shape[3]), (1, 1), (0, 0, 0, 0)), (x,)


def _flatten(call: _Call) -> Read:
    x = call.operand(0)
    axis = call.integer("axis", 1)
    if not -len(x.shape) <= axis <= len(x.shape):
        raise call.refuse(f"axis {axis!r} is outside {x.type_text}")
    axis = axis + len(x.shape) if axis < 0 else axis
    return Reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))), (x,)


def _reshape(call: _Call) -> Read:
    call.only(allowzero=0)
    x = call.operand(0)
    wanted = [int(v) for v in call.constant(1, "shape").reshape(-1)]
    if any(v == 0 and i >= len(x.shape) for i, v in enumerate(wanted)) or wanted.count(-1) > 1:
        raise call.refuse(f"cannot reshape {x.type_text} to {wanted}")
    shape = [x.shape[i] if v == 0 else v for i, v in enumerate(wanted)]
    if -1 in shape:
        known = math.prod(v for v in shape if v != -1)
        shape[shape.index(-1)] = math.prod(x.shape) // known if known > 0 else 0
    return Reshape(tuple(shape)), (x,)


def _clip(call: _Call) -> Read:
    bounds = [
        default if call.optional(i) is None else call.constant(i, "bound").reshape(-1)[0]
        for i, default in ((1, -math.inf), (2, math.inf))
    ]
    return Clip(float(bounds[0]), float(bounds[1])), (call.operand(0),)


def _unary(op: Op) -> Callable[[_Call], Read]:
    return lambda call: (op, (call.operand(0),))


#: One row per ONNX operator (``Constant`` apart, which makes no node).
READERS: dict[str, Callable[[_Call], Read]] = {
    "Add": lambda call: (Add(), (call.operand(0), call.operand(1))),
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Conv": _conv,
    "DequantizeLinear": _dequantize,
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "Identity": _unary(Identity()),
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "QuantizeLinear": _quantize,
    "Relu": _unary(Relu()),
    "Reshape": _reshape,
}
