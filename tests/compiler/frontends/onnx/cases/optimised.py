"""Operators that ONNX Runtime's optimiser writes."""

from __future__ import annotations

from .draw import Draw, Maker, Sample

MICROSOFT = "com.microsoft"
ACTIVATIONS = {
    "Clip": (-1.0, 1.5), "HardSigmoid": (0.25, 0.4), "LeakyRelu": (0.125,), "Relu": (),
    "Sigmoid": (), "Tanh": (),
}  # fmt: skip


def _biased(kind: str) -> Maker:
    """An activation, with a bias where there is one."""

    def make(d: Draw) -> Sample:
        shape = d.shape(1, 3)
        operands = [d.value(shape)]
        if kind == "BiasGelu" or (kind == "FastGelu" and d.flag()):
            operands.append(d.value(shape[-1:]))
        attributes = {"alpha": d.number(0.5, 2)} if kind == "QuickGelu" and d.flag() else {}
        return Sample(kind, operands, attributes, domain=MICROSOFT)

    return make


def _conv(d: Draw) -> Sample:
    channels, made = d.integer(1, 5), d.integer(1, 5)
    x, weight = d.value((1, channels, 6, 7)), d.weight(d.array((made, channels, 3, 3)))
    operands = [x, weight, d.weight(d.array((made,))) if d.flag() else None]
    if d.flag():
        operands.append(d.value((1, made, 6, 7)))
    name = d.choice(ACTIVATIONS)
    attributes = {"activation": name, "pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}
    if ACTIVATIONS[name]:
        attributes["activation_params"] = list(ACTIVATIONS[name])
    return Sample("FusedConv", operands, attributes, domain=MICROSOFT)


def _gemm(d: Draw) -> Sample:
    m, k, n, turned = d.integer(1, 5), d.integer(1, 5), d.integer(1, 5), d.integer(0, 1)
    name = d.choice([kind for kind in ACTIVATIONS if kind != "Clip"])
    numbers = zip(("activation_alpha", "activation_beta"), ACTIVATIONS[name], strict=False)
    operands = [d.value((m, k)), d.value((n, k) if turned else (k, n)), d.value((n,))]
    attributes = {"activation": name, "transB": turned, "alpha": d.choice((1.0, 0.5))}
    return Sample("FusedGemm", operands, attributes | dict(numbers), domain=MICROSOFT)


def _matmul(d: Draw) -> Sample:
    """A batch that is transposed, too, has rank 3 on both sides."""
    lead, m, k, n = (d.integer(1, 4) for _ in range(4))
    attributes: dict[str, float] = {"alpha": d.choice((1.0, 0.25))}
    shapes = [[lead, m, k], [lead, k, n]]
    for side, shape in zip("AB", shapes, strict=True):
        if d.flag():
            attributes[f"trans{side}"] = 1
            shape[1:] = shape[:0:-1]
        if d.flag():
            attributes[f"transBatch{side}"] = 1
            shape[:2] = shape[1::-1]
    operands = [d.value(shape) for shape in shapes]
    return Sample("FusedMatMul", operands, attributes, domain=MICROSOFT)


def _skip_norm(kind: str) -> Maker:
    def make(d: Draw) -> Sample:
        shape = (d.integer(1, 3), d.integer(1, 4), d.integer(2, 8))
        width = shape[-1:]
        operands = [d.value(shape), d.value(shape), d.value(width)]
        if kind == "SkipLayerNormalization":
            operands.append(d.value(width))
        if d.flag():
            operands.append(d.value(width))
        return Sample(kind, operands, {"epsilon": d.choice((1e-5, 1e-3))}, domain=MICROSOFT)

    return make


def _simplified_norm(d: Draw) -> Sample:
    x = d.value((d.integer(1, 3), d.integer(1, 4), d.integer(2, 8)))
    return Sample("SimplifiedLayerNormalization", [x, d.value(x.array.shape[-1:])], {"axis": -1})


MAKERS: dict[str, Maker] = {"SimplifiedLayerNormalization": _simplified_norm}
OWN_MAKERS: dict[str, Maker] = {
    **{kind: _biased(kind) for kind in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")},
    "FusedConv": _conv,
    "FusedGemm": _gemm,
    "FusedMatMul": _matmul,
    "SkipLayerNormalization": _skip_norm("SkipLayerNormalization"),
    "SkipSimplifiedLayerNormalization": _skip_norm("SkipSimplifiedLayerNormalization"),
}
