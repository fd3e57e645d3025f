"""The driver against the whole design of a board in Verilator, through a pseudo-terminal."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from vdla.cli import run_app
from vdla.hw.boards.block_ram import MEMORY
from vdla.hw.boards.ulx3s_bram import MEMORY_BYTES, SMALL
from vdla.isa.errors import VdlaError
from vdla.isa.params import MEMORIES, HwParams
from vdla.isa.reference import State, execute
from vdla.isa.status import Status
from vdla.runtime.board import Board, Link
from vdla.sim.model.core import simulate
from vdla.sim.verify.random_programs import random_program

from .simulated import NEVER, Errors, simulated_board

pytestmark = pytest.mark.more

PARAMS = HwParams(
    block_in=4, block_out=4, inp_depth=512, wgt_depth=256, acc_depth=256, uop_depth=128,
    par_depth=32, tmp_depth=64, out_depth=128,
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
SIZE_BYTES = 1 << 18
#: A simulated board answers late on a machine that has other work.
PATIENT_S = 5.0
PATTERN = np.random.default_rng(7).integers(0, 256, 4096, np.uint8).tobytes()


@pytest.mark.slow
def test_memory_and_registers() -> None:
    with simulated_board(PARAMS, SIZE_BYTES) as plug, Link(plug.port, PATIENT_S) as link:
        link.write_memory(0, PATTERN)
        link.write_memory(SIZE_BYTES - 64, PATTERN[:64])
        assert link.read_memory(0, len(PATTERN)) == PATTERN
        assert link.read_memory(SIZE_BYTES - 64, 64) == PATTERN[:64]
        link.write_register("insn_count", 77)
        registers = link.read_registers()
        assert registers["insn_count"] == link.read_register("insn_count") == 77
        assert registers["config_hash"] == int(PARAMS.hash, 16)
        assert link.repeated == 0
        with pytest.raises(VdlaError, match="no memory at 0x40000"):
            link.read_memory(SIZE_BYTES, 8)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(3))
def test_programs_as_in_simulation(seed: int) -> None:
    """A board of its own for each: some read scratchpads that they have not written."""
    program = random_program(PARAMS, seed)
    dram = program.dram_image()
    expected = dram.copy()
    simulated = simulate(program, expected, MEMORY)
    with simulated_board(PARAMS, SIZE_BYTES) as plug, Link(plug.port, PATIENT_S) as link:
        result = Board(link).run(program, dram, MEMORY)
        assert link.repeated == 0
    assert result.status == simulated.status == Status.DONE
    assert np.array_equal(dram, expected)
    assert result.cycles == simulated.cycles
    assert result.counters == simulated.counters


def run_one_after_the_other(count: int, errors: Errors) -> int:
    """Programs on one board, whose scratchpads stay as the last one left them, over a bad line;
    memory, cycles and counters are checked. Returns the frames that were repeated.
    """
    last: State | None = None
    with simulated_board(PARAMS, SIZE_BYTES, errors) as plug, Link(plug.port, 1.0) as link:
        board = Board(link)
        for seed in range(count):
            program = random_program(PARAMS, seed)
            dram = program.dram_image()
            state = State(PARAMS, dram.copy())
            if last is not None:
                for name in MEMORIES:
                    state.memory(name)[...] = last.memory(name)
            for insn in program.insns:
                execute(insn, state)
            result = board.run(program, dram, MEMORY)
            simulated = simulate(program, program.dram_image(), MEMORY, values=False)
            assert np.array_equal(dram, state.dram), seed
            assert (result.status, result.cycles) == (Status.DONE, simulated.cycles), seed
            assert result.counters == simulated.counters, seed
            last = state
        return link.repeated


@pytest.mark.sweep
def test_programs_over_a_bad_line() -> None:
    """A byte each way is damaged, and one is lost, while two programs run."""
    errors = Errors(corrupt_to=8_000, drop_to=36_000, corrupt_from=2_400, drop_from=12_000)
    assert run_one_after_the_other(2, errors) >= 4


@pytest.mark.sweep
def test_many_programs_over_a_bad_line() -> None:
    errors = Errors(corrupt_to=200_000, drop_to=900_000, corrupt_from=60_000, drop_from=300_000)
    assert run_one_after_the_other(50, errors) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", range(4), ids=["corrupt to", "drop to", "corrupt from", "drop from"]
)
def test_a_damaged_frame_is_repeated(where: int) -> None:
    numbers = [NEVER] * 4
    numbers[where] = 300
    with (
        simulated_board(PARAMS, SIZE_BYTES, Errors(*numbers)) as plug,
        Link(plug.port, silence_s=1.0) as link,
    ):
        link.write_memory(0, PATTERN)
        assert link.read_memory(0, len(PATTERN)) == PATTERN
        assert link.repeated >= 1


@pytest.mark.slow
def test_an_unplugged_board() -> None:
    with simulated_board(PARAMS, SIZE_BYTES) as plug, Link(plug.port, silence_s=0.05) as link:
        link.read_register("status")
        plug.unplug()
        with pytest.raises(VdlaError, match=r"unplugged|tried 5 times"):
            link.read_register("status")


@pytest.mark.slow
def test_another_configuration() -> None:
    program = random_program(HwParams.load("8x8"), 0)
    with (
        simulated_board(PARAMS, SIZE_BYTES) as plug,
        Link(plug.port, PATIENT_S) as link,
        pytest.raises(VdlaError, match=f"got {PARAMS.hash}; build a bitstream"),
    ):
        Board(link).run(program, program.dram_image(), MEMORY)


def test_no_port() -> None:
    with pytest.raises(VdlaError, match="/dev/ttyNONE: expected a serial port with a board"):
        Link("/dev/ttyNONE")


@pytest.mark.sweep
def test_a_network(tmp_path: Path) -> None:
    """``vdla run --target fpga`` on the board: outputs and cycles as in simulation."""
    knobs, memory = tmp_path / "hw.toml", tmp_path / "memory.toml"
    knobs.write_text("".join(f"{k} = {v}\n" for k, v in asdict(SMALL).items()))
    memory.write_text("".join(f"{k} = {v}\n" for k, v in MEMORY.to_dict().items()))
    model = str(ROOT / "examples" / "models" / "digits_int8.onnx")
    command = ["run", model, "--hw", str(knobs), "--memory", str(memory)]
    reports = {}
    with simulated_board(SMALL, MEMORY_BYTES) as plug:
        for target, port in (("sim", []), ("fpga", ["--port", plug.port])):
            path = tmp_path / f"{target}.json"
            assert run_app([*command, "--target", target, *port, "--json", str(path)]) == 0
            reports[target] = json.loads(path.read_text())
    sim, board = reports["sim"], reports["fpga"]
    for name in ("outputs", "cycles", "stalls", "utilisation", "macs"):
        assert board[name] == sim[name], name


def test_a_port_belongs_to_a_board(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(ROOT / "examples" / "models" / "digits_int8.onnx")
    assert run_app(["run", model, "--target", "fpga"]) == 2
    assert "port: expected the serial port of a board" in capsys.readouterr().err
