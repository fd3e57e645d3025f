"""Plan a program: compare the programs of several plans by their exact cycles."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from math import inf

from .....isa.errors import VdlaError
from ....choose.chooser import Chooser
from ....choose.space import Workload
from ....graph.ir import Graph, Node
from ...base import Part
from ..machine import ACCELERATOR, Machine
from ..rewrite.fuse_epilogues import fuse_epilogues, fuse_window_tables
from ..rewrite.fuse_inverted_residuals import fuse_inverted_residuals
from ..rewrite.fuse_tables_into_readers import fuse_tables_into_readers
from ..rewrite.order_by_first_use import order_by_first_use
from ..templates.base import AcceleratorTemplate
from ..templates.global_average import Means
from ..templates.inverted_residual import InvertedResiduals
from . import cache
from .program import LinkedPart
from .program_plan import (
    ADDITION,
    APART,
    EXPANSION,
    FUSED,
    Planned,
    ProgramPlan,
    find_plan,
    has_own_knobs,
)
from .repeats import without_repeats


@dataclass(frozen=True)
class Planner:
    """Finds the plan of a graph, whose nodes on the accelerator are taken for one program.

    Attributes
    ----------
    template_of : the template of a node on the accelerator; None where it has no instructions
    link : the program of a part of a graph, whose layers may have fewer virtual threads if need be
    fewer_vthreads : whether they may
    """

    graph: Graph
    chooser: Chooser
    machine: Machine
    template_of: Callable[[Graph, Node], AcceleratorTemplate | None]
    link: Callable[[Part, Chooser, bool], LinkedPart]
    fewer_vthreads: bool = False
    _by_choices: dict[tuple, float] = field(default_factory=dict)
    _by_digest: dict[bytes, float] = field(default_factory=dict)

    def find(self) -> ProgramPlan:
        """The plan whose program takes the fewest cycles."""
        templates = (self.template_of(self.graph, node) for node in self.graph.nodes)
        kinds = [type(template) for template in templates if template is not None]
        place = cache.place_of("program_plan", self.chooser, self.graph, kinds, self.machine)
        if place is not None and (known := cache.read_plan(place)) is not None:
            return known
        begin = time.perf_counter()
        planner = self._shortened()
        found = planner._search()
        if planner.cycles(found) == inf:  # a layer does not fit, whatever the plan
            found = replace(planner, fewer_vthreads=True, _by_choices={})._search()
        if place is not None:
            cache.keep_plan(place, found, time.perf_counter() - begin)
        return found

    def _search(self) -> ProgramPlan:
        """The plan with the fewest cycles of those for each room that a program may have: so more
        entries never cost, whatever estimates make of them."""
        usual = (ProgramPlan(room_times=times) for times in self.machine.rooms)
        return min((find_plan(self.cycles, plan) for plan in usual), key=self.cycles)

    def _shortened(self) -> Planner:
        """The planner of the same graph without its repeated layers."""
        return replace(
            self, graph=without_repeats(self.graph, list(map(self._kind, self.graph.nodes)))
        )

    def _kind(self, node: Node) -> Hashable:
        """What the cycles of a node depend on, except numbers, and the knobs that it has."""
        template = self.template_of(self.graph, node) if node.target == ACCELERATOR else None
        types = [t.type_text for t in (*self.graph.operands(node), self.graph.result(node))]
        said = str((self.chooser.given.get(node.name), self.chooser.of(node.name)))
        return node.target, type(node.op), type(template), tuple(types), said

    def cycles(self, plan: ProgramPlan) -> float:
        """The cycles of the program of a plan, infinite if there is none."""
        graph, chooser = self.apply(plan)
        same = tuple((node.output, str(chooser.of(node.name))) for node in graph.nodes)
        if same not in self._by_choices:
            self._by_choices[same] = self._simulated(graph, chooser)
        return self._by_choices[same]

    def _simulated(self, graph: Graph, chooser: Chooser) -> float:
        nodes = [node for node in graph.nodes if node.target == ACCELERATOR]
        others = (node for node in graph.nodes if node.target != ACCELERATOR)
        read = {*graph.outputs, *(name for node in others for name in node.inputs)}
        part = Part(graph, tuple(nodes), [n.output for n in nodes if n.output in read])
        try:
            linked = self.link(part, chooser, self.fewer_vthreads)
            if linked.digest not in self._by_digest:
                self._by_digest[linked.digest] = linked.count_cycles(self.machine.params)
            return self._by_digest[linked.digest]
        except VdlaError:
            return inf

    def apply(self, plan: ProgramPlan) -> tuple[Graph, Chooser]:
        """The graph with fused operators, each with its shares, and a chooser that remembers the
        knobs."""
        chooser = self.chooser.copy()
        graph = self._fuse_epilogues(chooser, plan.addition)
        graph = fuse_tables_into_readers(graph, Means(self.machine).sums)
        graph = self._fuse_expansions(chooser, order_by_first_use(graph), plan)
        graph = fuse_window_tables(graph)
        nodes = []
        for node in graph.nodes:
            template = self.template_of(graph, node) if node.target == ACCELERATOR else None
            usual = {} if template is None else plan.shares(template)
            if usual:
                found = chooser.choose(Planned(usual), Workload(), node.name)
                node = replace(node, shares=found.knobs)
            nodes.append(node)
        return graph.with_nodes(nodes), chooser

    def _fuse_epilogues(self, chooser: Chooser, addition: str) -> Graph:
        """Fuse additions as ``addition`` says, but where someone says otherwise."""

        def adds_image(source: Node, node: Node) -> bool:
            apart = has_own_knobs(chooser.given, ADDITION, source, node)
            usual = {ADDITION: APART if apart else addition}
            found = chooser.choose(Planned(usual), Workload(), source.name)
            return found.knobs[ADDITION] == FUSED

        return fuse_epilogues(self.graph, adds_image)

    def _fuse_expansions(self, chooser: Chooser, graph: Graph, plan: ProgramPlan) -> Graph:
        """Fuse pairs of convolutions that as one cost up to ``bound`` times what both cost."""
        fused = InvertedResiduals(self.machine.estimated(plan.room_times))
        context = fused.usual_context(self.machine.room(plan.room_times))

        def pays(first: Node, node: Node) -> bool:
            if has_own_knobs(chooser.given, EXPANSION, first, node):
                return False
            if not fused.handles(graph, node):
                return False
            workload = fused.workload(graph, node, context)
            usual = {EXPANSION: FUSED if fused.cost_ratio(workload) <= plan.bound else APART}
            return chooser.choose(Planned(usual), Workload(), node.name).knobs[EXPANSION] == FUSED

        return fuse_inverted_residuals(graph, pays)
