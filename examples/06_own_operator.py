"""An operator of your own: its meaning, how ONNX says it, and how the accelerator computes it.

    python examples/06_own_operator.py

``Larger``, the larger of two int8 tensors element by element, becomes part of VDLA without a change
to VDLA. The operator alone runs on the CPU. With a template, whose knobs can be set like those of
any other, it also runs on the accelerator. All must give NumPy's bits, otherwise the exit code is
1.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import vdla
from onnx import TensorProto, helper
from vdla import te, topi
from vdla.compiler.choose.space import Knobs, Refusal, Space, Workload
from vdla.compiler.frontends.onnx.importer import register_reader
from vdla.compiler.frontends.onnx.ops.call import Call
from vdla.compiler.graph.ir import Graph, Node, Tensor
from vdla.compiler.graph.ops.base import Expression, Fusion, Op, Type, expect
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import register_target
from vdla.compiler.targets.vdla.machine import Context
from vdla.compiler.targets.vdla.parts import attach, tile_row
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.compiler.targets.vdla.templates.base import AcceleratorTemplate, Track, image_of
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
        return LargerWorkload(prod(image_of(graph.result(node).shape, self.machine)), context)

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
        tile = tile_row(s[out], int(knobs["size"]), int(knobs["vthreads"]))
        scopes = {**dict.fromkeys(tiles, "inp"), wide: "tmp", local: "out"}
        attach(s, scopes, s[out], tile)
        return vdla.lower(s, [a, b, out], name)

    def constants(self, graph: Graph, node: Node) -> Mapping[str, np.ndarray]:
        return {}


class Extended(Accelerator):
    """The accelerator with one more template."""

    def __init__(self, options: Options):
        super().__init__(options)
        self.templates = (LargerTemplate(self.machine), *self.templates)


# ---- a model with it -----------------------------------------------------------------------------


def model() -> onnx.ModelProto:
    """``y = Larger(a, b)`` of int8 images of 32 channels."""
    types = [helper.make_tensor_value_info(n, TensorProto.INT8, [1, 32, 24, 24]) for n in "aby"]
    node = helper.make_node("Larger", ["a", "b"], ["y"], "larger", domain="example")
    graph = helper.make_graph([node], "larger", types[:2], types[2:])
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("example", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


def main() -> int:
    """Register, compile for three targets, compare."""
    register_reader("example", "Larger", read_larger)
    register_target("extended", Extended)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, (1, 32, 24, 24)).astype(np.int8) for _ in "ab")
    wrong = False
    for target, knobs in (("cpu", {}), ("sim", {}), ("extended", {}), ("extended", {"size": 64})):
        module = vdla.compile(model(), target, knobs={"larger": knobs} if knobs else None)
        (y,) = module.run(a, b)
        equal = np.array_equal(y, np.maximum(a, b))
        wrong |= not equal
        (row,) = module.report["layers"]
        how = f"on {row['target']}, {row['reason']}"
        chosen = f"; {row['knobs']} by {row['chosen_by']}" if row["knobs"] else ""
        cycles = f"; {row['cycles']:,} cycles" if row["cycles"] else ""
        print(f"{target}: {how}{chosen}{cycles}; equal to NumPy: {equal}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
