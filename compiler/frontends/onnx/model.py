"""ONNX models in the form that the importer reads: one operator set, nodes in order, no functions
of their own.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.inliner
import onnx.version_converter
from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError

from ....isa.errors import VdlaError
from ..file_kinds import refuse_other_kinds
from .ops.legacy import READERS as LEGACY
from .order import in_order

#: The names of ONNX's own operators' domain.
STANDARD = ("", "ai.onnx")
#: Operators of which onnx converts no old form, and those of which it does.
COMPARISONS = ("And", "Equal", "Greater", "Less", "Or", "Xor")
ARITHMETIC = ("Add", "Div", "Mul", "Pow", "Sub")
#: Where operators are that onnx does not convert, while it converts others.
APART = "apart"
#: Operator sets that onnx converts to the first one that is read.
BEFORE = range(1, 7)
OPSETS = range(BEFORE.stop, onnx.defs.onnx_opset_version() + 1)


def load_model(source: str | Path | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """A model in the importer's form, and its name in messages. A given model is not changed.

    Raises
    ------
    VdlaError
        When the file is unreadable, damaged or of another kind, its operator set is not supported,
        its nodes cannot be put in order, or its functions call themselves.
    """
    where = str(source) if isinstance(source, str | Path) else "ONNX model"
    try:
        return _normal(_read(source, where), where), where
    except (UnicodeDecodeError, DecodeError) as error:
        raise VdlaError(f"{where}: damaged ONNX model: {first_line(error)}") from None


def opset_of(model: onnx.ModelProto) -> int:
    """The operator set of a model that :func:`load_model` returned."""
    return next(o.version for o in model.opset_import if o.domain == "")


def first_line(error: Exception) -> str:
    """The first line of an exception's text, or its type."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _read(source: str | Path | bytes | onnx.ModelProto, where: str) -> onnx.ModelProto:
    refuse_other_kinds(source, where, onnx.ModelProto)
    if isinstance(source, onnx.ModelProto):
        return source
    try:
        if isinstance(source, bytes):
            model = onnx.load_model_from_string(source)
        else:
            model = onnx.load_model(str(source))
    except OSError as error:
        raise VdlaError(f"{where}: cannot read: {error.strerror or first_line(error)}") from None
    except (
        DecodeError, ValueError, onnx.checker.ValidationError,
        json_format.ParseError, text_format.ParseError,
    ) as error:  # fmt: skip
        raise VdlaError(
            f"{where}: expected an ONNX model, got a damaged file: {first_line(error)}"
        ) from None
    if not model.graph.node:
        raise VdlaError(f"{where}: expected an ONNX model with nodes, got none (is it truncated?)")
    return model


def _normal(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The model itself if it is in the importer's form, else a copy that is."""
    version = _opset(model, where)
    own = [(o.domain, o.version) for o in model.opset_import if o.domain in STANDARD]
    if own != [("", version)]:
        model = _copied(model)
        others = [o for o in model.opset_import if o.domain not in STANDARD]
        del model.opset_import[:]
        model.opset_import.extend([onnx.helper.make_opsetid("", version), *others])
    model = in_order(model, where)
    if version in BEFORE:
        model = _converted(model, where, version)
    if not model.functions:
        return model
    try:
        return onnx.inliner.inline_local_functions(model)
    except onnx.checker.ValidationError as error:
        raise VdlaError(f"{where}: expected functions to inline: {first_line(error)}") from None


def _opset(model: onnx.ModelProto, where: str) -> int:
    """The version of ONNX's own operators.

    Of several imports the last one counts, as in ONNX Runtime. Where only other domains are
    imported, the version is that of the model's functions, or else the newest.
    """
    if not model.opset_import:
        raise VdlaError(
            f"{where}: expected an import of opset {OPSETS[0]} to {OPSETS[-1]}, got no opset_import"
        )
    imports = [o for function in model.functions for o in function.opset_import]
    found = [o.version for o in (*imports, *model.opset_import) if o.domain in STANDARD]
    version = found[-1] if found else OPSETS[-1]
    if version not in BEFORE and version not in OPSETS:
        raise VdlaError(f"{where}: expected opset {BEFORE[0]} to {OPSETS[-1]}, got {version}")
    return version


def _is_along_axis(node: onnx.NodeProto) -> bool:
    """Whether an attribute says where the second operand lies: onnx moves it to the first axis."""
    return node.op_type in ARITHMETIC and any(a.name == "axis" for a in node.attribute)


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def _converted(model: onnx.ModelProto, where: str, version: int) -> onnx.ModelProto:
    """A model of an old operator set in the first one that is read. The converter wants constants
    among the inputs; what it does not know, or converts to something else, it meets in a domain
    that is not ONNX's."""
    model = _copied(model)
    for node in model.graph.node:
        kept = node.op_type in LEGACY or node.op_type in COMPARISONS or _is_along_axis(node)
        if kept and node.domain in STANDARD:
            node.domain = APART
    model.opset_import.append(onnx.helper.make_opsetid(APART, 1))
    known = {value.name for value in model.graph.input}
    for constant in model.graph.initializer:
        if constant.name not in known:
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(
                    constant.name, constant.data_type, list(constant.dims)
                )
            )
    try:
        made = onnx.version_converter.convert_version(model, OPSETS[0])
    except (
        RuntimeError, ValueError, IndexError, onnx.shape_inference.InferenceError,
        onnx.version_converter.ConvertError, onnx.checker.ValidationError,
    ) as error:  # fmt: skip
        raise VdlaError(
            f"{where}: expected opset {OPSETS[0]} to {OPSETS[-1]}, got {version}, which onnx cannot"
            f" convert: {first_line(error)}"
        ) from None
    for node in made.graph.node:
        node.domain = "" if node.domain == APART else node.domain
    return made
