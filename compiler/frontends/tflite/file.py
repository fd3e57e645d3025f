"""TensorFlow Lite files (flatbuffers) as plain data: every offset, length and type checked."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tflite

from ....isa.errors import VdlaError
from .sparse import places_of

IDENTIFIER = b"TFL3"
MAX_RANK = 8
MAX_ELEMENTS = 1 << 28  # of a tensor; more is a damaged file
NAME_LIMIT = 60  # characters of a name in messages

#: Tensor types that are read, and the NumPy dtypes that hold them.
TENSOR_TYPES = {
    tflite.TensorType.FLOAT32: "float32",
    tflite.TensorType.FLOAT16: "float16",  # of constants, which DEQUANTIZE reads
    tflite.TensorType.INT4: "int8",  # of constants, two in a byte
    tflite.TensorType.INT8: "int8",
    tflite.TensorType.UINT8: "uint8",
    tflite.TensorType.INT16: "int16",
    tflite.TensorType.INT32: "int32",
    tflite.TensorType.INT64: "int64",
    tflite.TensorType.UINT32: "uint32",
    tflite.TensorType.UINT64: "uint64",
    tflite.TensorType.BOOL: "bool",
    tflite.TensorType.COMPLEX64: "complex64",  # between a transform and what takes its parts
    tflite.TensorType.RESOURCE: "resource",  # the handle of a variable, which has no value
}

OPERATOR_NAMES = {
    code: name for name, code in vars(tflite.BuiltinOperator).items() if isinstance(code, int)
}
#: Custom operators of TensorFlow Lite Micro that work on signals, by their names in files.
SIGNALS = (
    "CIRCULAR_BUFFER", "SignalDelay", "SignalEnergy", "SignalFftAutoScale", "SignalFilterBank",
    "SignalFilterBankLog", "SignalFilterBankSpectralSubtraction", "SignalFilterBankSquareRoot",
    "SignalFramer", "SignalIrfft", "SignalOverlapAdd", "SignalPCAN", "SignalRfft", "SignalStacker",
    "SignalWindow",
)  # fmt: skip
#: Custom operators of MediaPipe.
MEDIAPIPE = ("Convolution2DTransposeBias", "MaxPoolingWithArgmax2D", "MaxUnpooling2D")
#: Custom operators that are read, by their names in files.
CUSTOM_NAMES = {
    "TFLite_Detection_PostProcess": "DETECTION_POSTPROCESS",
    "TFLM_DECODE": "TFLM_DECODE",
    **{name: name for name in (*SIGNALS, *MEDIAPIPE)},
}
_TYPE_NAMES = {code: name for name, code in vars(tflite.TensorType).items() if type(code) is int}

#: What the accessors of damaged tables raise: offsets outside the file, impossible lengths.
DAMAGE = (struct.error, IndexError, ValueError, TypeError, OverflowError, MemoryError)


def _shown(name: str) -> str:
    """A name in messages. Those of damaged files can be of any length, and converters join the
    names of all tensors that were fused into one."""
    shown = repr(name)
    return shown if len(shown) <= NAME_LIMIT else shown[:NAME_LIMIT] + "..."


@dataclass(frozen=True, eq=False)
class FlatTensor:
    """One tensor of the file.

    Attributes
    ----------
    shape, signature : dimensions; the signature has -1 where one is symbolic
    data : the constant's values, or None
    scale, zero_point : float32 and int64, [1] or [dimension ``axis``]; empty without quantisation
    axis : as the file says it; :attr:`scaled_axis` checks it
    variable : whether its value is kept from one run to the next
    """

    index: int
    name: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    dtype: str
    data: np.ndarray | None
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int
    variable: bool = False

    def __str__(self) -> str:
        return f"tensor {self.index} {_shown(self.name)}"

    @property
    def scaled_axis(self) -> int:
        """The dimension of several scales, for those who read them: of a bias nobody does, and
        converters have written any number there.

        Raises
        ------
        VdlaError
            When there is not one scale per element of that dimension.
        """
        if not 0 <= self.axis < len(self.shape) or self.shape[self.axis] != self.scale.size:
            raise VdlaError(
                f"quantisation of {self}: expected one scale per element of dimension {self.axis!r}"
                f" of {list(self.shape)}, got {self.scale.size}"
            )
        return self.axis


@dataclass(frozen=True)
class FlatOperator:
    """One operator: its name in the schema, tensor indices (-1: absent), and the table of its
    options, or the bytes of those of a custom operator."""

    index: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any

    def option(self, name: str, default: Any = None) -> Any:
        """An option; the default where the operator does not have it."""
        access = getattr(self.options, name, None)
        return default if access is None else access()

    def __str__(self) -> str:
        return f"operator {self.index} ({self.kind})"


@dataclass(frozen=True)
class FlatGraph:
    """A subgraph of a file. A tensor that is not supported is the error that says so: it may be
    unused."""

    tensors: tuple[FlatTensor | VdlaError, ...]
    operators: tuple[FlatOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def tensor(self, index: int) -> FlatTensor:
        """A tensor. Raises VdlaError for one that is not supported."""
        found = self.tensors[index]
        if isinstance(found, VdlaError):
            raise found
        return found


@dataclass(frozen=True)
class FlatModel:
    """A file: the first subgraph is the network. The others are for control flow, to set variables,
    and for other signatures; one that cannot be read is the error that says so.
    """

    graphs: tuple[FlatGraph | VdlaError, ...]

    def graph(self, index: int) -> FlatGraph:
        """A subgraph. Raises VdlaError where there is none, or none that can be read."""
        if not 0 <= index < len(self.graphs):
            raise VdlaError(f"expected one of {len(self.graphs)} subgraphs, got {index}")
        found = self.graphs[index]
        if isinstance(found, VdlaError):
            raise found
        return found


#: Operators with options that are read. The table of one has its name in the schema, but for those
#: that share a table, or have an acronym in it.
_WITH_OPTIONS = (
    "ADD", "CALL_ONCE", "CONCATENATION", "CUMSUM", "DEPTH_TO_SPACE", "DIV",
    "FAKE_QUANT", "FULLY_CONNECTED", "GATHER", "GELU", "IF", "LEAKY_RELU",
    "LOCAL_RESPONSE_NORMALIZATION", "MIRROR_PAD", "MUL", "ONE_HOT", "PACK", "RESHAPE",
    "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_SEQUENCE", "SOFTMAX", "SPACE_TO_DEPTH",
    "SQUEEZE", "STRIDED_SLICE", "SUB", "TRANSPOSE_CONV", "UNPACK", "VAR_HANDLE", "WHILE",
)  # fmt: skip
OPTIONS = {kind: f"{kind.title().replace('_', '')}Options" for kind in _WITH_OPTIONS} | {
    "BATCH_MATMUL": "BatchMatMulOptions",
    "BIDIRECTIONAL_SEQUENCE_LSTM": "BidirectionalSequenceLSTMOptions",
    "BIDIRECTIONAL_SEQUENCE_RNN": "BidirectionalSequenceRNNOptions",
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "LSTM": "LSTMOptions",
    "RNN": "RNNOptions",
    "SVDF": "SVDFOptions",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    **dict.fromkeys(("AVERAGE_POOL_2D", "L2_POOL_2D", "MAX_POOL_2D"), "Pool2DOptions"),
    **dict.fromkeys(("CONV_3D", "CONV_3D_TRANSPOSE"), "Conv3DOptions"),
    **dict.fromkeys(
        ("MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM"),
        "ReducerOptions",
    ),
}
#: A table without fields, of which every accessor returns the schema's default: the size of its
#: list of fields and its own, both without entries, and the way from the table back to the list.
_EMPTY_TABLE, _EMPTY_TABLE_AT = struct.pack("<HHi", 4, 4, 4), 4


def read_model(data: bytes) -> FlatModel:
    """Read a file.

    Raises
    ------
    VdlaError
        When the file is not a whole model, naming the table that is damaged.
    """
    if len(data) < 8 or data[4:8] != IDENTIFIER:
        raise VdlaError(
            f"expected a TensorFlow Lite model ({IDENTIFIER.decode()!r} at byte 4),"
            f" got {data[4:8]!r}"
        )
    return _Reader(data).model()


def _unpacked(raw: np.ndarray) -> np.ndarray:
    """Integers of 4 bits as int8, of each byte the lower half first."""
    halves = np.stack([raw & 15, raw >> 4], axis=1).reshape(-1).astype(np.int8)
    return np.where(halves > 7, halves - 16, halves).astype(np.int8)


class _Reader:
    def __init__(self, data: bytes):
        self.data = data

    def get(self, what: str, access: Callable[..., Any], *args: object) -> Any:
        """The value that an accessor returns. Raises an error that names a damaged table."""
        try:
            return access(*args)
        except DAMAGE as error:
            raise self.damaged(what, str(error) or type(error).__name__) from None

    def damaged(self, what: str, why: str) -> VdlaError:
        return VdlaError(f"{what} is damaged: {' '.join(why.split())}")

    def count(self, what: str, access: Callable[[], Any], size: int = 4) -> int:
        """The length of a vector of elements of at least ``size`` bytes; tables take four."""
        length = self.get(what, access)
        if not 0 <= size * length <= len(self.data):
            raise self.damaged(what, f"{length} elements do not fit {len(self.data)} bytes")
        return length

    def table(self, what: str, access: Callable[[int], Any], index: int) -> Any:
        found = self.get(what, access, index)
        if found is None:
            raise self.damaged(what, "it is missing")
        return found

    def numbers(self, what: str, table: Any, name: str, size: int = 4) -> np.ndarray:
        """A vector of numbers of at least ``size`` bytes; empty if absent."""
        self.count(what, getattr(table, f"{name}Length"), size)
        values = self.get(what, getattr(table, f"{name}AsNumpy"))
        return values if isinstance(values, np.ndarray) else np.zeros(0, np.int32)

    def model(self) -> FlatModel:
        model = self.get("the model", tflite.Model.GetRootAsModel, self.data, 0)
        subgraphs = self.count("the list of subgraphs", model.SubgraphsLength)
        if not subgraphs:
            raise VdlaError("expected a model with a subgraph, got none")
        first = self.graph(model, 0)
        return FlatModel((first, *(self.graph_or_error(model, i) for i in range(1, subgraphs))))

    def graph_or_error(self, model: Any, index: int) -> FlatGraph | VdlaError:
        try:
            return self.graph(model, index)
        except VdlaError as error:
            return VdlaError(f"subgraph {index}: {error}")

    def graph(self, model: Any, number: int) -> FlatGraph:
        graph = self.table("the subgraph", model.Subgraphs, number)
        tensors = tuple(
            self.tensor_or_error(model, self.table(f"tensor {i}", graph.Tensors, i), i)
            for i in range(self.count("the list of tensors", graph.TensorsLength))
        )
        operators = tuple(
            self.operator(model, self.table(f"operator {i}", graph.Operators, i), i, len(tensors))
            for i in range(self.count("the list of operators", graph.OperatorsLength))
        )
        inputs = self.indices("the list of inputs", graph, "Inputs", 0, len(tensors))
        outputs = self.indices("the list of outputs", graph, "Outputs", 0, len(tensors))
        return FlatGraph(tensors, operators, inputs, outputs)

    def indices(self, what: str, table: Any, name: str, first: int, stop: int) -> tuple[int, ...]:
        found = tuple(int(v) for v in self.numbers(what, table, name))
        wrong = [v for v in found if not first <= v < stop]
        if wrong:
            raise self.damaged(what, f"{wrong[0]} is none of the {stop} tensors")
        return found

    # ---- tensors ----

    def tensor_or_error(self, model: Any, table: Any, index: int) -> FlatTensor | VdlaError:
        try:
            return self.tensor(model, table, index)
        except VdlaError as error:
            return error

    def tensor(self, model: Any, table: Any, index: int) -> FlatTensor:
        text = self.get(f"tensor {index}", table.Name) or b""
        name = text.decode(errors="replace")
        what = f"tensor {index} {_shown(name)}"
        shape = tuple(int(v) for v in self.numbers(what, table, "Shape"))
        signature = tuple(int(v) for v in self.numbers(what, table, "ShapeSignature"))
        signature = signature if len(signature) == len(shape) else shape
        code = self.get(what, table.Type)
        if code not in TENSOR_TYPES:
            raise VdlaError(
                f"{what} has type {_TYPE_NAMES.get(code, code)},"
                f" supported are {', '.join(dict.fromkeys(TENSOR_TYPES.values()))}"
            )
        if len(shape) > MAX_RANK:
            raise VdlaError(f"{what}: expected up to {MAX_RANK} dimensions, got {len(shape)}")
        if min(shape, default=0) < 0:
            raise VdlaError(f"{what}: expected dimensions of at least 0, got {list(shape)}")
        if math.prod(max(n, 1) for n in shape) > MAX_ELEMENTS:
            raise VdlaError(f"{what}: expected up to {MAX_ELEMENTS} elements, got {list(shape)}")
        dtype, variable = TENSOR_TYPES[code], bool(self.get(what, table.IsVariable))
        data = None
        if dtype != "resource" and not variable:
            data = self.constant(model, table, what, shape, code)
        if data is None and code == tflite.TensorType.INT4:
            raise VdlaError(f"{what} has type INT4, which is supported of constants")
        scale, zero_point, axis = self.quantisation(table, what)
        return FlatTensor(
            index, name, shape, signature, dtype, data, scale, zero_point, axis, variable
        )

    def constant(
        self, model: Any, table: Any, what: str, shape: tuple[int, ...], code: int
    ) -> np.ndarray | None:
        """The values of a constant; None for a tensor that is computed. One without elements has
        nothing to compute.
        """
        dtype, count = np.dtype(TENSOR_TYPES[code]), math.prod(shape)
        raw = self.buffer(model, self.get(what, table.Buffer), what)
        if not raw.size:
            return None if count else np.zeros(shape, dtype)
        sparsity = self.get(what, table.Sparsity)
        if sparsity is not None:
            return self.dense(sparsity, raw, what, shape, dtype)
        packed = code == tflite.TensorType.INT4
        expected = (count + 1) // 2 if packed else count * dtype.itemsize
        if raw.size != expected:
            raise VdlaError(
                f"{what}: expected {expected} bytes of {dtype}{list(shape)} in"
                f" buffer {self.get(what, table.Buffer)}, got {raw.size}"
            )
        if packed:
            return _unpacked(raw)[:count].reshape(shape)
        return raw.copy().view(dtype.newbyteorder("<")).astype(dtype).reshape(shape)

    def dense(
        self, sparsity: Any, raw: np.ndarray, what: str, shape: tuple[int, ...], dtype: np.dtype
    ) -> np.ndarray:
        """A sparse constant with all its elements; those that are not stored are 0."""
        try:
            places = places_of(
                sparsity, shape, what, lambda t, name: self.numbers(what, t, name, 1)
            )
        except DAMAGE as error:
            raise self.damaged(f"sparsity of {what}", str(error)) from None
        stored = raw.copy().view(dtype.newbyteorder("<")) if raw.size % dtype.itemsize == 0 else raw
        if stored.size != places.size or stored.dtype.itemsize != dtype.itemsize:
            raise VdlaError(f"{what}: expected {places.size} elements, got {raw.size} bytes")
        found = np.zeros(math.prod(shape), dtype)
        found[places] = stored
        return found.reshape(shape)

    def buffer(self, model: Any, number: int, what: str) -> np.ndarray:
        """The bytes of a buffer, which may lie behind the tables; none for a computed tensor."""
        if not 0 <= number < self.count("the list of buffers", model.BuffersLength):
            raise self.damaged(what, f"there is no buffer {number}")
        where = f"buffer {number}"
        buffer = self.table(where, model.Buffers, number)
        first, size = self.get(where, buffer.Offset), self.get(where, buffer.Size)
        if first > 1:  # 0 and 1 mean that the buffer is a part of its table
            if first + size > len(self.data):
                raise self.damaged(where, "it ends beyond the file")
            return np.frombuffer(self.data, np.uint8, size, first)
        length = self.get(where, buffer.DataLength)
        if not length:
            return np.zeros(0, np.uint8)
        raw = self.get(where, buffer.DataAsNumpy)
        if not isinstance(raw, np.ndarray) or raw.size != length:
            raise self.damaged(where, "it ends beyond the file")
        return raw.view(np.uint8)

    def quantisation(self, table: Any, what: str) -> tuple[np.ndarray, np.ndarray, int]:
        what = f"quantisation of {what}"
        found = self.get(what, table.Quantization)
        none = np.zeros(0, np.float32), np.zeros(0, np.int64), 0
        if found is None:
            return none
        scale = self.numbers(what, found, "Scale").astype(np.float32)
        zero_point = self.numbers(what, found, "ZeroPoint").astype(np.int64)
        if not scale.size:
            return none
        zero_point = zero_point if zero_point.size else np.zeros(scale.size, np.int64)
        axis = int(self.get(what, found.QuantizedDimension))
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            raise VdlaError(f"{what}: expected positive finite scales")
        if zero_point.size not in (1, scale.size):
            raise VdlaError(f"{what}: expected {scale.size} zero points, got {zero_point.size}")
        if np.abs(zero_point).max() > 2**31:
            raise VdlaError(f"{what}: zero point {zero_point[0]} is not an int32")
        return scale, np.broadcast_to(zero_point, scale.shape), axis

    # ---- operators ----

    def operator(self, model: Any, table: Any, index: int, tensors: int) -> FlatOperator:
        what = f"operator {index}"
        number = self.get(what, table.OpcodeIndex)
        if not 0 <= number < self.count("the list of operator codes", model.OperatorCodesLength):
            raise self.damaged(what, f"there is no operator code {number}")
        code = self.table(f"operator code {number}", model.OperatorCodes, number)
        both = (self.get(what, code.BuiltinCode), self.get(what, code.DeprecatedBuiltinCode))
        kind = OPERATOR_NAMES.get(max(both), str(max(both)))
        if kind == "CUSTOM":
            name = (self.get(what, code.CustomCode) or b"").decode(errors="replace")
            kind = CUSTOM_NAMES.get(name) or f"CUSTOM {_shown(name)}"
        what = f"operator {index} ({kind})"
        inputs = self.indices(what, table, "Inputs", -1, tensors)
        outputs = self.indices(what, table, "Outputs", 0, tensors)
        return FlatOperator(index, kind, inputs, outputs, self.options(what, kind, table))

    def options(self, what: str, kind: str, table: Any) -> Any:
        """The table that ``OPTIONS`` names; one of defaults where the file has none, or one of
        another type, as in TensorFlow Lite."""
        if kind in CUSTOM_NAMES.values():
            return self.numbers(what, table, "CustomOptions", 1).tobytes()
        if kind not in OPTIONS:
            return None
        name = OPTIONS[kind]
        stored = self.get(what, table.BuiltinOptions)
        given = self.get(what, table.BuiltinOptionsType)
        options = getattr(tflite, name)()
        if stored is None or given != getattr(tflite.BuiltinOptions, name):
            options.Init(_EMPTY_TABLE, _EMPTY_TABLE_AT)
        else:
            self.get(what, options.Init, stored.Bytes, stored.Pos)
        return options
