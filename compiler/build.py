"""From a model to what runs, top to bottom.

::

    load                    frontends
    -> GRAPH_PASSES         graph/passes, for every target
    -> place                partition.py: every node on the target, or on its host
    -> the target's passes
    -> parts                partition.py
    -> Target.compile       targets: choices, loop programs, code
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ..isa.errors import VdlaError
from ..isa.program import Program
from ..runtime.executable import Executable, LayerInfo, State, Step
from .arena import tensor_types
from .batches import Batch, find_batch
from .choose.chooser import Chooser, Given
from .choose.records import Records
from .dumps import STEPS_OF_NODE, Dumps
from .frontends.load import load_graph, open_model
from .frontends.sizes import ONE, Sizes
from .frontends.states import with_states
from .graph.ir import Graph, dump
from .graph.passes import GRAPH_PASSES
from .graph.passes.split_batch import split_batch
from .graph.verify import verify
from .partition import assign_targets, drop_small_programs, split_parts
from .targets.base import DoesNotFit, GraphPass, Target
from .te.errors import own_schedules


@dataclass(frozen=True, eq=False)
class CompiledModel(Executable):
    """An executable with the graph that it came from, after all passes, and how that graph treats
    the dimensions that its model leaves open."""

    graph: Graph
    batch: Batch


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python seldom look for cycles of garbage: a compilation makes millions of objects, and
    most of them live until its end."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@own_schedules()
@_rare_collections()
def build(
    model: object,
    target: Target,
    knobs: Given | None = None,
    records: Records | None = None,
    dump_ir: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    sizes: Sizes = ONE,
    states: Mapping[str, str] = MappingProxyType({}),
    initial: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> CompiledModel:
    """Compile a model (path, bytes, onnx.ModelProto, torch.export.ExportedProgram or Graph).

    Parameters
    ----------
    knobs : by layer; they come before all other choices
    records : they come before the templates' own choices
    dump_ir : a directory for all intermediate representations
    progress : called with (steps done, steps in all)
    sizes : of what the model leaves open; open first dimensions have the target's batch
    states : inputs and the outputs that they become in the next run, by name
    initial : values of states before the first run, where they are not zeros

    Raises
    ------
    VdlaError
        For a model that cannot be read, an operator that nothing can run, and a choice that is not
        legal, naming it.
    """
    read, sizes = _reader(model, states, initial), replace(sizes, batch=target.batch)
    graph = read(sizes)
    batch = find_batch(graph, sizes, read)
    del read  # it keeps the model in memory
    left: dict[str, str] = {}
    while True:
        dumps = Dumps(dump_ir, progress)
        chooser = Chooser(target.name, target.machine_key, knobs or {}, records or Records())
        try:
            return _build(graph, batch, target, chooser, dumps, left)
        except DoesNotFit as error:
            if target.host is None or error.layer in left:
                raise
            left[error.layer] = error.reason


def _reader(
    model: object, states: Mapping[str, str], initial: Mapping[str, np.ndarray]
) -> Callable[[Sizes], Graph]:
    """What reads a model's graph, with these states, for given sizes."""
    opened = open_model(model)
    return lambda sizes: with_states(opened(sizes), states, initial)


def _build(
    imported: Graph,
    batch: Batch,
    target: Target,
    chooser: Chooser,
    dumps: Dumps,
    left: Mapping[str, str],
) -> CompiledModel:
    """As :func:`build`. Layers that are ``left`` to the host have their reasons there.

    Raises DoesNotFit for a layer that should be, too.
    """
    graph = prepare(imported, target, chooser, dumps, left)
    # Where ``split_batch`` has cut the batch, it has found images apart.
    kept = all(graph[name].shape == imported[name].shape for name in graph.given)
    axes = batch.axes if kept else {}
    layers: list[LayerInfo] = []
    steps: list[Step] = []
    issued = done = 0
    dumps.steps = STEPS_OF_NODE * len(graph.nodes)
    for where, part in split_parts(graph, target):
        compiled = where.compile(part, chooser.on(where.name, where.machine_key), dumps)
        done += STEPS_OF_NODE * len(part.nodes)
        dumps.reach(done)  # a target may tell only some of its steps
        layers += [_later(layer, issued) for layer in compiled.layers]
        if compiled.step is not None:
            steps.append(compiled.step)
        if isinstance(compiled.step, Program):
            issued += len(compiled.step.insns)
    chooser.check_given()
    inputs, outputs = (
        tuple(replace(t, axis=axes.get(t.name, 0)) for t in tensor_types(graph, names))
        for names in (graph.given, graph.results)
    )
    states = tuple(State(*kept) for kept in graph.state_values)
    return CompiledModel(inputs, outputs, tuple(layers), tuple(steps), graph, batch, states=states)


def prepare(
    model: object,
    target: Target,
    chooser: Chooser,
    dumps: Dumps,
    left: Mapping[str, str] = MappingProxyType({}),
) -> Graph:
    """Read a model and apply all graph passes: :func:`~.partition.split_parts` divides the result.
    Layers that are ``left`` to the host have their reasons there.

    Raises VdlaError as :func:`build`.
    """
    graph = load_graph(model, Sizes(target.batch))
    dumps.write("graph", "import", partial(dump, graph))
    for name, apply in _graph_passes(target, chooser, left):
        graph = _applied(name, apply, graph)
        dumps.write("graph", name, partial(dump, graph))
    return graph


def _applied(name: str, apply: GraphPass, graph: Graph) -> Graph:
    """The graph after a pass, which may be a plugin's: raises VdlaError where it is none."""
    made = apply(graph)
    if not isinstance(made, Graph):
        raise VdlaError(f"pass {name}: expected a Graph, got {made!r}")
    try:
        verify(made, graph)
    except VdlaError as error:
        raise VdlaError(f"pass {name}: {error}") from None
    return made


def _graph_passes(
    target: Target, chooser: Chooser, left: Mapping[str, str]
) -> list[tuple[str, GraphPass]]:
    """All passes of a graph for a target: names and functions, in order."""
    return [
        *((apply.__name__, apply) for apply in GRAPH_PASSES),
        *((("split_batch", partial(split_batch, batch=target.batch)),) * target.splits_batches),
        ("assign_targets", partial(assign_targets, target=target, left=left)),
        *target.graph_passes(chooser),
        ("drop_small_programs", partial(drop_small_programs, target=target)),
    ]


def _later(layer: LayerInfo, issued: int) -> LayerInfo:
    """The layer with its runs moved behind the ``issued`` instructions of earlier programs."""
    if layer.runs is None:
        return layer
    return replace(layer, runs=tuple((a + issued, b + issued) for a, b in layer.runs))
