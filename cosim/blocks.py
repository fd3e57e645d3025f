# amaranth: UnusedElaboratable=no
"""The blocks of a core, their ports, and taps at them.

A tap is a Verilog module that only has inputs: every port of its block by its flat name. It asserts
the rules of the block's streams, and shows the ports to recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.hdl import (
    ClockSignal,
    Instance,
    Module,
    ResetSignal,
    Signal,
    Value,
)
from amaranth.lib.wiring import Component, In, Signature

from ..hw.core.fetch import Fetch
from ..hw.core.gemm import Gemm
from ..hw.core.load import Load
from ..hw.core.store import Store
from ..hw.core.vector import Vector
from ..hw.core.verilog import core_verilog
from ..isa.params import HwParams
from ..sim.rtl.kept import kept_text

#: Blocks that have taps and can be replaced; their ports are those of the component's signature.
BLOCKS = {"fetch": Fetch, "load": Load, "gemm": Gemm, "vector": Vector, "store": Store}
_PACKAGE = Path(__file__).parents[1]
#: Name of a tap's module, followed by the block's.
TAP = "vdla_tap_"

#: Direction and width of every port by its flat name.
Ports = dict[str, tuple[str, int]]


def block_signature(block: str, params: HwParams) -> Signature:
    """The ports of a block of the core."""
    return BLOCKS[block](params).signature


def find_ports(signature: Signature) -> Ports:
    """Direction and width of every port by its flat name."""
    parts = signature.flatten(signature.create())
    return {
        "__".join(map(str, path)): ("input" if member.flow is In else "output", len(Value.cast(v)))
        for path, member, v in parts
    }


def find_streams(ports: Ports) -> dict[str, int]:
    """The streams among ports: name, and bits of the payload."""
    stems = [name.removesuffix("__payload") for name in ports if name.endswith("__payload")]
    return {stem: ports[f"{stem}__payload"][1] for stem in stems}


def reset_of_block(m: Module) -> Value:
    """The reset that a Verilog module inside of a block needs. The core resets its blocks by their
    registers; this one's value, which comes back in the cycle after, is the reset of the module.
    """
    restarted = Signal(init=1)
    m.d.sync += restarted.eq(0)
    return ResetSignal() | restarted


def flat_values(component: Component) -> dict[str, tuple[str, Value]]:
    """Direction and value of every port of a component by its flat name."""
    return {
        "__".join(map(str, path)): ("i" if member.flow is In else "o", Value.cast(value))
        for path, member, value in component.signature.flatten(component)
    }


class _Tapped(Component):
    """A block with a tap at its ports."""

    def __init__(self, name: str, block: Component) -> None:
        self._name, self._block = name, block
        super().__init__(block.signature)

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.block = self._block
        inner = flat_values(self._block)
        ports: dict[str, Any] = {"i_clk": ClockSignal(), "i_rst": reset_of_block(m)}
        for name, (way, value) in flat_values(self).items():
            its = inner[name][1]
            m.d.comb += its.eq(value) if way == "i" else value.eq(its)
            ports[f"i_{name}"] = value
        m.submodules.tap = Instance(TAP + self._name, a_keep=1, **ports)
        return m


def tapped_core(
    params: HwParams, blocks: Mapping[str, Component] = {}, sources: bool = False
) -> str:
    """Verilog text of the core of a configuration with a tap at each block; ``blocks``: components
    in the place of the core's own, by name; ``sources``: with the lines of its Amaranth source.
    """
    tapped, taps = {}, []
    for name, make in BLOCKS.items():
        block = blocks.get(name) or make(params)
        tapped[name] = _Tapped(name, block)
        taps.append(_tap(name, find_ports(block.signature)))
    return "\n".join([core_verilog(params, blocks=tapped, sources=sources), *taps])


def kept_core(
    params: HwParams, modules: Mapping[str, str] = {}, sources: bool = False,
    blocks: Callable[[], Mapping[str, Component]] = dict,
) -> str:  # fmt: skip
    """As :func:`tapped_core`, from the cache folder if it was made before.

    ``blocks`` returns components that stand for Verilog modules; ``modules`` has their names.
    """
    what = " ".join(["tapped", *(f"{block}={name}" for block, name in sorted(modules.items()))])
    if sources:
        what += f", lines of {_PACKAGE}"

    def make() -> str:
        return tapped_core(params, blocks=blocks(), sources=sources)

    return kept_text(what, params, ("cosim", "hw/core", "isa"), make)


@dataclass(frozen=True)
class BrokenRule:
    """A rule of a stream that a tap has seen broken: bit ``place`` of its register ``broken``."""

    stream: str
    rule: str


def find_rules(block: str, params: HwParams) -> list[BrokenRule]:
    """The rule of every bit of the register ``broken`` of a block's tap, from the lowest on."""
    streams = find_streams(find_ports(block_signature(block, params)))
    rules = ("valid held until the transfer", "payload stable until the transfer")
    return [BrokenRule(f"{block} {stream}", rule) for stream in streams for rule in rules]


def _tap(block: str, ports: Ports) -> str:
    """The module of a tap. What is seen broken in a cycle is in ``broken`` from the next on."""
    streams = find_streams(ports)
    lines = [f"module {TAP}{block}(input clk, input rst"]
    lines += [f"  , input [{bits - 1}:0] {name}" for name, (_, bits) in ports.items()]
    lines += [");", f"  reg [{2 * len(streams) - 1}:0] broken = 0;"]
    for place, (name, bits) in enumerate(streams.items()):
        lines += [
            f"  reg waited_{place} = 0;",
            f"  reg [{bits - 1}:0] payload_{place};",
            "  always @(posedge clk) begin",
            f"    waited_{place} <= {name}__valid & ~{name}__ready & ~rst;",
            f"    payload_{place} <= {name}__payload;",
            f"    if (waited_{place} & ~rst) begin",
            f"      if (!{name}__valid) broken[{2 * place}] <= 1;",
            f"      else if ({name}__payload != payload_{place}) broken[{2 * place + 1}] <= 1;",
            "    end",
            "  end",
        ]
    return "\n".join([*lines, "endmodule", ""])
