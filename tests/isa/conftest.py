"""Random legal instructions for the tests of the instruction set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
from hypothesis import strategies as st
from vdla.isa.encoding import layout
from vdla.isa.errors import VdlaError
from vdla.isa.insn import CLASSES, Insn, Load, Vector, validate
from vdla.isa.opcodes import (
    DST_MEMORIES,
    LOADABLE,
    SRC0_MEMORIES,
    SRC1_MEMORIES,
    Units,
    opcodes,
    widened,
)
from vdla.isa.params import HwParams
from vdla.isa.vector_ops import POST_OPS, operators

_CHOICES = {
    "memory": LOADABLE,
    "src0": SRC0_MEMORIES,
    "src1": SRC1_MEMORIES,
    "dst": DST_MEMORIES,
    "post": tuple(post.name for post in POST_OPS),
}
_EXTENTS = ("x_size", "y_size", "z_size", "uop_count", "outer", "inner")


def _legal(insn: Insn, params: HwParams) -> bool:
    try:
        validate(insn, params)
    except VdlaError:
        return False
    return True


@st.composite
def _insn(draw: st.DrawFn, params: HwParams) -> Insn:
    opcode = draw(st.sampled_from(opcodes(params)))
    widths = {field.name: field for field in layout(opcode, params)}

    def number(name: str, high: int | None = None) -> int:
        low = 1 if name in _EXTENTS or name[0] == "n" else widths[name].minimum
        high = widths[name].maximum if high is None else high
        return draw(st.integers(low, high))

    def four(pattern: str, high: int) -> tuple[int, ...]:
        return tuple(number(pattern.format(i), high) for i in range(4))

    own = Units(1 << opcode.unit)
    values: dict[str, object] = {
        name: Units(draw(st.integers(0, 15))) & ~own for name in ("pop", "push")
    }
    names = [f.name for f in fields(CLASSES[opcode]) if f.name not in ("pop", "push")]
    for name in names:
        match name:
            case "op":
                values[name] = draw(st.sampled_from(operators(params))).name
            case _ if name in _CHOICES:
                values[name] = draw(st.sampled_from(_CHOICES[name]))
            case "extents":
                values[name] = four("n{}", 3)
            case "src0_strides" | "src1_strides" | "dst_strides":
                values[name] = four(name.replace("_strides", "_s{}"), 1)
            case "dram_addr" | "y_stride" | "z_stride":
                values[name] = number(name) & ~31
            case "reduce":
                values[name] = number(name, 4)
            case "base" | "uop_begin" | "par_base":
                values[name] = number(name, 4)
            case "src0_base" | "src1_base" | "dst_base":
                values[name] = number(name, 3)
            case _ if name in _EXTENTS or (name.startswith("pad_") and name != "pad_value"):
                values[name] = number(name, 2)
            case "widen":
                values[name] = number(name) if values["memory"] in widened(params) else 0
            case "lo":
                values[name] = number(name, 0)
            case "hi":
                values[name] = draw(st.integers(0, 127))
            case _:
                values[name] = number(name)
    insn = CLASSES[opcode](**values)
    if isinstance(insn, Vector) and insn.reduce:
        kept = insn.dst_strides[: 4 - insn.reduce] + (0,) * insn.reduce
        insn = Vector(**{**values, "dst_strides": kept})
    return insn


@pytest.fixture(scope="session")
def legal_insns() -> Callable[[HwParams], st.SearchStrategy[Insn]]:
    """A function from a configuration to a strategy of instructions legal in it."""
    return lambda params: _insn(params).filter(lambda insn: _legal(insn, params))


@pytest.fixture(scope="session")
def small_load() -> Load:
    """A plain legal LOAD."""
    return Load(memory="inp", base=0, dram_addr=0, x_size=1)
