"""Where in a transfer the next entry is."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ....isa.params import HwParams
from .transfer import box_layout, bus_offset_bits, entry_bits


class Walker(wiring.Component):
    """Walks through the planes, rows and entries of a transfer. Its outputs about the current place
    come from registers.

    Attributes
    ----------
    start, box : a transfer begins; its first entry is the next cycle's
    step : the entry is finished
    row_over : the row is finished
    entry : the entry of the scratchpad
    pad_row : the row is padding
    before, beyond : the place in the row is before its data, or behind them
    at_last, behind : the place is the row's last entry, or behind it
    last_row : the row is the last of the last plane
    offset : where in its first bus word the row begins, in bytes
    """

    def __init__(self, params: HwParams):
        self.params = params
        super().__init__(
            {
                "start": In(1),
                "box": In(box_layout(params)),
                "step": In(1),
                "row_over": In(1),
                "entry": Out(entry_bits(params)),
                "pad_row": Out(1),
                "before": Out(1),
                "beyond": Out(1),
                "at_last": Out(1),
                "behind": Out(1),
                "last_row": Out(1),
                "offset": Out(bus_offset_bits(params)),
            }
        )

    def elaborate(self, platform) -> Module:
        m = Module()
        box = Signal.like(self.box)
        with m.If(self.start):
            m.d.sync += box.eq(self.box)
        self._entries(m, box)
        self._rows(m, box)
        return m

    def _entries(self, m: Module, box) -> None:
        """The place in the row, entry by entry."""
        x, last_entry = Signal.like(box.row_end), Signal.like(box.row_end)
        with m.If(self.step):
            m.d.sync += [
                self.entry.eq(self.entry + 1),
                x.eq(x + 1),
                self.at_last.eq(x + 1 == last_entry),
                self.behind.eq(self.at_last),
                self.before.eq(x + 1 < box.pad_left),
                self.beyond.eq(x + 1 >= box.data_end),
            ]

        def enter_row(pad_left, has_one_entry) -> list:
            return [
                x.eq(0),
                self.at_last.eq(has_one_entry),
                self.behind.eq(0),
                self.before.eq(pad_left != 0),
                self.beyond.eq(0),
            ]

        with m.If(self.row_over):
            m.d.sync += enter_row(box.pad_left, last_entry == 0)
        with m.If(self.start):
            m.d.sync += enter_row(self.box.pad_left, self.box.row_end == 1)
            m.d.sync += [last_entry.eq(self.box.row_end - 1), self.entry.eq(self.box.base)]

    def _rows(self, m: Module, box) -> None:
        """Rows and planes, and where in a bus word they begin."""
        y, last_row = Signal.like(box.plane_end), Signal.like(box.plane_end)
        z = Signal.like(box.z_size)
        plane = Signal.like(self.offset)  # where in a bus word the plane begins
        plane_over, last_plane = Signal(), Signal()  # its last row, the last plane: known ahead
        m.d.comb += self.last_row.eq(plane_over & last_plane)

        def enter_plane(its, offset, has_one_row) -> list:
            return [
                y.eq(0),
                plane_over.eq(has_one_row),
                self.pad_row.eq((its.pad_top != 0) | (its.y_size == 0)),
                plane.eq(offset),
                self.offset.eq(offset),
            ]

        with m.If(self.row_over):
            m.d.sync += [
                y.eq(y + 1),
                plane_over.eq(y + 1 == last_row),
                self.pad_row.eq((y + 1 < box.pad_top) | (y + 1 >= box.data_rows_end)),
            ]
            with m.If(~self.pad_row):
                m.d.sync += self.offset.eq(self.offset + box.y_stride)
            with m.If(plane_over):
                m.d.sync += enter_plane(box, plane + box.z_stride, last_row == 0)
                m.d.sync += [z.eq(z + 1), last_plane.eq(z + 2 == box.z_size)]
        with m.If(self.start):
            m.d.sync += enter_plane(self.box, self.box.offset, self.box.plane_end == 1)
            m.d.sync += [
                last_row.eq(self.box.plane_end - 1),
                z.eq(0),
                last_plane.eq(self.box.z_size == 1),
            ]
