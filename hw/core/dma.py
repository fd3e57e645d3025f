"""The memory side: AXI4 port, bursts of strided transfers, arbiter of the read port."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Shape, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ...isa.encoding import DRAM_ADDR_BITS
from ...isa.opcodes import LOADABLE, Opcode
from ...isa.params import HwParams
from .layouts import insn_layout

#: AXI4 identifiers of the read clients.
FETCH_ID, LOAD_ID = 0, 1
PAGE_BYTES = 4096
#: AXI4: bits of the field that holds the beats of a burst less one.
AXI_LEN_BITS = 8
#: AXI4 encodings: incrementing bursts; responses: success, and a refused access.
BURST_INCR, RESP_OKAY, RESP_SLVERR = 1, 0, 2


def axi_signature(params: HwParams) -> wiring.Signature:
    """An AXI4 master port (the signals that a memory needs)."""
    size = params.bus_bytes.bit_length() - 1
    handshake_out, handshake_in = (
        {"valid": Out(1), "ready": In(1)},
        {"valid": In(1), "ready": Out(1)},
    )
    address = {
        **handshake_out,
        "addr": Out(DRAM_ADDR_BITS),
        "len": Out(AXI_LEN_BITS),
        "size": Out(3, init=size),
        "burst": Out(2, init=BURST_INCR),
        "id": Out(1),
    }
    answer = {**handshake_in, "resp": In(2), "id": In(1)}
    channels = {
        "ar": address,
        "r": {**answer, "data": In(params.bus_bits), "last": In(1)},
        "aw": address,
        "w": {
            **handshake_out,
            "data": Out(params.bus_bits),
            "strb": Out(params.bus_bytes),
            "last": Out(1),
        },
        "b": answer,
    }
    return wiring.Signature(
        {f"{c}{n}": member for c, members in channels.items() for n, member in members.items()}
    )


def burst_layout(params: HwParams) -> data.StructLayout:
    """A burst: bus-aligned byte address and beats."""
    return data.StructLayout({"addr": DRAM_ADDR_BITS, "beats": AXI_LEN_BITS + 1})


def row_bytes_bits(params: HwParams) -> int:
    """Bits of the number of bytes in a row: for the largest ``x_size``, and the memory with the
    largest entries.
    """
    x_size = Shape.cast(insn_layout(Opcode.LOAD, params).members["x_size"])
    largest = max(params.entry_bytes(name) for name in (*LOADABLE, "out"))
    return x_size.width + largest.bit_length() - 1


class BurstCutter(wiring.Component):
    """Cuts the rows of a strided transfer into bursts, one a cycle.

    Attributes
    ----------
    start : take the transfer that the other inputs describe (in a cycle without a burst)
    addr, row_bytes, y_size, z_size, y_stride, z_stride : of the transfer; y_size 0 moves nothing
    o : bursts
    row_start : the burst offered is the first of its row
    row_offset : bytes before the row in its first bus word
    last : the burst offered is the last of the transfer
    """

    def __init__(self, params: HwParams):
        self.params = params
        fields = insn_layout(Opcode.LOAD, params).members  # those of STORE are as wide
        super().__init__(
            {
                "start": In(1),
                "addr": In(fields["dram_addr"]),
                "row_bytes": In(row_bytes_bits(params)),
                **{n: In(fields[n]) for n in ("y_size", "z_size", "y_stride", "z_stride")},
                "o": Out(stream.Signature(burst_layout(params))),
                "row_start": Out(1),
                "row_offset": Out(params.bus_bytes.bit_length() - 1),
                "last": Out(1),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        params = self.params
        shift = params.bus_bytes.bit_length() - 1
        page_bits = (PAGE_BYTES // params.bus_bytes).bit_length() - 1
        longest_bits = params.max_burst_beats.bit_length() - 1
        # One a line, because Amaranth names a signal after the variable it is assigned to.
        active = Signal()
        row_start = Signal()
        row_bytes = Signal.like(self.row_bytes)
        y_stride = Signal.like(self.y_stride)
        z_stride = Signal.like(self.z_stride)
        row = Signal(DRAM_ADDR_BITS)
        plane = Signal(DRAM_ADDR_BITS)
        word = Signal(DRAM_ADDR_BITS - shift)
        # Each count is one less than what it counts: beats of the row from this burst on, rows of
        # the plane and planes from this one on, rows of a plane.
        more = Signal(len(self.row_bytes) - shift + 1)
        y_more = Signal.like(self.y_size)
        z_more = Signal.like(self.z_size)
        y_all = Signal.like(self.y_size)
        # In registers: this row is the last of its plane; this plane is the last.
        plane_ends = Signal()
        last_plane = Signal()
        # The beats of this burst are limited by the rest of the row, the longest burst, and the
        # distance to the page boundary.
        inside = word[:page_bits]
        to_page = Signal(page_bits)
        bound = Signal(longest_bits)
        row_ends = Signal()
        # In registers: the row has more than the longest burst; a longest one would leave the page.
        long = Signal()
        crosses = Signal()
        m.d.comb += [
            to_page.eq(~inside),
            bound.eq(to_page[:longest_bits] | to_page[longest_bits:].any().replicate(longest_bits)),
            row_ends.eq(~long & ~crosses),
            self.o.valid.eq(active),
            self.o.payload.addr.eq(word << shift),
            self.o.payload.beats.eq(Mux(row_ends, more[:longest_bits], bound) + 1),
            self.row_start.eq(row_start),
            self.row_offset.eq(row[:shift]),
        ]
        m.d.comb += self.last.eq(row_ends & plane_ends & last_plane)
        next_plane, next_row = Signal(DRAM_ADDR_BITS), Signal(DRAM_ADDR_BITS)
        m.d.comb += [
            next_plane.eq(plane + z_stride),
            next_row.eq(Mux(plane_ends, next_plane, row + y_stride)),
        ]

        def go_to(at, beats) -> list:
            """The next burst begins at a word; the row has ``beats`` more beats after its first."""
            end = beats[:longest_bits] + at[:page_bits]
            return [
                word.eq(at), more.eq(beats),
                long.eq(beats[longest_bits:].any()), crosses.eq(end[page_bits]),
            ]  # fmt: skip

        def enter_row(address, size) -> list:
            beats = ((address[:shift] + size - 1) >> shift)[: len(more)]
            return [row.eq(address), row_start.eq(1), *go_to(address[shift:], beats)]

        with m.If(active & self.o.ready):
            behind = (word + bound + 1)[: len(word)]
            m.d.sync += [*go_to(behind, (more - bound - 1)[: len(more)]), row_start.eq(0)]
            with m.If(row_ends):
                m.d.sync += enter_row(next_row, row_bytes)
                m.d.sync += [y_more.eq(y_more - 1), plane_ends.eq(y_more == 1)]
                with m.If(plane_ends):
                    m.d.sync += [plane.eq(next_plane), y_more.eq(y_all), plane_ends.eq(y_all == 0)]
                    m.d.sync += [z_more.eq(z_more - 1), last_plane.eq(z_more == 1)]
            with m.If(self.last):
                m.d.sync += active.eq(0)
        with m.If(self.start):
            m.d.sync += [
                active.eq(self.y_size != 0),
                row_bytes.eq(self.row_bytes), y_stride.eq(self.y_stride),
                z_stride.eq(self.z_stride), plane.eq(self.addr), y_all.eq(self.y_size - 1),
                y_more.eq(self.y_size - 1), z_more.eq(self.z_size - 1),
                plane_ends.eq(self.y_size == 1), last_plane.eq(self.z_size == 1),
                *enter_row(self.addr, self.row_bytes),
            ]  # fmt: skip
        return m


class ReadArbiter(wiring.Component):
    """Merges the read requests of fetch and load into one register in front of the AXI4 address
    channel; fetch wins.

    Attributes
    ----------
    fetch, load : requests;  o : granted requests with their identifier
    """

    def __init__(self, params: HwParams):
        burst = burst_layout(params)
        self._granted = data.StructLayout({"burst": burst, "id": 1})
        super().__init__(
            {
                "fetch": In(stream.Signature(burst)),
                "load": In(stream.Signature(burst)),
                "o": Out(stream.Signature(self._granted)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        full = Signal()
        held = Signal(self._granted)
        free = ~full | self.o.ready
        m.d.comb += [
            self.o.valid.eq(full),
            self.o.payload.eq(held),
            self.fetch.ready.eq(free),
            self.load.ready.eq(free & ~self.fetch.valid),
        ]
        with m.If(free):
            m.d.sync += full.eq(self.fetch.valid | self.load.valid)
            with m.If(self.fetch.valid):
                m.d.sync += [held.burst.eq(self.fetch.payload), held.id.eq(FETCH_ID)]
            with m.Elif(self.load.valid):
                m.d.sync += [held.burst.eq(self.load.payload), held.id.eq(LOAD_ID)]
        return m
