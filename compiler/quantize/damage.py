"""What each node costs when it alone is quantised, and which nodes stay float for it.

One model computes all of this: for every node on integers it has an input, a gate, that says
whether the node's operands, weights and result have the values that their integers stand for, or
their own. So it is compiled once, and each question is one run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...isa.errors import VdlaError
from ..onnx_backend import VdlaRep
from .accuracy import Error
from .calibrate import Probe, Samples
from .draft import Draft, copied, label
from .plan import MOVES, Plan, data_operands, plan
from .weights import Scale, Weight

#: The most batches of samples that damage is measured on.
MOST_BATCHES = 8


@dataclass(frozen=True, eq=False)
class Damage:
    """Measures models with some nodes on integers.

    Attributes
    ----------
    draft, plan : the float model, and the plan with all nodes on integers that have such a form
    module : the model with gates
    batches : inputs by name
    real : the float outputs of each batch
    """

    draft: Draft
    plan: Plan
    module: VdlaRep
    batches: list[dict[str, np.ndarray]]
    real: list[tuple[np.ndarray, ...]]

    @staticmethod
    def of(
        draft: Draft,
        made: Plan,
        scales: Mapping[str, Scale],
        weights: Mapping[str, Weight],
        samples: Samples,
    ) -> Damage:
        """Build the model with gates, and run it with all of them closed."""
        module = _Gates(draft, made, scales, weights).module()
        batches = [*Probe(draft, samples, ()).batches()][:MOST_BATCHES]
        found = Damage(draft, made, module, batches, [])
        found.real.extend(found.run(set()))
        return found

    def run(self, heads: Collection[int]) -> Iterator[tuple[np.ndarray, ...]]:
        """The outputs of each batch, with the nodes at these positions on integers."""
        gates = {_gate(i): np.array(i in heads) for i in _heads(self.plan)}
        return (self.module.run(batch | gates) for batch in self.batches)

    def sqnr_db(self, heads: Collection[int]) -> float:
        """The least signal to quantisation noise of the outputs; infinite without noise."""
        errors = [Error() for _ in self.real[0]]
        for real, made in zip(self.real, self.run(heads), strict=True):
            for error, a, b in zip(errors, real, made, strict=True):
                error.add(a, b)
        return min(float("inf") if e.sqnr_db is None else e.sqnr_db for e in errors)

    def alone(self, advance: Callable[[], None]) -> dict[int, float]:
        """For each node of :func:`measured`, by its position, the signal to quantisation noise in
        dB of the answers when that node alone is on integers."""
        found = {}
        for head in measured(self.draft, self.plan):
            found[head] = self.sqnr_db({head})
            advance()
        return found

    def chosen(self, alone: Mapping[int, float], least_sqnr_db: float) -> list[int]:
        """The positions of nodes that have to stay float for the answers to have
        ``least_sqnr_db``, the most damaging first.

        How many of the most damaging ones are enough is searched by halves, as if each further one
        made the answers better. Then each goes back on integers if the others are enough.
        """
        order = sorted(alone, key=lambda head: alone[head])

        def is_enough(heads: Collection[int]) -> bool:
            kept = without(self.draft, self.plan, alone, heads)
            return self.sqnr_db({*_heads(kept)}) >= least_sqnr_db

        few, enough = -1, len(order)
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if is_enough(order[:middle]) else (middle, enough)
        found = order[:enough]
        for head in reversed(order[:enough]):
            others = [other for other in found if other != head]
            found = others if is_enough(others) else found
        return found


def measured(draft: Draft, made: Plan) -> list[int]:
    """The positions of nodes on integers that have a damage of their own: what only moves values
    has the scale of its operand."""
    return [i for i in _heads(made) if draft.nodes[i].op_type not in MOVES]


def without(draft: Draft, made: Plan, alone: Mapping[int, float], heads: Collection[int]) -> Plan:
    """The plan in which the nodes at these positions stay float."""
    return plan(
        draft,
        {
            place: f"excluded: alone on integers it leaves the answers {alone[head]:.1f} dB"
            for head in heads
            for place in made.chain(head)
        },
    )


def check_reached(made: Plan, alone: Mapping[int, float], least_sqnr_db: float) -> None:
    """Refuse a limit that no node on integers meets.

    Raises
    ------
    VdlaError
        When the plan has no node on integers.
    """
    if not made.groups:
        raise VdlaError(
            f"least SQNR: expected a limit that some node on integers reaches, got"
            f" {least_sqnr_db:g} dB, and the best one alone has {max(alone.values()):.1f} dB"
        )


# ---- the model with gates ----


def _heads(made: Plan) -> list[int]:
    """The positions of nodes on integers, each with those merged into it."""
    return [i for i, reason in enumerate(made.reasons) if not reason and i not in made.merged]


def _gate(head: int) -> str:
    return f"gate of node {head}"


class _Gates:
    """Builds the model with gates."""

    def __init__(
        self, draft: Draft, made: Plan, scales: Mapping[str, Scale], weights: Mapping[str, Weight]
    ):
        model = onnx.ModelProto()
        model.CopyFrom(draft.model)
        for head in _heads(made):
            info = helper.make_tensor_value_info(_gate(head), TensorProto.BOOL, ())
            model.graph.input.append(info)
        self.draft = draft.without_nodes(model)
        self.source, self.plan, self.scales, self.weights = draft, made, scales, weights
        #: By tensor, the name of the values that its integers stand for.
        self.rounded: dict[str, str] = {}

    def module(self) -> VdlaRep:
        """What runs the model; the gates are its last inputs."""
        head_of = {p: head for head in _heads(self.plan) for p in self.plan.chain(head)}
        ends = {self.plan.chain(head)[-1]: head for head in _heads(self.plan)}
        for place, node in enumerate(self.source.nodes):
            made = copied(node)
            if place in head_of:
                self.gate_operands(made, head_of[place])
            results = [name for name in node.output if name] if place in ends else []
            for i, name in enumerate(made.output):
                made.output[i] = f"{name}.real" if name in results else name
            self.draft.nodes.append(made)
            for name in results:
                rounded = self.values(f"{name}.real", name)
                self.select(ends[place], rounded, f"{name}.real", name)
        outputs = [n for n in self.source.outputs if self.is_float(n)]
        model, constants = self.draft.outline(outputs)
        return VdlaRep(model, values=constants)

    def is_float(self, name: str) -> bool:
        """Whether a tensor has real values, which alone are compared."""
        return self.source.dtypes[name].startswith("float")

    def gate_operands(self, node: onnx.NodeProto, head: int) -> None:
        """Let a node read what its operands' integers stand for where its gate is open."""
        data = {*data_operands(self.source, node)} & {*self.plan.groups}
        weight = self.weights.get(node.output[0])
        for i, name in enumerate(node.input):
            if name in data:
                if name not in self.rounded:
                    self.rounded[name] = self.values(name, name)
                node.input[i] = self.selected(head, self.rounded[name], name, node)
        if weight is None:
            return
        known = self.draft.constant(f"{node.output[0]}.weight", weight.real)
        node.input[1] = self.selected(head, known, node.input[1], node)
        if weight.bias is not None and len(node.input) > 2:
            bias = self.draft.constant(f"{node.output[0]}.bias", weight.bias.astype(np.float32))
            node.input[2] = self.selected(head, bias, node.input[2], node)

    def values(self, real: str, name: str) -> str:
        """What the integers of a tensor stand for; its scale is that of ``name``."""
        scale = self.scales[name]
        constants = [
            self.draft.constant(f"{name}.scale", np.array(scale.scale, np.float32)),
            self.draft.constant(f"{name}.zero_point", np.array(scale.zero_point, np.int8)),
        ]
        stored, result = f"{real}.int8", f"{real}.rounded"
        add = self.draft.nodes.append
        add(helper.make_node("QuantizeLinear", [real, *constants], [stored]))
        add(helper.make_node("DequantizeLinear", [stored, *constants], [result]))
        return result

    def selected(self, head: int, rounded: str, real: str, node: onnx.NodeProto) -> str:
        name = f"{real}.for {label(node)}"
        self.select(head, rounded, real, name)
        return name

    def select(self, head: int, rounded: str, real: str, name: str) -> None:
        """Compute ``name``: ``rounded`` where the gate is open, else ``real``."""
        inputs = [_gate(head), rounded, real]
        self.draft.nodes.append(helper.make_node("Where", inputs, [name]))
