"""Writes small TensorFlow Lite files with flatbuffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import flatbuffers
import numpy as np
import tflite

TYPES = {
    "float32": tflite.TensorType.FLOAT32,
    "float16": tflite.TensorType.FLOAT16,
    "string": tflite.TensorType.STRING,
    "int4": tflite.TensorType.INT4,
    "int8": tflite.TensorType.INT8,
    "uint8": tflite.TensorType.UINT8,
    "int16": tflite.TensorType.INT16,
    "int32": tflite.TensorType.INT32,
    "int64": tflite.TensorType.INT64,
    "uint32": tflite.TensorType.UINT32,
    "uint64": tflite.TensorType.UINT64,
    "bool": tflite.TensorType.BOOL,
    "complex64": tflite.TensorType.COMPLEX64,
    "resource": tflite.TensorType.RESOURCE,
}

#: What stands in tables for the place and the size of a buffer until they are known.
_PLACE, _SIZE = 0x1122334455660000, 0x2211334455660000


@dataclass
class TfliteBuilder:
    """Collects tensors and operators; ``file()`` is the bytes of the model."""

    builder: flatbuffers.Builder = field(default_factory=lambda: flatbuffers.Builder(1024))
    tensors: list[int] = field(default_factory=list)
    buffers: list[np.ndarray | None] = field(default_factory=lambda: [None])
    operators: list[int] = field(default_factory=list)
    #: The kinds of operators.
    codes: list[str] = field(default_factory=list)
    #: Subgraphs that are finished; in the file they come after the one that ``file()`` finishes.
    graphs: list[int] = field(default_factory=list)
    #: Whether buffers lie behind the tables, at offsets in the file.
    behind: bool = False

    def numbers(self, values: Sequence[int] | Sequence[float], dtype: str = "int32") -> int:
        return self.builder.CreateNumpyVector(np.asarray(values, dtype))

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "int8",
        scale: Sequence[float] = (),
        zero: Sequence[int] = (),
        axis: int = 0,
        data: np.ndarray | None = None,
        symbolic: bool = False,
        name: str | None = None,
        stored: np.ndarray | None = None,
        variable: bool = False,
        signature: Sequence[int] | None = None,
        sparsity: int | None = None,
    ) -> int:
        """Add a tensor (``stored`` replaces a constant's bytes); returns its index."""
        b, index = self.builder, len(self.tensors)
        text = b.CreateString(f"tensor_{index}" if name is None else name)
        shapes = self.numbers(list(shape))
        given = [-1, *shape[1:]] if symbolic else signature
        signed = None if given is None else self.numbers(list(given))
        quant = None
        if len(scale):
            scales = self.numbers(list(scale), "float32")
            zeros = self.numbers(list(zero), "int64") if len(zero) else None
            tflite.QuantizationParametersStart(b)
            tflite.QuantizationParametersAddScale(b, scales)
            if zeros is not None:
                tflite.QuantizationParametersAddZeroPoint(b, zeros)
            tflite.QuantizationParametersAddQuantizedDimension(b, axis)
            quant = tflite.QuantizationParametersEnd(b)
        content = data if stored is None else stored
        if content is not None:
            self.buffers.append(content)
        tflite.TensorStart(b)
        tflite.TensorAddShape(b, shapes)
        tflite.TensorAddType(b, TYPES[dtype])
        tflite.TensorAddBuffer(b, len(self.buffers) - 1 if content is not None else 0)
        tflite.TensorAddName(b, text)
        tflite.TensorAddIsVariable(b, variable)
        if sparsity is not None:
            tflite.TensorAddSparsity(b, sparsity)
        if quant is not None:
            tflite.TensorAddQuantization(b, quant)
        if signed is not None:
            tflite.TensorAddShapeSignature(b, signed)
        self.tensors.append(tflite.TensorEnd(b))
        return index

    def sparsity(
        self,
        order: Sequence[int],
        blocks: Sequence[int],
        levels: Sequence[int | tuple[Sequence[int], Sequence[int]]],
    ) -> int:
        """How the elements of a sparse tensor are stored: of each dimension its size, or segments
        and places."""
        b, tables = self.builder, []
        for level in levels:
            found = []
            for values in () if isinstance(level, int) else level:
                stored = self.numbers(values)
                tflite.Int32VectorStart(b)
                tflite.Int32VectorAddValues(b, stored)
                found.append(tflite.Int32VectorEnd(b))
            tflite.DimensionMetadataStart(b)
            if isinstance(level, int):
                tflite.DimensionMetadataAddFormat(b, tflite.DimensionType.DENSE)
                tflite.DimensionMetadataAddDenseSize(b, level)
            else:
                kind = tflite.SparseIndexVector.Int32Vector
                tflite.DimensionMetadataAddFormat(b, tflite.DimensionType.SPARSE_CSR)
                tflite.DimensionMetadataAddArraySegmentsType(b, kind)
                tflite.DimensionMetadataAddArraySegments(b, found[0])
                tflite.DimensionMetadataAddArrayIndicesType(b, kind)
                tflite.DimensionMetadataAddArrayIndices(b, found[1])
            tables.append(tflite.DimensionMetadataEnd(b))
        metadata, orders, maps = self._tables(tables), self.numbers(order), self.numbers(blocks)
        tflite.SparsityParametersStart(b)
        tflite.SparsityParametersAddTraversalOrder(b, orders)
        tflite.SparsityParametersAddBlockMap(b, maps)
        tflite.SparsityParametersAddDimMetadata(b, metadata)
        return tflite.SparsityParametersEnd(b)

    def operator(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        table: str = "",
        **options: float | bytes,
    ) -> None:
        """Add an operator; ``table`` and ``options`` as the schema names them. One that the schema
        does not have is a custom operator, and ``own`` are its options."""
        b, stored, own = self.builder, None, None
        if isinstance(given := options.pop("own", None), bytes):
            own = b.CreateByteVector(given)
        if table:
            getattr(tflite, f"{table}Start")(b)
            for option, value in options.items():
                getattr(tflite, f"{table}Add{option}")(b, value)
            stored = getattr(tflite, f"{table}End")(b)
        if kind not in self.codes:
            self.codes.append(kind)
        reads, writes = self.numbers(list(inputs)), self.numbers(list(outputs))
        tflite.OperatorStart(b)
        tflite.OperatorAddOpcodeIndex(b, self.codes.index(kind))
        tflite.OperatorAddInputs(b, reads)
        tflite.OperatorAddOutputs(b, writes)
        if stored is not None:
            tflite.OperatorAddBuiltinOptionsType(b, getattr(tflite.BuiltinOptions, table))
            tflite.OperatorAddBuiltinOptions(b, stored)
        if own is not None:
            tflite.OperatorAddCustomOptions(b, own)
        self.operators.append(tflite.OperatorEnd(b))

    def _tables(self, offsets: list[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def subgraph(self, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        """Finish a subgraph; what is added from now on belongs to another. Returns its number."""
        self.graphs.append(self._graph(inputs, outputs))
        self.tensors, self.operators = [], []
        return len(self.graphs)

    def _graph(self, inputs: Sequence[int], outputs: Sequence[int]) -> int:
        b = self.builder
        tensors, operators = self._tables(self.tensors), self._tables(self.operators)
        reads, writes = self.numbers(list(inputs)), self.numbers(list(outputs))
        tflite.SubGraphStart(b)
        tflite.SubGraphAddTensors(b, tensors)
        tflite.SubGraphAddInputs(b, reads)
        tflite.SubGraphAddOutputs(b, writes)
        tflite.SubGraphAddOperators(b, operators)
        return tflite.SubGraphEnd(b)

    def file(self, inputs: Sequence[int], outputs: Sequence[int], subgraphs: int = 1) -> bytes:
        """The model as the bytes of a file; its first subgraph is there ``subgraphs`` times."""
        b = self.builder
        graphs = self._tables([self._graph(inputs, outputs)] * subgraphs + self.graphs)
        codes = self._tables([self._code(kind) for kind in self.codes])
        buffers = self._tables([self._buffer(data, i) for i, data in enumerate(self.buffers)])
        tflite.ModelStart(b)
        tflite.ModelAddVersion(b, 3)
        tflite.ModelAddOperatorCodes(b, codes)
        tflite.ModelAddSubgraphs(b, graphs)
        tflite.ModelAddBuffers(b, buffers)
        b.Finish(tflite.ModelEnd(b), file_identifier=b"TFL3")
        return self._with_buffers(bytes(b.Output())) if self.behind else bytes(b.Output())

    def _with_buffers(self, tables: bytes) -> bytes:
        """The file with the buffers behind its tables; their places were marked."""
        data = bytearray(tables)
        for i, content in enumerate(self.buffers):
            if content is None:
                continue
            raw = content.tobytes()
            for mark, value in ((_PLACE, len(data)), (_SIZE, len(raw))):
                at = tables.index((mark + i).to_bytes(8, "little"))
                data[at : at + 8] = value.to_bytes(8, "little")
            data += raw
        return bytes(data)

    def _code(self, kind: str) -> int:
        code = getattr(tflite.BuiltinOperator, kind, tflite.BuiltinOperator.CUSTOM)
        name = self.builder.CreateString(kind)
        tflite.OperatorCodeStart(self.builder)
        if code == tflite.BuiltinOperator.CUSTOM:
            tflite.OperatorCodeAddCustomCode(self.builder, name)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(self.builder, min(code, 127))
        tflite.OperatorCodeAddVersion(self.builder, 1)
        tflite.OperatorCodeAddBuiltinCode(self.builder, code)
        return tflite.OperatorCodeEnd(self.builder)

    def _buffer(self, data: np.ndarray | None, number: int) -> int:
        content = None
        if data is not None and self.behind:
            tflite.BufferStart(self.builder)
            tflite.BufferAddOffset(self.builder, _PLACE + number)
            tflite.BufferAddSize(self.builder, _SIZE + number)
            return tflite.BufferEnd(self.builder)
        if data is not None:
            raw = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            content = self.builder.CreateNumpyVector(raw)
        tflite.BufferStart(self.builder)
        if content is not None:
            tflite.BufferAddData(self.builder, content)
        return tflite.BufferEnd(self.builder)
