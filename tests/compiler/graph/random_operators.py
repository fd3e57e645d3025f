"""How random graphs get their operators: one function for each family, in ``MAKERS``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from .random_graphs import RandomGraph, Skip, Value

Maker = Callable[[RandomGraph], Any]

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh",
    "Dropout", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu",
    "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh",
    "ThresholdedRelu",
)  # fmt: skip
BINARY = ("Add", "Div", "Max", "Mean", "Min", "Mul", "Pow", "Sub", "Sum", "PRelu")
COMPARE = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
REDUCE = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
CELLS = {"LSTM": 4, "GRU": 3, "RNN": 1}


# ---- elements ----


def again(g: RandomGraph) -> None:
    """What an earlier node computes, once more."""
    node = g.choice(g.nodes)
    values = {v.name: v for v in g.values} | {
        c.name: Value(c.name, numpy_helper.to_array(c), exact=True) for c in g.constants
    }
    if any(name and name not in values for name in node.input):
        raise Skip
    operands = [values[name] if name else None for name in node.input]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    g.apply(node.op_type, operands, len(node.output), **attributes)


def unary(g: RandomGraph) -> None:
    attributes = {"LeakyRelu": {"alpha": 0.25}}
    kind = g.choice(UNARY)
    g.apply(kind, [g.float_value(smallest=0)], **attributes.get(kind, {}))


def partner(g: RandomGraph, x: Value) -> Value:
    """A value or a constant that broadcasts with x."""
    if g.integer(0, 1):
        return g.pick(lambda v: v.is_float and broadcasts(v.array.shape, x.array.shape))
    shape = [n if g.integer(0, 1) else 1 for n in x.array.shape]
    return g.constant(g.floats(*shape[g.integer(0, len(shape)) :]))


def broadcasts(*shapes: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def binary(g: RandomGraph) -> None:
    kind, x = g.choice(BINARY), g.float_value(smallest=0)
    pair = [x, partner(g, x)]
    if kind == "Mean" and pair[1].array.shape != x.array.shape:
        raise Skip  # the evaluator broadcasts to the first operand only
    g.apply(kind, pair if kind == "PRelu" or g.integer(0, 1) else pair[::-1])


def compare(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.is_float and v.exact)
    g.apply(g.choice(COMPARE), [x, partner(g, x)])


def logic(g: RandomGraph) -> None:
    a = g.pick(lambda v: v.array.dtype == np.bool_)
    b = g.pick(lambda v: v.array.dtype == np.bool_ and broadcasts(v.array.shape, a.array.shape))
    kind = g.choice(("And", "Or", "Xor", "Not"))
    g.apply(kind, [a] if kind == "Not" else [a, b])


def where(g: RandomGraph) -> None:
    chosen = g.pick(lambda v: v.array.dtype == np.bool_)
    x = g.pick(lambda v: v.is_float and broadcasts(v.array.shape, chosen.array.shape))
    g.apply("Where", [chosen, x, g.constant(g.floats())])


def clip(g: RandomGraph) -> None:
    low, high = sorted([g.integer(-8, 8) / 4, g.integer(-8, 8) / 4])
    bounds = [g.constant(low) if g.integer(0, 2) else None, g.constant(high)]
    g.apply("Clip", [g.float_value(smallest=0), *bounds])


def cast(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.exact)
    kinds = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 3: np.int8, 2: np.uint8}
    kind = g.choice([*kinds])
    inside = kinds[kind] is np.float32 or kinds[kind] is np.bool_
    if not inside and not (
        np.iinfo(kinds[kind]).min <= x.array.min() and x.array.max() <= np.iinfo(kinds[kind]).max
    ):
        raise Skip
    g.apply("Cast", [x], to=kind)


def integers(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.array.dtype in (np.int32, np.int64))
    kind = g.choice(("Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Sign", "Mod", "Div"))
    if kind in ("Neg", "Abs", "Sign"):
        g.apply(kind, [x])
        return
    numbers = g.rng.integers(1, 5, x.array.shape[-1:])
    g.apply(kind, [x, g.constant(numbers, x.array.dtype.type)])


# ---- shapes ----


def reshape(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.rank >= 1 and v.array.size > 0)
    sizes = [*x.array.shape]
    match g.integer(0, 3):
        case 0:
            g.apply("Flatten", [x], axis=g.integer(-x.rank, x.rank))
            return
        case 1:
            sizes = [-1]
        case 2:
            at = g.integer(0, x.rank - 1)
            divisor = g.choice([d for d in (1, 2, 3) if sizes[at] % d == 0])
            sizes[at : at + 1] = [divisor, sizes[at] // divisor]
        case 3:
            sizes = [*sizes[:-2], -1]
    g.apply("Reshape", [x, g.constant(sizes, np.int64)])


def transpose(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.rank >= 2)
    g.apply("Transpose", [x], perm=[int(i) for i in g.rng.permutation(x.rank)])


def undone(g: RandomGraph) -> None:
    """A transposition, an operator on elements or two, and the transposition back."""
    x = g.float_value(smallest=2)
    order = [int(i) for i in g.rng.permutation(x.rank)]
    y = g.apply("Transpose", [x], perm=order)
    for _ in range(g.integer(0, 2)):
        y = g.apply(g.choice(("Relu", "Neg", "Sigmoid", "Abs")), [y])
    g.apply("Transpose", [y], perm=[order.index(i) for i in range(x.rank)])


def squeeze(g: RandomGraph) -> None:
    x = g.pick(lambda v: True)
    if g.integer(0, 1):
        axis = g.integer(-x.rank - 1, x.rank)
        g.apply("Unsqueeze", [x, g.constant([axis], np.int64)])
    else:
        ones = [i for i, n in enumerate(x.array.shape) if n == 1]
        g.apply("Squeeze", [x, g.constant([g.choice(ones)], np.int64)])


def slice_(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.rank >= 1)
    axis = g.integer(0, x.rank - 1)
    bounds = [g.integer(-6, 6), g.integer(-6, 9), axis, g.choice((1, 2, -1, -2))]
    g.apply("Slice", [x, *(g.constant([n], np.int64) for n in bounds)])


def concat(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.rank >= 1)
    axis = g.integer(0, x.rank - 1)

    def fits(v: Value) -> bool:
        same = v.rank == x.rank and v.array.dtype == x.array.dtype
        return same and all(
            a == b
            for i, (a, b) in enumerate(zip(v.array.shape, x.array.shape, strict=True))
            if i != axis
        )

    g.apply("Concat", [x, g.pick(fits), x][: g.integer(1, 3)], axis=axis)


def split(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.rank >= 1 and max(v.array.shape) > 1)
    axis = g.choice([i for i, n in enumerate(x.array.shape) if n > 1])
    first = g.integer(1, x.array.shape[axis] - 1)
    sizes = g.constant([first, x.array.shape[axis] - first], np.int64)
    g.apply("Split", [x, sizes], outputs=2, axis=axis)


def spread(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.array.size < 200)
    if g.integer(0, 1):
        g.apply("Tile", [x, g.constant([g.integer(1, 2) for _ in range(x.rank)], np.int64)])
    else:
        shape = [g.integer(1, 2), *(n if n > 1 else g.integer(1, 3) for n in x.array.shape)]
        g.apply("Expand", [x, g.constant(shape, np.int64)])


def gather(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.rank >= 1 and v.array.size > 0)
    axis = g.integer(0, x.rank - 1)
    size = x.array.shape[axis]
    if g.integer(0, 1):
        places = g.rng.integers(-size, size, (2, 2)[: g.integer(0, 2)])
        g.apply("Gather", [x, g.constant(places, np.int64)], axis=axis)
    else:
        shape = [*x.array.shape[:axis], 2, *x.array.shape[axis + 1 :]]
        places = g.rng.integers(-size, size, shape)
        g.apply("GatherElements", [x, g.constant(places, np.int64)], axis=axis)


def pad(g: RandomGraph) -> None:
    x = g.float_value()
    mode = g.choice(("constant", "edge", "reflect", "wrap"))
    amounts = [min(g.integer(0, 2), n - 1) for n in (*x.array.shape, *x.array.shape)]
    operands = [x, g.constant(amounts, np.int64)]
    if mode == "constant":
        operands.append(g.constant(g.integer(-4, 4) / 2))
    g.apply("Pad", operands, mode=mode)


def trilu(g: RandomGraph) -> None:
    x = g.float_value(smallest=2)
    g.apply("Trilu", [x, g.constant(g.integer(-2, 2), np.int64)], upper=g.integer(0, 1))


def about_shape(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.rank >= 1)
    match g.integer(0, 3):
        case 0:
            g.apply("Reshape", [x, g.apply("Shape", [x])])
        case 1:
            g.apply("Size", [x])
        case 2:
            g.apply("ConstantOfShape", [g.apply("Shape", [x])])
        case 3:
            bounds = [g.constant(n, np.int64) for n in (g.integer(-3, 3), g.integer(4, 9), 2)]
            g.apply("Range", bounds)


def one_hot(g: RandomGraph) -> None:
    places = g.pick(lambda v: v.array.dtype == np.int64 and v.array.size < 50)
    depth = g.constant(4, np.int64)
    g.apply("OneHot", [places, depth, g.constant([0, 1])], axis=g.integer(-places.rank - 1, 0))


def depth_and_space(g: RandomGraph) -> None:
    x = g.float_value(4)
    _, channels, height, width = x.array.shape
    if channels % 4 == 0:
        g.apply("DepthToSpace", [x], blocksize=2, mode=g.choice(("DCR", "CRD")))
    elif height % 2 == width % 2 == 0:
        g.apply("SpaceToDepth", [x], blocksize=2)


# ---- reductions and normalisation ----


def reduce(g: RandomGraph) -> None:
    x = g.float_value()
    axes = sorted({g.integer(0, x.rank - 1) for _ in range(g.integer(1, 2))})
    operands = [x, g.constant(axes, np.int64)][: g.integer(1, 2)]
    kind = g.choice(REDUCE)
    if kind == "ReduceProd" and x.array.size > 40:
        raise Skip
    g.apply(kind, operands, keepdims=g.integer(0, 1))


def arg(g: RandomGraph) -> None:
    x = g.float_value()
    g.apply(
        g.choice(("ArgMax", "ArgMin")), [x], axis=g.integer(-x.rank, x.rank - 1),
        keepdims=g.integer(0, 1), select_last_index=g.integer(0, 1),
    )  # fmt: skip


def normalise(g: RandomGraph) -> None:
    x = g.float_value()
    axis = g.integer(-x.rank, x.rank - 1)
    kind = g.choice(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "LayerNormalization"))
    if kind == "LayerNormalization":
        shape = x.array.shape[axis % x.rank :]
        g.apply(kind, [x, g.constant(g.floats(*shape)), g.constant(g.floats(*shape))], axis=axis)
    elif kind == "LpNormalization":
        size = np.abs(x.array)
        if not x.exact and size.sum(axis).min() < size.max() / 100:
            raise Skip  # of nearly nothing, rounding errors would decide the result
        g.apply(kind, [x], axis=axis, p=g.integer(1, 2))
    else:
        g.apply(kind, [x], axis=axis)


def per_channel(g: RandomGraph) -> None:
    x = g.float_value(smallest=3)
    count = x.array.shape[1]
    scale, bias, mean = (g.constant(g.floats(count)) for _ in range(3))
    match g.integer(0, 2):
        case 0:
            variance = g.constant(np.abs(g.floats(count)) + 0.5)
            g.apply("BatchNormalization", [x, scale, bias, mean, variance])
        case 1:
            g.apply("InstanceNormalization", [x, scale, bias])
        case 2:
            if x.rank != 4:
                raise Skip
            g.apply("LRN", [x], size=3, alpha=0.01, beta=0.75, bias=1.0)


# ---- windows and products ----


def window(g: RandomGraph, x: Value) -> dict[str, list[int]]:
    """Kernel, strides and pads that fit."""
    kernel = [min(g.integer(1, 3), n) for n in x.array.shape[2:]]
    pads = [min(g.integer(0, 1), k - 1) for k in (*kernel, *kernel)]
    return {"kernel_shape": kernel, "strides": [g.integer(1, 2) for _ in kernel], "pads": pads}


def conv(g: RandomGraph) -> None:
    x = g.float_value(g.choice((3, 4, 4, 4)))
    channels = x.array.shape[1]
    groups = g.choice([n for n in (1, 2, channels) if channels % n == 0])
    where = window(g, x)
    if g.integer(0, 3):
        out = groups * g.integer(1, 3)
        weight = g.constant(g.floats(out, channels // groups, *where["kernel_shape"]))
        bias = [g.constant(g.floats(out))][: g.integer(0, 1)]
        g.apply("Conv", [x, weight, *bias], group=groups, **where)
    else:
        # The evaluator is wrong for groups.
        weight = g.constant(g.floats(channels, g.integer(1, 2), *where["kernel_shape"]))
        g.apply("ConvTranspose", [x, weight], **where)


def pool(g: RandomGraph) -> None:
    x = g.float_value(g.choice((3, 4, 4)))
    kind = g.choice(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    if kind.startswith("Global"):
        g.apply(kind, [x])
    elif kind == "AveragePool":
        g.apply(kind, [x], count_include_pad=g.integer(0, 1), **window(g, x))
    else:
        g.apply(kind, [x], **window(g, x))


def resize(g: RandomGraph) -> None:
    x = g.float_value(4)
    scales = g.constant([1, 1, g.choice((1, 2, 3)), g.choice((1, 2, 0.5))])
    mode = g.choice(("nearest", "linear"))
    form = g.choice(("half_pixel", "asymmetric", "align_corners"))
    if form == "align_corners" and x.array.shape[3] * scales.array[3] % 1:
        raise Skip  # ONNX aligns with the fraction of a place, ONNX Runtime with the last place
    g.apply("Resize", [x, None, scales], mode=mode, coordinate_transformation_mode=form)


def product(g: RandomGraph) -> None:
    x = g.float_value(smallest=2)
    size = x.array.shape[-1]
    if x.rank == 2 and g.integer(0, 1):
        width, transposed = g.integer(1, 4), g.integer(0, 1)
        weight = g.constant(g.floats(*((width, size) if transposed else (size, width))))
        bias = [g.constant(g.floats(*g.choice(((width,), (1,), (1, 1), ()))))][: g.integer(0, 1)]
        factors = {"alpha": g.choice((1.0, 0.5)), "beta": g.choice((1.0, 2.0))}
        g.apply("Gemm", [x, weight, *bias], transB=transposed, **factors)
    elif g.integer(0, 1):
        g.apply("MatMul", [x, g.constant(g.floats(size, g.integer(1, 4)))])
    else:
        g.apply("MatMul", [x, g.pick(lambda v: v.is_float and v.array.shape[:1] == (size,))])


def transform(g: RandomGraph) -> None:
    """A Fourier transform of a real signal, and the real one back."""
    x = g.float_value()
    axis = g.integer(0, x.rank - 1)
    signal = g.apply("Unsqueeze", [x, g.constant([-1], np.int64)])
    place, onesided = g.constant(axis, np.int64), g.integer(0, 1)
    y = g.apply("DFT", [signal, None, place], onesided=onesided)
    if onesided and g.integer(0, 1):
        length = g.constant(x.array.shape[axis], np.int64)
        g.apply("DFT", [y, length, place], inverse=1, onesided=1)


def regions(g: RandomGraph) -> None:
    """Bins of boxes, or a convolution whose taps move."""
    x = g.float_value(4)
    images, channels, *size = x.array.shape
    if g.integer(0, 1):
        count = g.integer(1, 3)
        low = g.rng.uniform(-1, 3, (count, 2))
        boxes = g.constant(np.concatenate([low, low + g.rng.uniform(0.5, 4, (count, 2))], 1))
        chosen = g.constant(g.rng.integers(0, images, count), np.int64)
        g.apply("RoiAlign", [x, boxes, chosen], output_height=g.integer(1, 3),
                output_width=g.integer(1, 3), sampling_ratio=g.integer(1, 2))  # fmt: skip
        return
    kernel = [g.integer(1, 2) for _ in range(2)]
    out = [n - k + 1 for n, k in zip(size, kernel, strict=True)]
    if min(size) < 2 or min(out) < 1:
        raise Skip
    moved = g.constant(g.rng.uniform(-1, 1, (images, 2 * kernel[0] * kernel[1], *out)))
    weight = g.constant(g.floats(g.integer(1, 2), channels, *kernel))
    g.apply("DeformConv", [x, weight, moved], kernel_shape=kernel)


def determinant(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.is_float and v.rank >= 2 and v.array.shape[-1] >= 2)
    if x.array.shape[-2] < 2:
        raise Skip
    ends = [g.constant([n, n], np.int64) for n in (0, 2)]
    square = g.apply("Slice", [x, *ends, g.constant([-2, -1], np.int64)])
    g.apply("Det", [square])


def recurrent(g: RandomGraph) -> None:
    x = g.float_value(3)
    kind, hidden = g.choice([*CELLS]), g.integer(1, 3)
    rows = CELLS[kind] * hidden
    w, r = (g.constant(g.floats(1, rows, n) / 4) for n in (x.array.shape[2], hidden))
    bias = [g.constant(g.floats(1, 2 * rows))][: g.integer(0, 1)]
    outputs = g.integer(1, 2)
    g.apply(kind, [x, w, r, *bias], outputs=outputs, hidden_size=hidden)


# ---- quantised ----


def grid(g: RandomGraph, dtype: type = np.int8) -> tuple[Value, Value, float]:
    """A random scale and zero point."""
    step = g.choice((0.0625, 0.05, 0.1, 0.03))
    middle = 0 if dtype is np.int8 else 128
    return g.constant(step), g.constant(middle + g.integer(-9, 9), dtype), step


def quantized(g: RandomGraph, x: Value, dtype: type) -> Value:
    """x, quantised and dequantised. Its integers are the same everywhere; as a real value it is
    *close*."""
    scale, zero, _ = grid(g, dtype)
    stored = g.apply("QuantizeLinear", [x, scale, zero])
    return g.apply("DequantizeLinear", [stored, scale, zero])


def stored(g: RandomGraph, *shape: int, axis: int = 0) -> Value:
    """A weight of int8 and its DequantizeLinear, per tensor or per channel."""
    integers = g.rng.integers(-127, 128, shape)
    weight = g.constant(integers, np.int8)
    many = g.integer(0, 1)
    scale = g.constant((g.rng.uniform(0.005, 0.02, (shape[axis],) * many)).astype(np.float32))
    zero = g.constant(np.zeros((shape[axis],) * many), np.int8)
    return g.apply("DequantizeLinear", [weight, scale, zero], axis=axis)


def quantized_operator(g: RandomGraph) -> None:
    """dequantise - operator - quantise, as the integer operators are made of."""
    dtype = g.choice((np.int8, np.int8, np.uint8))
    source = g.pick(lambda v: v.is_float and v.exact and v.rank in (2, 4))
    x = quantized(g, source, dtype)
    kind = g.choice(("product", "product", "Add", "MaxPool", "AveragePool", "Flatten", "Relu"))
    if kind == "product" and x.rank == 2:
        out = g.integer(1, 4)
        y = g.apply("Gemm", [x, stored(g, out, x.array.shape[1])], transB=1)
    elif kind == "product":
        where, channels, out = window(g, x), x.array.shape[1], g.integer(1, 3)
        if g.integer(0, 2):
            y = g.apply("Conv", [x, stored(g, out, channels, *where["kernel_shape"])], **where)
        else:
            weight = stored(g, channels, out, *where["kernel_shape"], axis=1)
            y = g.apply("ConvTranspose", [x, weight], **where)
    elif kind == "Add":
        y = g.apply("Add", [x, x])
    elif kind in ("MaxPool", "AveragePool"):
        if x.rank != 4:
            raise Skip
        y = g.apply(kind, [x], **window(g, x))
    else:
        y = g.apply(kind, [x])
    if g.integer(0, 1):
        y = g.apply("Relu", [y])
    requantize(g, y, dtype)


def requantize(g: RandomGraph, y: Value, dtype: type) -> None:
    """Quantise a value with rounding errors: the result may be off by a step."""
    scale, zero, step = grid(g, dtype)
    as_if_exact = Value(y.name, y.array, exact=True)
    integers = g.apply("QuantizeLinear", [as_if_exact, scale, zero])
    g.values.remove(integers)
    g.coarse(g.apply("DequantizeLinear", [integers, scale, zero]), step)


def integer_product(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.array.dtype in (np.int8, np.uint8) and v.rank >= 2)
    dtype = g.choice((np.int8, np.uint8))
    low = np.iinfo(dtype).min
    weight = g.constant(g.rng.integers(low, low + 256, (x.array.shape[-1], 3)), dtype)
    zeros = [g.constant(3, x.array.dtype.type), g.constant(5, dtype)]
    g.apply("MatMulInteger", [x, weight, *zeros][: 2 + 2 * g.integer(0, 1)])


def dynamic(g: RandomGraph) -> None:
    x = g.pick(lambda v: v.is_float and v.exact and v.array.size > 1)
    y = g.apply("DynamicQuantizeLinear", [x], outputs=3)
    for name in y.name, *(f"{y.name[:-1]}{i}" for i in (1, 2)):
        found = next(v for v in g.values if v.name == name)
        g.values.remove(found)  # the quotient may be rounded to either side


MAKERS: tuple[Maker, ...] = (
    again, again, unary, unary, unary, binary, binary, compare, logic, where, clip, cast, integers,
    reshape, transpose, transpose, undone, squeeze, slice_, concat, split, spread, gather, pad,
    trilu, about_shape, one_hot, depth_and_space, reduce, reduce, arg, normalise, per_channel, conv,
    conv, pool, resize, product, recurrent, transform, regions, determinant, quantized_operator,
    quantized_operator, quantized_operator, integer_product, dynamic,
)  # fmt: skip
