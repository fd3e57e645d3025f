"""Decisions, and the templates by which a target computes operators.

A decision describes a node as a *workload*, which is all that the speed of the code depends on;
offers a *space* of *knobs*; and chooses among them, by a cost model if it has one. A template is
the decision of how an operator is computed: its target turns a workload and knobs into a loop
program, and decides nothing more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np

from ..graph.ir import Graph, Node
from ..graph.ops.base import Op
from .space import Knobs, Refusal, Space, Workload


@dataclass(frozen=True)
class Plan:
    """Knobs that a decision prefers, and what its cost model predicts, if it has one."""

    knobs: Knobs
    cycles: int | None = None


W = TypeVar("W", bound=Workload)


class Decision(ABC, Generic[W]):
    """Something to choose for workloads of one kind."""

    #: The name in records and reports.
    name: ClassVar[str]

    @abstractmethod
    def space(self, workload: W) -> Space:
        """The choices for a workload."""

    def plan(self, workload: W, fixed: Knobs) -> Plan | Refusal:
        """The decision's own choice of knobs, some of which are ``fixed``; a refusal where none are
        legal. Without a cost model it takes the first legal ones.
        """
        for knobs in self.space(workload).points():
            if all(knobs[name] == value for name, value in fixed.items()):
                return Plan(knobs)
        return Refusal(f"no legal knobs with {dict(fixed)}" if fixed else "no legal knobs")

    def predict(self, workload: W, knobs: Knobs) -> int | None:
        """Cycles that the cost model predicts for legal knobs; None without one."""
        return None

    def estimates(self, workload: W, columns: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What the cost model knows of many legal knobs at once, whose values are ``columns`` by
        knob: numbers [choices] by name. "cycles" comes nearest to the cost, and no code costs
        less than "floor". Empty where it knows nothing without a closer look.
        """
        return {}

    @property
    def has_cost_model(self) -> bool:
        """Whether ``plan`` compares costs; else it takes a default."""
        return type(self).predict is not Decision.predict


class Template(Decision[W]):
    """How a target computes a family of operators."""

    ops: ClassVar[tuple[type[Op], ...]]

    def handles(self, graph: Graph, node: Node) -> bool:
        """Whether this template computes a node whose operator is one of ``ops``."""
        return True

    @abstractmethod
    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        """How the target computes a node, in words, or why it refuses it."""
