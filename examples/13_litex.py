"""The core in a LiteX system, whose bus comes from outside: 13_litex.py FOLDER writes top.v."""

import os
import sys
from pathlib import Path

from litex.build.generic_platform import Pins, Subsignal
from litex.build.io import CRG
from litex.build.sim import SimPlatform
from litex.soc.integration.soc import SoCRegion
from litex.soc.integration.soc_core import SoCCore
from litex.soc.interconnect import wishbone
from vdla.hw.soc.litex_core import REGION_BYTES, Vdla
from vdla.isa.memory import load_platform

BUS = {"adr": 30, "dat_w": 32, "dat_r": 32, "sel": 4, "cyc": 1, "stb": 1, "we": 1, "ack": 1,
       "err": 1, "cti": 3, "bte": 2}  # fmt: skip
folder = Path(sys.argv[1]).absolute()
os.chdir(folder)  # LiteX writes the contents of memories beside
platform = SimPlatform("SIM", [
    ("clk", 0, Pins(1)), ("irq", 0, Pins(1)),
    ("bus", 0, *(Subsignal(name, Pins(width)) for name, width in BUS.items())),
])  # fmt: skip
system = SoCCore(
    platform, 25e6, cpu_type=None, with_uart=False, with_timer=False, ident="",
    integrated_main_ram_size=0x20000,
)  # fmt: skip
system.crg = CRG(platform.request("clk"))
system.host = wishbone.Interface(data_width=32, adr_width=30, addressing="word")
system.comb += system.host.connect_to_pads(platform.request("bus"), mode="slave")
system.bus.add_master("host", system.host)

# The core: registers, memory, interrupt.
hw, _ = load_platform("4x4", "ulx3s")
system.vdla = Vdla(platform, hw, folder)
system.bus.add_slave("vdla", system.vdla.bus, SoCRegion(0x9000_0000, REGION_BYTES, cached=False))
system.bus.add_master("vdla_memory", system.vdla.axi)
system.comb += platform.request("irq").eq(system.vdla.ev.stopped.trigger)

system.finalize()
platform.get_verilog(system, name="top").write("top.v")
