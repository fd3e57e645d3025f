"""Float layers with weights of int8, always the same ones by number."""

from __future__ import annotations

import numpy as np

from .tflite_builder import TfliteBuilder

KINDS = ("FULLY_CONNECTED", "CONV_2D", "DEPTHWISE_CONV_2D")
NONE, RELU, RELU6, SAME = 0, 1, 3, 0


def hybrid_case(number: int) -> tuple[bytes, np.ndarray]:
    """A model's file and its input; some rows and images are 0."""
    rng = np.random.default_rng(number)
    b, kind = TfliteBuilder(), KINDS[number % len(KINDS)]
    fused = int(rng.choice([NONE, RELU, RELU6]))
    if kind == "FULLY_CONNECTED":
        batch, width, channels = (int(rng.integers(1, n)) for n in (4, 40, 9))
        given, stored, made, axis = (batch, width), (channels, width), (batch, channels), 0
        options = {"AsymmetricQuantizeInputs": int(rng.integers(2))}
    else:
        n, h, w, c = (int(rng.integers(a, e)) for a, e in ((1, 3), (3, 7), (3, 7), (1, 5)))
        kernel, stride, padding = (int(rng.integers(a, e)) for a, e in ((1, 4), (1, 3), (0, 2)))
        sizes = [-(-v // stride) if padding == SAME else (v - kernel) // stride + 1 for v in (h, w)]
        options = {"Padding": padding, "StrideH": stride, "StrideW": stride}
        given = (n, h, w, c)
        if kind == "CONV_2D":
            channels, axis = int(rng.integers(2, 6)), 0
            stored = (channels, kernel, kernel, c)
        else:
            options["DepthMultiplier"] = int(rng.integers(1, 3))
            channels, axis = c * options["DepthMultiplier"], 3
            stored = (1, kernel, kernel, channels)
        made = (n, *sizes, channels)
    each = kind == "DEPTHWISE_CONV_2D" or (kind == "CONV_2D" and bool(rng.integers(2)))
    scales = rng.uniform(0.01, 0.1, channels if each else 1)
    weight = rng.integers(-127, 128, stored).astype(np.int8)
    bias = (rng.normal(size=channels) * rng.integers(2)).astype(np.float32)
    x = b.tensor(given, "float32")
    w_index = b.tensor(stored, "int8", scales.tolist(), [0] * scales.size, axis, weight)
    operands = [x, w_index, b.tensor((channels,), "float32", data=bias)]
    y = b.tensor(made, "float32")
    table = {"FULLY_CONNECTED": "FullyConnectedOptions", "CONV_2D": "Conv2DOptions",
             "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}[kind]  # fmt: skip
    b.operator(kind, operands, [y], table, FusedActivationFunction=fused, **options)
    value = rng.normal(size=given) * rng.choice([0.1, 1, 10]) + rng.choice([-1, 0, 0, 2])
    value[0] *= number % 5 != 0
    return b.file([x], [y]), value.astype(np.float32)
