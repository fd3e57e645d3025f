"""Which nodes compute with integers, which tensors are quantised, and which share a scale."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

import numpy as np
import onnx

from ..graph.passes.masks import GAP
from .draft import Draft, attribute, operands
from .functions import STEPS, functions
from .recurrent import why_not_unrolled
from .rotation import STEP as ROTATED
from .rotation import rotation_steps

#: Functions of one value: on integers they are a table, or bounds.
FUNCTIONS = {
    *("Relu", "Clip", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Abs", "Neg"),
    *("Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "Mish", "Softplus", "Softsign", "Erf"),
}
#: Operators that move or pick values: result and operands share a scale.
MOVES = {
    *("Concat", "DepthToSpace", "Expand", "Flatten", "MaxPool", "Pad", "Reshape", "Slice"),
    *("SpaceToDepth", "Split", "Squeeze", "TensorScatter", "Transpose", "Unsqueeze"),
}
POOLS = {"AveragePool", "GlobalAveragePool"}
PRODUCTS = {"Conv", "Gemm", "MatMul"}
#: Operators of two operands, each of which may be data or a constant.
BINARY = {"Add", "Div", "Mul", "Sub"}
#: Operators that can take over the bounds of a Relu or Clip after them.
BOUNDED = PRODUCTS | POOLS | {"Add", "MaxPool"}

#: What is added to scores is a bias where its range is less than this: then int8 has levels for it.
MOST_OF_BIAS = 64.0

FLOAT_AROUND = "nothing that it reads is quantised"
ASKED = "asked to stay float"


@dataclass
class Plan:
    """What is decided for each node.

    Attributes
    ----------
    reasons : by position of a node, why it stays float; "" for a node on integers
    merged : by position of a node that is computed together with one before it, the position of
        that one: a Relu or Clip whose bounds it takes over, or the next step of a function
    functions : positions of functions of one tensor, and of their steps
    groups : by tensor that is stored as int8, the tensor that stands for all that share its scale
    """

    reasons: list[str] = field(default_factory=list)
    merged: dict[int, int] = field(default_factory=dict)
    functions: set[int] = field(default_factory=set)
    groups: dict[str, str] = field(default_factory=dict)

    def chain(self, place: int) -> list[int]:
        """The positions of a node and of those that are merged into it, in order."""
        chain = [place]
        for later, before in sorted(self.merged.items()):
            if before == chain[-1]:
                chain.append(later)
        return chain

    def members(self) -> dict[str, list[str]]:
        """The tensors of each group."""
        found: dict[str, list[str]] = {}
        for name in self.groups:
            found.setdefault(self.groups[name], []).append(name)
        return found


def plan(draft: Draft, excluded: Mapping[int, str] | None = None) -> Plan:
    """Decide for every node; a reason says why one stays float. ``excluded`` has the reasons of
    nodes that have an integer form and shall stay float, by position."""
    asked = {i: ASKED for i, n in enumerate(draft.nodes) if n.name in draft.float_nodes}
    excluded = rotation_steps(draft) | _squares(draft) | asked | {**(excluded or {})}
    nodes = enumerate(draft.nodes)
    made = Plan([excluded.get(i) or _why_float(draft, node) for i, node in nodes])
    made.merged = _merge_bounds(draft, made.reasons)
    _find_functions(draft, made, excluded)
    _leave_float_parts(draft, made)
    _collect(draft, made)
    return made


def _squares(draft: Draft) -> dict[int, str]:
    """Why squares of which only a mean is taken stay float, by position: the compiler finds a
    normalisation between the quantisation of what is normalised and that of the result."""
    readers: dict[str, set[str]] = {}
    for node in draft.nodes:
        for name in node.input:
            readers.setdefault(name, set()).add(node.op_type)
    return {
        i: "a step of a normalisation" for i, node in enumerate(draft.nodes)
        if node.op_type in ("Mul", "Pow") and readers.get(node.output[0]) == {"ReduceMean"}
    }  # fmt: skip


def data_operands(draft: Draft, node: onnx.NodeProto) -> list[str]:
    """Operands that are data: neither parameters nor constants, but for those that are added to
    every place, such as learned positions, and rows that are joined to others, such as a class
    token."""
    count = {"Concat": len(node.input), "MatMul": 2, "TensorScatter": 2}.get(node.op_type, 1)
    count = 2 if node.op_type in BINARY else count
    return [
        name
        for name in node.input[:count]
        if name and (name not in draft.constants or _is_row(draft, node, name))
    ]


def has_weights(draft: Draft, node: onnx.NodeProto) -> bool:
    """Whether a node is a product by a constant."""
    return node.op_type in PRODUCTS and node.input[1] in draft.constants


def clip_bounds(draft: Draft, node: onnx.NodeProto) -> tuple[float, float] | None:
    """The bounds of a Relu or Clip; None where they are computed."""
    if node.op_type == "Relu":
        return 0.0, float("inf")
    bounds = [-float("inf"), float("inf")]
    for i, name in enumerate(node.input[1:3]):
        if name and name not in draft.constants:
            return None
        if name:
            bounds[i] = float(draft.constants[name])
    return bounds[0], bounds[1]


# ---- node by node ----


def _why_float(draft: Draft, node: onnx.NodeProto) -> str:
    """Why an operator has no integer form; "" if it has one."""
    rule = _RULES.get(node.op_type)
    if rule is None or node.domain not in ("", "ai.onnx"):
        return f"{node.op_type} has no integer form"
    data = data_operands(draft, node)
    for name in node.input:
        known = name in draft.constants and name not in data
        if known and (node.op_type in (*BINARY, "Concat") or not data):
            return f"operand {name!r} is a constant"
    for name in (*data, *(name for name in node.output if name)):
        if draft.dtypes.get(name, "float32") != "float32":
            return f"{name!r} is {draft.dtypes[name]}, not float32"
    return rule(draft, node)


def _is_row(draft: Draft, node: onnx.NodeProto, name: str) -> bool:
    """Whether a constant has rows of its own, which are quantised as data are."""
    if node.op_type == "Concat":
        computed = any(other not in draft.constants for other in node.input)
        return computed and bool(np.isfinite(draft.constants[name]).all())
    return _is_addend(draft, node, name)


def _is_addend(draft: Draft, node: onnx.NodeProto, name: str) -> bool:
    """Whether a constant has a number of its own for each row that it is added to. One for each
    channel has not: the compiler adds it without rounding it to int8. Nor is it one where it is the
    mask of a softmax, whose range would leave no levels for what it is added to."""
    if node.op_type != "Add":
        return False
    value, shape = draft.constants[name], draft.shapes[node.output[0]]
    full = (1,) * (len(shape) - value.ndim) + value.shape
    is_whole = full == shape and prod(value.shape[:-1]) > 1
    if not is_whole or not np.isfinite(value).all():
        return False
    hides = (value == value.max()) | (value <= value.max() - GAP)
    is_bias = np.ptp(value) < MOST_OF_BIAS and not hides.all()
    return is_bias or not _is_in_softmax(draft, node.output[0])


def _is_in_softmax(draft: Draft, name: str) -> bool:
    """Whether a softmax takes a tensor, perhaps with functions and moves between them."""
    found = {name}
    for node in draft.nodes:
        if found.isdisjoint(node.input):
            continue
        if node.op_type == "Softmax":
            return True
        if node.op_type in (*FUNCTIONS, *MOVES, *STEPS):
            found |= {*node.output}
    return False


def _product(draft: Draft, node: onnx.NodeProto) -> str:
    names = [*operands(node)]
    if node.op_type == "MatMul" and len(data_operands(draft, node)) == 2:
        return _of_activations(draft, node)
    if any(name not in draft.constants for name in names[1:]):
        return "its weights are computed, not constants"
    ranks = (3, 4) if node.op_type == "Conv" else (2,)  # prepare() makes 4 of 5
    rank = len(draft.shapes[node.input[0]])
    if rank not in ranks or draft.constants[node.input[1]].ndim != rank:
        return f"a product of {rank} dimensions, supported are {' and '.join(map(str, ranks))}"
    if node.op_type == "Gemm":
        plain = attribute(node, "alpha", 1.0) == attribute(node, "beta", 1.0) == 1.0
        if not plain or attribute(node, "transA", 0):
            return "supported are alpha = beta = 1 and transA = 0"
        width = draft.shapes[node.output[0]][1]
        if len(names) > 2 and draft.constants[names[2]].shape != (width,):
            return f"supported is a bias of shape [{width}]"
    return ""


def _of_activations(draft: Draft, node: onnx.NodeProto) -> str:
    ranks = [len(draft.shapes[name]) for name in node.input]
    return "" if min(ranks) > 1 else f"a product of {ranks[0]} and {ranks[1]} dimensions"


def _add(draft: Draft, node: onnx.NodeProto) -> str:
    if any(name in draft.constants for name in node.input):
        return ""
    is_masked = any(_is_of_conditions(draft, name) for name in node.input)
    if is_masked and _is_in_softmax(draft, node.output[0]):
        return "a mask that is computed"
    a, b = (draft.shapes[name] for name in node.input)
    return "" if a == b else f"the addends have shapes {list(a)} and {list(b)}"


def _is_of_conditions(draft: Draft, name: str) -> bool:
    """Whether conditions choose a tensor's values, or are them."""
    maker = next((node for node in draft.nodes if name in node.output), None)
    operands = set() if maker is None else {*maker.input} - {*draft.constants}
    return {draft.dtypes.get(operand) for operand in operands} == {"bool"}


