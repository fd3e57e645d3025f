"""What the ports of units and scratchpads carry, as integers."""

from __future__ import annotations

from ..hw.core.scratchpad import rows
from ..isa.insn import Insn, encode
from ..isa.params import HwParams
from ..isa.reference import State


def insn_word(insn: Insn, params: HwParams) -> int:
    """The encoded instruction as one integer."""
    return int.from_bytes(encode(insn, params), "little")


def queued_word(insn: Insn, index: int, params: HwParams) -> int:
    """What a unit's instruction queue holds: the instruction and its index in the program."""
    return insn_word(insn, params) | index << (8 * params.insn_bytes)


def stored_words(state: State, name: str) -> list[int]:
    """Contents of a scratchpad of the reference as the words that the RTL holds, row by row."""
    depth, bits = rows(name, state.params)
    entries = state.scratchpads()[name]
    if depth > len(entries):  # a row for every pass
        entries = entries.reshape(len(entries), -1, depth // len(entries), 4).swapaxes(1, 2)
    mask = (1 << bits) - 1
    return [int.from_bytes(row.tobytes(), "little") & mask for row in entries.reshape(depth, -1)]
