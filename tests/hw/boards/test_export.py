"""The directory for Xilinx' tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from vdla.cli import run_app
from vdla.isa.params import HwParams

TINY = HwParams(
    block_in=4, block_out=4, inp_depth=16, wgt_depth=8, acc_depth=8, uop_depth=8, par_depth=4,
    tmp_depth=8, out_depth=8, max_burst_beats=8, queue_depth=2, fetch_depth=2,
    loads_in_flight=1, stores_in_flight=1,
)  # fmt: skip


@pytest.mark.more
@pytest.mark.slow
def test_export(tmp_path: Path) -> None:
    knobs, folder = tmp_path / "hw.toml", tmp_path / "ip"
    knobs.write_text("".join(f"{k} = {v}\n" for k, v in asdict(TINY).items()))
    report = tmp_path / "report.json"
    command = ["fpga", "export", "--hw", str(knobs), "-o", str(folder), "--json", str(report)]
    assert run_app(command) == 0
    names = {"vdla_axi.v", "vdla_axi.xdc", "package_ip.tcl", "README.md"}
    assert {path.name for path in folder.iterdir()} == names
    told = json.loads(report.read_text())
    assert told["config_hash"] == TINY.hash and told["vendor_tools"] == "never run"
    assert {Path(path).name for path in told["files"]} == names
    verilog = (folder / "vdla_axi.v").read_text()
    assert "module vdla_axi(" in verilog and "input aresetn;" in verilog
    assert str(tmp_path) not in verilog
    for name in ("vdla_axi.xdc", "package_ip.tcl"):
        assert "{" not in (folder / name).read_text()
    assert "Nothing in this directory has been run" in (folder / "README.md").read_text()
