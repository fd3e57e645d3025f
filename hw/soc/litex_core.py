"""The core in a LiteX design, which needs ``pip install 'vdla[rtl,soc]'``."""

from __future__ import annotations

from pathlib import Path

from litex.gen import LiteXModule
from litex.soc.interconnect import stream
from litex.soc.interconnect.axi import AXIInterface
from litex.soc.interconnect.csr_eventmanager import EventManager, EventSourceLevel
from litex.soc.interconnect.wishbone import Interface
from migen import ClockSignal, Instance, ResetSignal, Signal

from ...isa.encoding import DRAM_ADDR_BITS
from ...isa.params import HwParams
from .peripheral import TOP, peripheral_verilog
from .wishbone import ADDRESS_BITS, WORD_BITS

#: Bytes of its registers.
REGION_BYTES = 0x1000
#: Bursts of reads under way.
_MOST_READS = 16
#: Of the registers' bus: what the system says, and what it is told.
_ASKS, _ANSWERS = ("cyc", "stb", "we", "adr", "dat_w", "sel"), ("dat_r", "ack", "err")
_ADDRESS = "valid addr len size burst id", "ready"
#: Of each channel of AXI4: what the core says, and what it is told.
_CHANNELS = {
    "ar": _ADDRESS, "aw": _ADDRESS, "w": ("valid data strb last", "ready"),
    "r": ("ready", "valid data last resp id"), "b": ("ready", "valid resp id"),
}  # fmt: skip


class Vdla(LiteXModule):
    """The core as a peripheral of a LiteX system.

    The core's addresses are those of the system's bus, with the register ``window`` OR-ed to them
    (``isa/soc.py``).

    Parameters
    ----------
    platform : LiteX platform, to which the Verilog is added
    params : the core's configuration
    folder : where the Verilog is written

    Attributes
    ----------
    bus : Wishbone slave, of :data:`REGION_BYTES`, which no cache keeps
    axi : AXI4 master
    ev : the interrupt, which lasts until the register ``interrupt`` is written
    """

    def __init__(self, platform, params: HwParams, folder: Path):
        self.bus = Interface(data_width=WORD_BITS, adr_width=ADDRESS_BITS, addressing="word")
        self.axi = AXIInterface(
            data_width=params.bus_bits, address_width=DRAM_ADDR_BITS, id_width=1
        )
        self.ev = EventManager()
        self.ev.stopped = EventSourceLevel()
        self.ev.finalize()
        ports = {
            "i_clk": ClockSignal(), "i_rst": ResetSignal(), "o_irq": self.ev.stopped.trigger,
            "i_reset": 0,  # that of the clock does it
            **{f"i_bus_{name}": getattr(self.bus, name) for name in _ASKS},
            **{f"o_bus_{name}": getattr(self.bus, name) for name in _ANSWERS},
        }  # fmt: skip
        for channel, (says, told) in _CHANNELS.items():
            signals = getattr(self.axi, channel)
            ports |= {f"o_axi_{channel}{n}": getattr(signals, n) for n in says.split()}
            ports |= {f"i_axi_{channel}{n}": getattr(signals, n) for n in told.split()}
        # LiteX's converters of widths do not hold the identifier of a beat that waits. Beats come
        # in the order of the requests, whose identifiers are kept.
        self.order = order = stream.SyncFIFO([("id", 1)], _MOST_READS)
        ar, r = self.axi.ar, self.axi.r
        asks, taken = Signal(), Signal()
        self.comb += [
            ar.valid.eq(asks & order.sink.ready), taken.eq(ar.ready & order.sink.ready),
            order.sink.valid.eq(asks & ar.ready), order.sink.id.eq(ar.id),
            order.source.ready.eq(r.valid & r.ready & r.last),
        ]  # fmt: skip
        ports |= {"o_axi_arvalid": asks, "i_axi_arready": taken, "i_axi_rid": order.source.id}
        self.specials += Instance(TOP, **ports)
        source = Path(folder) / f"{TOP}.v"
        source.write_text(peripheral_verilog(params), "utf-8")
        platform.add_source(str(source))
