# amaranth: UnusedElaboratable=no
"""A block of one's own in place of one of the core's: Verilog, or an Amaranth component."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import ClockSignal, Instance, Module
from amaranth.lib.wiring import Component, Signature

from ..hw.core.verilog import TOP
from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..isa.text_files import read_text
from ..sim.rtl import toolchain
from .blocks import (
    BLOCKS,
    Ports,
    block_signature,
    find_ports,
    flat_values,
    kept_core,
    reset_of_block,
    tapped_core,
)
from .runner import Design

#: Direction and width of the ports that every Verilog block has besides.
_CLOCKING = {"clk": ("input", 1), "rst": ("input", 1)}


class PortMismatch(VdlaError):
    """The ports of a block are not those that the core needs; ``lines`` says what is wrong with
    each of them.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


@dataclass(frozen=True)
class Replacement:
    """What stands in the place of a block of the core.

    Attributes
    ----------
    block : str
        Name of the block.
    component : callable
        Makes the Amaranth component.
    module, verilog : str
        Name of a Verilog module and the text that it needs; empty for an Amaranth component.
    """

    block: str
    component: Callable[[], Component]
    module: str = ""
    verilog: str = ""

    @classmethod
    def parse(cls, text: str, params: HwParams) -> Replacement:
        """``gemm=my_gemm.v`` (module ``gemm`` or ``my_gemm``, or the only one of the file) or
        ``gemm=my.py:MyGemm`` (called with the configuration).

        Raises
        ------
        PortMismatch
            Unless names, widths and directions of all ports are the block's.
        VdlaError
            For unknown blocks, and files and modules that are missing.
        """
        block, equals, what = text.partition("=")
        if not equals or block not in BLOCKS:
            raise VdlaError(
                f"replace: expected BLOCK=FILE.v or BLOCK=FILE.py:CLASS with a block of "
                f"{', '.join(BLOCKS)}, got {text!r}"
            )
        path, _, name = what.partition(":")
        if not Path(path).is_file():
            raise VdlaError(f"replace: expected a file for {block}, {path!r} is none")
        signature = block_signature(block, params)
        if path.endswith(".py"):
            component = _component(block, Path(path), name, params, signature)
            return cls(block, lambda: component)
        module = _verilog_module(block, Path(path))
        check_ports(
            f"module {module.name} of {path}", module.ports, find_ports(signature) | _CLOCKING
        )
        text = read_text(path)
        return cls(block, lambda: _External(signature, module.name), module.name, text)

    def alone(self) -> Design:
        """The block as a design by itself."""
        if self.module:
            return Design(self.module, self.verilog)
        return Design.component(self.component(), self.block)


def core_with(
    params: HwParams, replacements: Sequence[Replacement], sources: bool = False
) -> Design:
    """The core of a configuration with some of its blocks replaced; ``sources``: as of
    ``Design.core``.
    """
    toolchain.setup_yosys()

    def blocks() -> dict[str, Component]:
        return {replacement.block: replacement.component() for replacement in replacements}

    if all(replacement.module for replacement in replacements):
        modules = {replacement.block: replacement.module for replacement in replacements}
        core = kept_core(params, modules, sources, blocks)
    else:  # an Amaranth component may depend on anything
        core = tapped_core(params, blocks=blocks(), sources=sources)
    texts = [core, *(r.verilog for r in replacements)]
    return Design(TOP, "\n".join(texts))


class _External(Component):
    """A module of another file, with the ports of a block."""

    def __init__(self, signature: Signature, module: str) -> None:
        self.module = module
        super().__init__(signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": reset_of_block(m)}
        ports |= {f"{way}_{name}": value for name, (way, value) in flat_values(self).items()}
        m.submodules.module = Instance(self.module, **ports)
        return m


# ---- ports ----


@dataclass(frozen=True)
class _VerilogModule:
    name: str
    ports: Ports


def check_ports(what: str, got: Ports, wanted: Ports) -> None:
    """Raise PortMismatch unless a block, which messages call ``what``, has the wanted ports."""
    lines = []
    for name, (direction, bits) in wanted.items():
        expected = f"{direction} of {bits} bits"
        if name not in got:
            lines.append(f"{what}: port {name}: expected {expected}, there is none")
        elif got[name] != (direction, bits):
            its = f"{got[name][0]} of {got[name][1]} bits"
            lines.append(f"{what}: port {name}: expected {expected}, got {its}")
    lines += [f"{what}: port {name}: not a port of the block" for name in got if name not in wanted]
    if lines:
        raise PortMismatch(lines)


def _verilog_module(block: str, path: Path) -> _VerilogModule:
    """The module of a file that is meant, with its ports as Verilator reads them."""
    tree = _tree(path)
    modules = {module["origName"]: module for module in tree["modulesp"]}
    chosen = next((n for n in (block, path.stem) if n in modules), None)
    if chosen is None and len(modules) == 1:
        chosen = next(iter(modules))
    if chosen is None:
        names = ", ".join(modules) or "no module"
        raise VdlaError(f"{path}: expected a module {block!r} or {path.stem!r}, got {names}")
    types = {kind["addr"]: kind for kind in tree["miscsp"][0]["typesp"]}
    ports: Ports = {}
    for item in modules[chosen]["stmtsp"]:
        if item["type"] == "VAR" and item["varType"] == "PORT":
            direction = item["direction"].lower()
            ports[item["verilogName"]] = (direction, _bits(types, item["dtypep"]))
    return _VerilogModule(chosen, ports)


def _tree(path: Path) -> dict[str, Any]:
    """The syntax tree of a Verilog file."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--json-only", "--no-timing", "-Wno-MULTITOP")
        toolchain.run_verilator(path.resolve(), Path(folder), *options)
        return json.loads(next(Path(folder).glob("*.tree.json")).read_text("utf-8"))


def _bits(types: dict[str, dict[str, Any]], address: str) -> int:
    """Width of a data type of Verilator's tree."""
    kind = types[address]
    if "declRange" in kind or "range" in kind:
        text = kind.get("declRange") or kind["range"]
        high, low = map(int, text.strip("[]").split(":"))
        count = abs(high - low) + 1
        inner = kind.get("refDTypep")
        return count * (_bits(types, inner) if inner else 1)
    if members := kind.get("membersp"):
        return sum(_bits(types, member["dtypep"]) for member in members)
    if inner := kind.get("refDTypep"):
        return _bits(types, inner)
    return 1


def _component(
    block: str, path: Path, name: str, params: HwParams, signature: Signature
) -> Component:
    """The Amaranth component that a class in a file makes for a configuration."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    made = getattr(loaded, name, None)
    if made is None:
        raise VdlaError(f"{path}: expected a class for {block} as {path}:CLASS, got {name!r}")
    component = made(params)
    if not isinstance(component, Component):
        raise VdlaError(f"{path}:{name}: expected an Amaranth component, got {component!r}")
    check_ports(f"{path}:{name}", find_ports(component.signature), find_ports(signature))
    return component
