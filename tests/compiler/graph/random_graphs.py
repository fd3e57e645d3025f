"""Random ONNX models over the importer's operators, with what ONNX Runtime makes of them.

Values are tracked as they are computed. *Exact* ones lie on a coarse binary grid, so that every
order of arithmetic gives the same bits, and discontinuous operators (comparisons, rounding) read
only those. *Close* ones have rounding errors. *Coarse* ones were quantised: they may be off by a
step, and only operators that do not enlarge differences read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from ..frontends.onnx.cases.draw import Refused, results

OPSET = 21
MAX_ELEMENTS = 1500
LARGEST = 1e4
#: Exact floats are multiples of this, and below LARGEST.
GRID = 2.0**-10

#: Operators whose results on the grid are on a (finer) grid again.
EXACT = {
    "Abs", "Add", "Clip", "Concat", "Conv", "DepthToSpace", "Dropout", "Expand", "Flatten",
    "Gather", "GatherElements", "Gemm", "GlobalMaxPool", "Identity", "LeakyRelu", "MatMul", "Max",
    "MaxPool", "Min", "Mul", "Neg", "PRelu", "Pad", "ReduceMax", "ReduceMin", "ReduceSum", "Relu",
    "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose",
    "Trilu", "Unsqueeze", "Where", "ConvTranspose", "ReduceL1", "Upsample",
}  # fmt: skip
#: Operators that read exact floats only: a rounding error would change the result at once.
JUMPING = {
    "ArgMax", "ArgMin", "Cast", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax",
    "IsInf", "IsNaN", "Less", "LessOrEqual", "Round", "Shrink", "Sign", "ThresholdedRelu", "Mod",
    "QuantizeLinear", "DynamicQuantizeLinear",
}  # fmt: skip
#: Operators of which an error of the operands is no larger in the result.
GENTLE = {
    "Abs", "Clip", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "Identity",
    "Max", "MaxPool", "Min", "Neg", "Relu", "Reshape", "Sigmoid", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Tanh", "Tile", "Transpose", "Unsqueeze", "AveragePool", "ReduceMax", "Add",
}  # fmt: skip


class Skip(Exception):
    """The operator does not fit the values at hand."""


@dataclass(frozen=True)
class Value:
    """A tensor: its name, what the reference computes, and how far from it ours may be."""

    name: str
    array: np.ndarray
    exact: bool
    step: float = 0.0

    @property
    def is_float(self) -> bool:
        return self.array.dtype == np.float32

    @property
    def rank(self) -> int:
        return self.array.ndim


@dataclass
class RandomGraph:
    """A model under construction."""

    draw: Callable[[st.SearchStrategy], Any]
    rng: np.random.Generator
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)

    def integer(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, options: Sequence[Any]) -> Any:
        if not options:
            raise Skip
        return self.draw(st.sampled_from(list(options)))

    def floats(self, *shape: int) -> np.ndarray:
        """Random multiples of 1/8 between -2 and 2."""
        return (self.rng.integers(-16, 17, shape) / 8).astype(np.float32)

    def input(self, *shape: int) -> None:
        value = Value(f"x{len(self.inputs)}", self.floats(*shape), exact=True)
        self.inputs.append(value)
        self.values.append(value)

    def pick(self, fits: Callable[[Value], bool]) -> Value:
        """A value, preferably a late one."""
        found = [v for v in self.values if fits(v)]
        if not found:
            raise Skip
        return found[-1 - min(self.integer(0, 3), len(found) - 1)]

    def float_value(self, rank: int | None = None, smallest: int = 1) -> Value:
        return self.pick(
            lambda v: (
                v.is_float
                and (v.rank == rank if rank is not None else v.rank >= smallest)
                and v.array.size > 0
            )
        )

    def constant(self, array: Any, dtype: type = np.float32) -> Value:
        made = np.asarray(array, dtype)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(made, name))
        return Value(name, made, exact=True)

    def apply(
        self, kind: str, operands: Sequence[Value | None], outputs: int = 1, **attributes: Any
    ) -> Value:
        """Append a node; its first result. Skips what has no finite result of moderate size."""
        given = [v for v in operands if v is not None]
        step = sum(v.step for v in given)
        inexact = any(v.is_float and not v.exact for v in given)
        if (kind in JUMPING and inexact) or (step and kind not in GENTLE):
            raise Skip
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        read = [v.name if v else "" for v in operands]
        node = helper.make_node(kind, read, names, f"n{len(self.nodes)}", **attributes)
        arrays = reference(node, {v.name: v.array for v in given})
        if any(not 1 <= a.size <= MAX_ELEMENTS for a in arrays):
            raise Skip
        if any(not np.isfinite(a).all() or np.abs(a).max() > LARGEST for a in arrays):
            raise Skip
        self.nodes.append(node)
        for name, array in zip(names, arrays, strict=True):
            exact = array.dtype != np.float32 or (
                not inexact and kind in EXACT | JUMPING and on_grid(array)
            )
            self.values.append(Value(name, array, exact, step))
        return self.values[-outputs]

    def coarse(self, value: Value, step: float) -> Value:
        """The same value, whose error may be a step of quantisation."""
        index = self.values.index(value)
        self.values[index] = Value(value.name, value.array, False, value.step + step)
        return self.values[index]

    def model(self, outputs: Sequence[Value]) -> onnx.ModelProto:
        typed = [
            helper.make_tensor_value_info(
                v.name, helper.np_dtype_to_tensor_dtype(v.array.dtype), v.array.shape
            )
            for v in (*self.inputs, *outputs)
        ]
        count = len(self.inputs)
        graph = helper.make_graph(self.nodes, "fuzz", typed[:count], typed[count:], self.constants)
        imports = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)


def on_grid(array: np.ndarray) -> bool:
    steps = array.astype(np.float64) / GRID
    return bool((steps == np.rint(steps)).all()) and np.abs(array).max(initial=0) < LARGEST


def reference(node: onnx.NodeProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """One node by ONNX Runtime, or by ONNX's reference evaluator where ONNX Runtime has no kernel.
    Skips what ONNX Runtime refuses.
    """
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "one", inputs, outputs)
    imports = [helper.make_opsetid("", OPSET)]
    try:
        return results(helper.make_model(graph, opset_imports=imports, ir_version=10), feeds)[0]
    except Refused:
        raise Skip from None
