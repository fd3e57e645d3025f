"""Fourier transforms, parts of images, determinants, and caches."""

from __future__ import annotations

import numpy as np

from .draw import Draw, Maker, Sample, constant


def _dft(d: Draw) -> Sample:
    inverse, onesided = d.integer(0, 1), d.integer(0, 1)
    parts = 1 if onesided and not inverse else d.integer(1, 2)
    parts = 2 if inverse else parts
    shape = (*d.shape(2, 3, 7), parts)
    axis = d.integer(0, len(shape) - 2)
    if onesided and inverse:
        shape = (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :])
    length = constant(d.integer(1, 20), "int64") if d.flag() and not inverse else None
    attributes = {"inverse": inverse, "onesided": onesided}
    x = d.value(shape, d.choice(("float32", "float64")))
    if d.flag():
        return Sample("DFT", [x, length], attributes | {"axis": axis}, opset=19)
    return Sample("DFT", [x, length, constant(axis, "int64")], attributes, opset=20)


def _stft(d: Draw) -> Sample:
    length, step = d.integer(2, 12), d.integer(1, 5)
    window = d.weight(d.array((length,))) if d.flag() else None
    x = d.value((d.integer(1, 2), length + d.integer(0, 20), 1))
    operands = [x, constant(step, "int64"), window, constant(length, "int64")]
    return Sample("STFT", operands, {"onesided": d.integer(0, 1)})


def _mel_weights(d: Draw) -> Sample:
    length, rate = d.choice((64, 128, 200)), 16000
    low = d.number(0, 500)
    numbers = (d.integer(1, 9), length, rate, low, d.number(low + 1000, rate / 2))
    kinds = ("int64", "int64", "int64", "float32", "float32")
    return Sample("MelWeightMatrix", [constant(v, k) for v, k in zip(numbers, kinds, strict=True)])


def _suppression(d: Draw) -> Sample:
    images, kinds, count = d.integer(1, 2), d.integer(1, 3), d.integer(1, 12)
    boxes = d.rng.uniform(0, 1, (images, count, 4)) * (1, 1, 1, 1)
    scores = np.round(d.rng.uniform(0, 1, (images, kinds, count)), d.integer(1, 6))
    operands = [
        constant(boxes, "float32"), constant(scores, "float32"),
        constant([d.integer(0, 5)], "int64"), constant([d.number(0, 1)], "float32"),
        constant([d.number(0, 1)], "float32") if d.flag() else None,
    ]  # fmt: skip
    return Sample("NonMaxSuppression", operands, {"center_point_box": d.integer(0, 1)})


def _roi_align(d: Draw) -> Sample:
    x = d.value((d.integer(1, 3), d.integer(1, 4), d.integer(3, 9), d.integer(3, 9)))
    count = d.integer(1, 4)
    low = d.rng.uniform(-1, 8, (count, 2))
    rois = np.concatenate([low, low + d.rng.uniform(0.5, 9, (count, 2))], 1)
    samples = d.integer(0, 3)
    boxes = constant(rois, "float32") if not samples else d.operand(rois, "float32")
    images = d.operand(d.rng.integers(0, x.array.shape[0], count), "int64")
    attributes = {
        "coordinate_transformation_mode": d.choice(("half_pixel", "output_half_pixel")),
        "mode": d.choice(("avg", "max")), "output_height": d.integer(1, 4),
        "output_width": d.integer(1, 4), "sampling_ratio": samples,
        "spatial_scale": d.choice((1.0, 0.5, 0.25)),
    }  # fmt: skip
    return Sample("RoiAlign", [x, boxes, images], attributes, opset=16)


def _det(d: Draw) -> Sample:
    size = d.integer(1, 5)
    return Sample("Det", [d.value((*d.shape(0, 2, 3), size, size))], opset=11)


def _deform_conv(d: Draw) -> Sample:
    groups, sets = d.integer(1, 2), d.integer(1, 2)
    channels, made = groups * sets * d.integer(1, 2), groups * d.integer(1, 2)
    kernel, batch = [d.integer(1, 3) for _ in range(2)], d.integer(1, 2)
    size = [d.integer(4, 7) for _ in range(2)]
    strides, dilations = ([d.integer(1, 2) for _ in range(2)] for _ in range(2))
    pads = [d.integer(0, 1) for _ in range(4)]
    out = [
        (n + pads[i] + pads[i + 2] - (k - 1) * dilations[i] - 1) // strides[i] + 1
        for i, (n, k) in enumerate(zip(size, kernel, strict=True))
    ]
    while min(out) < 1:  # too small an image for its kernel
        return _deform_conv(d)
    taps = kernel[0] * kernel[1]
    operands = [
        d.value((batch, channels, *size)),
        d.weight(d.array((made, channels // groups, *kernel))),
        d.value((batch, 2 * sets * taps, *out), scale=1.5),
        d.value((made,)) if d.flag() else None,
        d.value((batch, sets * taps, *out)) if d.flag() else None,
    ]
    attributes = {
        "group": groups, "offset_group": sets, "kernel_shape": kernel, "strides": strides,
        "dilations": dilations, "pads": pads,
    }  # fmt: skip
    return Sample("DeformConv", operands, attributes, opset=19)


def _tensor_scatter(d: Draw) -> Sample:
    shape = list(d.shape(3, 4, 5))
    axis, circular = d.integer(1, len(shape) - 1), d.flag()
    count = d.integer(1, shape[axis])
    update = [count if i == axis else n for i, n in enumerate(shape)]
    most = shape[axis] - 1 if circular else shape[axis] - count
    first = d.operand(d.rng.integers(0, most + 1, shape[0]), "int64")
    attributes = {"axis": axis, "mode": "circular" if circular else "linear"}
    operands = [d.value(shape), d.value(update), first if d.flag() or circular else None]
    return Sample("TensorScatter", operands, attributes, opset=24)


MAKERS: dict[str, Maker] = {
    "DFT": _dft,
    "DeformConv": _deform_conv,
    "Det": _det,
    "MelWeightMatrix": _mel_weights,
    "NonMaxSuppression": _suppression,
    "RoiAlign": _roi_align,
    "STFT": _stft,
    "TensorScatter": _tensor_scatter,
}
