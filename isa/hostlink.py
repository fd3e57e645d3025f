"""Frames between a host and a board, written once for the driver and the hardware.

A request is ``SYNC_REQUEST``, a header (``<BBIH``: command, sequence number, address, words), for a
write its words, and the CRC-32 of everything after the first byte. A word has 8 bytes, and numbers
are little-endian. The answer is ``SYNC_ANSWER``, a header (``<BBH``: answer code, the request's
sequence number, words), for a read its words, and its CRC-32. A register is a word whose upper half
is ignored or zero; consecutive words are consecutive registers.

Flow control is one request at a time: the host sends the next when the answer has come. A damaged
request is refused and changes nothing; one that ends early is forgotten after ``SILENCE_BYTES``
byte times. Every request may be repeated, so a host that hears nothing repeats it.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum

SYNC_REQUEST, SYNC_ANSWER = 0xA5, 0x5A
REQUEST_HEADER, ANSWER_HEADER = struct.Struct("<BBIH"), struct.Struct("<BBH")
WORD_BYTES = 8
CRC_BYTES = 4
#: Words of a frame, at most.
MAX_WORDS = 128
#: An unfinished request is forgotten after this many byte times without a byte.
SILENCE_BYTES = 16


class Command(IntEnum):
    """What a request asks for."""

    READ_MEMORY = 1
    WRITE_MEMORY = 2
    READ_REGISTERS = 3
    WRITE_REGISTERS = 4


class Answer(IntEnum):
    """How the board answers a request."""

    OK = 0
    BAD_CRC = 1
    BAD_REQUEST = 2
    BAD_ADDRESS = 3


def frame(sync: int, body: bytes) -> bytes:
    """A whole frame of a header and its words."""
    return bytes([sync]) + body + zlib.crc32(body).to_bytes(CRC_BYTES, "little")