def _mul(draft: Draft, node: onnx.NodeProto) -> str:
    if any(name in draft.constants for name in node.input):
        return "a product with a constant"
    a, b = (draft.shapes[name] for name in node.input)
    return "" if a == b else f"the factors have shapes {list(a)} and {list(b)}"


def _pool(draft: Draft, node: onnx.NodeProto) -> str:
    rank = len(draft.shapes[node.input[0]])
    if rank not in (3, 4):
        return f"pooling of {rank - 2} dimensions, supported are 1 and 2"
    same = attribute(node, "auto_pad", b"").startswith(b"SAME")
    padded = same or any(attribute(node, "pads", ()))
    if node.op_type == "AveragePool" and padded and not attribute(node, "count_include_pad", 0):
        return "the average's divisor varies: it is padded, and count_include_pad = 0"
    if attribute(node, "ceil_mode", 0) or set(attribute(node, "dilations", (1,))) != {1}:
        return "supported are ceil_mode = 0 and no dilations"
    return ""


def _pad(draft: Draft, node: onnx.NodeProto) -> str:
    values = [draft.constants.get(name) for name in node.input[2:3] if name]
    is_zero = all(value is not None and not value.any() for value in values)
    plain = attribute(node, "mode", b"constant") == b"constant" and is_zero
    return "" if plain else "supported is a border of zeros"


