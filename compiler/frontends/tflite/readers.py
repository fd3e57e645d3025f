"""The table of readers: by operator, and by the type of its first operand."""

from __future__ import annotations

from collections.abc import Callable

from . import (
    arithmetic,
    beyond,
    cells,
    control,
    decode,
    detection,
    floats,
    fourier,
    functions,
    hybrid,
    log_softmax,
    memory,
    moves,
    norms,
    operators,
    recurrent,
    reductions,
    scattering,
    signals,
    spectra,
    streams,
    suppression,
    volumes,
    wide,
)
from .graph import Call

Reader = Callable[[Call], None]
#: Types of integers that the 8-bit readers take.
_BYTES = ("int8", "uint8")
#: The word for all types.
ANY = "any"

#: Operators whose readers take every type, because they only move elements or look at types.
_ANY: dict[str, Reader] = {
    "ADD_N": arithmetic.add_n,
    "CAST": arithmetic.cast,
    "CONCATENATION": operators.READERS["CONCATENATION"],
    "EXPAND_DIMS": operators.READERS["EXPAND_DIMS"],
    "PAD": operators.READERS["PAD"],
    "PADV2": operators.READERS["PADV2"],
    "DENSIFY": moves.same,
    "RESHAPE": operators.READERS["RESHAPE"],
    "SELECT_V2": arithmetic.select_v2,
    "SQUEEZE": operators.READERS["SQUEEZE"],
    "TRANSPOSE": operators.READERS["TRANSPOSE"],
    "ZEROS_LIKE": functions.zeros_like,
    "DETECTION_POSTPROCESS": detection.read,
    "TFLM_DECODE": decode.read,
    **control.READERS,
    **moves.READERS,
}

#: Operators whose readers of int8 take uint8, too, whose elements the graph stores less 128.
_ALIKE = (
    "CUMSUM", "DIV", "L2_NORMALIZATION", "MAXIMUM", "MINIMUM", "PRELU", "SQUARED_DIFFERENCE",
    "SUM",
)  # fmt: skip


def _mean(call: Call) -> None:
    """Over height and width as a pooling, which the accelerator has; else in general."""
    axes = call.constant(1, "axes").reshape(-1)
    image = len(call.operand(0).shape) == 4 and sorted(int(v) % 4 for v in axes) == [1, 2]
    (operators.READERS["MEAN"] if image else reductions.TYPED["MEAN"]["int8"])(call)


def _quantize(call: Call) -> None:
    """From and to 8 bits as tables and the accelerator have it, else in general."""
    source, target = call.operand(0).dtype, call.result.dtype
    plain = target in _BYTES and source in ("float32", *_BYTES)
    (operators.READERS["QUANTIZE"] if plain else arithmetic.quantize16)(call)


def _real(kind: str) -> Reader:
    """A float operator, whose weights may be int8."""
    quantised: dict[str, Reader] = {
        "FULLY_CONNECTED": hybrid.dense,
        "CONV_2D": lambda call: hybrid.convolution(call, depthwise=False),
        "DEPTHWISE_CONV_2D": lambda call: hybrid.convolution(call, depthwise=True),
    }

    def read(call: Call) -> None:
        (quantised[kind] if hybrid.is_hybrid(call) else floats.READERS[kind])(call)

    return read


def _dense(constant: Reader) -> Reader:
    """A dense layer by whether its weights are known."""

    def read(call: Call) -> None:
        (wide.dense_of_computed if call.operand(1).data is None else constant)(call)

    return read


def _table() -> dict[str, dict[str, Reader]]:
    table: dict[str, dict[str, Reader]] = {kind: {ANY: reader} for kind, reader in _ANY.items()}
    for types, readers in (
        (_BYTES, operators.READERS),
        (("float32",), floats.READERS),
        (("float32",), functions.REAL),
        (_BYTES, functions.INT8),
        (("int16",), functions.INT16),
    ):
        for kind, reader in readers.items():
            if kind not in _ANY:
                table.setdefault(kind, {}).update(dict.fromkeys(types, reader))
    for typed in (
        arithmetic.TYPED, reductions.TYPED, norms.TYPED, wide.TYPED, recurrent.TYPED, beyond.TYPED,
        suppression.TYPED, cells.TYPED, memory.TYPED, volumes.TYPED, scattering.TYPED,
        spectra.TYPED, signals.TYPED, streams.TYPED, fourier.TYPED,
    ):  # fmt: skip
        for kind, readers in typed.items():
            table.setdefault(kind, {}).update(readers)
    for kind in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"):
        table[kind]["float32"] = _real(kind)
    for dtype in ("float32", *_BYTES):
        table["FULLY_CONNECTED"][dtype] = _dense(table["FULLY_CONNECTED"][dtype])
    for kind in _ALIKE:
        table[kind]["uint8"] = table[kind]["int8"]
    table["LOG_SOFTMAX"]["int8"] = log_softmax.log_softmax
    table["MEAN"] |= dict.fromkeys(_BYTES, _mean)
    table["QUANTIZE"] = {ANY: _quantize}
    table["DEQUANTIZE"] |= {"int16": arithmetic.dequantize16, "float16": arithmetic.widened}
    for dtype in _BYTES:
        table["DEQUANTIZE"][dtype] = arithmetic.dequantize8
    return table


#: One row per operator, with a reader per type of the first operand.
TABLE = _table()


def reader(kind: str) -> Reader:
    """The reader of an operator: the first operand's type decides.

    Raises
    ------
    VdlaError
        When it reads an operator of a type that it has no reader for.
    """
    typed = TABLE[kind]

    def read(call: Call) -> None:
        dtype = call.operand(0).dtype if call.operator.inputs else ANY
        found = typed.get(dtype) or typed.get(ANY)
        if found is None:
            raise call.refuse(f"supported are {', '.join(typed)}, got {dtype} of {call.operand(0)}")
        found(call)

    return read


#: One row per operator.
READERS: dict[str, Reader] = {kind: reader(kind) for kind in sorted(TABLE)}
