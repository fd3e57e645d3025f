"""Serial bytes: 8 data bits, no parity, one stop bit, least significant bit first."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

FRAME_BITS = 10  # start, 8 data, stop


class UartReceiver(wiring.Component):
    """Bytes of a serial line; a byte is lost unless it is taken in the cycle in which it is valid.

    Parameters
    ----------
    divisor : clock cycles of a bit, at least 4

    Attributes
    ----------
    rx : the line;  byte, valid : a byte has come
    """

    def __init__(self, divisor: int):
        assert divisor >= 4, divisor
        self.divisor = divisor
        super().__init__({"rx": In(1, init=1), "byte": Out(8), "valid": Out(1)})

    def elaborate(self, platform) -> Module:
        m = Module()
        # Two registers against metastability.
        line = Const(1, 1)
        for k in range(2):
            later = Signal(init=1, name=f"rx_{k}")
            m.d.sync += later.eq(self.rx if k == 0 else line)
            line = later
        wait, left = Signal(range(self.divisor)), Signal(range(FRAME_BITS + 1))
        bits = Signal(9)  # the stop bit has pushed the start bit out
        m.d.comb += self.byte.eq(bits)
        m.d.sync += self.valid.eq(0)
        with m.If(left == 0):
            m.d.sync += wait.eq(self.divisor // 2 - 1)  # to the middle of the start bit
            with m.If(~line):
                m.d.sync += left.eq(FRAME_BITS)
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.Else():
            m.d.sync += [wait.eq(self.divisor - 1), left.eq(left - 1)]
            m.d.sync += bits.eq(Cat(bits[1:], line))
            with m.If((left == FRAME_BITS) & line):
                m.d.sync += left.eq(0)  # no start bit: a glitch
            with m.If((left == 1) & line):
                m.d.sync += self.valid.eq(1)
        return m


class UartTransmitter(wiring.Component):
    """Attributes
    ----------
    i : bytes to send;  tx : the line
    """

    def __init__(self, divisor: int):
        self.divisor = divisor
        super().__init__({"i": In(stream.Signature(8)), "tx": Out(1, init=1)})

    def elaborate(self, platform) -> Module:
        m = Module()
        wait, left = Signal(range(self.divisor)), Signal(range(FRAME_BITS + 1))
        bits = Signal(FRAME_BITS, init=-1)
        m.d.comb += [self.i.ready.eq(left == 0), self.tx.eq(bits[0])]
        with m.If(left == 0):
            m.d.sync += wait.eq(self.divisor - 1)
            with m.If(self.i.valid):
                m.d.sync += [bits.eq(Cat(Const(0, 1), self.i.payload, 1)), left.eq(FRAME_BITS)]
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.Else():
            m.d.sync += [wait.eq(self.divisor - 1), left.eq(left - 1)]
            m.d.sync += bits.eq(Cat(bits[1:], Const(1, 1)))
        return m
