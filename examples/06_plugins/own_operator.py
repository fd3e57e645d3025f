"""A plugin with an operator: its meaning, how ONNX says it, and how the accelerator computes it.

    vdla run MODEL --plugin examples/06_plugins/own_operator.py

``Larger`` is the larger of two int8 tensors, element by element. Its NumPy value is what every
target is compared with, and its tensor expression is enough for the CPU. With the template, whose
knobs can be set like those of any other, the accelerator computes it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import vdla
from vdla import te, topi
from vdla.compiler.choose.space import Knobs, Refusal, Space, Workload
from vdla.compiler.frontends.onnx.importer import register_reader
from vdla.compiler.frontends.onnx.ops.call import Call
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.base import Expression, Fusion, Op, Type, expect
from vdla.compiler.targets.registry import register_template
from vdla.compiler.targets.vdla.expressions import attach, split_tiles, vthread_tiles
from vdla.compiler.targets.vdla.machine import Context
from vdla.compiler.targets.vdla.templates.base import AcceleratorTemplate, Track, blocked_shape
from vdla.compiler.tir.ir import PrimFunc

# ---- what it means -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Larger(Op):
    """The larger of two int8 tensors of one shape, element by element."""

    fusion = Fusion.ELEMENTWISE

    def infer(self, *types: Type) -> Type:
        a, b = types
        expect(a == b and a[1] == "int8", "two int8 tensors of one shape")
        return a

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        return np.maximum(*args)

    def expression(self, inputs: Sequence[te.Tensor], shapes: Sequence[tuple]) -> Expression:
        return Expression(topi.elementwise(te.maximum, inputs, shapes), tuple(inputs))


def read_larger(call: Call) -> Tensor:
    """The node ``Larger`` of the ONNX domain ``example``."""
    return call.emit(Larger(), call.operand(0), call.operand(1))


# ---- how the accelerator computes it -------------------------------------------------------------


@dataclass(frozen=True)
class LargerWorkload(Workload):
    """The number of vectors, and what neighbouring operators leave of the scratchpads."""

    entries: int
    context: Context


class LargerTemplate(AcceleratorTemplate[LargerWorkload]):
    """Computes ``size`` vectors at a time, on ``vthreads`` virtual threads."""

    name = "larger"
    ops = (Larger,)
    track = Track.VECTOR

    def takes(self, graph: Graph, node: Node) -> str | Refusal:
        return "the larger one, on the vector unit"

    def workload(self, graph: Graph, node: Node, context: Context) -> LargerWorkload:
        return LargerWorkload(prod(blocked_shape(graph.result(node).shape, self.machine)), context)

    def space(self, workload: LargerWorkload) -> Space:
        budget = workload.context.budget
        room = min(budget.inp // 2, budget.tmp, budget.out)

        def misfit(knobs: Knobs) -> str:
            needed = int(knobs["size"]) * int(knobs["vthreads"])
            return f"{needed} vectors do not fit, of which {room} do" if needed > room else ""

        return Space(
            {"size": range(min(workload.entries, room), 0, -1), "vthreads": (2, 1)}, misfit
        )

    def schedule(self, workload: LargerWorkload, knobs: Knobs, name: str) -> PrimFunc:
        params = self.machine.params
        shape = (1, 1, workload.entries, params.batch, params.block)
        a, b = te.placeholder(shape, "int8", "a"), te.placeholder(shape, "int8", "b")
        # The second operand of an instruction comes from tmp.
        wide = te.compute(shape, lambda *i: b[i].astype("int32") * 1, "wide")

        def larger(*i: te.Expr) -> te.Expr:
            return te.clip(te.maximum(a[i].astype("int32"), wide[i]), -128, 127).astype("int8")

        out = te.compute(shape, larger, "out")
        s = te.create_schedule(out)
        local = s.cache_write(out, "out")
        tiles = [s.cache_read(a, "inp", [local]), s.cache_read(b, "inp", [wide])]
        tiled, _ = split_tiles(s[out], (1, 1, int(knobs["size"])))
        tile = vthread_tiles(s[out], tiled, int(knobs["vthreads"]))
        scopes = {**dict.fromkeys(tiles, "inp"), wide: "tmp", local: "out"}
        attach(s, scopes, s[out], tile)
        return vdla.lower(s, [a, b, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        return {}


# ---- both become part of VDLA --------------------------------------------------------------------

register_reader("example", "Larger", read_larger)
register_template(LargerTemplate)
