"""Operators of ``com.microsoft`` of which ONNX Runtime's decoders consist."""

from __future__ import annotations

import numpy as np

from .draw import MICROSOFT, Draw, Maker, Operand, Sample, constant


def _turns(d: Draw, places: int, width: int) -> list[Operand]:
    angles = d.array((places, width // 2), scale=3)
    return [d.weight(np.cos(angles)), d.weight(np.sin(angles))]


def _rotary(d: Draw) -> Sample:
    """Heads in three dimensions or four; positions of all tokens or of the first."""
    batch, heads, rows, width = d.integer(1, 3), d.integer(1, 3), d.integer(1, 5), 8
    turned = d.choice((0, 4))
    attributes = {"interleaved": d.integer(0, 1)}
    if turned:
        attributes |= {"rotary_embedding_dim": turned, "num_heads": heads}
    shape = (batch, rows, heads * width) if d.flag() else (batch, heads, rows, width)
    places = d.rng.integers(0, 6, d.choice(((1,), (batch, rows))))
    turns = _turns(d, 12, turned or width)
    operands = [d.value(shape), d.operand(places, "int64"), *turns]
    return Sample("RotaryEmbedding", operands, attributes, domain=MICROSOFT)


def _product(d: Draw) -> Sample:
    """Weights of 2, 4 and 8 bits; zero points in bytes, as floats, or none."""
    bits, size = d.choice((2, 4, 8)), d.choice((16, 32))
    depth, outputs = d.integer(1, 70), d.integer(1, 5)
    groups = -(-depth // size)
    blob = d.rng.integers(0, 256, (outputs, groups, size * bits // 8), np.uint8)
    scales = d.rng.uniform(0.01, 0.5, (outputs, groups)).astype(np.float32)
    zeros = d.choice(("none", "bytes", "floats"))
    width = -(-groups * bits // 8)
    given = {
        "none": None,
        "bytes": constant(d.rng.integers(0, 256, (outputs, width), np.uint8), "uint8"),
        "floats": constant(d.array((outputs, groups)), "float32"),
    }[zeros]
    x = d.value((*d.shape(1, 2), depth))
    operands = [x, constant(blob, "uint8"), constant(scales, "float32"), given, None]
    operands.append(d.value((outputs,)) if d.flag() else None)
    attributes = {"K": depth, "N": outputs, "bits": bits, "block_size": size}
    return Sample("MatMulNBits", operands, attributes, domain=MICROSOFT)


def _rows(d: Draw) -> Sample:
    """Rows of a matrix of whole groups, chosen by any indices."""
    bits, size, groups = d.choice((2, 4, 8)), d.choice((16, 32)), d.integer(1, 3)
    outputs = d.integer(1, 6)
    width = size * groups * bits // 8
    data = d.rng.integers(0, 256, (outputs, width), np.uint8)
    scales = d.rng.uniform(0.01, 0.5, (outputs, groups)).astype(np.float32)
    zeros = d.rng.integers(0, 256, (outputs, -(-groups * bits // 8)), np.uint8)
    indices = d.rng.integers(-outputs, outputs, d.shape(1, 3))
    operands = [
        constant(data, "uint8"), d.operand(indices, d.choice(("int32", "int64"))),
        constant(scales, "float32"), constant(zeros, "uint8") if d.flag() else None,
    ]  # fmt: skip
    attributes = {"bits": bits, "block_size": size, "gather_axis": 0, "quantize_axis": 1}
    return Sample("GatherBlockQuantized", operands, attributes, domain=MICROSOFT)


def _attention(d: Draw) -> Sample:
    """A prompt without caches, or tokens behind those in caches, which may be longer."""
    kv_heads, width, rows = d.integer(1, 3), d.choice((16, 32)), d.choice((1, 3))
    heads = kv_heads * d.integer(1, 3)
    batch = d.integer(1, 3) if rows == 1 else 1
    places = d.choice((0, 6))
    filled = d.rng.integers(0, places - rows + 1, batch) if places else np.zeros(batch, np.int64)
    total = d.choice((places, rows + int(filled.max()))) if places else rows
    shapes = [(batch, rows, n * width) for n in (heads, kv_heads, kv_heads)]
    new = [d.array(shape, scale=2) for shape in shapes]
    operands: list[Operand | None] = [d.operand(x) for x in new]
    if d.flag():
        operands = [d.operand(np.concatenate(new, axis=-1)), None, None]
    if places:
        caches = d.array((2, batch, kv_heads, places, width), scale=2)
        caches *= np.arange(places)[:, None] < filled[:, None, None, None]
        operands += map(d.operand, caches)
    else:
        operands += [None, None]
    operands += [d.operand(filled + rows - 1, "int32"), d.operand(total, "int32")]
    attributes = {"num_heads": heads, "kv_num_heads": kv_heads}
    if d.flag():
        turned = d.choice((16, width))
        attributes |= {"do_rotary": 1, "rotary_interleaved": d.integer(0, 1)}
        operands += _turns(d, 12, turned)
    extra = {"scale": 0.25, "softcap": 2.0, "local_window_size": 2}
    attributes |= {name: value for name, value in extra.items() if d.integer(0, 2) == 0}
    return Sample("GroupQueryAttention", operands, attributes, 3, domain=MICROSOFT)


OWN_MAKERS: dict[str, Maker] = {
    "GatherBlockQuantized": _rows,
    "GroupQueryAttention": _attention,
    "MatMulNBits": _product,
    "RotaryEmbedding": _rotary,
}
