"""How far integer operators are from what ONNX defines: the float operator between dequantisation
and quantisation, computed by ONNX Runtime without optimisations.

Every operator is compared by itself, on the operands that the graph computes. So distances do not
add up from one to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..compiler.frontends.onnx.importer import Importer, input_names
from ..compiler.frontends.onnx.model import load_model
from ..compiler.frontends.sizes import Sizes
from ..compiler.graph.arithmetic.requant import OFFSET
from ..compiler.graph.interpret import evaluate
from ..compiler.graph.ir import Graph, Node
from ..compiler.graph.ops.quantisation import Recentre
from ..compiler.graph.passes import GRAPH_PASSES, run_passes
from ..compiler.graph.passes.make_signed import make_signed
from ..isa.errors import VdlaError

#: Distances that are counted apart; larger ones are counted together.
STEPS = 3


@dataclass(frozen=True)
class Distance:
    """How far one operator is from its definition.

    Attributes
    ----------
    name, op : of the graph's node
    counts : elements that are 0, 1, 2, ... steps of the quantisation away; the last of them at
        least ``STEPS``
    largest : the largest distance, in steps
    """

    name: str
    op: str
    counts: tuple[int, ...]
    largest: int

    @property
    def elements(self) -> int:
        """How many elements the result has."""
        return sum(self.counts)


def distances(
    source: str | Path | onnx.ModelProto,
    inputs: Sequence[np.ndarray],
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> list[Distance]:
    """Compare each integer operator of a model: QuantizeLinear with the float operators before it,
    and operators that have integer results themselves.

    Parameters
    ----------
    source : a quantised ONNX model, or its file
    inputs : one batch, in the order of the model's inputs
    values : of inputs that are constants, which ``inputs`` leaves out

    Raises
    ------
    VdlaError
        For a model that cannot be read, without such an operator, for inputs that ONNX Runtime
        refuses, and where it is not installed.
    """
    session = runtime()
    model, where = load_model(source)
    given = [name for name in input_names(model) if name not in values]
    shapes = dict(zip(given, (array.shape for array in inputs), strict=False))
    importer = Importer(where, Sizes(shapes=shapes, values=values))
    imported = importer.run(model)
    graph = run_passes(imported)
    values = evaluate(graph, dict(zip(graph.inputs, inputs, strict=True)))
    makers = {name: node for node in model.graph.node for name in node.output if name}
    types = {name: imported[name].dtype for name in makers if name in imported.tensors}
    types = {name: dtype for name, dtype in types.items() if dtype in ("int8", "uint8")}
    known = {t.name: t.data for t in imported.tensors.values() if t.data is not None}
    known |= importer.known  # such as shapes
    known |= dict(zip(given, inputs, strict=True))  # of two tensors that are equal, one is computed
    names = _model_names(imported, types) | {name: name for name in graph.inputs}
    found, producers = [], graph.producers()
    for node in graph.nodes:
        computed = node  # what is moved afterwards is computed before
        while computed.op.moves and computed.inputs[0] in {*producers} - {*names}:
            computed = producers[computed.inputs[0]]
        if node.output not in names or computed.op.moves:
            continue
        feeds = {
            names[name]: _as_stored(values[name], types.get(names[name]))
            for name in _operands(graph, node, names)
        }
        part = _part(model, makers, feeds, names[node.output], known)
        try:
            (wanted,) = session(part).run(None, feeds)
        except Exception as error:  # ONNX Runtime's have no class in common
            said = str(error).splitlines()[0]
            raise VdlaError(
                f"{where}: {computed.name}: expected inputs that ONNX Runtime takes, such as words"
                f" of the vocabulary (--input), got: {said}"
            ) from None
        found.append(
            _distance(computed, _as_stored(values[node.output], str(wanted.dtype)), wanted)
        )
    if not found:
        raise VdlaError(f"{where}: expected a quantised model, got one without integer operators")
    return found


def runtime(optimised: bool = False) -> Callable[[onnx.ModelProto], Any]:
    """What makes ONNX Runtime's sessions of models, on one thread: operator by operator as they are
    written, or optimised.

    Raises
    ------
    VdlaError
        Where ONNX Runtime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise VdlaError(
            "expected ONNX Runtime, which is not installed: pip install onnxruntime"
        ) from None

    def session(model: onnx.ModelProto) -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it refuses is raised, too
        if not optimised:
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.graph_optimization_level = level
        options.intra_op_num_threads = 1
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    return session


def _model_names(imported: Graph, types: Mapping[str, str]) -> dict[str, str]:
    """By a tensor's name in the graph after all passes, its name in the model, of those with
    ``types``: integers that the model has as uint8 are int8 there, and may have another name."""
    names = {name: name for name in types}
    before = GRAPH_PASSES[: GRAPH_PASSES.index(make_signed) + 1]
    for node in run_passes(imported, before).nodes:
        if isinstance(node.op, Recentre):
            [source] = node.inputs
            if node.output in types:
                names[source] = node.output
            elif source in types:
                names[node.output] = source
    return names


def _as_stored(value: np.ndarray, dtype: str | None) -> np.ndarray:
    """A value of the graph as the model stores it."""
    if dtype == "uint8" and value.dtype == np.int8:
        return (value.astype(np.int16) + OFFSET).astype(np.uint8)
    return value


def _operands(graph: Graph, node: Node, named: Collection[str]) -> list[str]:
    """The nearest tensors before a node that the model has, too."""
    producers, found, waiting = graph.producers(), [], [*node.inputs]
    while waiting:
        name = waiting.pop()
        if graph[name].is_constant or name in found:
            continue
        if name in named:
            found.append(name)
        else:
            waiting += producers[name].inputs
    return found


def _part(
    model: onnx.ModelProto,
    makers: Mapping[str, onnx.NodeProto],
    operands: Mapping[str, np.ndarray],
    output: str,
    known: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    """The model's nodes between some tensors and one that they make. What is ``known``, such as a
    computed shape or an input whose value was given, is a constant."""
    constants = {i.name: i for i in model.graph.initializer}
    chosen: dict[int, onnx.NodeProto] = {}
    waiting, used = [output], set()
    while waiting:
        name = waiting.pop()
        if not name or name in used:
            continue
        used.add(name)
        if name not in constants and name in known and name not in operands:
            constants[name] = numpy_helper.from_array(known[name], name)
        elif name in makers and name not in operands:
            chosen[id(makers[name])] = makers[name]
            waiting += makers[name].input
    ordered = [node for node in model.graph.node if id(node) in chosen]
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(value.dtype),
            value.shape,
        )
        for name, value in operands.items()
    ]
    graph = helper.make_graph(
        ordered, "part", inputs, [onnx.ValueInfoProto(name=output)],
        [constants[name] for name in sorted(used) if name in constants],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )


def _distance(node: Node, made: np.ndarray, wanted: np.ndarray) -> Distance:
    steps = np.abs(made.astype(np.int64) - wanted.astype(np.int64)).reshape(-1)
    counts = np.bincount(np.minimum(steps, STEPS), minlength=STEPS + 1)
    return Distance(node.name, node.op.name, tuple(map(int, counts)), int(steps.max(initial=0)))
