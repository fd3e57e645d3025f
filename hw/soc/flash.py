"""Reads the flash from which an FPGA is configured: SPI of mode 0, a bit every two cycles."""

from __future__ import annotations

from amaranth.hdl import C, Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ...isa.soc import FLASH_ADDRESS_BITS, FLASH_READ
from .wishbone import WORD_BITS

#: Clocks before a command with the chip not selected: the first clocks that an ECP5's pin of the
#: configuration gives to its user are lost.
_IDLE_CLOCKS = WORD_BITS


def flash_signature() -> wiring.Signature:
    """The pins, seen from who reads. The chip takes a bit of ``command`` with the rising edge of
    ``clock``, and shows one at ``data`` with the falling edge."""
    return wiring.Signature(
        {"select_n": Out(1, init=1), "clock": Out(1), "command": Out(1), "data": In(1)}
    )


class Flash(wiring.Component):
    """Words from an address on, one after the other, each of which is fetched when the one before
    it was taken.

    Attributes
    ----------
    start : read from ``address`` on, in bytes; what was under way is given up
    word, valid : the next word, whose first byte in the flash is the lowest
    take : the word was taken
    pins : as of :func:`flash_signature`
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "start": In(1), "address": In(FLASH_ADDRESS_BITS),
                "word": Out(WORD_BITS), "valid": Out(1), "take": In(1),
                "pins": Out(flash_signature()),
            }
        )  # fmt: skip

    def elaborate(self, platform) -> Module:
        m = Module()
        pins = self.pins
        sent, received = Signal(WORD_BITS), Signal(WORD_BITS)
        left, running = Signal(range(max(WORD_BITS, _IDLE_CLOCKS))), Signal()
        from_flash = Signal()
        m.d.comb += [
            pins.command.eq(sent[-1]),
            self.word.eq(Cat(received.word_select(n, 8) for n in reversed(range(WORD_BITS // 8)))),
        ]
        with m.If(running):
            m.d.sync += pins.clock.eq(~pins.clock)
            with m.If(pins.clock):  # its falling edge is next: a bit has passed
                m.d.sync += [left.eq(left - 1), received.eq(Cat(pins.data, received))]
                with m.If(~pins.select_n):
                    m.d.sync += sent.eq(sent << 1)
                with m.If(left == 0):
                    with m.If(pins.select_n):
                        m.d.sync += [pins.select_n.eq(0), left.eq(WORD_BITS - 1)]
                    with m.Elif(~from_flash):
                        m.d.sync += [from_flash.eq(1), left.eq(WORD_BITS - 1)]
                    with m.Else():
                        m.d.sync += [running.eq(0), self.valid.eq(1)]
        with m.If(self.valid & self.take):
            m.d.sync += [self.valid.eq(0), running.eq(1), left.eq(WORD_BITS - 1)]
        with m.If(self.start):
            m.d.sync += [
                running.eq(1), pins.clock.eq(0), pins.select_n.eq(1), self.valid.eq(0),
                from_flash.eq(0), left.eq(_IDLE_CLOCKS - 1),
                sent.eq(Cat(self.address, C(FLASH_READ, 8))),
            ]  # fmt: skip
        return m
