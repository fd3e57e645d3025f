"""Import of TensorFlow Lite models: 8-bit operators with the reference kernels' arithmetic.

``file.py`` reads the file's tables, ``graph.py`` keeps tensors and layouts. ``ops/`` has a file of
readers for each family of operators, ``audio/`` has those for sounds, ``readers.py`` lists all.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ....isa.errors import VdlaError
from ...graph.ir import Graph, Tensor
from ...graph.ops.movement import Identity
from ...graph.ops.quantisation import Recentre
from ...graph.verify import verify
from ..file_kinds import head_of, refuse_other_kinds
from .file import IDENTIFIER, FlatTensor, read_model
from .graph import Importer, held_in, quant_of
from .readers import READERS


def is_tflite(source: object) -> bool:
    """Whether a model is a TensorFlow Lite file, by its suffix or its identifier."""
    if not isinstance(source, str | Path | bytes):
        return False
    named = not isinstance(source, bytes) and Path(source).suffix == ".tflite"
    return named or (head_of(source) or b"")[4:8] == IDENTIFIER


def _at_edge(dtype: str) -> str:
    """As :func:`held_in`, for inputs and outputs, which may be uint8."""
    return dtype if dtype == "uint8" else held_in(dtype)


class _Network(Importer):
    """The first subgraph of a file, whose inputs and outputs are the model's."""

    def run(self) -> Graph:
        """The graph of the first subgraph."""
        flat = self.flat
        if not flat.outputs:
            raise VdlaError("expected a model with outputs, got none")
        self._name_interface()
        for index in flat.inputs:
            self._input(self.tensor(index))
        self.operators()
        outputs = tuple(self._output(index) for index in flat.outputs)
        inputs = tuple(self.names[index] for index in flat.inputs)
        before, after, initial = self.variables.finish(self.tensors, self.emit)
        return Graph(
            "main", (*inputs, *before), (*outputs, *after), tuple(self.nodes), self.tensors, initial
        )

    def _name_interface(self) -> None:
        """Inputs and outputs keep their names, unless these are empty, odd or not unique."""
        flat = self.flat
        indices = dict.fromkeys((*flat.inputs, *flat.outputs))
        count = Counter(self.tensor(i).name for i in indices)
        taken = {f"t{i}" for i in range(len(flat.tensors))}
        for i in indices:
            name = self.tensor(i).name
            usable = name.isprintable() and name and count[name] == 1 and name not in taken
            self.names[i] = name if usable else f"t{i}"

    def _input(self, tensor: FlatTensor) -> None:
        name = self.names[tensor.index]
        if tensor.index in self.values:
            raise VdlaError(f"{tensor} is an input twice")
        if tensor.dtype == "resource":
            raise VdlaError(f"{tensor} is an input: the handle of a variable cannot be given")
        if tensor.dtype == "complex64":
            raise VdlaError(f"{tensor} is an input of complex numbers, which are not supported")
        if 0 in tensor.shape:
            raise VdlaError(f"{tensor} is an input without elements, {list(tensor.shape)}")
        shape = self.shape(tensor)
        self.tensors[name] = Tensor(name, shape, _at_edge(tensor.dtype), quant=quant_of(tensor))
        self.values[tensor.index], self.shapes[tensor.index] = {"plain": name}, shape
        if tensor.dtype == "uint8":
            signed = self.emit(f"{name}.signed", Recentre(), (name,), f"{name}.signed")
            self.values[tensor.index] = {"plain": signed}

    def _output(self, index: int) -> str:
        tensor, name = self.tensor(index), self.names[index]
        if tensor.data is not None:
            self.constant(name, tensor.data.astype(_at_edge(tensor.dtype), copy=False))
            return name
        if index not in self.values and not tensor.variable:
            raise VdlaError(f"output {tensor} is not computed by any operator")
        value = self.value(tensor, "plain")
        if tensor.variable and tensor.dtype != "uint8":
            return self.emit(f"{name}.value", Identity(), (value,), name)
        if tensor.dtype == "uint8" and name not in self.tensors:
            return self.emit(f"{name}.unsigned", Recentre(), (value,), name)
        return name if tensor.dtype == "uint8" else value


def import_tflite(source: str | Path | bytes, *, batch: int = 1) -> Graph:
    """Read a model into a graph of integer operators.

    Parameters
    ----------
    source
        A file, or the bytes of one.
    batch
        Images at a time, at least 1, for a model whose first dimensions are symbolic.

    Raises
    ------
    VdlaError
        When the file is unreadable, damaged or of another kind, or an operator is not supported;
        the message names the operator or the tensor.
    """
    where = "model" if isinstance(source, bytes) else str(source)
    refuse_other_kinds(source, where)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise VdlaError(f"{where}: {error.strerror or error}") from None
    try:
        graph = _Network(read_model(data), batch, READERS).run()
    except VdlaError as error:
        raise VdlaError(f"{where}: {error}") from None
    verify(graph)
    return graph
