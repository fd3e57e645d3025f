"""Runs programs on a board at a serial line, through the same interface as the simulators.

Frames are those of ``isa/hostlink.py``. A frame that was damaged or lost on the way is repeated. A
board that stays silent, or a line that was unplugged, gives one clear error.
"""

from __future__ import annotations

import os
import select
import termios
import time
import tty
import zlib
from pathlib import Path

import numpy as np

from ..isa.errors import VdlaError
from ..isa.footprint import dram_rows
from ..isa.hostlink import (
    ANSWER_HEADER,
    CRC_BYTES,
    MAX_WORDS,
    REQUEST_HEADER,
    SYNC_ANSWER,
    SYNC_REQUEST,
    WORD_BYTES,
    Answer,
    Command,
    frame,
)
from ..isa.insn import Store
from ..isa.memory import MemoryParams
from ..isa.program import Program
from ..isa.regmap import CONTROL_RESET, CONTROL_START, OFFSETS, REGISTERS, read_causes
from ..isa.status import Status
from .result import NO_CAUSES, SimResult

BAUD = 1_000_000
#: Seconds without a byte after which the host stops waiting for an answer.
SILENCE_S = 0.5
TRIES = 5
#: Seconds after which a program that has not ended counts as hung.
PATIENCE_S = 600.0


class _LostFrame(Exception):
    """An answer did not arrive, or not completely; the request is to be repeated."""