def _layer_norm(draft: Draft, node: onnx.NodeProto) -> str:
    """A result that nothing computes with, such as a model's features, keeps its precision."""
    if any(node.output[1:]):
        return "its mean or deviation is asked for"
    found = {node.output[0]}
    for other in draft.nodes:
        if not found.isdisjoint(other.input):
            if other.op_type not in MOVES:
                return ""
            found |= {*other.output}
    return "nothing computes with its result"


def _function(draft: Draft, node: onnx.NodeProto) -> str:
    if node.op_type == "Clip" and clip_bounds(draft, node) is None:
        return "its bounds are computed, not constants"
    return ""


def _max_pool(draft: Draft, node: onnx.NodeProto) -> str:
    return "its indices are asked for" if len(node.output) > 1 else _pool(draft, node)


_RULES: dict[str, Callable[[Draft, onnx.NodeProto], str]] = {
    **dict.fromkeys(MOVES, lambda draft, node: ""),
    **dict.fromkeys(FUNCTIONS, _function),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(POOLS, _pool),
    "Add": _add,
    "GRU": why_not_unrolled,
    "LayerNormalization": _layer_norm,
    "MaxPool": _max_pool,
    "Mul": _mul,
    "Pad": _pad,
    "RMSNormalization": lambda draft, node: "",
    "RotaryEmbedding": lambda draft, node: "",
}


# ---- the whole ----


