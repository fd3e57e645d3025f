"""Writes to the scratchpads what the load unit places."""

from __future__ import annotations

from collections.abc import Callable

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import INT8_BITS, INT32_BITS
from ....isa.opcodes import LOADABLE, Unit
from ....isa.params import HwParams
from ....isa.status import Status
from ..layouts import INDEX_BITS
from ..scratchpad import write_port
from ..unit import raise_error
from .placer import placed_signature
from .unpacker import Unpacker


class Writer(wiring.Component):
    """Writes what is placed, one cycle later and beat by beat, and reports when an instruction
    ends.

    Attributes
    ----------
    placed : what is placed in this cycle
    end, push, error, error_index : as in ``unit.unit_signature``
    inp, wgt, uop, par : the scratchpads
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "placed": In(placed_signature(params)),
                "end": Out(1),
                "push": Out(len(Unit)),
                "error": Out(Status),
                "error_index": Out(INDEX_BITS),
                **{name: Out(write_port(name, params)) for name in LOADABLE},
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        placed, target = self.placed, self.placed.target
        ended, push = Signal(), Signal.like(target.push)
        m.d.sync += [ended.eq(placed.finished), push.eq(target.push)]
        m.d.comb += [self.end.eq(ended), self.push.eq(Mux(ended, push, 0))]
        beyond = Cat(
            (target.memory == code) & (placed.entry >= self.params.depth(name))
            for code, name in enumerate(LOADABLE)
        ).any()
        raise_error(m, self, placed.step & beyond, Status.ADDRESS, target.index)
        self._write(m)
        return m

    def _write(self, m: Module) -> None:
        placed, target, bus_bytes = self.placed, self.placed.target, self.params.bus_bytes
        # Registered for a cycle, because they go to all memories. The weights have so many block
        # RAMs that their address is a register of its own. Its initial value, which nothing reads,
        # is another one, or synthesis would make one register of both.
        others = Signal.like(placed.entry, name="address")
        weights = Signal.like(placed.entry, name="wgt_address", init=-1)
        padding, widened, pad_value = Signal(), Signal(), Signal.like(target.pad_value)
        written = Signal.like(placed.data, reset_less=True)
        first = Signal.like(placed.first)
        m.d.sync += [
            others.eq(placed.entry), weights.eq(placed.entry), padding.eq(placed.pad),
            widened.eq(target.widen), pad_value.eq(target.pad_value),
            written.eq(Mux(placed.pad, target.pad_value.replicate(bus_bytes), placed.data)),
        ]  # fmt: skip
        m.d.comb += first.eq(Mux(padding, pad_value.replicate(bus_bytes), placed.first))

        def beat(number: int, count: int) -> tuple[Value, Value]:
            """Of an entry of ``count`` beats: whether this one is written next, and what it is."""
            if number == 0:
                return placed.step, written if count == 1 else first
            return placed.pad | (placed.arrives & (placed.number == number)), written

        def beats(count: int) -> tuple[Value, Value]:
            """Of all beats of an entry: which are written next, and what they are."""
            strobes, values = zip(*(beat(n, count) for n in range(count)), strict=True)
            return Cat(strobes), Cat(values)

        for code, name in enumerate(LOADABLE):
            port = getattr(self, name)
            count = len(port.en)
            strobes, data = beats(count)
            if name == "par":
                # Every byte of a beat becomes an element.
                sources = -(-self.params.block // bus_bytes)
                of_source, elements = beats(sources)
                wide = self._widen(elements)
                data = Mux(widened, wide, data[: len(port.data)])
                strobes = Mux(target.widen, self._spread(of_source, count), strobes)
            if name == "wgt" and self.params.packed_weights:
                strobes = Mux(target.widen, self._of_packed(beat, count), strobes)
                data = self._unpack(m, written, data)
            enable = Signal(count, name=f"{name}_enable")
            m.d.sync += enable.eq(Mux(target.memory == code, strobes, 0))
            address = weights if name == "wgt" else others
            m.d.comb += [port.en.eq(enable), port.addr.eq(address), port.data.eq(data)]

    def _of_packed(self, beat: Callable[[int, int], tuple[Value, Value]], count: int) -> Value:
        """Which of ``count`` parts of a tile are written: two with each beat of packed weights."""
        scales = self.params.packed_header_bytes // self.params.bus_bytes
        return Cat(beat(scales + part // 2, count)[0] for part in range(count))

    def _unpack(self, m: Module, written: Signal, tile: Value) -> Value:
        """A tile, or in all parts what the packed weights of a beat become."""
        placed = self.placed
        m.submodules.unpacker = unpacker = Unpacker(self.params)
        unpacks = Signal()
        m.d.sync += unpacks.eq(placed.target.widen & ~placed.pad)
        m.d.comb += [
            unpacker.first.eq(placed.first), unpacker.data.eq(placed.data),
            unpacker.number.eq(placed.number), unpacker.written.eq(written),
        ]  # fmt: skip
        return Mux(unpacks, unpacker.weights.replicate(len(tile) // len(unpacker.weights)), tile)

    def _widen(self, elements: Value) -> Value:
        """Bytes as elements of 32 bits, with their signs."""
        each = (elements[INT8_BITS * n :][:INT8_BITS] for n in range(self.params.block))
        return Cat(Cat(e, e[-1].replicate(INT32_BITS - INT8_BITS)) for e in each)

    def _spread(self, strobes: Value, count: int) -> Value:
        """Which of ``count`` parts of a widened entry are written: each with the beat that holds
        its elements as bytes.
        """
        firsts = range(0, self.params.block, self.params.block // count)
        return Cat(strobes[element // self.params.bus_bytes] for element in firsts)
