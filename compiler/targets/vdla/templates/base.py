"""The base of the accelerator's templates, and what they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np

from .....runtime.layout import blocks, pack_parameters
from ....choose.space import Knobs, KnobValue, Refusal, Space, Workload
from ....choose.template import Plan, Template
from ....graph.arithmetic.requant import Requant
from ....graph.ir import Graph, Node
from ....graph.ops.base import Shape
from ....tir.ir import PrimFunc
from ..cost.tiling import VTHREADS, Fixed, make_tiling, plan_tiles
from ..cost.tiling import Shape as TiledShape
from ..machine import Context, Machine, Track

W = TypeVar("W", bound=Workload)


class WithinBudget(Workload):
    """A workload with a field for the context, whose budget its tiles must fit."""

    context: Context


V = TypeVar("V", bound=WithinBudget)


class AcceleratorTemplate(Template[W]):
    """A template whose operators become instructions."""

    track: ClassVar[Track]
    #: How it computes a node, in words, if :meth:`takes` refuses none that it handles.
    says: ClassVar[str]
    #: Whether its operators use the tensor core, though they are not on that one's track.
    multiplies: ClassVar[bool] = False
    #: The track on which its operators may be instead, if there is one.
    other_track: ClassVar[Track | None] = None
    #: Bytes of a value of the vector unit's table that its operators need at least.
    table_bytes: ClassVar[int] = 0
    #: The number of the operand whose positions are read as tiles of weights, if there is one.
    operand_as_weights: ClassVar[int | None] = None
    #: Whether its results may come in the order in which the tensor core reads them.
    suits_reader: ClassVar[bool] = False
    #: Whether it begins when all of its image is there, whoever makes that.
    waits_for_image: ClassVar[bool] = False

    def __init__(self, machine: Machine):
        self.machine = machine

    @property
    def share(self) -> Fraction:
        """The largest share of each scratchpad that both tracks use which an operator of the vector
        track takes, in a program with operators of both."""
        return Fraction(3, 8)

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return self.says

    @abstractmethod
    def workload(self, graph: Graph, node: Node, context: Context) -> W:
        """What a node computes, and the context that its neighbours leave it."""

    @abstractmethod
    def schedule(self, workload: W, knobs: Knobs, name: str) -> PrimFunc:
        """The loop program. Its parameters are the node's activations, the arrays of
        :meth:`constants` in order, and the result.
        """

    def context_used(self, workload: W, knobs: Knobs) -> Hashable:
        """What the loop program depends on of the workload's context: equal values give equal loop
        programs."""
        return None

    @abstractmethod
    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        """Constant operands as they lie in DRAM, by kind, such as "weight"."""

    def reach(self, graph: Graph, node: Node) -> Mapping[str, int]:
        """Bytes that are read of an operand, by its name, where these are more than it has. They
        change no result, but memory must be there.
        """
        if self.operand_as_weights is None:
            return {}
        image, params = graph[node.inputs[self.operand_as_weights]], self.machine.params
        _, channels, positions, _ = image.shape
        return {image.name: tile_bytes(blocks(channels, params), positions, params.block)}

    def rows_first(self, workload: W) -> bool:
        """Whether the template's own plan delivers all channels of some pixels before others."""
        return False

    def reads_parts(self, workload: W) -> bool:
        """Whether the template's own plan reads all channels of some pixels before others."""
        return False


class Tiled(AcceleratorTemplate[V]):
    """A template whose knobs are sizes of tiles. Where it has no plan of its own, all of them are
    compared."""

    @abstractmethod
    def sizes(self, workload: V) -> Mapping[str, Sequence[KnobValue]]:
        """The knobs, with their values."""

    @abstractmethod
    def needs(self, workload: V, knobs: Knobs) -> Mapping[str, int]:
        """Entries of scratchpads for tiles of these sizes."""

    def space(self, workload: V) -> Space:
        budget = workload.context.budget
        return Space(self.sizes(workload), lambda chosen: budget.lack(self.needs(workload, chosen)))

    def plan(self, workload: V, fixed: Knobs) -> Plan | Refusal:
        return _find_cheapest(type(self), self.machine, workload, tuple(sorted(fixed.items())))

    def cost(self, workload: V, plan: Plan) -> float:
        """What a plan costs: its predicted cycles."""
        return plan.cycles or 0


