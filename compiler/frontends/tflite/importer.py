"""Import of TensorFlow Lite models: 8-bit operators with the reference kernels' arithmetic.

``file.py`` reads the file's tables, ``graph.py`` keeps tensors and layouts. ``ops/`` has a file of
readers for each family of operators, ``audio/`` has those for sounds, ``readers.py`` lists all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ....isa.errors import VdlaError
from ...graph.ir import Graph, Tensor
from ...graph.ops.movement import Identity
from ...graph.ops.quantisation import Recentre
from ...graph.verify import verify
from ..file_kinds import head_of, refuse_other_kinds
from ..sizes import ONE, Sizes
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
        symbols = self._bind([self.tensor(index) for index in flat.inputs])
        for index in flat.inputs:
            if index not in self.folded:
                self._input(self.tensor(index))
        self.operators()
        outputs = tuple(self._output(index) for index in flat.outputs)
        inputs = tuple(self.names[index] for index in flat.inputs if index not in self.folded)
        before, after, initial = self.variables.finish(self.tensors, self.emit)
        return Graph(
            "main", (*inputs, *before), (*outputs, *after), tuple(self.nodes), self.tensors,
            initial, symbols,
        )  # fmt: skip

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

    def _bind(self, inputs: Sequence[FlatTensor]) -> dict[str, tuple[int | str, ...]]:
        """Give inputs their shapes and values; returns the sizes of those with open dimensions."""
        names = {tensor.index: self.names[tensor.index] for tensor in inputs}
        self.sizes.check_values([*names.values()])
        declared, found = {}, {}
        for tensor in inputs:
            name = names[tensor.index]
            if name in self.sizes.values:
                value = self.sizes.value(name, _at_edge(tensor.dtype), tensor.shape)
                self.folded[tensor.index] = replace(tensor, data=value)
                continue
            pairs = zip(tensor.shape, tensor.signature, strict=True)
            declared[name] = tuple(None if sign == -1 else size for size, sign in pairs)
            found |= {f"{name}.{axis}": size for axis, size in enumerate(tensor.shape)}
        first = [t.shape[0] for t in inputs if t.index not in self.folded and t.shape]
        together = not self.images_apart or len({*first}) != 1
        sizes = replace(self.sizes, batch=first[0]) if first and together else self.sizes
        shapes = sizes.resolve(declared, found)
        for tensor in inputs:
            if (name := names[tensor.index]) in shapes:
                self.shapes[tensor.index] = shapes[name]
        grown = {s[0] // f for s, f in zip(shapes.values(), first, strict=False) if s}
        self.scale = grown.pop() if len(grown) == 1 else 1
        tails = [(self.shapes[t.index][1:], t.shape[1:]) for t in inputs if t.index in self.shapes]
        self.resized = any(made != said for made, said in tails)
        return sizes.named(declared)

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
        shape = self.shapes[tensor.index]
        self.tensors[name] = Tensor(name, shape, _at_edge(tensor.dtype), quant=quant_of(tensor))
        self.values[tensor.index] = {"plain": name}
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


def import_tflite(source: str | Path | bytes, sizes: Sizes = ONE) -> Graph:
    """Read a model into a graph of integer operators.

    Parameters
    ----------
    source
        A file, or the bytes of one.
    sizes
        Of dimensions of the inputs that the model leaves open, which by default are those that the
        file has, and values of inputs.

    Raises
    ------
    VdlaError
        When the file is unreadable, damaged or of another kind, or an operator is not supported;
        the message names the operator or the tensor.
    """
    return open_tflite(source)(sizes)


def open_tflite(source: str | Path | bytes) -> Callable[[Sizes], Graph]:
    """What reads a model for given sizes. Errors as :func:`import_tflite`."""
    where = "model" if isinstance(source, bytes) else str(source)
    refuse_other_kinds(source, where)
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise VdlaError(f"{where}: {error.strerror or error}") from None

    def read(sizes: Sizes) -> Graph:
        try:
            graph = _Network(read_model(data), sizes, READERS).run()
        except VdlaError as error:
            raise VdlaError(f"{where}: {error}") from None
        verify(graph)
        return graph

    return read
