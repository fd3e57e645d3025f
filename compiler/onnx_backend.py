"""ONNX's standard backend interface: whole models on the host, through this compiler.

``prepare(model)`` compiles at the first run, when the inputs' shapes are known. Inputs that decide
shapes or positions (the shape of Reshape, the pads of Pad, ...) must be known to compile, too: a
module is specialised for their values, and another one is made when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from .. import plugins
from ..isa.errors import VdlaError
from ..runtime.native import as_input
from .frontends.onnx.importer import import_onnx, input_names
from .frontends.onnx.narrow import HELD, held
from .frontends.onnx.ops.call import ValueNeeded
from .frontends.sizes import Sizes
from .graph.ir import DTYPES, Graph
from .graph.passes import run_passes
from .targets.cpu.graph_code import build_cpu
from .te.errors import own_schedules

#: Takes one array for each input of a graph, and returns one for each output.
Run = Callable[..., Sequence[np.ndarray]]


def compile_for_host(graph: Graph) -> Run:
    """A graph as machine code of the host."""
    return build_cpu(run_passes(graph)).run


class VdlaRep(BackendRep):
    """A model, compiled once for each combination of input shapes, and of values that decide
    shapes, with which it is run. ``compile`` makes a function of an imported graph. ``values`` are
    those of inputs that are constants, which nobody changes and nobody gives."""

    def __init__(
        self,
        model: onnx.ModelProto,
        compile: Callable[[Graph], Run] = compile_for_host,
        values: Mapping[str, np.ndarray] | None = None,
    ):
        self.model, self.compile, self.values = model, compile, dict(values or {})
        self.inputs = [name for name in input_names(model) if name not in self.values]
        self.dtypes = {value.name: _dtype(value) for value in model.graph.input}
        #: Of the outputs: float16 and bfloat16 are float32 in graphs.
        self.types = [_declared(value) for value in model.graph.output]
        #: Inputs whose values decide shapes, as far as earlier runs have shown.
        self.specialised: list[str] = []
        self.modules: dict[tuple, tuple[tuple[str, ...], Run]] = {}

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """The outputs in the model's order.

        Parameters
        ----------
        inputs : a sequence of arrays in the model's order, a mapping by name, or one array

        Raises
        ------
        VdlaError
            When inputs do not fit the model, or an operator is not supported, naming it.
        """
        plugins.load_known()
        arrays = self._named(inputs)
        names, run = self._module(arrays)
        found = run(*(arrays[name] for name in names))
        both = zip(found, self.types, strict=True)
        return tuple(y.astype(kind) if kind in HELD else y for y, kind in both)

    def __call__(self, inputs: Any) -> list[np.ndarray]:
        """As :meth:`run`, as a list."""
        return list(self.run(inputs))

    def _named(self, inputs: Any) -> dict[str, np.ndarray]:
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if isinstance(inputs, Mapping):
            missing = [name for name in self.inputs if name not in inputs]
            if missing:
                raise VdlaError(f"run: input {missing[0]!r} is missing, got {sorted(inputs)}")
            inputs = [inputs[name] for name in self.inputs]
        if len(inputs) != len(self.inputs):
            raise VdlaError(f"run: expected {len(self.inputs)} inputs, got {len(inputs)}")
        given = zip(self.inputs, inputs, strict=True)
        return {name: as_input(held(_array(a, name)), self.dtypes[name]) for name, a in given}

    def _module(self, arrays: dict[str, np.ndarray]) -> tuple[tuple[str, ...], Run]:
        """The inputs of the graph for these arrays, and what runs it."""
        while True:
            values = {name: arrays[name].copy() for name in self.specialised}
            key = (
                tuple((n, a.shape, str(a.dtype)) for n, a in arrays.items()),
                tuple(value.tobytes() for value in values.values()),
            )
            if key in self.modules:
                return self.modules[key]
            try:
                shapes = {name: array.shape for name, array in arrays.items()}
                given = Sizes(
                    shapes={name: s for name, s in shapes.items() if name not in values},
                    values=self.values | values,
                )
                graph = import_onnx(self.model, given)
            except ValueNeeded as needed:
                self.specialised.append(needed.name)
                continue
            with own_schedules():
                self.modules[key] = graph.inputs, self.compile(graph)


class VdlaBackend(Backend):
    """The backend of this compiler; its only device is the host's processor."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> VdlaRep:
        """What runs a model. The importer checks it; onnx's checker would refuse files that run,
        such as those whose outputs have no shape."""
        if not cls.supports_device(device):
            raise VdlaError(f"expected device 'CPU', got {device!r}")
        return VdlaRep(model)

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Compile and run once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node in the newest operator set."""
        arrays = [np.asarray(a) for a in inputs]
        names = [name for name in node.input if name]
        typed = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", typed, outputs)
        return VdlaRep(onnx.helper.make_model(graph)).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device is the host's processor."""
        try:
            return Device(device).type == DeviceType.CPU
        except (AttributeError, ValueError):
            return False


def _array(value: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # a list of arrays of several shapes
        got = type(value).__name__
        raise VdlaError(f"run: input {name!r}: expected an array, got a {got}") from None


def _dtype(value: onnx.ValueInfoProto) -> str:
    """The dtype that holds an input; "object" for what the import refuses."""
    name = _declared(value)
    name = HELD.get(name, name)
    return name if name in DTYPES else "object"


def _declared(value: onnx.ValueInfoProto) -> str:
    """The dtype of an input or output in the model as NumPy names it; "object" without one."""
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    except KeyError:
        return "object"


prepare = VdlaBackend.prepare
run_model = VdlaBackend.run_model
run_node = VdlaBackend.run_node
supports_device = VdlaBackend.supports_device