def _merge_bounds(draft: Draft, reasons: list[str]) -> dict[int, int]:
    """For each Relu or Clip that alone reads its operand, the node that takes over its bounds."""
    place = {name: i for i, node in enumerate(draft.nodes) for name in node.output}
    readers = draft.readers()
    merged: dict[int, int] = {}
    for i, node in enumerate(draft.nodes):
        if node.op_type not in ("Relu", "Clip") or reasons[i]:
            continue
        before = place.get(node.input[0])
        if before is None or reasons[before] or readers[node.input[0]] != 1:
            continue
        if before in merged or draft.nodes[before].op_type in BOUNDED:
            merged[i] = before
    return merged


def _find_functions(draft: Draft, made: Plan, excluded: Collection[int]) -> None:
    """Let each function of one tensor be one operator, however many nodes compute it."""

    def is_step(place: int) -> bool:
        node = draft.nodes[place]
        real = all(draft.dtypes.get(n, "float32") == "float32" for n in (*node.input, *node.output))
        known = node.op_type in (*FUNCTIONS, *STEPS) and node.domain in ("", "ai.onnx")
        return real and known and place not in made.merged and place not in excluded

    for chain in functions(draft, is_step):
        made.functions |= {*chain}
        made.merged |= dict(pairwise(reversed(chain)))
        for place in chain:
            made.reasons[place] = ""


def _leave_float_parts(draft: Draft, made: Plan) -> None:
    """Keep nodes float that only move or map float values: to quantise them would gain nothing.

    Moves, pools and sums of the model's inputs are quantised if a product reads their results.
    """
    nodes, reasons = draft.nodes, made.reasons
    place = {name: i for i, node in enumerate(nodes) for name in node.output}
    undecided: set[int] = set()
    for i, node in enumerate(nodes):
        if reasons[i] or node.op_type in PRODUCTS:
            continue
        before = [place.get(name, -1) for name in data_operands(draft, node)]
        # The compiler finds rotary embeddings, whose steps stay float, in integers.
        known = ("", ROTATED) if node.op_type in MOVES else ("",)
        if any(p >= 0 and reasons[p] in known and p not in undecided for p in before):
            continue
        open_ended = all(p < 0 or p in undecided for p in before)
        if open_ended and i not in made.functions and node.op_type not in FUNCTIONS:
            undecided.add(i)
        else:
            reasons[i] = FLOAT_AROUND
    for i in sorted(undecided, reverse=True):
        results = {*nodes[i].output}
        later = [j for j, other in enumerate(nodes) if results & {*data_operands(draft, other)}]
        if all(reasons[j] for j in later):
            reasons[i] = FLOAT_AROUND
    _keep_caches(draft, reasons)


def _keep_caches(draft: Draft, reasons: list[str]) -> None:
    """A cache that is read as int8 gets new rows as int8, too: between runs it has one scale."""
    decided = zip(draft.nodes, reasons, strict=True)
    stored = {name for node, reason in decided if not reason for name in data_operands(draft, node)}
    for i, node in enumerate(draft.nodes):
        kept = reasons[i] == FLOAT_AROUND and node.input[0] in stored
        if node.op_type == "TensorScatter" and kept:
            reasons[i] = ""


def _collect(draft: Draft, made: Plan) -> None:
    """The tensors that become int8, and those that share a scale."""
    inner = {draft.nodes[before].output[0] for before in made.merged.values()}
    for node, reason in zip(draft.nodes, made.reasons, strict=True):
        if reason:
            continue
        names = [n for n in (*data_operands(draft, node), *node.output) if n and n not in inner]
        for name in names:
            made.groups.setdefault(name, name)
    for i, node in enumerate(draft.nodes):
        if made.reasons[i] or node.op_type not in MOVES:
            continue
        results = [name for name in draft.nodes[made.chain(i)[-1]].output if name]
        _join(made, (*data_operands(draft, node), *results))
    for names in draft.alike:
        _join(made, [name for name in names if name in made.groups])


def _join(made: Plan, names: Collection[str]) -> None:
    """Let tensors, and all that share a scale with one of them, share one."""
    shared = {made.groups[name] for name in names}
    if len(shared) < 2:
        return
    first = next(name for name in made.groups if made.groups[name] in shared)
    for name, group in made.groups.items():
        if group in shared:
            made.groups[name] = made.groups[first]
