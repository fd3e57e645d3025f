"""Convolutions and pooling, of any number of spatial dimensions."""

from __future__ import annotations

import math

import numpy as np

from ....graph.ir import Tensor
from ....graph.ops.base import Pads, Pair
from ....graph.ops.convolution import Conv2d, Convolution, ConvolutionTranspose, ConvTranspose2d
from ....graph.ops.pooling import AvgPool, MaxPool, Pool, PoolArg, QMaxPool
from ....te.expr import maximum
from .call import Call, Outputs, Reader, as_before, signed
from .elementwise import absolute, function, number

Sizes = tuple[int, ...]


def sizes(call: Call, name: str, rank: int) -> Sizes:
    """An attribute of one positive number per spatial dimension."""
    found = call.integers(name, (1,) * rank)
    if min(found, default=1) < 1:
        raise call.refuse(f"expected {name} >= 1, got {found!r}")
    return found


def pads_of(call: Call, size: Sizes, kernel: Sizes, strides: Sizes, dilations: Sizes) -> Sizes:
    """The padding before every spatial dimension, then the padding after every one."""
    rank = len(size)
    mode = call.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return call.integers("pads", (0,) * (2 * rank))
    if mode == "VALID":
        return (0,) * (2 * rank)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise call.refuse(f"auto_pad {mode!r} is not supported")
    totals = [
        max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)
    ]
    return _same(totals, mode)


def _same(totals: list[int], mode: str) -> Sizes:
    """Totals of padding in two halves; "SAME_UPPER" has the larger one at the end."""
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(small + large if mode == "SAME_UPPER" else large + small)


def spatial_rank(call: Call, x: Tensor) -> int:
    if len(x.shape) < 3:
        raise call.refuse(f"expected [N, C, D1, ...], got {x.type_text}")
    return len(x.shape) - 2


# ---- convolutions ----


def _kernel_of(call: Call, weight: Tensor, rank: int) -> Sizes:
    """The window of a weight [., ., K1, ...], which ``kernel_shape`` may repeat."""
    if len(weight.shape) != rank + 2:
        raise call.refuse(f"expected a weight of rank {rank + 2}, got {weight.type_text}")
    kernel = weight.shape[2:]
    if call.integers("kernel_shape", kernel) != kernel:
        raise call.refuse(f"kernel_shape differs from the weight {weight.type_text}")
    return kernel


def _conv(call: Call) -> Outputs:
    x, weight, bias = call.operand(0), call.operand(1), call.optional(2)
    op = convolution_of(call, x, weight)
    if len(x.shape) in (3, 4) and x.dtype == "float32" and min(op.pads) >= 0:
        op2d = Conv2d(*image_window(op), op.groups)
        image, kernel = (call.reshape(t, image_shape(t.shape)) for t in (x, weight))
        y = call.emit(op2d, image, kernel, *([] if bias is None else [bias]))
        return call.reshape(y, y.shape[: len(x.shape)])
    return _with_bias(call, call.emit(op, x, weight), bias)


def image_shape(shape: Sizes) -> tuple[int, int, int, int]:
    """[N, C, H, W]; a line is an image of one column."""
    n, channels, height, width = shape if len(shape) == 4 else (*shape, 1)
    return n, channels, height, width


def image_window(op: Convolution) -> tuple[Pair, Pads, Pair]:
    """Strides, pads and dilations over an image; over a line, as over an image of one column."""
    if len(op.strides) == 2:
        (sh, sw), (dh, dw), (top, left, bottom, right) = op.strides, op.dilations, op.pads
        return (sh, sw), (top, left, bottom, right), (dh, dw)
    [stride], [dilation], (top, bottom) = op.strides, op.dilations, op.pads
    return (stride, 1), (top, 0, bottom, 0), (dilation, 1)


def convolution_of(call: Call, x: Tensor, weight: Tensor) -> Convolution:
    """The general convolution that the attributes describe."""
    rank = spatial_rank(call, x)
    kernel = _kernel_of(call, weight, rank)
    strides, dilations = sizes(call, "strides", rank), sizes(call, "dilations", rank)
    pads = pads_of(call, x.shape[2:], kernel, strides, dilations)
    return Convolution(strides, pads, dilations, call.integer("group", 1))