class Link:
    """Memory and registers of a board.

    Parameters
    ----------
    port : path of the serial device
    silence_s : seconds without a byte after which a request is repeated

    Attributes
    ----------
    repeated : frames that had to be sent again
    """

    def __init__(self, port: str | Path, silence_s: float = SILENCE_S):
        self.port, self.silence_s = str(port), silence_s
        self.repeated = 0
        self._sequence = 0
        try:
            self._file = os.open(self.port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError as error:
            raise VdlaError(
                f"{self.port}: expected a serial port with a board, {error.strerror}"
            ) from None
        try:
            tty.setraw(self._file)
            settings = termios.tcgetattr(self._file)
            settings[4] = settings[5] = getattr(termios, f"B{BAUD}")
            termios.tcsetattr(self._file, termios.TCSANOW, settings)
        except termios.error as error:
            os.close(self._file)
            raise VdlaError(f"{self.port}: expected a serial port, {error.args[-1]}") from None

    def close(self) -> None:
        """Close the port."""
        os.close(self._file)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- memory and registers ----

    def write_memory(self, address: int, data: bytes) -> None:
        """Write whole words."""
        step = MAX_WORDS * WORD_BYTES
        for at in range(0, len(data), step):
            self._request(Command.WRITE_MEMORY, address + at, payload=data[at : at + step])

    def read_memory(self, address: int, size: int) -> bytes:
        """Read whole words."""
        step = MAX_WORDS * WORD_BYTES
        return b"".join(
            self._request(Command.READ_MEMORY, address + at, min(step, size - at) // WORD_BYTES)
            for at in range(0, size, step)
        )

    def write_register(self, name: str, value: int) -> None:
        """Write one register."""
        payload = value.to_bytes(WORD_BYTES, "little")
        self._request(Command.WRITE_REGISTERS, OFFSETS[name], payload=payload)

    def read_registers(self) -> dict[str, int]:
        """All registers, by name."""
        data = self._request(Command.READ_REGISTERS, REGISTERS[0].offset, len(REGISTERS))
        values = np.frombuffer(data, "<u8")
        return {r.name: int(value) for r, value in zip(REGISTERS, values, strict=True)}

    def read_register(self, name: str) -> int:
        """Read one register."""
        return int.from_bytes(self._request(Command.READ_REGISTERS, OFFSETS[name], 1), "little")

    # ---- frames ----

    def _request(
        self, command: Command, address: int, words: int = 0, payload: bytes = b""
    ) -> bytes:
        """Send a request until a whole answer has come; return the words of the answer."""
        words = words or len(payload) // WORD_BYTES
        why = ""
        for attempt in range(TRIES):
            self.repeated += attempt > 0
            self._sequence = (self._sequence + 1) % 256
            header = REQUEST_HEADER.pack(command, self._sequence, address, words)
            try:
                self._send(frame(SYNC_REQUEST, header + payload))
                answer, data = self._receive()
            except _LostFrame as error:
                why = str(error)
                continue
            match answer:
                case Answer.OK:
                    return data
                case Answer.BAD_CRC:
                    why = "the board got a damaged frame"
                case Answer.BAD_ADDRESS:
                    raise VdlaError(
                        f"{self.port}: the board has no memory at 0x{address:x} ({words} words); "
                        "the program needs more than this board has"
                    )
                case _:
                    why = f"the board answered {answer.name}"
        what = command.name.lower().replace("_", " ")
        raise VdlaError(
            f"{self.port}: expected an answer to '{what}' from the board, tried {TRIES} times: "
            f"{why}; is it connected and programmed?"
        )

    def _send(self, data: bytes) -> None:
        try:
            termios.tcflush(self._file, termios.TCIFLUSH)  # drop late answers to earlier requests
            while data:
                if not select.select([], [self._file], [], self.silence_s)[1]:
                    raise _LostFrame("the line takes no bytes")
                data = data[os.write(self._file, data) :]
        except (OSError, termios.error) as error:
            raise VdlaError(f"{self.port}: the board was unplugged ({error.args[-1]})") from None

    def _receive(self) -> tuple[Answer, bytes]:
        while self._read(1)[0] != SYNC_ANSWER:
            pass
        header = self._read(ANSWER_HEADER.size)
        code, sequence, words = ANSWER_HEADER.unpack(header)
        if words > MAX_WORDS:
            raise _LostFrame("a damaged answer came")
        data = self._read(words * WORD_BYTES)
        crc = int.from_bytes(self._read(CRC_BYTES), "little")
        if crc != zlib.crc32(header + data) or code not in list(Answer):
            raise _LostFrame("a damaged answer came")
        if sequence != self._sequence and code != Answer.BAD_CRC:
            raise _LostFrame("an answer to another request came")
        return Answer(code), data

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            if not select.select([self._file], [], [], self.silence_s)[0]:
                raise _LostFrame(f"no answer within {self.silence_s} s")
            try:
                piece = os.read(self._file, count - len(data))
            except OSError as error:
                raise VdlaError(
                    f"{self.port}: the board was unplugged ({error.strerror})"
                ) from None
            if not piece:
                raise VdlaError(f"{self.port}: the board was unplugged (end of file)")
            data += piece
        return data


class Board:
    """Runs programs on a board.

    Parameters
    ----------
    link : to the board
    """

    def __init__(self, link: Link):
        self.link = link
        self._known = np.zeros(0, np.uint8)  # what the board's memory holds

    def run(self, program: Program, dram: np.ndarray, memory: MemoryParams) -> SimResult:
        """Run a program; ``dram`` (uint8, contiguous) is changed in place.

        Raises VdlaError when the board holds another configuration, is too small, or is lost.
        """
        memory.check_bus(program.params)
        started = time.perf_counter()
        link = self.link
        have, want = link.read_register("config_hash"), program.params.hash
        if have != int(want, 16):
            raise VdlaError(
                f"{link.port}: expected a board with configuration {want}, got {have:08x}; build a "
                "bitstream with --hw or compile for the board's configuration"
            )
        link.write_register("control", CONTROL_RESET)
        self._load(dram)
        link.write_register("program_hash", int(want, 16))
        link.write_register("program_addr", program.program_addr)
        link.write_register("insn_count", len(program.insns))
        held, self._known = self._known, np.zeros(0, np.uint8)  # unknown until the results are here
        link.write_register("control", CONTROL_START)
        self._wait()
        registers = link.read_registers()
        low, high = _stored(program)
        high = min(high, held.size)
        held[low:high] = np.frombuffer(link.read_memory(low, high - low), np.uint8)
        dram[...] = held[: dram.size]
        self._known = held
        return _result(registers, time.perf_counter() - started)

    def _load(self, dram: np.ndarray) -> None:
        """Send what the board's memory does not hold yet."""
        image = np.pad(dram, (0, -dram.size % WORD_BYTES))
        step = MAX_WORDS * WORD_BYTES
        for at in range(0, image.size, step):
            piece = image[at : at + step]
            if not np.array_equal(piece, self._known[at : at + step]):
                self.link.write_memory(at, piece.tobytes())
        self._known = image

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.link.read_register("status") in (Status.RUNNING, Status.IDLE):
            if time.monotonic() > deadline:
                raise VdlaError(
                    f"{self.link.port}: the program has not ended after {PATIENCE_S:.0f} s"
                )


def _stored(program: Program) -> tuple[int, int]:
    """The bytes that a program may write, in whole words: the first, and one after the last."""
    stores = [i for i in program.insns if isinstance(i, Store) and i.entries]
    if not stores:
        return 0, 0
    rows = [dram_rows(insn) for insn in stores]
    entry = program.params.entry_bytes("out")
    low = min(int(addresses.min()) for addresses in rows)
    high = max(
        int(addresses.max()) + insn.x_size * entry
        for insn, addresses in zip(stores, rows, strict=True)
    )
    return low // WORD_BYTES * WORD_BYTES, -(-high // WORD_BYTES) * WORD_BYTES


def _result(registers: dict[str, int], wall_s: float) -> SimResult:
    """The result as the board's registers give it; a board records no trace."""
    status = Status(registers["status"])
    return SimResult(
        status=status,
        error_index=registers["error_index"] if status.is_error else None,
        cycles=registers["cycles"],
        starts=[],
        ends=[],
        counters=read_causes(registers.__getitem__),
        causes=NO_CAUSES,
        scratchpads={},
        report="",
        wall_s=wall_s,
    )


def run_on_board(port: str, program: Program, dram: np.ndarray, memory: MemoryParams) -> SimResult:
    """Open the port, run one program, close the port."""
    with Link(port) as link:
        return Board(link).run(program, dram, memory)