@lru_cache(maxsize=1024)
def _find_cheapest(
    kind: type[Tiled], machine: Machine, workload: WithinBudget, fixed: Fixed
) -> Plan | Refusal:
    """The legal knobs of the least cost, with the machine's virtual threads unless they are
    ``fixed`` or no knob."""
    template = kind(machine)
    space = template.space(workload)
    usual = {"vthreads": machine.vthreads, **dict(fixed)}
    wanted = {name: value for name, value in usual.items() if name in space.knobs}
    knobs = {
        name: [value for value in legal if value == wanted.get(name, value)]
        for name, legal in space.knobs.items()
    }
    plans = [
        Plan(point, template.predict(workload, point))
        for point in replace(space, knobs=knobs).points()
    ]
    if not plans:
        least = {name: legal[0] for name, legal in knobs.items() if legal}
        lack = space.misfit(least) if len(least) == len(knobs) else ""
        reason = f"{kind.name}: no tile fits{f' with {wanted}' if wanted else ''}"
        return Refusal(f"{reason}, {lack}" if lack else reason)
    return min(plans, key=lambda plan: template.cost(workload, plan))


class PlannedWorkload(WithinBudget):
    """A convolution, or windows, whose tiles a planner chooses."""

    @property
    @abstractmethod
    def shape(self) -> TiledShape:
        """What is tiled."""


P = TypeVar("P", bound=PlannedWorkload)


class PlannedTiles(AcceleratorTemplate[P]):
    """A template whose knobs are a tiling of a convolution or of windows."""

    def space(self, workload: P) -> Space:
        shape, budget = workload.shape, workload.context.budget

        knobs = {**shape.sizes, "order": shape.orders, "vthreads": VTHREADS}
        return Space(
            knobs,
            lambda knobs: shape.misfit(make_tiling(knobs), budget),
            lambda columns: shape.fits(make_tiling(columns), budget),
        )

    def plan(self, workload: P, fixed: Knobs) -> Plan | Refusal:
        shape, wanted = workload.shape, tuple(sorted(fixed.items()))
        found = plan_tiles(shape, workload.context, self.machine, wanted)
        if isinstance(found, str):
            return Refusal(found)
        names = (*shape.sizes, "order", "vthreads")
        return Plan({name: getattr(found[0], name) for name in names}, found[1])

    def predict(self, workload: P, knobs: Knobs) -> int:
        return workload.shape.cycles(make_tiling(knobs), self.machine)

    def estimates(self, workload: P, columns: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        found = workload.shape.estimates(make_tiling(columns), self.machine)
        count = len(columns["order"])
        return {
            name: np.broadcast_to(values, count).astype(float) for name, values in found.items()
        }

    def rows_first(self, workload: P) -> bool:
        plan, shape = self.plan(workload, {}), workload.shape
        return isinstance(plan, Plan) and bool(shape.rows_first(make_tiling(plan.knobs)))

    def reads_parts(self, workload: P) -> bool:
        plan, shape = self.plan(workload, {}), workload.shape
        return isinstance(plan, Plan) and bool(shape.reads_parts(make_tiling(plan.knobs)))


def blocked_shape(shape: Shape, machine: Machine) -> tuple[int, int, int]:
    """(channel blocks, H, W) of an activation; vectors are images of one pixel."""
    _, channels, *spatial = shape
    height, width = spatial or (1, 1)
    return blocks(channels, machine.params), height, width


def tile_bytes(channel_blocks: int, positions: int, block: int) -> int:
    """Bytes that are read of an image whose positions are read as tiles of weights: the last tile
    may reach beyond the image. What lies there makes results that are not used."""
    return ((channel_blocks - 1) * positions + -(-positions // block) * block) * block


def requant_parameters(bias: np.ndarray, requant: Requant, machine: Machine) -> np.ndarray:
    """Parameters of every channel, [channel blocks, 3, block] int32."""
    multiplier, shift = (
        np.broadcast_to(values, bias.shape) for values in (requant.multiplier, requant.shift)
    )
    return pack_parameters(bias, multiplier, shift, machine.params)


def uniform_parameters(bias: int, multiplier: int, shift: int, machine: Machine) -> np.ndarray:
    """One parameter set for all channels, [1, 3, block] int32."""
    block = machine.params.block
    rows = [np.full(block, value, np.int32) for value in (bias, multiplier, shift)]
    return pack_parameters(rows[0], rows[1], rows[2], machine.params)
