"""The accelerator as a target."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

from ....isa.errors import VdlaError
from ....isa.memory import MemoryParams
from ....isa.params import LEGAL, NOT_IN_PROGRAMS, HwParams
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
from .layer import Layer
from .lower.loop_programs import LoopPrograms
from .machine import ACCELERATOR, Machine
from .plan import cache
from .plan.pack_windows import PACKED, Packing
from .plan.planner import Planner
from .plan.program import LinkedPart, build_func
from .plan.scratchpads import share_scratchpads
from .rewrite.fit_layout import fit_layout
from .rewrite.matmul_as_convolution import Limits, matmul_as_convolution
from .rewrite.pack_windows import pack_windows
from .rewrite.reshape_blocks import reshape_blocks
from .templates.base import AcceleratorTemplate
from .templates.channels import ChannelAddition, ChannelProducts
from .templates.concat_slice import CopiedPositions
from .templates.convolution import Classifier, Products
from .templates.elementwise import Addition, ElementProducts
from .templates.fused_products import FusedProducts
from .templates.global_average import Means
from .templates.inverted_residual import InvertedResiduals
from .templates.layer_norm import Normalise, RowFactors, most_norm_channels, normalised_by_host
from .templates.lookup_table import LookupTables
from .templates.matmul import Activations, tile_step
from .templates.rotation import Rotations
from .templates.softmax import MaskedSoftmax, Softmax, longest_row, most_mask_rows
from .templates.transpose import GroupsTransposed
from .templates.transposed_convolution import Transposed
from .templates.views import Concatenated, Reshaped
from .templates.windows import Windows

#: A node is computed by the first template that handles it; these have instructions.
TEMPLATES: list[type[AcceleratorTemplate]] = [
    Classifier, Products, FusedProducts, Activations, GroupsTransposed, Transposed, Means, Windows,
    InvertedResiduals, Addition, ElementProducts, ChannelProducts, Rotations, MaskedSoftmax,
    Softmax, RowFactors, Normalise, ChannelAddition, CopiedPositions, LookupTables,
]  # fmt: skip


_NO_DUMPS = Dumps(None)


def machine_key(hw: HwParams, memory: MemoryParams) -> str:
    """An accelerator and its memory, as records name them."""
    return f"{hw.hash} {json.dumps(memory.to_dict(), sort_keys=True)}"


class Accelerator(Target):
    """VDLA: int8 tensors in blocks of channels. Nodes that it refuses run on the host."""

    name = ACCELERATOR
    title = "the accelerator"
    splits_batches = True

    def __init__(self, options: Options, host: Cpu | None = None):
        """Without a ``host``, that is this machine's processor."""
        if options.threads > 1:
            raise VdlaError(
                f"threads: expected 1 with the accelerator, got {options.threads}; use target cpu"
            )
        self.machine = Machine(options.hw, options.memory, options.vthreads)
        self.batch = options.hw.batch
        self.host = host or Cpu(options)
        self.templates = (*(kind(self.machine) for kind in TEMPLATES), Reshaped(), Concatenated())
        self.machine_key = machine_key(options.hw, options.memory)
        self._ready = LoopPrograms(self._machine_of_programs)

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        template = self._instructed(graph, node)
        if template is not None and self.machine.params.vector_table < template.table_bytes:
            enough = (n for n in LEGAL["vector_table"] if n >= template.table_bytes)
            legal = " or ".join(map(str, enough))
            return Refusal(f"a {template.name}, which needs vector_table = {legal}")
        return super().takes(graph, node)

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
        limits = Limits(
            params.block, params.batch, most_pixels, bool(params.vector_table),
            longest_row(params), params.inp_depth, most_mask_rows(params),
            most_norm_channels(params), tile_step(params),
        )  # fmt: skip
        return (
            ("matmul_as_convolution", partial(matmul_as_convolution, limits=limits)),
            ("fit_layout", partial(fit_layout, params=params)),
            ("pack_windows", partial(pack_windows, packs=partial(self._packs, chooser))),
            ("reshape_blocks", partial(reshape_blocks, block=params.block)),
            ("plan", partial(self._plan, chooser)),
        )

    def _plan(self, chooser: Chooser, graph: Graph) -> Graph:
        """Fuse operators and divide the scratchpads among them, by the cycles of the program."""
        if all(node.target != ACCELERATOR for node in graph.nodes):
            return graph
        planner = self.planner(chooser, graph)
        plan = planner.find()
        planned, trial = planner.apply(plan)
        chooser.made.update(trial.made)
        chooser.plan.update(asdict(plan))
        return planned

    def planner(self, chooser: Chooser, graph: Graph) -> Planner:
        """What plans the program of a graph."""

        def link(part: Part, chooser: Chooser, fewer_vthreads: bool) -> LinkedPart:
            return self.link(part, chooser, fewer_vthreads=fewer_vthreads)

        return Planner(graph, chooser, self._machine_of_programs, self._instructed, link)

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
        place = None
        if dumps.directory is None:  # dumps show the compiler at work
            nodes = [node.output for node in part.nodes]
            found = {node.output: self._instructed(part.graph, node) for node in part.nodes}
            kinds = {output: type(template) for output, template in found.items() if template}
            place = cache.place_of(
                "program", chooser, part.graph, nodes, part.wanted, kinds, self._machine_of_programs
            )
        if place is not None and (program := cache.read(place, chooser)) is not None:
            return self._own(program)
        begin = time.perf_counter()
        compiled = self.link(part, chooser, dumps).compiled(dumps)
        if place is not None:
            cache.keep(place, compiled, chooser, time.perf_counter() - begin)
        return self._own(compiled)

    def link(
        self, part: Part, chooser: Chooser, dumps: Dumps = _NO_DUMPS, fewer_vthreads: bool = True
    ) -> LinkedPart:
        """The program of a part, which is neither checked nor cached. A layer for which no tile
        fits may have ``fewer_vthreads`` than the machine."""
        machine = self._machine_of_programs
        ready = self._ready if dumps.directory is None else LoopPrograms(machine)
        made = share_scratchpads(
            part, self._instructed, machine, chooser, dumps, ready, fewer_vthreads
        )
        return LinkedPart(part, made, machine, chooser, dumps)

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
        made = self.link(part, chooser).made
        return [
            Layer(part.graph, o.node, o.template, o.workload, self.machine) for o in made.values()
        ]

    def _instructed(self, graph: Graph, node: Node) -> AcceleratorTemplate | None:
        """The template of a node; None where it has no instructions."""
        found = self.template_of(graph, node)
        return found if isinstance(found, AcceleratorTemplate) else None

    def compile_func(self, func: PrimFunc, dumps: Dumps) -> Program:
        return build_func(func, self.machine, dumps)
