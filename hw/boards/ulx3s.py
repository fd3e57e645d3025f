"""What designs for the ULX3S share: pins, clock, reset, LEDs."""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Module, Signal
from amaranth.lib.cdc import AsyncFFSynchronizer
from amaranth.lib.wiring import Component, In, Out
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from ...isa.hostlink import WORD_BYTES
from ...isa.params import HwParams
from ..fpga.devices import ECP5_85F
from ..fpga.pll import find_pll
from .system import System

OSCILLATOR_MHZ = 25.0
#: Bits a second of the host link.
BAUD = 1_000_000
#: The memory's bus is as wide as a word of the host link.
BUS_BITS = 8 * WORD_BYTES
#: Port of the design: resource of the board's pin map, its number, part of it.
PINS = {
    "clk25": ("clk25", 0, None),
    "button": ("button_pwr", 0, None),
    "rx": ("uart", 0, "rx"),
    "tx": ("uart", 0, "tx"),
    **{f"led[{n}]": ("led", n, None) for n in range(8)},
}


def constraints(pins: Mapping[str, tuple[str, int, str | None]]) -> str:
    """The LPF file: where the ports are, from the board's pin map in amaranth-boards."""
    resources = {(r.name, r.number): r for r in ULX3S_85F_Platform.resources}
    lines = [f'FREQUENCY PORT "clk25" {OSCILLATOR_MHZ:g} MHZ;']
    for port, (name, number, part) in pins.items():
        resource = resources[name, number]
        inner = next((io for io in resource.ios if io.name == part), None) if part else resource
        sites = inner.ios[0].names
        attributes = " ".join(f"{k}={v}" for k, v in {**resource.attrs, **inner.attrs}.items())
        for bit, site in enumerate(sites):
            full = port if len(sites) == 1 else f"{port}[{bit}]"
            lines.append(f'LOCATE COMP "{full}" SITE "{site}";')
            lines.append(f'IOBUF PORT "{full}" {attributes};')
    return "\n".join(lines) + "\n"


def divisor(freq_mhz: float) -> int:
    """Clock cycles of a bit of the host link."""
    return round(freq_mhz * 1e6 / BAUD)


def system(params: HwParams, memory: Component, freq_mhz: float) -> System:
    """The core, the host link and a memory, for this device."""
    return System(params, memory, divisor(freq_mhz), ECP5_85F.technology(params))


class Ulx3s(Component):
    """The system with a clock and a reset: the top level of a design.

    Ports: ``clk25``; ``button`` (0: pressed, resets); ``rx``, ``tx``: the serial line; ``led``.
    The system has ``reset``, ``tx``, ``leds``, and ``rx`` if it listens.
    """

    def __init__(self, system, freq_mhz: float, **ports):
        self.system, self.freq_mhz = system, freq_mhz
        #: A clock of twice the core's, for designs that want one.
        self.double: Signal | None = None
        super().__init__(
            {"clk25": In(1), "button": In(1), "rx": In(1), "tx": Out(1), "led": Out(8), **ports}
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.domains.sync = ClockDomain(reset_less=True)
        locked, reset = Signal(init=1), Signal()
        if self.freq_mhz == OSCILLATOR_MHZ:
            m.d.comb += ClockSignal().eq(self.clk25)
        else:
            clock = Signal()
            pll = find_pll(OSCILLATOR_MHZ, self.freq_mhz, self.double is not None)
            m.submodules.pll = pll.instance(self.clk25, clock, locked, self.double)
            m.d.comb += ClockSignal().eq(clock)
        # The reset takes effect at once, and is released with the clock.
        m.submodules.reset = AsyncFFSynchronizer(~locked | ~self.button, reset)
        m.submodules.system = system = self.system
        m.d.comb += system.reset.eq(reset)
        if "rx" in system.signature.members:
            m.d.comb += system.rx.eq(self.rx)
        m.d.comb += [
            self.tx.eq(system.tx),
            self.led.eq(Cat(system.leds, Signal(8 - len(system.leds) - 1), ~reset)),
        ]
        return m
