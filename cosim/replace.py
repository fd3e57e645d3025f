"""A block of one's own in place of one of the core's: Verilog, or an Amaranth component."""

from __future__ import annotations

import gc
import importlib.util
import json
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import (
    ClockSignal,
    Instance,
    Module,
    ResetSignal,
    Signal,
    UnusedElaboratable,
    Value,
)
from amaranth.lib.wiring import Component, In, Signature

from ..hw.core.fetch import Fetch
from ..hw.core.gemm import Gemm
from ..hw.core.load import Load
from ..hw.core.store import Store
from ..hw.core.vector import Vector
from ..hw.core.verilog import TOP, core_verilog
from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..sim.rtl import toolchain
from .runner import Design

#: Blocks that can be replaced; their ports are those of the component's signature.
BLOCKS = {"fetch": Fetch, "load": Load, "gemm": Gemm, "vector": Vector, "store": Store}
#: Direction and width of the ports that every Verilog block has besides.
_CLOCKING = {"clk": ("input", 1), "rst": ("input", 1)}

Ports = dict[str, tuple[str, int]]


class PortMismatch(VdlaError):
    """The ports of a block are not those that the core needs; ``lines`` says what is wrong with
    each of them.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


@dataclass(frozen=True)
class Replacement:
    """A block of the core, what stands in its place, and the Verilog that this needs."""

    block: str
    component: Component
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
        signature = _signature(block, params)
        if path.endswith(".py"):
            return cls(block, _component(block, Path(path), name, params, signature))
        module = _verilog_module(block, Path(path))
        _check(f"module {module.name} of {path}", module.ports, _ports(signature) | _CLOCKING)
        return cls(block, _External(signature, module.name), Path(path).read_text())


def core_with(
    params: HwParams, replacements: Sequence[Replacement], sources: bool = False
) -> Design:
    """The core of a configuration with some of its blocks replaced; ``sources``: as of
    ``Design.core``.
    """
    toolchain.setup_yosys()
    blocks = {replacement.block: replacement.component for replacement in replacements}
    core = core_verilog(params, blocks=blocks, sources=sources)
    texts = [core, *(r.verilog for r in replacements)]
    return Design(TOP, "\n".join(texts))


class _External(Component):
    """A module of another file, with the ports of a block."""

    def __init__(self, signature: Signature, module: str) -> None:
        self._module = module
        super().__init__(signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        # The core resets its blocks by their registers. This one's value, which comes back in the
        # cycle after, is the reset of the module.
        restarted = Signal(init=1)
        m.d.sync += restarted.eq(0)
        ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal() | restarted}
        for path, member, value in self.signature.flatten(self):
            direction = "i" if member.flow is In else "o"
            ports[f"{direction}_{'__'.join(map(str, path))}"] = Value.cast(value)
        m.submodules.module = Instance(self._module, **ports)
        return m


# ---- ports ----


def _signature(block: str, params: HwParams) -> Signature:
    """The ports of a block of the core."""
    signature = BLOCKS[block](params).signature
    with warnings.catch_warnings():  # the block itself is not built
        warnings.simplefilter("ignore", UnusedElaboratable)
        gc.collect()
    return signature


@dataclass(frozen=True)
class _VerilogModule:
    name: str
    ports: Ports


def _ports(signature: Signature) -> Ports:
    """Direction and width of every port by its flat name."""
    parts = signature.flatten(signature.create())
    return {
        "__".join(map(str, path)): ("input" if member.flow is In else "output", len(Value.cast(v)))
        for path, member, v in parts
    }


def _check(what: str, got: Ports, wanted: Ports) -> None:
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
        return json.loads(next(Path(folder).glob("*.tree.json")).read_text())


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
    _check(f"{path}:{name}", _ports(component.signature), _ports(signature))
    return component
