"""The accelerator as a target."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

from ....isa.errors import VdlaError
from ....isa.memory import MemoryParams
from ....isa.params import NOT_IN_PROGRAMS, HwParams
from ....isa.program import Program
from ...choose.chooser import Chooser
from ...choose.space import Knobs, KnobValue, Refusal
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
from .layer import Layer
from .lower.loop_programs import LoopPrograms
from .machine import ACCELERATOR, Machine
from .plan import cache
from .plan.fuse_inverted_residual import EXPANSION, Expanding
from .plan.fuse_residual import ADDITION, APART, JOINED, Joining, has_own_knobs
from .plan.options import ProgramChoices, first_to_end
from .plan.pack_windows import PACKED, Packing
from .plan.program import LinkedPart, build_func, choose_operators, link_part
from .plan.reservations import IMAGE_PARTS, RESERVED, SHARE_SIXTEENTHS, WGT_EIGHTHS, Reserving
from .rewrite.absorb_flatten import absorb_flatten
from .rewrite.dense_as_convolution import dense_as_convolution
from .rewrite.fit_layout import fit_layout
from .rewrite.fuse_epilogues import fuse_epilogues
from .rewrite.fuse_inverted_residuals import fuse_inverted_residuals
from .rewrite.fuse_tables_into_readers import fuse_tables_into_readers
from .rewrite.matmul_as_convolution import matmul_as_convolution
from .rewrite.order_by_first_use import order_by_first_use
from .rewrite.pack_windows import pack_windows
from .rewrite.reshape_blocks import reshape_blocks
from .templates.base import AcceleratorTemplate, Track
from .templates.channel_bias import ChannelAddition
from .templates.channel_scale import ChannelProducts
from .templates.concat_slice import CopiedPositions
from .templates.convolution import Products
from .templates.convolution_constant import ConstantProducts
from .templates.convolution_residual import ResidualProducts
from .templates.convolution_table import ActivatedProducts
from .templates.elementwise import ELEMENTWISE
from .templates.global_average import Means
from .templates.grouped import Grouped
from .templates.inverted_residual import InvertedResiduals
from .templates.layer_norm import Normalise, RowFactors, most_norm_channels, normalised_by_host
from .templates.lookup_table import LookupTables
from .templates.masked_softmax import MaskedSoftmax, most_mask_rows
from .templates.matmul import Activations, tile_step
from .templates.softmax import Softmax, longest_row
from .templates.squeeze_tables import TableMeans, TableProducts
from .templates.transpose import GroupsTransposed
from .templates.transposed_convolution import Transposed
from .templates.views import Concatenated, Reshaped
from .templates.windows import Windows

#: A node is computed by the first template that handles it; these have instructions.
TEMPLATES: list[type[AcceleratorTemplate]] = [
    Grouped, Products, ConstantProducts, ActivatedProducts, ResidualProducts, Activations,
    GroupsTransposed, Transposed, Means, TableMeans, Windows, InvertedResiduals, *ELEMENTWISE,
    ChannelProducts, TableProducts, MaskedSoftmax, Softmax, RowFactors, Normalise, ChannelAddition,
    CopiedPositions, LookupTables,
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
        self.templates = (*(kind(self.machine) for kind in TEMPLATES), Reshaped(), Concatenated())
        self.machine_key = machine_key(options.hw, options.memory)
        self._ready = LoopPrograms(self._machine_of_programs)

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
        most_pixels = min(params.wgt_depth, params.inp_depth) // 8
        return (
            ("absorb_flatten", partial(absorb_flatten, most_pixels=most_pixels)),
            ("dense_as_convolution", partial(dense_as_convolution, batch=params.batch)),
            (
                "matmul_as_convolution",
                partial(
                    matmul_as_convolution,
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

    def _join(self, chooser: Chooser, graph: Graph) -> Graph:
        """Make one operator of several where that pays. This, and what operators take of the
        scratchpads, is chosen for the whole program."""
        joined, trial = self._joined(chooser, graph, self._program_choices(chooser, graph))
        chooser.made.update(trial.made)
        return joined

    def _program_choices(self, chooser: Chooser, graph: Graph) -> ProgramChoices:
        """The choices whose program of all nodes on the accelerator takes the fewest cycles."""
        templates = (self.template_of(graph, node) for node in graph.nodes)
        kinds = [type(template) for template in templates if template is not None]
        machine = self._machine_of_programs
        place = cache.place_of("program_choices", chooser, graph, kinds, machine)
        if place is not None and (known := cache.read_choices(place)) is not None:
            return known
        begin = time.perf_counter()
        cycles: dict[tuple, float] = {}
        by_digest: dict[bytes, float] = {}

        def cycles_of(choices: ProgramChoices) -> float:
            joined, trial = self._joined(chooser, graph, choices)
            same = tuple((node.output, str(trial.of(node.name))) for node in joined.nodes)
            if same not in cycles:
                cycles[same] = self._cycles(joined, trial, by_digest)
            return cycles[same]

        found = first_to_end(cycles_of)
        if place is not None:
            cache.keep_choices(place, found, time.perf_counter() - begin)
        return found

    def _joined(
        self, chooser: Chooser, graph: Graph, choices: ProgramChoices
    ) -> tuple[Graph, Chooser]:
        """The graph that these choices make of another one, and a chooser that has made them."""
        trial = chooser.copy()
        joined = self._join_results(trial, graph, choices.addition)
        if self.machine.params.vector_table:
            joined = fuse_tables_into_readers(joined, TableMeans(self.machine).sums)
        joined = self._join_windows(trial, order_by_first_use(joined), choices.bound)
        for node in joined.nodes:
            if usual := self._reserved(joined, node, choices):
                reserving = Reserving(usual)
                trial.choose(reserving, reserving.workload(joined, node), node.name)
        return joined, trial

    def _reserved(self, graph: Graph, node: Node, choices: ProgramChoices) -> Knobs:
        """What an operator takes of the scratchpads, where nobody says otherwise."""
        template = self.template_of(graph, node) if node.target == self.name else None
        knobs: dict[str, KnobValue] = {}
        if isinstance(template, AcceleratorTemplate):
            if template.multiplies or template.track is Track.TENSOR:
                knobs[WGT_EIGHTHS] = choices.wgt_eighths
                knobs[IMAGE_PARTS] = choices.image_parts
            if template.track is Track.VECTOR:
                legal, share = RESERVED[SHARE_SIXTEENTHS], int(16 * template.share)
                wanted = share + choices.share_steps
                knobs[SHARE_SIXTEENTHS] = min(max(wanted, legal[0]), legal[-1])
        return knobs

    def _cycles(self, graph: Graph, chooser: Chooser, known: dict[bytes, float]) -> float:
        """The cycles of the program of a graph's nodes on the accelerator, infinite if there is
        none. ``known`` has those of other instructions, and gets these."""
        nodes = [node for node in graph.nodes if node.target == self.name]
        others = (node for node in graph.nodes if node.target != self.name)
        read = {*graph.outputs, *(name for node in others for name in node.inputs)}
        part = Part(graph, tuple(nodes), [n.output for n in nodes if n.output in read])
        try:
            linked = self.attempt(part, chooser.copy())
            if linked.digest not in known:
                params = self._machine_of_programs.params
                known[linked.digest] = linked.count_cycles(params)
            return known[linked.digest]
        except VdlaError:
            return inf

    def _join_results(self, chooser: Chooser, graph: Graph, addition: str) -> Graph:
        """Join additions as ``addition`` says, but where someone says otherwise."""

        def adds_image(source: Node, node: Node) -> bool:
            apart = has_own_knobs(chooser.given, ADDITION, source, node)
            joining = Joining(APART if apart else addition)
            workload = joining.workload(graph, source)
            return chooser.choose(joining, workload, source.name).knobs[ADDITION] == JOINED

        return fuse_epilogues(graph, bool(self.machine.params.vector_table), adds_image)

    def _join_windows(self, chooser: Chooser, graph: Graph, bound: float) -> Graph:
        """Join pairs of convolutions that as one cost up to ``bound`` times what both cost."""
        expanded, expanding = InvertedResiduals(self.machine), Expanding(self.machine, bound)

        def joins(first: Node, node: Node) -> bool:
            if has_own_knobs(chooser.given, EXPANSION, first, node):
                return False
            if not expanded.handles(graph, node):
                return False
            workload = expanded.workload(graph, node, expanded.usual_context)
            return chooser.choose(expanding, workload, node.name).knobs[EXPANSION] == JOINED

        return fuse_inverted_residuals(graph, joins)

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
        templates, place, machine = self._templates(part), None, self._machine_of_programs
        if dumps.directory is None:  # dumps show the compiler at work
            kinds = {output: type(template) for output, template in templates.items()}
            nodes = [node.output for node in part.nodes]
            place = cache.place_of(
                "program", chooser, part.graph, nodes, part.wanted, kinds, machine
            )
        if place is not None and (program := cache.read(place, chooser)) is not None:
            return self._own(program)
        begin = time.perf_counter()
        ready = self._ready if dumps.directory is None else LoopPrograms(machine)
        made = choose_operators(part, templates, machine, chooser, dumps, ready)
        compiled = link_part(part, made, machine, chooser, dumps).compiled(dumps)
        if place is not None:
            cache.keep(place, compiled, chooser, time.perf_counter() - begin)
        return self._own(compiled)

    def attempt(self, part: Part, chooser: Chooser) -> LinkedPart:
        """The instructions of a part, which are neither checked nor cached."""
        machine, dumps, templates = self._machine_of_programs, Dumps(None), self._templates(part)
        made = choose_operators(part, templates, machine, chooser, dumps, self._ready)
        return link_part(part, made, machine, chooser, dumps)

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
        templates, dumps = self._templates(part), Dumps(None)
        made = choose_operators(part, templates, self.machine, chooser, dumps, self._ready)
        return [
            Layer(part.graph, o.node, o.template, o.workload, self.machine) for o in made.values()
        ]

    def _templates(self, part: Part) -> dict[str, AcceleratorTemplate]:
        """The templates of a part's nodes that have instructions, by output."""
        found = {node.output: self.template_of(part.graph, node) for node in part.nodes}
        return {o: t for o, t in found.items() if isinstance(t, AcceleratorTemplate)}

    def compile_func(self, func: PrimFunc, dumps: Dumps) -> Program:
        return build_func(func, self.machine, dumps)
