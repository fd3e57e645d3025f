"""Recordings as files, and what the traffic in them means; no simulator runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from vdla.cli import run_app
from vdla.cosim import Recording
from vdla.cosim.recording import Instruction, Run, Track
from vdla.cosim.traffic import Traffic
from vdla.isa.errors import VdlaError

from .configs import NARROW

INDEX = 8 * NARROW.insn_bytes


def recording(**changes: list[tuple[int, int]]) -> Recording:
    """Ten cycles of a tensor core: instruction 3 from cycle 1 to 5, instruction 7 from 4 to 8."""
    tracks = {
        "rst": [(0, 1), (1, 0)],
        "unit__insn__payload": [(0, 3 << INDEX), (2, 7 << INDEX)],
        "unit__insn__valid": [(0, 1), (5, 0)],
        "unit__start": [(0, 0), (1, 1), (2, 0), (4, 1), (5, 0)],
        "unit__end": [(0, 0), (5, 1), (6, 0), (8, 1), (9, 0)],
        "inp__addr": [(0, 0), (2, 9), (3, 4), (6, 9)],
        "inp__data": [(0, 1), (3, 50), (4, 60), (7, 51)],
        "acc_write__en": [(0, 0), (3, 1), (5, 0)],
        "acc_write__addr": [(0, 2), (4, 3)],
        "acc_write__data": [(0, 0), (4, 1 << 100)],
    } | changes
    outputs = ("unit__start", "unit__end", "inp__addr", "acc_write")
    bits = {"acc_write__data": 128, "unit__insn__payload": INDEX + 24, "acc_write__en": 1}
    made = {
        name: Track.of("output" if name.startswith(outputs) else "input", bits.get(name, 8), values)
        for name, values in tracks.items()
    }
    insns = [Instruction("gemm", f"gemm {i}", "conv", "main") for i in range(8)]
    return Recording(NARROW, "gemm", made, [Run(0, 10, 1, insns)], "net.onnx")


def test_a_file_holds_everything(tmp_path: Path) -> None:
    made = Recording.join([recording(), recording()])
    made.save(tmp_path / "a.rec")
    read = Recording.load(tmp_path / "a.rec")
    assert (read.params, read.block, read.source) == (NARROW, "gemm", "net.onnx")
    assert read.runs == made.runs and read.runs[1].zero == 11 and read.samples == 20
    assert read.tracks.keys() == made.tracks.keys()
    for name, track in made.tracks.items():
        other = read.tracks[name]
        assert (other.direction, other.bits) == (track.direction, track.bits)
        assert np.array_equal(other.times, track.times) and other.numbers == track.numbers
    assert read.tracks["acc_write__data"].at(np.array([3, 4, 13, 19])) == [0, 1 << 100, 0, 1 << 100]


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path: Path) -> None:
    data = path.read_bytes()
    third = len(data) // 3
    path.write_bytes(data[:third] + bytes(200) + data[third + 200 :])


def foreign(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.zeros(3))


def text(path: Path) -> None:
    path.write_text("a text")


@pytest.mark.parametrize("harm", [truncated, damaged, foreign, text])
def test_what_is_no_whole_recording(
    harm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.rec"
    recording().save(path)
    harm(path)
    assert run_app(["cosim", "--replay", str(path)]) == 2
    said = capsys.readouterr().err
    assert "a.rec: expected a whole file of vdla cosim --record" in said and said.count("\n") == 1


def test_items_and_their_instructions() -> None:
    traffic = Traffic(recording(), recording().runs[0])
    assert traffic.indices == [3, 7] and traffic.starts == [1, 4] and traffic.ends == [5, 8]
    writes = traffic.writes("acc_write")
    assert [(item.sample, item.value) for item in writes] == [
        (3, (1, 2, 0)), (4, (1, 3, 1 << 100)),
    ]  # fmt: skip
    # Until it has ended, the older one is named; the head of the queue, by what takes it.
    assert [traffic.instruction("acc_write__data", s) for s in (1, 4, 5, 6, 9)] == [3, 3, 3, 7, 7]
    assert traffic.instruction("unit__start", 2) == 7
    found = traffic.diverged("unit__end", "port unit__end", "0x1", "0x0", 5).divergence
    assert (found.cycle, found.instruction, found.layer, found.unit) == (4, 3, "conv", "gemm")


def test_what_a_read_port_shows_depends_on_the_instruction() -> None:
    """Address 9 holds 50 for the first instruction, and 51 for the second."""
    traffic = Traffic(recording(), recording().runs[0])
    assert traffic.observed("inp", 9, [0]) == 50 and traffic.observed("inp", 9, [1]) == 51
    assert traffic.observed("inp", 4, [0]) == 60 and traffic.observed("inp", 8, [0, 1]) is None


@pytest.mark.parametrize("options, message", [
    ([], "cosim: expected a model or a program, or --replay with a recording"),
    (["a.onnx", "--untimed"], "untimed: expected --replay with a recording"),
    (["a.onnx", "--record", "gemm"], "record: expected BLOCK=FILE, got 'gemm'"),
    (["a.onnx", "--record", "alu=a.rec"], "record: expected a block of fetch, load, gemm"),
    (["--replay", "none.rec"], "replay: expected a file that can be read, got none.rec"),
    (["a.onnx", "--replay", "a.rec"], "replay: expected no model or program besides a.rec"),
    (["--replay", "a.rec", "--until", "5"], "replay: expected no --until with it"),
])  # fmt: skip
def test_mistakes_are_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("a.onnx").touch()
    Path("a.rec").touch()
    assert run_app(["cosim", *options]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_a_recording_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vdla.cosim.recording.VERSION", 0)
    recording().save(tmp_path / "a.rec")
    monkeypatch.undo()
    with pytest.raises(VdlaError, match="expected vdla recording 1, got vdla recording 0"):
        Recording.load(tmp_path / "a.rec")
