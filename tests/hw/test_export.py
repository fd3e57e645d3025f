"""The directory for Xilinx' tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from vdla.cli import run_app
from vdla.hw.export import CAPACITY, resources
from vdla.isa.params import HwParams

TINY = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1,
)  # fmt: skip


def test_resources() -> None:
    counts = {"LUT6": 5, "LUT2": 1, "RAM32M": 2, "FDRE": 7, "FDSE": 1, "DSP48E1": 3, "RAMB18E1": 3,
              "RAMB36E1": 1, "CARRY4": 9, "$scopeinfo": 4}  # fmt: skip
    assert resources(counts) == {"lut": 14, "ff": 8, "dsp": 3, "bram": 2.5}


@pytest.mark.slow
def test_export(tmp_path: Path) -> None:
    knobs, folder = tmp_path / "hw.toml", tmp_path / "ip"
    knobs.write_text("".join(f"{k} = {v}\n" for k, v in TINY.to_dict().items()))
    report = tmp_path / "report.json"
    command = ["fpga", "export", "--hw", str(knobs), "-o", str(folder), "--json", str(report)]
    assert run_app(command) == 0
    names = {"vdla_axi.v", "vdla_axi.xdc", "package_ip.tcl", "README.md", "resources.json"}
    assert {path.name for path in folder.iterdir()} == names
    made = json.loads((folder / "resources.json").read_text())
    assert made["vendor_tools"] == "never run" and made["part"] == "xc7z020clg400-1"
    # A multiplier for each of 16 products, and the requantisers of four lanes.
    assert made["dsp"] >= 16 + 4 * 4 and made["lut"] > 5000 and made["ff"] > 5000
    assert all(made[name] <= CAPACITY[name] for name in CAPACITY)
    told = json.loads(report.read_text())
    assert told["config_hash"] == TINY.hash and told["dsp"] == made["dsp"]
    verilog = (folder / "vdla_axi.v").read_text()
    assert "/" + "hw/" not in verilog and str(tmp_path) not in verilog
