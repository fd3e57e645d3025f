"""Status codes of the core, as its status register, the simulators and the reports name them."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The state of a core. Every code above DONE is an error that stopped it. ``doc`` explains the
    code."""

    doc: str

    def __new__(cls, code: int, doc: str) -> Status:
        """A member with its description."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.doc = doc
        return member

    IDLE = 0, "nothing was started since reset"
    RUNNING = 1, "instructions are being fetched or executed"
    DONE = 2, "every instruction has ended"
    BAD_CONFIG = 3, "the program was built for a configuration with another hash"
    ILLEGAL = 4, "undecodable opcode or code, zero extent, or a token to the unit itself"
    ADDRESS = 5, "a scratchpad index is out of range"
    BUS = 6, "the memory answered a burst with an error (an address beyond DRAM)"
    TOKEN_OVERFLOW = 7, "a token counter would exceed 2**token_bits - 1"
    DEADLOCK = 8, "units wait for tokens that no instruction will push"

    @property
    def is_error(self) -> bool:
        """Whether the core stopped before the end of its program."""
        return self > Status.DONE