def _with_bias(call: Call, y: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return y
    column = call.reshape(
        bias, (-1 if not bias.shape else bias.shape[0], *[1] * (len(y.shape) - 2))
    )
    return call.map(lambda a, b: a + b, y, column)


def _conv_transpose(call: Call) -> Outputs:
    x, weight = call.operand(0), call.operand(1)
    rank = spatial_rank(call, x)
    kernel = _kernel_of(call, weight, rank)
    strides, dilations = sizes(call, "strides", rank), sizes(call, "dilations", rank)
    before, size = _transposed_window(call, kernel, strides, dilations)
    bias, groups = call.optional(2), call.integer("group", 1)
    plain = groups == 1 and max(dilations) == 1 and min(before) >= 0
    if plain and rank == 2 and x.dtype == "float32":
        (sh, sw), (top, left), (height, width) = strides, before, size
        op2d = ConvTranspose2d((sh, sw), (top, left), (height, width))
        return call.emit(op2d, x, weight, *([] if bias is None else [bias]))
    op = ConvolutionTranspose(strides, before, dilations, groups, size)
    return _with_bias(call, call.emit(op, x, weight), bias)


def _transposed_window(
    call: Call, kernel: Sizes, strides: Sizes, dilations: Sizes
) -> tuple[Sizes, Sizes]:
    """How many places are cut off before the result of a transposed convolution, and its size."""
    image = call.operand(0).shape[2:]
    rank = len(image)
    extra = call.integers("output_padding", (0,) * rank)
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(image, strides, kernel, dilations, extra, strict=True)
    ]
    mode = call.text("auto_pad", "NOTSET")
    wanted = call.attributes.get("output_shape")
    if wanted is not None:
        size = call.integers("output_shape", (1,) * rank)
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        size = tuple(n * s for n, s in zip(image, strides, strict=True))
    else:
        pads = call.integers("pads", (0,) * (2 * rank)) if mode == "NOTSET" else (0,) * (2 * rank)
        size = tuple(f - pads[i] - pads[i + rank] for i, f in enumerate(full))
        return pads[:rank], size
    totals = [max(f - n, 0) for f, n in zip(full, size, strict=True)]
    return _same(totals, mode)[:rank], size


# ---- pooling ----


