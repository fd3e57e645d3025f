"""Random nodes with windows: convolutions and pooling of one to three dimensions, and resizing."""

from __future__ import annotations

from typing import Any

from .draw import Draw, Maker, Sample, constant

Sizes = list[int]
PADDINGS = ("NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def window_of(d: Draw, size: Sizes) -> dict[str, Any]:
    """Kernel, strides, dilations and padding, such that the first window is inside the padded
    image, and no padding is as large as a window."""
    rank, mode = len(size), d.choice(PADDINGS)
    kernel, dilations, pads = [], [], [0] * (2 * rank)
    for i, n in enumerate(size):
        k, step = d.integer(1, 4), d.integer(1, 3)
        most = k - 1 if mode == "NOTSET" else 0
        before, after = d.integer(0, most), d.integer(0, most)
        while (k - 1) * step + 1 > n + before + after and not mode.startswith("SAME"):
            k, step, before, after = (k, step - 1, before, after) if step > 1 else (1, 1, 0, 0)
        kernel.append(k)
        dilations.append(step)
        pads[i], pads[i + rank] = before, after
    found: dict[str, Any] = {"kernel_shape": kernel, "strides": [d.integer(1, 3) for _ in size]}
    if max(dilations) > 1:
        found["dilations"] = dilations
    return found | ({"pads": pads} if mode == "NOTSET" else {"auto_pad": mode})


def _without_gaps(where: dict[str, Any]) -> dict[str, Any]:
    """Windows without gaps between them, if their padding is automatic. With gaps it would be
    negative, and the results of ONNX Runtime would have another size or other places than the
    definition says."""
    if where.get("auto_pad", "").startswith("SAME"):
        kernel = where["kernel_shape"]
        dilations = where.get("dilations", [1] * len(kernel))
        reach = [(k - 1) * s + 1 for k, s in zip(kernel, dilations, strict=True)]
        where["strides"] = [min(pair) for pair in zip(where["strides"], reach, strict=True)]
    return where


def pooled(d: Draw, size: Sizes) -> dict[str, Any]:
    """A window of a pooling operator. If its padding is automatic, it has no dilations, because
    ONNX Runtime forgets these then, against the definition."""
    found = window_of(d, size)
    if found.get("auto_pad", "").startswith("SAME"):
        found.pop("dilations", None)
    return _without_gaps(found)


def size_of(d: Draw, most: int = 9) -> Sizes:
    """One to three dimensions, mostly two."""
    return [d.integer(1, most) for _ in range(d.choice((1, 2, 2, 2, 3)))]


def groups_of(d: Draw) -> tuple[int, int, int]:
    """Channels, results, and groups of them: one, several, or each channel by itself."""
    groups = d.choice((1, 1, 2, 3, 4, 16))
    each = d.choice((1, 2, 3, 5, 16, 20)) if groups < 16 else 1
    return groups * each, groups * d.choice((1, 2, 3) if groups > 1 else (1, 3, 16, 17)), groups


def _conv(d: Draw) -> Sample:
    size, (channels, results, groups) = size_of(d), groups_of(d)
    where = window_of(d, size)
    dtype = d.choice(("float32",) * 5 + ("float64",))
    weight = d.array((results, channels // groups, *where["kernel_shape"]), dtype)
    bias = [d.weight(d.array((results,), dtype))][: d.integer(0, 1)]
    x = d.value((d.integer(1, 3), channels, *size), dtype)
    return Sample("Conv", [x, d.weight(weight), *bias], where | {"group": groups})


def _conv_transpose(d: Draw) -> Sample:
    """With a result of at least one place."""
    size, (channels, results, groups) = size_of(d, 6), groups_of(d)
    where = window_of(d, size)
    if d.flag():
        where.pop("dilations", None)
    where = _without_gaps(where)
    rank, steps = len(size), where["strides"]
    dilations = where.get("dilations", [1] * rank)
    pads = where.get("pads", [0] * (2 * rank))
    for i, n in enumerate(size):
        full = (n - 1) * steps[i] + (where["kernel_shape"][i] - 1) * dilations[i] + 1
        if pads[i] + pads[i + rank] >= full:
            pads[i], pads[i + rank] = 0, 0
    if "pads" in where and d.integer(0, 3) == 0:
        bound = [max(s, k) - 1 for s, k in zip(steps, dilations, strict=True)]
        where["output_padding"] = [d.integer(0, n) for n in bound]
    shape = (channels, results // groups, *where["kernel_shape"])
    bias = [d.weight(d.array((results,)))][: d.integer(0, 1)]
    x = d.value((d.integer(1, 2), channels, *size))
    return Sample("ConvTranspose", [x, d.weight(d.array(shape)), *bias], where | {"group": groups})


def _max_pool(d: Draw) -> Sample:
    size = size_of(d)
    attributes = pooled(d, size) | {"ceil_mode": d.integer(0, 1)}
    if "auto_pad" in attributes:
        attributes["ceil_mode"] = 0
    dtype = d.choice(("float32", "float32", "float64", "int8", "uint8"))
    x = d.value((d.integer(1, 2), d.integer(1, 17), *size), dtype)
    outputs = d.choice((1, 1, 2))
    if outputs == 2:
        attributes["storage_order"] = d.integer(0, 1)
        if any(attributes.get("pads", [])):  # dilated, a window might hold no element
            attributes.pop("dilations", None)
    return Sample("MaxPool", [x], attributes, outputs)


def _average_pool(d: Draw) -> Sample:
    size = size_of(d)
    attributes = pooled(d, size) | {"count_include_pad": d.integer(0, 1)}
    if "pads" in attributes:
        attributes["ceil_mode"] = d.integer(0, 1)
    return Sample("AveragePool", [d.value((d.integer(1, 2), d.integer(1, 17), *size))], attributes)


def _lp_pool(d: Draw) -> Sample:
    size = size_of(d)
    attributes = pooled(d, size) | {"p": d.integer(1, 3)}
    return Sample("LpPool", [d.value((d.integer(1, 2), d.integer(1, 4), *size))], attributes)


def _global(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        """A maximum of float32, for which ONNX Runtime has a kernel: ONNX's own evaluator takes the
        maximum of images only."""
        dtype = "float64" if kind == "GlobalAveragePool" and d.integer(0, 3) == 0 else "float32"
        return Sample(kind, [d.value((d.integer(1, 2), d.integer(1, 17), *size_of(d)), dtype)])

    return make


# ---- resizing ----

COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def _resize(d: Draw) -> Sample:
    """The last dimensions of an image, to sizes or by scales."""
    mode, form = d.choice(("nearest", "linear", "cubic")), d.choice(COORDINATES)
    shape = (d.integer(1, 2), d.integer(1, 3), d.integer(1, 6), d.integer(1, 6))
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": form}
    if mode == "nearest":
        attributes["nearest_mode"] = d.choice(NEAREST)
    if mode == "cubic" and d.flag():
        attributes |= {"cubic_coeff_a": d.choice((-0.5, -0.75)), "exclude_outside": d.integer(0, 1)}
    if mode != "nearest" and form != "tf_crop_and_resize" and d.integer(0, 2) == 0:
        attributes["antialias"] = 1
    region = None
    if form == "tf_crop_and_resize":
        ends = [0, 0, d.choice((0, 0.25)), d.choice((0, 0.25)), 1, 1, 0.75, 1]
        region = constant(ends, "float32")
        attributes["extrapolation_value"] = d.number(-2, 2)
    image = _image(d, shape, mode)
    if d.flag():
        sizes = [*shape[:2], *(_new_size(d, n, form) for n in shape[2:])]
        return Sample("Resize", [image, region, None, constant(sizes)], attributes)
    scales = [1, 1, *(d.choice(_scales(form)) for _ in range(2))]
    if min(int(n * s) for n, s in zip(shape, scales, strict=True)) < 1:
        scales = [1, 1, 2, 2]
    return Sample("Resize", [image, region, constant(scales, "float32")], attributes)


def _new_size(d: Draw, size: int, form: str) -> int:
    """The new size of an axis. With a region it is not the old one, because ONNX Runtime then
    forgets the region in mode "cubic"."""
    return d.choice([n for n in range(1, 13) if n != size or form != "tf_crop_and_resize"])


def _scales(form: str) -> tuple[float, ...]:
    """Scales. Where positions depend on the result's length, the scales are whole numbers, because
    the definition counts fractions of elements in this length and ONNX Runtime does not."""
    whole = form in ("align_corners", "pytorch_half_pixel", "tf_crop_and_resize")
    return (2, 3) if whole else (0.5, 0.75, 1, 1.5, 2, 3)


def _image(d: Draw, shape: tuple[int, ...], mode: str) -> Any:
    dtype = d.choice(("float32", "uint8", "int8", "int32")) if mode == "nearest" else "float32"
    return d.value(shape, dtype)


def _upsample(d: Draw) -> Sample:
    shape = (d.integer(1, 2), d.integer(1, 3), d.integer(1, 5), d.integer(1, 5))
    scales = constant([1, 1, d.choice((1, 2, 3)), d.choice((1, 1.5, 2))], "float32")
    attributes = {"mode": d.choice(("nearest", "linear"))}
    return Sample("Upsample", [d.value(shape), scales], attributes, opset=9)


MAKERS: dict[str, Maker] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global("GlobalAveragePool"),
    "GlobalLpPool": _global("GlobalLpPool"),
    "GlobalMaxPool": _global("GlobalMaxPool"),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "Resize": _resize,
    "Upsample": _upsample,
}
