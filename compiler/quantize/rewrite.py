"""The quantised model in ONNX: QuantizeLinear and DequantizeLinear around float operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from .draft import Draft, attribute, copied, names_read, set_attribute
from .plan import Plan, data_operands
from .weights import MOST_BIAS_STEPS, Scale, Weight

#: Bits that the second byte of a tensor adds to the first.
LOW_BITS = 8
#: Operators that read both bytes; others read the first.
READ_BOTH = ("Add", "LayerNormalization", "RMSNormalization")
#: Before this operator set, the axes of a mean are an attribute.
MEANS_BY_INPUT = 18


@dataclass
class _Rewriter:
    draft: Draft
    plan: Plan
    scales: Mapping[str, Scale]
    weights: Mapping[str, Weight]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    #: By quantised tensor, the float tensor that is dequantised from it.
    dequantized: dict[str, str] = field(default_factory=dict)
    #: By tensor of two bytes, the float tensor that is their sum.
    wide: dict[str, str] = field(default_factory=dict)
    #: Tensors that exist only in quantised form.
    replaced: set[str] = field(default_factory=set)
    #: By group of tensors, its scale and zero point.
    constants_of: dict[str, list[str]] = field(default_factory=dict)
    #: By what a weight or bias is made of, the tensor that is dequantised from it.
    parameters_of: dict[tuple[int, Scale | None], str] = field(default_factory=dict)

    def run(self) -> None:
        for name in (*self.draft.inputs, *self.draft.constants):
            self.store(name, name)
        for node, reason in zip(self.draft.nodes, self.plan.reasons, strict=True):
            made = copied(node)
            values = set() if reason else {*data_operands(self.draft, node)}
            both = self.wide if node.op_type in READ_BOTH and values else {}
            for i, name in enumerate(made.input):
                if name in self.replaced or (name in values and name in self.dequantized):
                    made.input[i] = both.get(name, self.dequantized[name])
            weight = self.weights.get(node.output[0])
            if weight is not None:
                self.parameters(made, weight, self.scales[node.input[0]])
            if made.op_type == "TensorScatter" and not reason:
                self.scatter(node)
                continue
            for i, name in enumerate(node.output):
                if not reason and name in self.plan.groups:
                    self.replaced.add(name)
                    made.output[i] = f"{name}.float" if name in self.draft.outputs else name
            if made.op_type != "Add" and node.input[0] in both:
                self.normalise(made, node.input[0])
            else:
                self.nodes.append(made)
            for name, real in zip(node.output, made.output, strict=True):
                self.store(name, real)

    def scatter(self, node: onnx.NodeProto) -> None:
        """Let a cache have integer rows: all three tensors have one scale."""
        cache, rows, *place = node.input
        name = node.output[0]
        made = copied(node)
        made.input[:] = [f"{cache}.int8", f"{rows}.int8", *place]
        made.output[:] = [f"{name}.int8"]
        self.nodes.append(made)
        self.replaced.add(name)
        self.store(name, "")

    def store(self, name: str, real: str) -> None:
        """Quantise the float tensor ``real``, which computes ``name``, where the plan says so;
        without one, the integers are there."""
        if name not in self.scales:
            return
        scale = self.scales[name]
        result = name if real != name else f"{name}.dequantized"
        group = self.plan.groups.get(name, name)
        if group not in self.constants_of:
            self.constants_of[group] = [
                self.draft.constant(f"{group}.scale", np.array(scale.scale, np.float32)),
                self.draft.constant(f"{group}.zero_point", np.array(scale.zero_point, np.int8)),
            ]
        constants = self.constants_of[group]
        stored = f"{name}.int8"
        steps = [("quantize", real, stored), ("dequantize", stored, result)]
        if name in self.draft.constants:
            self.draft.constants[stored] = scale.stored(self.draft.constants[name])
        if not real or name in self.draft.constants:
            del steps[0]
        self.convert(name, steps, constants)
        self.dequantized[name] = result
        if name in self.draft.wide and len(steps) == 2:
            self.store_low(name, real, scale)
        if name not in self.plan.groups:  # a factor, which float steps of embeddings read
            self.replaced.add(name)

    def store_low(self, name: str, real: str, scale: Scale) -> None:
        """Quantise what rounding ``real`` lost."""
        high, rest, low = self.dequantized[name], f"{name}.rest", f"{name}.low"
        stored, whole = f"{low}.int8", f"{name}.whole"
        step = np.array(scale.scale / 2**LOW_BITS, np.float32)
        constants = [
            self.draft.constant(f"{low}.scale", step),
            self.draft.constant(f"{low}.zero_point", np.array(0, np.int8)),
        ]
        self.nodes.append(helper.make_node("Sub", [real, high], [rest], rest))
        self.convert(low, [("quantize", rest, stored), ("dequantize", stored, low)], constants)
        self.nodes.append(helper.make_node("Add", [high, low], [whole], whole))
        self.wide[name] = whole

    def normalise(self, node: onnx.NodeProto, source: str) -> None:
        """Append the steps of a normalisation of a tensor of two bytes, whose mean and variance are
        those of the first; its result has its name."""
        whole, gain, *bias = node.input
        high, rank = self.dequantized[source], len(self.draft.shapes[source])
        axes = [*range(attribute(node, "axis", -1) % rank, rank)]
        base = node.output[0]
        epsilon = np.array(attribute(node, "epsilon", 1e-5), np.float32)

        def add(kind: str, label: str, *operands: str) -> str:
            name = f"{base}.{label}" if label else base
            self.nodes.append(helper.make_node(kind, operands, [name], name))
            return name

        def mean(label: str, x: str) -> str:
            if self.draft.opset >= MEANS_BY_INPUT:
                axes_name = self.draft.constant(f"{base}.axes", np.array(axes))
                return add("ReduceMean", label, x, axes_name)
            name = add("ReduceMean", label, x)
            set_attribute(self.nodes[-1], "axes", axes)
            return name

        if node.op_type == "LayerNormalization":
            centre = mean("mean", high)
            whole, high = (add("Sub", f"{x} centred", x, centre) for x in (whole, high))
        variance = mean("variance", add("Mul", "square", high, high))
        epsilon_name = self.draft.constant(f"{base}.epsilon", epsilon)
        root = add("Sqrt", "root", add("Add", "energy", variance, epsilon_name))
        normal = add("Div", "normal", whole, root)
        scaled = add("Mul", "scaled" if bias else "", normal, gain)
        if bias:
            add("Add", "", scaled, *bias)

    def convert(self, name: str, steps: list[tuple[str, str, str]], constants: list[str]) -> None:
        """Append QuantizeLinear and DequantizeLinear, of one scale and zero point."""
        for what, x, y in steps:
            kind = f"{what.capitalize()}Linear"
            self.nodes.append(helper.make_node(kind, [x, *constants], [y], f"{name}.{what}"))

    def parameters(self, node: onnx.NodeProto, weight: Weight, x: Scale) -> None:
        """Give a product its weight, and its bias, as dequantised integers."""
        base = node.output[0]
        first = node.input[0]
        key = (id(weight.stored), None)
        if key not in self.parameters_of:
            made = self.stored(f"{base}.weight", weight.stored, weight.scale, weight.axis)
            self.parameters_of[key] = made
        names = [self.parameters_of[key]]
        if weight.bias is not None:
            key = (id(weight), x)
            if key not in self.parameters_of:
                step = np.float32(x.scale) * weight.scale
                steps = np.rint(weight.bias / step.astype(np.float64))
                bias = np.clip(steps, -MOST_BIAS_STEPS, MOST_BIAS_STEPS).astype(np.int32)
                self.parameters_of[key] = self.stored(f"{base}.bias", bias, step, 0)
            names.append(self.parameters_of[key])
        if node.op_type == "MatMul" and weight.bias is not None:
            node.op_type = "Gemm"
        del node.input[:]
        node.input.extend([first, *names])

    def stored(self, base: str, data: np.ndarray, scale: np.ndarray, axis: int) -> str:
        name = self.draft.constant(f"{base}.{data.dtype}", data)
        parameters = [
            self.draft.constant(f"{base}.scale", scale),
            self.draft.constant(f"{base}.zero_point", np.zeros(scale.shape, data.dtype)),
        ]
        result = f"{base}.dequantized"
        inputs = [name, *parameters]
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [result], result, axis=axis))
        return result


def rewrite(
    draft: Draft, plan: Plan, scales: Mapping[str, Scale], weights: Mapping[str, Weight]
) -> tuple[Draft, dict[str, str]]:
    """The quantised model; and by quantised tensor the name of its dequantised value in it.

    Every quantised tensor is followed by QuantizeLinear and DequantizeLinear, whose result is what
    all readers read. Only float operators still read the tensor itself where a float operator
    computes it.
    """
    target = draft.without_nodes()
    target.wide = draft.wide
    rewriter = _Rewriter(target, plan, scales, weights)
    target.nodes = draft.nodes
    rewriter.run()
    target.nodes = rewriter.nodes
    read = {name for node in target.nodes for name in names_read(node)} | {*target.outputs}
    target.constants = {n: value for n, value in target.constants.items() if n in read}
    return target, {name: rewriter.dequantized[name] for name in plan.groups}