def _window(call: Call) -> tuple[Pool, Sizes]:
    """The window, its pads grown where ``ceil_mode`` rounds up; and the pads as given."""
    x = call.operand(0)
    rank = spatial_rank(call, x)
    if "kernel_shape" not in call.attributes:
        raise call.refuse("kernel_shape is missing")
    kernel, strides = sizes(call, "kernel_shape", rank), sizes(call, "strides", rank)
    dilations = sizes(call, "dilations", rank)
    pads = pads_of(call, x.shape[2:], kernel, strides, dilations)
    if min(pads) < 0:
        raise call.refuse(f"expected pads >= 0, got {pads}")
    grown = list(pads)
    if call.integer("ceil_mode", 0):
        for i, n in enumerate(x.shape[2:]):
            beyond = n + pads[i] + pads[i + rank] - ((kernel[i] - 1) * dilations[i] + 1)
            count = -(-beyond // strides[i]) + 1
            if (count - 1) * strides[i] >= n + pads[i]:
                count -= 1  # a window that starts in the padding at the end does not count
            grown[i + rank] += (count - 1) * strides[i] - beyond
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(max(pads[i], pads[i + rank]) >= r for i, r in enumerate(reach)):
        raise call.refuse(f"expected padding smaller than the window {kernel}, got {pads!r}")
    return Pool("max", kernel, strides, tuple(grown), dilations), pads


def _is_plain(x: Tensor, pool: Pool, pads: Sizes, *dtypes: str) -> bool:
    """Whether the 2-D operator of the quantised flow computes the same."""
    image = len(x.shape) == 4 and x.dtype in dtypes
    return image and pool.pads == pads and pool.dilations == (1, 1)


def _max_pool(call: Call) -> Outputs:
    x = call.operand(0)
    pool, pads = _window(call)
    column_major = bool(call.integer("storage_order", 0))
    if len(call.outputs) == 1 and _is_plain(x, pool, pads, "float32", "int8", "uint8"):
        (kh, kw), (sh, sw), (top, left, bottom, right) = pool.kernel, pool.strides, pads
        kind = MaxPool if x.dtype == "float32" else QMaxPool
        y = call.emit(kind((kh, kw), (sh, sw), (top, left, bottom, right)), signed(call, x))
        return as_before(call, y, x.dtype)
    y = call.emit(pool, x)
    if x.dtype.startswith("float") and not _inside(x.shape[2:], y.shape[2:], pool, pads).all():
        # A window that is all padding gives the value from which ONNX Runtime starts.
        lowest = float(np.finfo(x.dtype).min)
        y = call.map(lambda value: maximum(value, number(lowest, value)), y)
    return y if len(call.outputs) == 1 else (y, call.emit(PoolArg(pool, column_major), x))


def _average_pool(call: Call) -> Outputs:
    x = call.operand(0)
    pool, pads = _window(call)
    include = bool(call.integer("count_include_pad", 0))
    if _is_plain(x, pool, pads, "float32"):
        (kh, kw), (sh, sw), (top, left, bottom, right) = pool.kernel, pool.strides, pads
        return call.emit(AvgPool((kh, kw), (sh, sw), (top, left, bottom, right), include), x)
    total = call.emit(Pool("+", pool.kernel, pool.strides, pool.pads, pool.dilations), x)
    counts = np.maximum(_inside(x.shape[2:], total.shape[2:], pool, pads, include), 1)
    return call.map(lambda a, n: a / n, total, call.value(counts, x.dtype))


def _inside(size: Sizes, out: Sizes, pool: Pool, pads: Sizes, include: bool = False) -> np.ndarray:
    """How many elements each window has; those of the pads too where they are included."""
    counts = np.ones((), np.int64)
    for i, n in enumerate(size):
        places = np.arange(out[i])[:, None] * pool.strides[i] - pool.pads[i]
        places = places + np.arange(pool.kernel[i]) * pool.dilations[i]
        low, high = (-pads[i], n + pads[i + len(size)]) if include else (0, n)
        inside = ((places >= low) & (places < high)).sum(1)
        counts = np.multiply.outer(counts, inside)
    return counts


def _lp_pool(call: Call) -> Outputs:
    p = call.integer("p", 2)
    pool, _ = _window(call)
    powers = call.map(
        lambda x: function("pow", absolute(x), number(p, x)), call.operand(0), label="Power"
    )
    total = call.emit(Pool("+", pool.kernel, pool.strides, pool.pads, pool.dilations), powers)
    return call.map(lambda x: function("pow", x, number(1 / p, x)), total, label="Root")


def _global_lp_pool(call: Call) -> Outputs:
    x, p = call.operand(0), call.integer("p", 2)
    powers = call.map(lambda v: function("pow", absolute(v), number(p, v)), x, label="Power")
    total = call.reduce("+", powers, tuple(range(2, spatial_rank(call, x) + 2)))
    return call.map(lambda v: function("pow", v, number(1 / p, v)), total, label="Root")


def _global_average_pool(call: Call) -> Outputs:
    x = call.operand(0)
    rank = spatial_rank(call, x)
    if rank == 2 and x.dtype == "float32":
        return call.emit(AvgPool((x.shape[2], x.shape[3]), (1, 1), (0, 0, 0, 0)), x)
    total = call.reduce("+", x, tuple(range(2, rank + 2)))
    count = math.prod(x.shape[2:])
    return call.map(lambda a: a / number(count, a), total)


def _global_max_pool(call: Call) -> Outputs:
    x = call.operand(0)
    return call.reduce("max", x, tuple(range(2, spatial_rank(call, x) + 2)))


READERS: dict[str, Reader] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global_average_pool,
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _global_max_pool,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
}
