"""Verilog of designs."""

from __future__ import annotations

import re

from amaranth.back import verilog
from amaranth.hdl import Value
from amaranth.lib.wiring import Component

from ...isa.params import HwParams
from .core import Core
from .technology import SIMULATION, Technology

TOP = "vdla_core"
_ZERO_INIT = re.compile(r"^\s*\S+\[\d+\] = \d+'h0+;\n", re.MULTILINE)
_PORT = re.compile(r"\b(axi|regs)__")
_EMPTY_INITIAL = re.compile(r"^\s*initial begin\s*end\n", re.MULTILINE)


def core_verilog(params: HwParams, technology: Technology = SIMULATION) -> str:
    """The whole core as Verilog text; ports are flat: ``axi_araddr``, ``regs_addr``, ..."""
    return _PORT.sub(r"\1_", to_verilog(Core(params, technology), TOP))


def to_verilog(design: Component, name: str, sources: bool = False) -> str:
    """A design as Verilog text, with the lines of its Amaranth source where ``sources`` says so.

    Memories start undefined in synthesis and zero in simulation; their thousands of zero
    initialisers, which make simulators' builds slow, are left out.
    """
    io_ports = getattr(design, "io_ports", ())
    members = [Value.cast(value) for _, _, value in design.signature.flatten(design)]
    text = verilog.convert(
        design,
        name=name,
        # A list of ports has no directions: a constant output, driven by nothing, would become an
        # input. Without a list the signature decides.
        ports=[*members, *io_ports] if io_ports else None,
        strip_internal_attrs=not sources,
        emit_src=sources,
    )
    return _EMPTY_INITIAL.sub("", _ZERO_INIT.sub("", text))
