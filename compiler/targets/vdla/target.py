"""The accelerator as a target."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from ....isa.errors import VdlaError
from ....isa.memory import MemoryParams
from ....isa.params import NOT_IN_PROGRAMS, HwParams
from ....isa.program import Program
from ...choose.chooser import Chooser
from ...choose.space import Refusal
from ...dumps import Dumps
from ...graph.ir import Graph, Node
from ...graph.ops.convolution import Convolution
from ...graph.ops.integer import QSoftmax
from ...graph.ops.linear import MatMul
from ...graph.ops.normalisation import QLayerNorm
from ...graph.ops.quantisation import Quantize, QuantizeAway, Recentre
from ...tir.ir import PrimFunc
from ..base import Compiled, GraphPass, Options, Part, Target
from ..cpu.target import Cpu
from . import kept
from .layer import Layer
from .machine import ACCELERATOR, Machine
from .passes.absorb_flatten import absorb_flatten
from .passes.fit_layout import fit_layout
from .passes.join_results import join_results
from .passes.join_windows import join_windows
from .passes.look_up_again import look_up_again
from .passes.needed_first import needed_first
from .passes.pack_windows import pack_windows
from .passes.products_of_places import products_of_places
from .passes.reshape_blocks import reshape_blocks
from .passes.rows_as_places import rows_as_places
from .program import build_func, choose_operators, write_program
from .sharing import LoopPrograms, Operator
from .templates.activated_products import ActivatedProducts
from .templates.activations import Activations, tile_step
from .templates.added_products import AddedProducts
from .templates.base import AcceleratorTemplate, Track
from .templates.channel_addition import ChannelAddition
from .templates.channel_products import ChannelProducts
from .templates.elementwise import ELEMENTWISE
from .templates.expanded_windows import ExpandedWindows
from .templates.expanding import BOUNDS, EXPANSION, Expanding
from .templates.grouped import Grouped
from .templates.groups_transposed import GroupsTransposed
from .templates.in_place import Joined, Renamed
from .templates.joining import ADDITION, APART, JOINED, Joining, has_own_knobs
from .templates.look_ups import LookUps
from .templates.looked_up_images import TableMeans, TableProducts
from .templates.masked_softmax import MaskedSoftmax, most_mask_rows
from .templates.means import Means
from .templates.normalisation import (
    Normalise,
    RowFactors,
    most_norm_channels,
    normalised_by_host,
)
from .templates.packing import PACKED, Packing
from .templates.places_moved import PlacesMoved
from .templates.products import Products
from .templates.reserving import EIGHTHS, USUAL_EIGHTHS, Reserving
from .templates.residual_products import ResidualProducts
from .templates.softmax import Softmax, longest_row
from .templates.tables import Tables
from .templates.transposed import Transposed
from .templates.windows import Windows

#: A node is computed by the first template that handles it; these have instructions.
TEMPLATES: list[type[AcceleratorTemplate]] = [
    Grouped, Products, AddedProducts, ActivatedProducts, ResidualProducts, Activations,
    GroupsTransposed, Transposed, Means, TableMeans, Windows, ExpandedWindows, *ELEMENTWISE,
    ChannelProducts, TableProducts, MaskedSoftmax, Softmax, RowFactors, Normalise, ChannelAddition,
    PlacesMoved, LookUps, Tables,
]  # fmt: skip


def machine_key(hw: HwParams, memory: MemoryParams) -> str:
    """An accelerator and its memory, as records name them."""
    return f"{hw.hash} {json.dumps(memory.to_dict(), sort_keys=True)}"


class Accelerator(Target):
    """VDLA: int8 tensors in blocks of channels. Nodes that it refuses run on the host."""

    name = ACCELERATOR
    title = "the accelerator"
    splits_batches = True

    def __init__(self, options: Options):
        if options.threads > 1:
            raise VdlaError(
                f"threads: expected 1 with the accelerator, got {options.threads}; use target cpu"
            )
        self.machine = Machine(options.hw, options.memory, options.vthreads)
        self.batch = options.hw.batch
        self.host = Cpu(options)
        self.templates = (*(kind(self.machine) for kind in TEMPLATES), Renamed(), Joined())
        self.machine_key = machine_key(options.hw, options.memory)

    def refuse(self, graph: Graph, node: Node) -> Refusal:
        dtype = graph.result(node).dtype
        match node.op:
            case QLayerNorm(axis=axis):
                return Refusal(normalised_by_host(graph[node.inputs[0]].shape, axis, self.machine))
            case QSoftmax():
                return Refusal("exponentials and a division")
            case Recentre():
                return Refusal("uint8 at the edge of the model")
            case Quantize() | QuantizeAway():
                return Refusal("float input")
            case Convolution() | MatMul() if dtype == "int32":
                return Refusal("an int32 result; what leaves the accelerator is int8")
        if dtype.startswith("float"):
            return Refusal(f"{dtype}; the accelerator computes with int8")
        if dtype == "int8":
            return Refusal(f"{node.op.name} has no schedule for the accelerator")
        return Refusal("no operator of the accelerator")

    def graph_passes(self, chooser: Chooser) -> Sequence[tuple[str, GraphPass]]:
        params = self.machine.params
        most_places = min(params.wgt_depth, params.inp_depth) // 8
        return (
            ("absorb_flatten", partial(absorb_flatten, most_places=most_places)),
            ("rows_as_places", partial(rows_as_places, batch=params.batch)),
            (
                "products_of_places",
                partial(
                    products_of_places,
                    block=params.block,
                    has_table=bool(params.vector_table),
                    longest_row=longest_row(params),
                    most_mask_rows=most_mask_rows(params),
                    most_channels=most_norm_channels(params),
                    tile_step=tile_step(params),
                ),
            ),
            ("fit_layout", partial(fit_layout, params=params)),
            ("pack_windows", partial(pack_windows, packs=partial(self._packs, chooser))),
            ("reshape_blocks", partial(reshape_blocks, block=params.block)),
            ("join", partial(self._join, chooser)),
        )

    @property
    def _joins_tables(self) -> bool:
        """Whether tables become part of other operators."""
        return bool(self.machine.params.vector_table) and self.machine.saves_loads

    def _join(self, chooser: Chooser, graph: Graph) -> Graph:
        """Make one operator of several, where that pays. Where loads can be saved, several graphs
        are made: with all additions of images joined or none, and with each of ``BOUNDS`` for pairs
        of convolutions. That is taken whose program is estimated to end first; then the room for
        weights is chosen for it."""
        if not self.machine.saves_loads:
            return self._join_results(chooser, graph, APART)
        ready: LoopPrograms = {}
        made: dict[tuple[int, ...], tuple[Graph, Chooser]] = {}
        for addition, bound in product((APART, JOINED), BOUNDS):
            trial = chooser.copy()
            added = self._join_results(trial, graph, addition)
            if self._joins_tables:
                added = look_up_again(added, TableMeans(self.machine).sums)
            paired = self._join_windows(trial, needed_first(added), bound)
            made.setdefault((len(added.nodes), len(paired.nodes)), (paired, trial))
        found = [*made.values()]
        if len(found) > 1:
            found.sort(key=lambda one: self._estimated_cycles(*one, USUAL_EIGHTHS, ready))
        joined, trial = found[0]

        def cost(eighths: int) -> tuple[int, bool]:
            cycles = self._estimated_cycles(joined, trial, eighths, ready)
            return cycles, eighths != USUAL_EIGHTHS

        chooser.made.update(self._reserving(joined, trial, min(EIGHTHS, key=cost)).made)
        return joined

    def _reserving(self, graph: Graph, chooser: Chooser, eighths: int) -> Chooser:
        """A chooser with the same choices that also says how much of ``wgt`` each operator with
        products has for its weights: these ``eighths``, but where someone says otherwise."""
        trial, reserving = chooser.copy(), Reserving(eighths)
        for node in graph.nodes:
            if self._multiplies(graph, node):
                trial.choose(reserving, reserving.workload(graph, node), node.name)
        return trial

    def _multiplies(self, graph: Graph, node: Node) -> bool:
        """Whether a node uses the tensor core."""
        template = self.template_of(graph, node) if node.target == self.name else None
        if not isinstance(template, AcceleratorTemplate):
            return False
        return template.multiplies or template.track is Track.TENSOR

    def _join_results(self, chooser: Chooser, graph: Graph, addition: str) -> Graph:
        """Join additions as ``addition`` says, but where someone says otherwise."""

        def adds_image(source: Node, node: Node) -> bool:
            apart = has_own_knobs(chooser.given, ADDITION, source, node)
            joining = Joining(APART if apart else addition)
            workload = joining.workload(graph, source)
            return chooser.choose(joining, workload, source.name).knobs[ADDITION] == JOINED

        return join_results(graph, self._joins_tables, adds_image)

    def _join_windows(self, chooser: Chooser, graph: Graph, bound: float) -> Graph:
        """Join pairs of convolutions that as one cost up to ``bound`` times what both cost."""
        expanded, expanding = ExpandedWindows(self.machine), Expanding(self.machine, bound)

        def joins(first: Node, node: Node) -> bool:
            if has_own_knobs(chooser.given, EXPANSION, first, node):
                return False
            if not expanded.handles(graph, node):
                return False
            workload = expanded.workload(graph, node, expanded.usual_context)
            return chooser.choose(expanding, workload, node.name).knobs[EXPANSION] == JOINED

        return join_windows(graph, joins)

    def _estimated_cycles(
        self, graph: Graph, chooser: Chooser, eighths: int, ready: LoopPrograms
    ) -> int:
        """The cycles that a graph's nodes on the accelerator are estimated to take as a program,
        with these ``eighths`` of ``wgt`` for the weights of each. ``ready`` as for
        :meth:`attempt`."""
        nodes = [node for node in graph.nodes if node.target == self.name]
        others = (node for node in graph.nodes if node.target != self.name)
        read = {*graph.outputs, *(name for node in others for name in node.inputs)}
        part = Part(graph, tuple(nodes), [n.output for n in nodes if n.output in read])
        trial = self._reserving(graph, chooser, eighths)
        return self._compile(part, trial, Dumps(None), ready).estimated_cycles or 0

    def _packs(self, chooser: Chooser, graph: Graph, node: Node) -> bool:
        """Whether the host packs a convolution's windows; False where there is no choice."""
        packing = Packing(self.machine)
        workload = packing.workload(graph, node)
        if workload is None:
            return False
        return chooser.choose(packing, workload, node.name).knobs["windows"] == PACKED

    def worth(self, graph: Graph, nodes: Sequence[Node]) -> bool:
        """Moving tensors to the accelerator pays only for a convolution or a dense layer."""
        return any(graph.macs(node) for node in nodes)

    def compile(self, part: Part, chooser: Chooser, dumps: Dumps) -> Compiled:
        return self._compile(part, chooser, dumps, {})

    def _compile(
        self, part: Part, chooser: Chooser, dumps: Dumps, ready: LoopPrograms
    ) -> Compiled:
        """As :meth:`compile`, with loop programs that are ``ready``."""
        templates, place, machine = self._templates(part), None, self._machine_of_programs
        if dumps.directory is None:  # dumps show the compiler at work
            place = kept.place_of(part, templates, machine, chooser)
        if place is not None and (known := kept.read(place, chooser)) is not None:
            return self._own(known)
        begin = time.perf_counter()
        made = choose_operators(part, templates, machine, chooser, dumps, ready)
        compiled = write_program(part, made, machine, chooser, dumps)
        if place is not None:
            kept.keep(place, compiled, chooser, time.perf_counter() - begin)
        return self._own(compiled)

    def attempt(
        self, part: Part, chooser: Chooser, ready: LoopPrograms
    ) -> tuple[list[Operator], Program]:
        """The operators of a part that have instructions, with their choices, and the part's
        program, which is not kept. ``ready`` has the loop programs of earlier attempts."""
        machine, dumps = self._machine_of_programs, Dumps(None)
        made = choose_operators(part, self._templates(part), machine, chooser, dumps, ready)
        compiled = self._own(write_program(part, made, machine, chooser, dumps))
        assert isinstance(compiled.step, Program)
        return [*made.values()], compiled.step

    @property
    def _machine_of_programs(self) -> Machine:
        """The machine with the usual values of all that no program depends on, so that one program
        is kept for all of them."""
        usual = {name: getattr(HwParams, name) for name in NOT_IN_PROGRAMS}
        return replace(self.machine, params=replace(self.machine.params, **usual))

    def _own(self, compiled: Compiled) -> Compiled:
        """A compiled part with this target's configuration."""
        program = compiled.step
        if not isinstance(program, Program) or program.params == self.machine.params:
            return compiled
        return replace(compiled, step=replace(program, params=self.machine.params))

    def layers(self, part: Part, chooser: Chooser) -> list[Layer]:
        """The layers of a part that have instructions, to try knobs on. Their workloads have the
        context that their neighbours leave them with the choices of ``chooser``.
        """
        made = choose_operators(part, self._templates(part), self.machine, chooser, Dumps(None))
        return [
            Layer(part.graph, o.node, o.template, o.workload, self.machine) for o in made.values()
        ]

    def _templates(self, part: Part) -> dict[str, AcceleratorTemplate]:
        """The templates of a part's nodes that have instructions, by output."""
        found = {node.output: self.template_of(part.graph, node) for node in part.nodes}
        return {o: t for o, t in found.items() if isinstance(t, AcceleratorTemplate)}

    def compile_func(self, func: PrimFunc, dumps: Dumps) -> Program:
        return build_func(func, self.machine, dumps)
