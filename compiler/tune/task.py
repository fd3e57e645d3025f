"""What is tuned: the layers of a model that have knobs, by workload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from ..build import prepare
from ..choose.chooser import Chooser
from ..choose.records import Key, Records
from ..choose.space import Knobs, Space, Workload
from ..choose.steps import STEPS
from ..choose.template import Plan, Template
from ..dumps import Dumps
from ..graph.ir import Graph, Node
from ..graph.ops.base import Fusion
from ..partition import split_parts
from ..targets.base import Part, Target
from ..targets.cpu.layer import CpuLayer
from ..targets.cpu.lowering import lower_node
from ..targets.cpu.target import Cpu
from ..targets.cpu.templates.by_steps import BySteps
from ..targets.gpu.layer import GpuLayer
from ..targets.gpu.target import Gpu
from ..targets.vdla.layer import Layer as VdlaLayer
from ..targets.vdla.target import Accelerator
from ..targets.vdla.templates.base import AcceleratorTemplate, Track
from ..targets.vdla.templates.searched import find_step_template
from ..tir.ir import PrimFunc
from .candidates import Candidates


class Layer(Protocol):
    """A node with its template and workload, which can be compiled by itself for any knobs
    (``layer.py`` of each target).
    """

    @property
    def graph(self) -> Graph: ...
    @property
    def node(self) -> Node: ...
    @property
    def template(self) -> Template: ...
    @property
    def workload(self) -> Workload: ...


@dataclass(frozen=True, eq=False)
class Task:
    """A workload of one template, and the layers of a model that have it.

    Attributes
    ----------
    target, machine : whose records it reads and makes (``Target.name``, ``Target.machine_key``)
    layer : one of the layers, to be compiled
    layers : the names of all
    fixed : knobs that are not searched, with their values
    """

    target: str
    machine: str
    layer: Layer
    layers: tuple[str, ...]
    fixed: Knobs = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What a record of this task is found by."""
        layer = self.layer
        return Key(self.target, self.machine, layer.template.name, layer.workload.key)

    @property
    def decides_for_others(self) -> bool:
        """Whether what other tasks may use depends on the choice: operators of the vector unit get
        their scratchpads first.
        """
        template = self.layer.template
        return isinstance(template, AcceleratorTemplate) and template.track is not Track.TENSOR

    @property
    def space(self) -> Space:
        """The choices that are searched: a fixed knob has one value."""
        space = self.layer.template.space(self.layer.workload)
        knobs = {n: (self.fixed[n],) if n in self.fixed else v for n, v in space.knobs.items()}
        return Space(knobs, space.misfit, space.fits)

    @cached_property
    def estimates(self) -> Mapping[str, np.ndarray]:
        """What the template's cost model knows of all legal points, in the order of
        ``Candidates.all``; empty if it knows nothing without a closer look.
        """
        candidates, layer = Candidates(self.space), self.layer
        if not layer.template.estimates(layer.workload, candidates.columns([0])):
            return {}
        return layer.template.estimates(layer.workload, candidates.columns(candidates.all()))

    def plan(self) -> Plan | None:
        """The template's own choice, if it finds one."""
        found = self.layer.template.plan(self.layer.workload, self.fixed)
        return found if isinstance(found, Plan) else None


def find_tasks(
    model: object, target: Target, records: Records | None = None, by_steps: bool = False
) -> list[Task]:
    """The tasks of a model, in the order of layers, with the choices of ``records``: what a layer
    may use depends on the choices of its neighbours. ``by_steps``: layers are
    scheduled by steps, without templates; on the accelerator convolutions and dense layers.

    Layers of equal workload are one task. A layer whose knobs have one value each is none, unless
    it is scheduled by steps.

    Raises
    ------
    VdlaError
        For a model that cannot be read or compiled.
    """
    chooser = Chooser(target.name, target.machine_key, records=records or Records())
    graph = prepare(model, target, chooser, Dumps())
    found: list[Layer] = []
    for where, part in split_parts(graph, target):
        match target:
            case Accelerator() if where is target:
                layers = target.layers(part, chooser)
                found += _products_by_steps(layers) if by_steps else layers
            case Cpu():
                layers = target.layers(part, chooser)
                found += _by_steps(layers) if by_steps else layers
            case Gpu():
                found += target.layers(part, chooser)
    return merged(found, target)


def _by_steps(layers: Iterable[CpuLayer]) -> Iterator[CpuLayer]:
    """The layers that compute something, scheduled by steps."""
    for layer in layers:
        if layer.node.op.fusion is not Fusion.ALIAS:
            yield replace(layer, template=BySteps(layer.processor))


def _products_by_steps(layers: Iterable[VdlaLayer]) -> Iterator[VdlaLayer]:
    """The layers that the accelerator's rules fit, scheduled by steps."""
    for layer in layers:
        if (template := find_step_template(layer.template, layer.workload)) is not None:
            yield replace(layer, template=template)


def merged(layers: Iterable[Layer], target: Target) -> list[Task]:
    """One task for all layers of the same template and workload."""
    same: dict[tuple[str, str], list[Layer]] = {}
    for layer in layers:
        space = layer.template.space(layer.workload)
        if STEPS in space.knobs or any(len(values) > 1 for values in space.knobs.values()):
            same.setdefault((layer.template.name, layer.workload.key), []).append(layer)
    return [
        Task(
            target.name,
            target.machine_key,
            _alone(group[0]),
            tuple(layer.node.name for layer in group),
        )
        for group in same.values()
    ]


def _alone(layer: Layer) -> Layer:
    """The layer in a graph that has nothing else, which is small enough to be sent to workers."""
    part = Part(layer.graph, (layer.node,), (layer.node.output,))
    return replace(layer, graph=part.as_graph())  # type: ignore[type-var]


def loop_program(layer: Layer, knobs: Knobs) -> PrimFunc:
    """The loop program of a layer with some knobs, before the target's passes."""
    match layer:
        case VdlaLayer():
            return layer.template.schedule(layer.workload, knobs, layer.node.name)
        case CpuLayer():
            return lower_node(layer.graph, layer.node, layer.processor, knobs).func
        case GpuLayer():
            return layer.loop_program(knobs)
    raise TypeError(f"{layer} has no loop program")
