"""Status codes of the core, as its status register, the simulators and the reports name them."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Where a core stands; everything above DONE has stopped it, with the index of the instruction."""

    #: Nothing was started since reset.
    IDLE = 0
    #: Instructions are being fetched or executed.
    RUNNING = 1
    #: Every instruction has ended.
    DONE = 2
    #: The program was built for a configuration with another hash.
    BAD_CONFIG = 3
    #: An instruction does not decode: opcode, code of a name, zero extent, or a token to its own unit.
    ILLEGAL = 4
    #: A scratchpad index is out of range.
    ADDRESS = 5
    #: The memory answered a burst with an error (an address beyond DRAM).
    BUS = 6
    #: A token counter would exceed ``2**token_bits - 1``.
    TOKEN_OVERFLOW = 7
    #: Units wait for tokens that no instruction will push.
    DEADLOCK = 8

    @property
    def is_error(self) -> bool:
        """Whether the core stopped before the end of its program."""
        return self > Status.DONE
