"""Operators that ONNX defines by other operators: these are read in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from ...graph.ir import Tensor
from .control import renamed_node
from .narrow import type_of


def function_body(
    node: onnx.NodeProto, opset: int, operands: Sequence[Tensor | None], narrow: Mapping[str, str]
) -> tuple[list[onnx.NodeProto], int] | None:
    """The nodes that compute what ``node`` does, and their operator set; None without a definition.

    They read and write the tensors of ``node``; names of tensors between them begin with its name.
    ``narrow`` has the types of tensors
    that the graph does not have.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except (onnx.defs.SchemaError, TypeError):  # no such operator, or a damaged name
        return None
    types = [b"" if t is None else type_of(t, narrow).SerializeToString() for t in operands]
    data = _definition(schema, node, opset, types)
    if not data:
        return None
    function = onnx.FunctionProto.FromString(data)
    names = dict.fromkeys(function.input, "") | {"": ""}
    names |= dict(zip(function.input, node.input, strict=False))
    names |= {o: n for o, n in zip(function.output, node.output, strict=False) if n}
    given = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.type}
    given |= {a.name: a for a in function.attribute_proto} | {a.name: a for a in node.attribute}
    for inner in function.node:
        for name in (*inner.input, *inner.output):
            names.setdefault(name, f"{node.name}/{name}")
    body = []
    for index, inner in enumerate(function.node):
        copy = renamed_node(inner, names)
        copy.name = f"{node.name}.{index}.{inner.op_type}"
        _resolve(copy, given)
        body.append(copy)
    versions = [o.version for o in function.opset_import if o.domain == ""]
    return body, versions[0] if versions else opset


def _definition(
    schema: Any,  # onnx's annotations lack what is used of it here
    node: onnx.NodeProto,
    opset: int,
    types: list[bytes],
) -> bytes:
    """The newest definition that the operator set allows, serialised."""
    fixed = [v for v in schema.function_opset_versions if v <= opset]
    if fixed:
        return schema.get_function_with_opset_version(max(fixed))
    by_context = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not by_context:
        return b""
    return schema.get_context_dependent_function_with_opset_version(
        max(by_context), node.SerializeToString(), types
    )


def _resolve(node: onnx.NodeProto, given: dict[str, onnx.AttributeProto]) -> None:
    """Replace references to the function's attributes by the attributes; drop absent ones."""
    attributes = list(node.attribute)
    del node.attribute[:]
    for attribute in attributes:
        if not attribute.ref_attr_name:
            for inner in attribute.g.node:
                _resolve(inner, given)
            node.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            copy = node.attribute.add()
            copy.CopyFrom(given[attribute.ref_attr_name])
            copy.name = attribute.name
