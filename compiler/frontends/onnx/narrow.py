"""Types that ONNX stores in fewer bits than the graph has types for.

float16 and bfloat16 are float32 in the graph, and the result of each node is rounded to its own
type. The integers of 2 and 4 bits and the floats of 4 and 8 bits are only read: each is held in the
next type that has all of its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from ....isa.errors import VdlaError
from ...graph.ir import Tensor
from ...te.expr import Const, maximum, minimum
from .ops.call import Call

#: Types whose results are rounded.
HALVES = ("float16", "bfloat16")
#: Operators that are read by ONNX's definition where their operands have these types, because its
#: reference rounds the result of each step, too; and the first operator set with a definition.
_BY_STEPS = {"Softmax": 13}
#: Integers whose results are clipped.
_RANGES = {"int2": (-2, 1), "int4": (-8, 7), "uint2": (0, 3), "uint4": (0, 15)}
#: NumPy's names of types that the graph does not have, and the type that holds their values.
HELD = {
    **dict.fromkeys(HALVES, "float32"), "int2": "int8", "int4": "int8", "uint2": "uint8",
    "uint4": "uint8", "float4_e2m1fn": "float32", "float8_e4m3fn": "float32",
    "float8_e4m3fnuz": "float32", "float8_e5m2": "float32", "float8_e5m2fnuz": "float32",
}  # fmt: skip
#: The same types by ONNX's numbers.
_NAMES = {getattr(TensorProto, name.upper().replace("_", "")): name for name in HELD
          if not name.startswith("float4")} | {TensorProto.FLOAT4E2M1: "float4_e2m1fn"}  # fmt: skip
_CODES = {name: code for code, name in _NAMES.items()}
_HALF_CODES = [_CODES[name] for name in HALVES]
#: Attributes that name a type.
_TYPED = ("to", "dtype", "output_dtype", "stash_type", "softmax_precision")


def held(data: np.ndarray) -> np.ndarray:
    """The values of a constant or an input in a type of the graph, if there is one."""
    name = HELD.get(str(data.dtype))
    return data if name is None else data.astype(name)


def narrow_type(elem_type: int) -> str:
    """The name of a type that the graph does not have; "" for any other."""
    return _NAMES.get(elem_type, "")


def widened(node: onnx.NodeProto) -> onnx.NodeProto:
    """The node with float32 for half types in its attributes."""
    if not _names_half(node):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for attribute in copy.attribute:
        if attribute.name in _TYPED and attribute.i in _HALF_CODES:
            attribute.i = TensorProto.FLOAT
        if attribute.HasField("t") and attribute.t.data_type in _HALF_CODES:
            values = onnx.numpy_helper.to_array(attribute.t)
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(held(values), attribute.t.name))
    return copy


def _names_half(node: onnx.NodeProto) -> bool:
    """Whether an attribute is a half type, or a tensor of one."""
    return any(
        (a.name in _TYPED and a.i in _HALF_CODES)
        or (a.HasField("t") and a.t.data_type in _HALF_CODES)
        for a in node.attribute
    )


def rounds_inside(node: onnx.NodeProto, opset: int, narrow: Mapping[str, str]) -> bool:
    """Whether a node's result is made of results that are rounded."""
    defined = opset >= _BY_STEPS.get(node.op_type, opset + 1)
    return defined and any(narrow.get(name) in HALVES for name in node.input)


def type_of(tensor: Tensor, narrow: Mapping[str, str]) -> onnx.TypeProto:
    """The ONNX type of a tensor, which ``narrow`` may say by its name."""
    name = narrow.get(tensor.name)
    kind = _CODES[name] if name else onnx.helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype))
    return onnx.helper.make_tensor_type_proto(kind, tensor.shape)


def narrow_results(
    node: onnx.NodeProto, opset: int, operands: Sequence[Tensor | None], narrow: Mapping[str, str]
) -> dict[str, str]:
    """The types of a node's results that the graph does not have, by the results' names.

    Raises
    ------
    VdlaError
        When ONNX does not say the types of the results.
    """
    if not (_names_half(node) or any(name in narrow for name in node.input)):
        return {}
    given = [(n, t) for n, t in zip(node.input, operands, strict=True) if t is not None]
    types = {name: type_of(tensor, narrow) for name, tensor in given}
    known = {
        name: onnx.numpy_helper.from_array(tensor.data, name)
        for name, tensor in given
        if tensor.data is not None and name not in narrow
    }
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        found = onnx.shape_inference.infer_node_outputs(schema, node, types, known)
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError,
            onnx.checker.ValidationError) as error:  # fmt: skip
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise VdlaError(f"expected operands that ONNX says it has: {why}") from None
    made = {name: narrow_type(kind.tensor_type.elem_type) for name, kind in found.items()}
    return {name: kind for name, kind in made.items() if kind}


def in_range(call: Call, tensor: Tensor, kind: str) -> Tensor:
    """A result that has only values of its narrow type.

    Raises
    ------
    VdlaError
        For a type or an operator whose results are not supported.
    """
    if kind in HALVES and tensor.dtype == "float32":
        return call.map(lambda x: x.astype(kind).astype("float32"), tensor, label=kind.title())
    if kind in _RANGES and call.kind == "QuantizeLinear":
        low, high = (Const(n, tensor.dtype) for n in _RANGES[kind])
        return call.map(lambda x: minimum(maximum(x, low), high), tensor, label="Clip")
    raise call.refuse(f"results of {kind} are not supported")
