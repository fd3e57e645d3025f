"""Add a vector operator by one table row, and see it in the assembler, the models, the RTL and the
docs.

    python examples/03_add_vector_opcode.py [--no-rtl]

Copies the package to a temporary folder, inserts one row into ``isa/vector_ops.py`` there, and runs
this script again on the copy. Nothing else is changed: decoder, assembler, reference, SimPy model,
RTL, random programs and docs iterate the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("isa", "hw", "sim", "compiler")
#: The whole change.
ROW = '''    VectorOp("absdiff", 9, "abs(a - b), wrapping",
             lambda k, a, b: k.max(k.sub(a, b), k.sub(b, a))),
'''  # fmt: skip
PROGRAM = (
    "vector op=absdiff src0=tmp src1=imm dst=tmp imm=-7 extents=1,1,1,4 "
    "src0_strides=0,0,0,1 dst_strides=0,0,0,1\n"
)


def copy_with_row(folder: Path) -> None:
    """The package under ``folder``/vdla with the row appended to the table."""
    package = folder / "vdla"
    for room in ROOMS:
        shutil.copytree(ROOT / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    for module in ROOT.glob("*.py"):
        shutil.copy(module, package)
    table = package / "isa" / "vector_ops.py"
    text = table.read_text()
    head, end, tail = text.partition("]  # fmt: skip\n")
    assert end, "the operator table ends with `]  # fmt: skip`"
    table.write_text(head + ROW + end + tail)


def show(with_rtl: bool) -> None:
    """Show the new operator in every part of the copy."""
    import numpy as np
    from vdla.isa.asm import assemble, disassemble
    from vdla.isa.docs import isa_page
    from vdla.isa.memory import MemoryParams
    from vdla.isa.params import HwParams
    from vdla.isa.reference import run
    from vdla.sim.model.core import simulate

    params = HwParams.load("4x4")
    program = assemble(PROGRAM, params)
    print("assembler:", next(s for s in disassemble(program).splitlines() if "absdiff" in s))
    print("docs:     ", next(s for s in isa_page().splitlines() if "absdiff" in s))
    state = run(program, program.dram_image())
    expected = np.full_like(state.tmp[:4], 7)
    assert np.array_equal(state.tmp[:4], expected), state.tmp[:4]
    print("reference: |0 - (-7)| =", int(state.tmp[0, 0, 0]))
    memory = MemoryParams.load("vta")
    sim = simulate(program, program.dram_image(), memory)
    print(f"SimPy:     {sim.cycles} cycles, tmp equal:", _equal(sim, state))
    if with_rtl:
        from vdla.sim.rtl.driver import RtlSimulator
        from vdla.sim.verify.campaign import verify

        rtl = RtlSimulator(params).run(program, program.dram_image(), memory)
        print(f"RTL:       {rtl.cycles} cycles, tmp equal:", _equal(rtl, state))
        found = verify(params, memory, programs=20, seed=1)
        print("verify:   ", found)
        assert rtl.cycles == sim.cycles and _equal(rtl, state)
        assert not (found["byte_mismatches"] or found["cycle_mismatches"])
    assert _equal(sim, state)


def _equal(result, state) -> bool:
    return bool((result.scratchpads["tmp"] == state.scratchpads()["tmp"]).all())


def main() -> int:
    """Make the copy and run this script on it; with ``--on-copy``, be that run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--no-rtl", action="store_true", help="leave out the RTL (no Verilator)")
    parser.add_argument("--on-copy", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.on_copy:
        show(not arguments.no_rtl)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        copy_with_row(Path(folder))
        print("one row in isa/vector_ops.py:\n" + ROW)
        command = [sys.executable, __file__, "--on-copy", *sys.argv[1:]]
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, env=environment, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(main())
