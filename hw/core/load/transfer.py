"""What a LOAD instruction means to the parts of the load unit. It is decoded when it is taken, so
that they compare counters with registers and compute nothing from its fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ....isa.encoding import layout
from ....isa.opcodes import LOADABLE, Opcode
from ....isa.params import HwParams
from ..layouts import INDEX_BITS, insn_layout, queued_insn


def box_layout(params: HwParams) -> data.StructLayout:
    """The box that a transfer fills: planes of rows of entries, with padding around the data.

    A row is padding before its entry ``pad_left``, data before ``data_end``, and padding again
    before ``row_end``. A plane likewise has padding rows before ``pad_top``, data before
    ``data_rows_end``, and padding before ``plane_end``. ``offset`` is the place of the first byte
    in its bus word. Of the strides, only the bits that change this place are kept.
    """
    its = {field.name: field for field in layout(Opcode.LOAD, params)}
    place = bus_offset_bits(params)

    def to(*names: str) -> range:
        """From 0 to the largest sum of some fields."""
        return range(sum(its[name].maximum for name in names) + 1)

    return data.StructLayout(
        {
            "base": to("base"),
            "pad_left": to("pad_left"),
            "data_end": to("pad_left", "x_size"),
            "row_end": to("pad_left", "x_size", "pad_right"),
            "pad_top": to("pad_top"),
            "y_size": to("y_size"),
            "data_rows_end": to("pad_top", "y_size"),
            "plane_end": to("pad_top", "y_size", "pad_bottom"),
            "z_size": to("z_size"),
            "offset": place,
            "y_stride": place,
            "z_stride": place,
        }
    )


def beats_layout(params: HwParams) -> data.StructLayout:
    """How entries and beats correspond. A beat holds several entries (``narrow``) of
    ``entry_bytes`` each, or a single one; or an entry takes several beats (``wide``), which are
    ``more_beats`` beyond the first.
    """
    largest = max(params.entry_bytes(name) for name in LOADABLE)
    return data.StructLayout(
        {
            "narrow": 1,
            "wide": 1,
            "entry_bytes": bus_offset_bits(params),
            "more_beats": range(max(largest // params.bus_bytes, 2)),
        }
    )


def target_layout(params: HwParams) -> data.StructLayout:
    """What is filled, and which units get a token at the end: fields of the instruction, and its
    index."""
    fields = insn_layout(Opcode.LOAD, params).members
    names = ("memory", "widen", "pad_value", "push")
    return data.StructLayout({name: fields[name] for name in names} | {"index": INDEX_BITS})


def transfer_layout(params: HwParams) -> data.StructLayout:
    """A transfer: its box, its beats and its target."""
    return data.StructLayout(
        {
            "box": box_layout(params),
            "beats": beats_layout(params),
            "target": target_layout(params),
        }
    )


def entry_bits(params: HwParams) -> int:
    """Bits of the number of an entry: one more than an index has, to see what is beyond."""
    return insn_layout(Opcode.LOAD, params)["base"].width + 1


def bus_offset_bits(params: HwParams) -> int:
    """Bits of the place of a byte in its bus word."""
    return params.bus_bytes.bit_length() - 1


def entry_sizes(m: Module, params: HwParams, insn) -> Iterator[int]:
    """A loop over the bytes that an entry of the instruction can have in DRAM. The statements in
    its body are for an instruction with entries of that size.
    """
    with m.Switch(insn.memory):
        for code, name in enumerate(LOADABLE):
            with m.Case(code):
                yield params.entry_bytes(name)
    with m.If(insn.widen):
        yield params.block
    if params.packed_weights:
        with m.If(insn.widen & (insn.memory == LOADABLE.index("wgt"))):
            yield params.dram_entry_bytes("wgt", 1)


class Decoder(wiring.Component):
    """Decodes an instruction, in the same cycle.

    Attributes
    ----------
    descriptor : the instruction and its index;  transfer : what it means
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {"descriptor": In(queued_insn(params)), "transfer": Out(transfer_layout(params))}
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        insn = Signal(insn_layout(Opcode.LOAD, self.params))
        box, target = self.transfer.box, self.transfer.target
        data_end, data_rows_end = insn.pad_left + insn.x_size, insn.pad_top + insn.y_size
        m.d.comb += [
            insn.as_value().eq(self.descriptor.word),
            box.base.eq(insn.base),
            box.pad_left.eq(insn.pad_left),
            box.data_end.eq(data_end),
            box.row_end.eq(data_end + insn.pad_right),
            box.pad_top.eq(insn.pad_top),
            box.y_size.eq(insn.y_size),
            box.data_rows_end.eq(data_rows_end),
            box.plane_end.eq(data_rows_end + insn.pad_bottom),
            box.z_size.eq(insn.z_size),
            box.offset.eq(insn.dram_addr),
            box.y_stride.eq(insn.y_stride),
            box.z_stride.eq(insn.z_stride),
            target.memory.eq(insn.memory),
            target.widen.eq(insn.widen),
            target.pad_value.eq(insn.pad_value),
            target.push.eq(insn.push),
            target.index.eq(self.descriptor.index),
        ]
        self._beats(m, insn)
        return m

    def _beats(self, m: Module, insn) -> None:
        beats, bus_bytes = self.transfer.beats, self.params.bus_bytes
        for size in entry_sizes(m, self.params, insn):
            m.d.comb += [
                beats.narrow.eq(int(size < bus_bytes)),
                beats.wide.eq(int(size > bus_bytes)),
                beats.entry_bytes.eq(size if size < bus_bytes else 0),
                beats.more_beats.eq(max(size // bus_bytes, 1) - 1),
            ]
