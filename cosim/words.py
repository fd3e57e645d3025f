"""What the ports of units and scratchpads carry, as integers."""

from __future__ import annotations

import numpy as np

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
    return entry_words(state.scratchpads()[name], name, state.params)


def entry_words(entries: np.ndarray, name: str, params: HwParams) -> list[int]:
    """Entries of a scratchpad (uint8 [n, bytes of an entry]) as words of its rows: of tmp as many
    for each entry as an iteration of the vector unit has passes, of the others one.
    """
    depth, bits = rows(name, params)
    passes = depth // params.depth(name)
    if passes > 1:
        entries = entries.reshape(len(entries), -1, passes, 4).swapaxes(1, 2)
    mask = (1 << bits) - 1
    words = np.ascontiguousarray(entries).reshape(len(entries) * passes, -1)
    return [int.from_bytes(word.tobytes(), "little") & mask for word in words]


def differing_element(expected: int, got: int, dtype: np.dtype) -> tuple[int, int, int]:
    """The first element in which two words of rows differ: its index, and both values."""
    bits = 8 * dtype.itemsize
    differs = expected ^ got
    index = ((differs & -differs).bit_length() - 1) // bits
    words = (word >> bits * index & (1 << bits) - 1 for word in (expected, got))
    its = [int(np.frombuffer(w.to_bytes(dtype.itemsize, "little"), dtype)[0]) for w in words]
    return index, its[0], its[1]
