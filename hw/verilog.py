"""Verilog of the core."""

from __future__ import annotations

import re

from amaranth.back import verilog

from ..isa.params import HwParams
from .core import Core

TOP = "vdla_core"
_ZERO_INIT = re.compile(r"^\s*\S+\[\d+\] = \d+'h0+;\n", re.MULTILINE)
_PORT = re.compile(r"\b(axi|regs)__")
_EMPTY_INITIAL = re.compile(r"^\s*initial begin\s*end\n", re.MULTILINE)


def core_verilog(params: HwParams, core: Core | None = None) -> str:
    """The whole core as Verilog text; ports are flat: ``axi_araddr``, ``regs_addr``, ...

    Memories start undefined in synthesis and zero in simulation; their thousands of zero
    initialisers, which make simulators' builds slow, are left out.
    """
    text = verilog.convert(
        core or Core(params), name=TOP, strip_internal_attrs=True, emit_src=False
    )
    text = _EMPTY_INITIAL.sub("", _ZERO_INIT.sub("", text))
    return _PORT.sub(r"\1_", text)
