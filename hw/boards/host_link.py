"""The board's end of the host link: frames of ``isa/hostlink.py`` over a serial line become
accesses to memory and registers.
"""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, unsigned
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc import catalog
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ...isa.hostlink import (  # fmt: skip
    ANSWER_HEADER,
    CRC_BYTES,
    MAX_WORDS,
    REQUEST_HEADER,
    SILENCE_BYTES,
    SYNC_ANSWER,
    SYNC_REQUEST,
    WORD_BYTES,
    Answer,
    Command,
)
from ...isa.params import HwParams
from ..core.dma import RESP_OKAY, axi_signature
from ..core.regs import port_signature

#: Bits of a byte on the serial line: start, 8 data, stop.
FRAME_BITS = 10
_REQUEST = data.StructLayout({"command": 8, "sequence": 8, "address": 32, "words": 16})
_ANSWER = data.StructLayout({"sync": 8, "code": 8, "sequence": 8, "words": 16})


class _Crc(NamedTuple):
    """The inputs of the checksum: start, a byte, and whether the byte counts."""

    start: Signal
    data: Signal
    valid: Signal


class HostLink(wiring.Component):
    """Parameters
    ----------
    divisor : clock cycles of a bit on the line

    Attributes
    ----------
    rx, tx : the serial line
    regs : to the core's registers
    axi : to the memory, bursts of one beat, one at a time
    active : a request is being received, executed or answered
    """

    def __init__(self, params: HwParams, divisor: int):
        assert params.bus_bytes == WORD_BYTES, params.bus_bytes
        self.divisor = divisor
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "regs": Out(port_signature()),
                "axi": Out(axi_signature(params)),
                "active": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.receiver = receiver = UartReceiver(self.divisor)
        m.submodules.transmitter = transmitter = UartTransmitter(self.divisor)
        m.submodules.buffer = buffer = Memory(
            shape=unsigned(8 * WORD_BYTES), depth=MAX_WORDS, init=[], attrs={"no_rw_check": 1}
        )
        m.submodules.checksum = checksum = catalog.CRC32_ETHERNET(data_width=8).create()
        # A cycle late: bytes are rare, and what the state machine does with one is known late.
        crc = _Crc(Signal(), Signal(8), Signal())
        m.d.sync += [
            checksum.start.eq(crc.start), checksum.data.eq(crc.data), checksum.valid.eq(crc.valid),
        ]  # fmt: skip
        write, read = buffer.write_port(), buffer.read_port(domain="sync")
        m.d.comb += [receiver.rx.eq(self.rx), self.tx.eq(transmitter.tx)]
        request, code = Signal(_REQUEST), Signal(Answer)
        index, position = Signal(range(MAX_WORDS + 1)), Signal(range(16))
        word = Signal(8 * WORD_BYTES)
        silence = Signal(range(SILENCE_BYTES * FRAME_BITS * self.divisor + 1))
        axi, regs = self.axi, self.regs
        m.d.comb += [
            read.addr.eq(index), write.addr.eq(index),
            axi.araddr.eq(request.address), axi.awaddr.eq(request.address),
            axi.wdata.eq(word), axi.wstrb.eq(-1), axi.wlast.eq(1),
            axi.rready.eq(1), axi.bready.eq(1),
            regs.addr.eq(request.address), regs.wdata.eq(word),
            transmitter.i.payload.eq(word),
        ]  # fmt: skip

        known = Cat(request.command == c for c in Command).any()
        writes = (request.command == Command.WRITE_MEMORY) | (
            request.command == Command.WRITE_REGISTERS
        )
        fits = (request.words != 0) & (request.words <= MAX_WORDS)
        last_word = Signal()  # of an index that has not just changed
        m.d.sync += last_word.eq(index + 1 == request.words)
        header = Signal(_ANSWER)
        carries = ~writes & (code == Answer.OK)
        m.d.comb += [
            header.sync.eq(SYNC_ANSWER), header.code.eq(code),
            header.sequence.eq(request.sequence), header.words.eq(Mux(carries, request.words, 0)),
        ]  # fmt: skip
        shifted = Cat(word[8:], receiver.byte)

        def receive(count: int) -> tuple:
            """Take bytes, in a state of the FSM; true when the last of ``count`` has come."""
            done = receiver.valid & (position == count - 1)
            with m.If(receiver.valid):
                m.d.sync += [word.eq(shifted), position.eq(Mux(done, 0, position + 1))]
            return done

        # An unfinished request is forgotten after a silence.
        m.d.sync += silence.eq(silence + 1)
        with m.If(receiver.valid):
            m.d.sync += silence.eq(0)
        too_long = silence == SILENCE_BYTES * FRAME_BITS * self.divisor

        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.comb += crc.start.eq(1)
                m.d.sync += [position.eq(0), index.eq(0), silence.eq(0), code.eq(Answer.OK)]
                with m.If(receiver.valid & (receiver.byte == SYNC_REQUEST)):
                    m.next = "HEADER"
            with m.State("HEADER"):
                m.d.comb += [crc.data.eq(receiver.byte), crc.valid.eq(receiver.valid)]
                with m.If(receive(REQUEST_HEADER.size)):
                    m.d.sync += request.as_value().eq(shifted)
                    m.next = "CHOOSE"
                with m.If(too_long):
                    m.next = "IDLE"
            with m.State("CHOOSE"):
                with m.If(~known | ~fits):
                    m.d.sync += code.eq(Answer.BAD_REQUEST)
                    m.next = "HUSH"
                with m.Else():
                    m.next = "CRC"
                    with m.If(writes):
                        m.next = "PAYLOAD"
            with m.State("PAYLOAD"):
                m.d.comb += [crc.data.eq(receiver.byte), crc.valid.eq(receiver.valid)]
                m.d.comb += write.data.eq(shifted)
                with m.If(receive(WORD_BYTES)):
                    m.d.comb += write.en.eq(1)
                    m.d.sync += index.eq(index + 1)
                    with m.If(last_word):
                        m.next = "CRC"
                with m.If(too_long):
                    m.next = "IDLE"
            with m.State("CRC"):
                m.d.comb += [crc.data.eq(receiver.byte), crc.valid.eq(receiver.valid)]
                with m.If(receive(CRC_BYTES)):
                    m.next = "SETTLE"
                with m.If(too_long):
                    m.next = "IDLE"
            with m.State("SETTLE"):
                m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += index.eq(0)
                with m.If(checksum.match_detected):
                    m.next = "FETCH"
                with m.Else():
                    m.d.sync += code.eq(Answer.BAD_CRC)
                    m.next = "HUSH"
            # Where a damaged request ends is not known: answer when nothing more comes.
            with m.State("HUSH"), m.If(too_long):
                m.next = "ANSWER"
            self._execute(m, request, code, index, read, write, word, last_word)
            self._answer(m, transmitter, crc, checksum, index, position, read, word, header)
        m.d.comb += self.active.eq(~fsm.ongoing("IDLE"))
        return m

    def _execute(self, m: Module, request, code, index, read, write, word, last_word) -> None:
        """A word at a time, between the buffer and the memory or the registers."""
        axi, regs = self.axi, self.regs

        def next_word(step: int) -> None:
            m.d.sync += [index.eq(index + 1), request.address.eq(request.address + step)]
            m.next = "FETCH"
            with m.If(last_word):
                m.next = "ANSWER"

        with m.State("FETCH"):
            m.next = "LOOK"
        with m.State("LOOK"):
            m.d.sync += word.eq(read.data)
            with m.Switch(request.command):
                for command in Command:
                    with m.Case(command):
                        m.next = command.name
            m.d.sync += [
                axi.arvalid.eq(request.command == Command.READ_MEMORY),
                axi.awvalid.eq(request.command == Command.WRITE_MEMORY),
            ]
        # The address is this one since FETCH, and the system shows what it had a cycle ago.
        shown = Signal(len(regs.rdata))
        m.d.sync += shown.eq(regs.rdata)
        with m.State("READ_REGISTERS"):
            m.d.comb += [write.data.eq(shown), write.en.eq(1)]
            next_word(4)
        with m.State("WRITE_REGISTERS"):
            m.d.comb += regs.write.eq(1)
            next_word(4)
        # Requests end when the memory takes them. Its answers are registered first, because they
        # are known late in a cycle.
        m.d.sync += [
            axi.arvalid.eq(axi.arvalid & ~axi.arready), axi.awvalid.eq(axi.awvalid & ~axi.awready),
            axi.wvalid.eq(axi.wvalid & ~axi.wready),
        ]  # fmt: skip
        beat, comes, answered, refused = Signal(len(axi.rdata)), Signal(), Signal(), Signal()
        m.d.sync += [
            beat.eq(axi.rdata), comes.eq(axi.rvalid), answered.eq(axi.bvalid),
            refused.eq(Mux(axi.rvalid, axi.rresp, axi.bresp) != RESP_OKAY),
        ]  # fmt: skip
        with m.State("READ_MEMORY"):
            m.d.comb += [write.data.eq(beat), write.en.eq(comes)]
            with m.If(comes):
                next_word(WORD_BYTES)
                with m.If(refused):
                    m.d.sync += code.eq(Answer.BAD_ADDRESS)
        with m.State("WRITE_MEMORY"), m.If(~axi.awvalid):
            m.d.sync += axi.wvalid.eq(1)
            m.next = "RESPONSE"
        with m.State("RESPONSE"), m.If(answered):
            next_word(WORD_BYTES)
            with m.If(refused):
                m.d.sync += code.eq(Answer.BAD_ADDRESS)

    def _answer(
        self, m: Module, transmitter, crc, checksum, index, position, read, word, header
    ) -> None:
        """Header, words of a read, CRC; ``word`` shifts out a byte at a time."""

        def send(count: int):
            """The lowest ``count`` bytes of ``word``; true when the last is taken."""
            m.d.comb += transmitter.i.valid.eq(1)
            sent = transmitter.i.ready & (position == count - 1)
            with m.If(transmitter.i.ready):
                m.d.sync += [word.eq(word >> 8), position.eq(Mux(sent, 0, position + 1))]
            return sent

        with m.State("ANSWER"):
            m.d.comb += crc.start.eq(1)
            m.d.sync += [word.eq(header.as_value()), index.eq(0), position.eq(0)]
            m.next = "SEND_HEADER"
        with m.State("SEND_HEADER"):
            # The CRC leaves the first byte out.
            m.d.comb += crc.data.eq(word[:8])
            m.d.comb += crc.valid.eq(transmitter.i.ready & (position != 0))
            with m.If(send(1 + ANSWER_HEADER.size)):
                m.next = "LAST"
                with m.If(header.words != 0):
                    m.next = "NEXT"
        with m.State("NEXT"):
            m.d.sync += word.eq(read.data)
            m.next = "SEND_WORD"
        with m.State("SEND_WORD"):
            m.d.comb += [crc.data.eq(word[:8]), crc.valid.eq(transmitter.i.ready)]
            with m.If(send(WORD_BYTES)):
                m.d.sync += index.eq(index + 1)
                m.next = "STEP"
                with m.If(index + 1 == header.words):
                    m.next = "LAST"
        with m.State("STEP"):  # the buffer reads
            m.next = "NEXT"
        with m.State("LAST"):  # the checksum takes the last byte
            m.next = "CLOSE"
        with m.State("CLOSE"):
            m.d.sync += word.eq(checksum.crc)
            m.next = "SEND_CRC"
        with m.State("SEND_CRC"), m.If(send(CRC_BYTES)):
            m.next = "IDLE"


# ---- the serial line: 8 data bits, no parity, one stop bit, least significant bit first ----------


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
