"""The processor's bus: Wishbone, classic cycles of 32 bits."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ...isa.params import HwParams
from ..core.dma import RESP_OKAY, axi_signature

WORD_BITS = 32
ADDRESS_BITS = 30
#: The two bits of an address that choose a byte of a word.
_BYTE_BITS = 2
#: Bytes of a line of the processor's caches.
LINE_BYTES = 32


def bus_signature() -> wiring.Signature:
    """The bus, seen from the master; ``adr`` counts words. The master holds its request until
    ``ack`` or ``err``, which last one cycle."""
    return wiring.Signature(
        {
            "cyc": Out(1), "stb": Out(1), "we": Out(1), "adr": Out(ADDRESS_BITS),
            "dat_w": Out(WORD_BITS), "sel": Out(WORD_BITS // 8),
            "dat_r": In(WORD_BITS), "ack": In(1), "err": In(1),
        }
    )  # fmt: skip


class Share(wiring.Component):
    """One bus for two masters and several slaves, one request at a time.

    Parameters
    ----------
    bases : tuple of int
        Byte address of each slave, of which the highest four bits choose it. Others are answered
        with an error.

    Attributes
    ----------
    masters : the first comes first
    slaves : in the order of ``bases``
    """

    def __init__(self, bases: tuple[int, ...]):
        self.chosen = [base >> 28 for base in bases]
        port = bus_signature()
        super().__init__({"masters": In(port).array(2), "slaves": Out(port).array(len(bases))})

    def elaborate(self, platform) -> Module:
        m = Module()
        busy, second = Signal(), Signal()
        first, other = self.masters
        request = {
            name: Mux(second, getattr(other, name), getattr(first, name))
            for name in ("cyc", "stb", "we", "adr", "dat_w", "sel")
        }
        answered, asked = Signal(), Signal()
        m.d.comb += asked.eq(busy & request["cyc"] & request["stb"])
        # A master that waits gets its turn a cycle after the other's request.
        with m.If(~busy):
            m.d.sync += [busy.eq((first.cyc & first.stb) | (other.cyc & other.stb))]
            m.d.sync += second.eq(~(first.cyc & first.stb))
        with m.Elif(answered | ~asked):
            m.d.sync += busy.eq(0)
        data, ack, err = Signal(WORD_BITS), Signal(), Signal()
        with m.Switch(request["adr"][-4:]):
            for chosen, slave in zip(self.chosen, self.slaves, strict=True):
                with m.Case(chosen):
                    m.d.comb += [slave.cyc.eq(asked), slave.stb.eq(asked)]
                    m.d.comb += [data.eq(slave.dat_r), ack.eq(slave.ack), err.eq(slave.err)]
            with m.Default():
                m.d.comb += err.eq(asked)
        for slave in self.slaves:
            m.d.comb += [getattr(slave, n).eq(request[n]) for n in ("we", "adr", "dat_w", "sel")]
        m.d.comb += answered.eq(ack | err)
        for number, master in enumerate(self.masters):
            has = busy & (second == number)
            m.d.comb += [master.dat_r.eq(data), master.ack.eq(ack & has), master.err.eq(err & has)]
        return m


class Ram(wiring.Component):
    """Memory of the processor's own, which begins with the firmware.

    Attributes
    ----------
    bus : the port
    """

    def __init__(self, size_bytes: int, content: bytes = b""):
        words = [content[at : at + 4] for at in range(0, len(content), 4)]
        self.depth = size_bytes * 8 // WORD_BITS
        self.init = [int.from_bytes(word, "little") for word in words]
        super().__init__({"bus": In(bus_signature())})

    def elaborate(self, platform) -> Module:
        m = Module()
        bus = self.bus
        m.submodules.storage = memory = Memory(
            shape=unsigned(WORD_BITS), depth=self.depth, init=self.init
        )
        write, read = memory.write_port(granularity=8), memory.read_port(domain="sync")
        asked = bus.cyc & bus.stb & ~bus.ack
        m.d.sync += bus.ack.eq(asked)
        m.d.comb += [
            read.addr.eq(bus.adr), read.en.eq(asked), bus.dat_r.eq(read.data),
            write.addr.eq(bus.adr), write.data.eq(bus.dat_w),
            write.en.eq(Mux(asked & bus.we, bus.sel, 0)),
        ]  # fmt: skip
        return m


class AxiBridge(wiring.Component):
    """A slave of the bus in front of an AXI4 memory. It reads whole lines of the processor's
    caches, and answers requests from the last one until a write or ``forget``.

    Attributes
    ----------
    bus : the port;  axi : to the memory, one burst at a time
    forget : others may write to the memory
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {"bus": In(bus_signature()), "axi": Out(axi_signature(params)), "forget": In(1)}
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        bus, axi, beat_bytes = self.bus, self.axi, self.params.bus_bytes
        words, beats = LINE_BYTES * 8 // WORD_BITS, LINE_BYTES // beat_bytes
        in_line = words.bit_length() - 1
        line = Array(Signal(WORD_BITS, name=f"word{n}") for n in range(words))
        number, known = Signal(ADDRESS_BITS - in_line), Signal()
        filled, bad = Signal(range(beats)), Signal()
        per_beat = self.params.bus_bits // WORD_BITS
        lane = bus.adr[: per_beat.bit_length() - 1]
        # The four bits that chose this slave are not of the memory's address.
        address = Cat(Signal(_BYTE_BITS), bus.adr[:-4])
        m.d.comb += [
            axi.araddr.eq(address & -LINE_BYTES), axi.arlen.eq(beats - 1), axi.rready.eq(1),
            axi.awaddr.eq(address & -beat_bytes), axi.bready.eq(1),
            axi.wdata.eq(Cat(bus.dat_w for _ in range(per_beat))), axi.wlast.eq(1),
            axi.wstrb.eq(bus.sel << (lane * (WORD_BITS // 8))),
            bus.dat_r.eq(line[bus.adr[:in_line]]),
        ]  # fmt: skip
        hit = known & (number == bus.adr[in_line:])
        with m.FSM():
            with m.State("IDLE"):
                with m.If(bus.cyc & bus.stb & bus.we):
                    m.d.sync += known.eq(0)
                    m.next = "WRITE"
                with m.Elif(bus.cyc & bus.stb & hit):
                    m.d.comb += bus.ack.eq(1)
                with m.Elif(bus.cyc & bus.stb):
                    m.d.sync += [number.eq(bus.adr[in_line:]), filled.eq(0), bad.eq(0)]
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += axi.arvalid.eq(1)
                with m.If(axi.arready):
                    m.next = "FILL"
            with m.State("FILL"), m.If(axi.rvalid):
                m.d.sync += [filled.eq(filled + 1), bad.eq(bad | (axi.rresp != RESP_OKAY))]
                for lane_number in range(per_beat):
                    word = axi.rdata.word_select(lane_number, WORD_BITS)
                    m.d.sync += line[filled * per_beat + lane_number].eq(word)
                with m.If(axi.rlast):
                    m.next = "FILLED"
            with m.State("FILLED"):
                m.d.comb += [bus.ack.eq(~bad), bus.err.eq(bad)]
                m.d.sync += known.eq(~bad)
                m.next = "IDLE"
            with m.State("WRITE"):
                m.d.comb += axi.awvalid.eq(1)
                with m.If(axi.awready):
                    m.next = "DATA"
            with m.State("DATA"):
                m.d.comb += axi.wvalid.eq(1)
                with m.If(axi.wready):
                    m.next = "ANSWER"
            with m.State("ANSWER"), m.If(axi.bvalid):
                m.d.comb += [bus.ack.eq(axi.bresp == RESP_OKAY), bus.err.eq(~bus.ack)]
                m.next = "IDLE"
        with m.If(self.forget):
            m.d.sync += known.eq(0)
        return m
