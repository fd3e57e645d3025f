"""Programs: instructions, the constant part of DRAM, and what a runtime must know to feed inputs
and read outputs; and the file format of programs.

A file is a fixed header (magic, format version, sizes, SHA-256 of all that follows), a JSON part
(configuration and its hash, addresses, meta) and the raw bytes of instructions and DRAM segments::

    offset  bytes  content
    0       8      magic "VDLAPROG"
    8       4      format version, little-endian
    12      4      bytes of the JSON part, little-endian
    16      8      bytes of instructions and segments, little-endian
    24      32     SHA-256 of the JSON part and everything behind it
    56      ...    JSON, instructions, segments in the order of their addresses
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .encoding import DRAM_ADDR_BITS, decode_fields
from .errors import VdlaError
from .insn import Insn, decode, encode
from .insn_table import InsnTable, decode_all, encode_all
from .notes import Note, unpack_notes
from .params import HwParams

MAGIC = b"VDLAPROG"
FORMAT_VERSION = 1
#: As many instructions are faster encoded and decoded in batches than one by one.
MANY = 200
#: Programs start on a page, so that no fetch burst crosses a 4 KiB boundary.
PROGRAM_ALIGN_BYTES = 4096
#: The bytes that a DRAM address can reach.
MAX_DRAM_BYTES = 1 << DRAM_ADDR_BITS

_HEADER = struct.Struct("<8sIIQ32s")


@dataclass(frozen=True)
class Program:
    """One stream of instructions for one configuration, with its constants.

    Parameters
    ----------
    params : HwParams
        The configuration that the instructions are encoded for; its hash travels with the program.
    insns : tuple of Insn
        In program order.
    image : dict of int to bytes
        Constant DRAM segments by byte address (weights, micro-ops, parameters); they do not
        overlap.
    meta : dict
        JSON-ready. Known keys, all optional: ``dram_bytes`` (int, size of DRAM),
        ``inputs`` and ``outputs`` (lists of ``{name, address, bytes, shape, layout, ...}``: where
        the host puts and finds tensors), ``layers`` (list of ``{name, op, runs, macs, bytes}``:
        ``runs`` are its instructions, first and last index, both inclusive, of every unbroken run),
        ``names`` (what instructions and constants are for, ``notes.py``). Other keys are kept as
        they are.
    program_addr : int
        Byte address of the first encoded instruction, a multiple of 4096.

    Raises
    ------
    VdlaError
        For an unaligned ``program_addr``, overlapping segments, anything beyond ``dram_bytes`` or
        meta that JSON cannot hold.
    """

    params: HwParams
    insns: tuple[Insn, ...]
    image: dict[int, bytes] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    program_addr: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "insns", tuple(self.insns))
        segments = {int(addr): bytes(self.image[addr]) for addr in sorted(self.image)}
        object.__setattr__(self, "image", segments)
        object.__setattr__(self, "meta", _json_ready(self.meta))
        if self.program_addr < 0 or self.program_addr % PROGRAM_ALIGN_BYTES:
            raise VdlaError(
                f"program_addr: expected a multiple of {PROGRAM_ALIGN_BYTES}, "
                f"got {self.program_addr}"
            )
        _check_meta(self.meta)
        _check_names(self.meta.get("names"), len(self.insns))
        self._check_spans()

    def _check_spans(self) -> None:
        spans = [(addr, addr + len(data), "image segment") for addr, data in self.image.items()]
        spans.append((self.program_addr, self.program_end, "instructions"))
        spans.sort()
        for (start, end, what), (next_start, _, next_what) in pairwise(spans):
            if end > next_start:
                raise VdlaError(
                    f"program: {what} at {start:#x}..{end:#x} overlaps {next_what} at "
                    f"{next_start:#x}; move one of them"
                )
        for region in (*self.meta.get("inputs", ()), *self.meta.get("outputs", ())):
            start = region["address"]
            spans.append((start, start + region["bytes"], f"region {region['name']!r}"))
        for start, end, what in spans:
            if start < 0 or end > self.dram_bytes:
                raise VdlaError(
                    f"program: {what} at {start:#x}..{end:#x} lies outside DRAM of "
                    f"{self.dram_bytes:#x} bytes; raise meta['dram_bytes']"
                )

    @property
    def program_end(self) -> int:
        """Byte address behind the last encoded instruction."""
        return self.program_addr + len(self.insns) * self.params.insn_bytes

    @property
    def dram_bytes(self) -> int:
        """Size of DRAM: ``meta['dram_bytes']``, or else all that the program itself occupies,
        rounded up to 4096.
        """
        declared = self.meta.get("dram_bytes")
        if declared is not None:
            if type(declared) is not int or not 0 < declared <= MAX_DRAM_BYTES:
                raise VdlaError(f"dram_bytes: expected 1..{MAX_DRAM_BYTES}, got {declared!r}")
            return declared
        ends = [addr + len(data) for addr, data in self.image.items()]
        for region in (*self.meta.get("inputs", ()), *self.meta.get("outputs", ())):
            ends.append(region["address"] + region["bytes"])
        return -(-max([self.program_end, 1, *ends]) // PROGRAM_ALIGN_BYTES) * PROGRAM_ALIGN_BYTES

    @cached_property
    def notes(self) -> list[Note]:
        """What every instruction is for; empty where the program does not say."""
        return unpack_notes(self.meta["names"]) if "names" in self.meta else []

    def where(self, index: int) -> str:
        """An instruction, for messages: its index, and what it is for."""
        what = f" ({self.notes[index]})" if self.notes else ""
        return f"instruction {index}{what}"

    @cached_property
    def _encoded(self) -> bytes:
        many = encode_all(self.insns, self.params) if len(self.insns) >= MANY else None
        if many is not None:
            return many
        chunks = []
        for index, insn in enumerate(self.insns):
            try:
                chunks.append(encode(insn, self.params))
            except VdlaError as error:
                raise VdlaError(f"instruction {index}: {error}") from None
        return b"".join(chunks)

    @cached_property
    def table(self) -> InsnTable:
        """The instructions as rows of numbers."""
        return InsnTable(
            self.params, decode_fields(self.encoded(), self.params.insn_bytes, self.params)
        )

    def encoded(self) -> bytes:
        """All instructions as the core fetches them, ``params.insn_bytes`` each."""
        return self._encoded

    def dram_image(self) -> np.ndarray:
        """DRAM before the run: uint8 [dram_bytes], constants and instructions in place, else 0."""
        dram = np.zeros(self.dram_bytes, np.uint8)
        for addr, data in (*self.image.items(), (self.program_addr, self.encoded())):
            dram[addr : addr + len(data)] = np.frombuffer(data, np.uint8)
        return dram

    def check_params(self, params: HwParams) -> None:
        """Raise VdlaError unless ``params`` is the configuration that the program was built for."""
        if params.hash != self.params.hash:
            raise VdlaError(
                f"program: built for configuration {self.params.hash}, this core is {params.hash}; "
                "compile it again with this core's --hw"
            )

    def save(self, path: str | Path) -> None:
        """Write the file format that :meth:`load` reads; equal programs give equal bytes."""
        Path(path).write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """The content of a program file."""
        head = {
            "hash": self.params.hash,
            "params": self.params.to_dict(),
            "program_addr": self.program_addr,
            "insns": len(self.insns),
            "segments": [[addr, len(data)] for addr, data in self.image.items()],
            "meta": self.meta,
        }
        text = json.dumps(head, sort_keys=True, separators=(",", ":")).encode()
        raw = self.encoded() + b"".join(self.image.values())
        digest = hashlib.sha256(text + raw).digest()
        header = _HEADER.pack(MAGIC, FORMAT_VERSION, len(text), len(raw), digest)
        return header + text + raw

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """Read a program file.

        Raises
        ------
        VdlaError
            Unless the file is a whole, unchanged program file of this version, its configuration is
            legal and gives the hash it claims, and every instruction decodes.
        """
        return cls.from_bytes(Path(path).read_bytes(), path)

    @classmethod
    def from_bytes(cls, data: bytes, path: str | Path) -> Program:
        """A program from the content of its file; ``path`` is for messages, errors as
        :meth:`load`.
        """
        text, raw = _read_parts(data, path)
        try:
            head = json.loads(text)
            params = HwParams.from_dict(head["params"], where=f"{path}: params")
            _check_hash(path, head["hash"], params)
            size = params.insn_bytes
            insns = _decode_all(path, raw[: head["insns"] * size], params)
            image, offset = {}, head["insns"] * size
            for addr, length in head["segments"]:
                image[addr] = raw[offset : offset + length]
                offset += length
            if offset != len(raw):
                raise VdlaError(f"{path}: expected {offset} bytes of content, got {len(raw)}")
            return cls(params, insns, image, head["meta"], head["program_addr"])
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise VdlaError(f"{path}: malformed program file, {error!r}") from None


def _json_ready(meta: dict[str, Any]) -> dict[str, Any]:
    """Tuples become lists, so that a program equals itself after saving and loading."""
    try:
        return json.loads(json.dumps(meta))
    except (TypeError, ValueError) as error:
        raise VdlaError(f"program meta: expected JSON-ready values, {error}") from None


#: Fields that entries of these meta lists must have, with their types; more are kept.
_META_LISTS: dict[str, dict[str, type]] = {
    "inputs": {"name": str, "address": int, "bytes": int},
    "outputs": {"name": str, "address": int, "bytes": int},
    "layers": {"name": str, "op": str, "runs": list},
}


def _check_meta(meta: dict[str, Any]) -> None:
    """Raise VdlaError unless the lists that others rely on have the fields they need."""
    for key, spec in _META_LISTS.items():
        entries = meta.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise VdlaError(f"program meta {key}: expected a list of objects, got {entries!r}")
        for index, entry in enumerate(entries):
            for name, kind in spec.items():
                if not isinstance(entry.get(name), kind):
                    raise VdlaError(
                        f"program meta {key}[{index}].{name}: expected {kind.__name__}, "
                        f"got {entry.get(name)!r}"
                    )


def _check_names(names: Any, insns: int) -> None:
    """Raise VdlaError unless the names, if there are any, are well formed. A program that was cut
    short has more notes than instructions.
    """
    if names is None:
        return
    try:
        notes = [tuple(note) for note in names["notes"]]
        constants = [(c["name"], c["address"], c["bytes"]) for c in names["constants"]]
        whole = len(names["insns"]) >= insns and all(0 <= i < len(notes) for i in names["insns"])
        words = all(len(n) == 3 and all(isinstance(word, str) for word in n) for n in notes)
        sized = all(isinstance(n, str) and type(a) is type(b) is int for n, a, b in constants)
    except (KeyError, TypeError) as error:
        raise VdlaError(f"program meta names: malformed ({error!r})") from None
    if not (whole and words and sized):
        raise VdlaError(
            f"program meta names: expected a note for each of {insns} instructions, and named"
            " constants"
        )


def _read_parts(data: bytes, path: str | Path) -> tuple[bytes, bytes]:
    """The JSON part and the raw part of a file that is whole and unchanged."""
    if data[: len(MAGIC)] != MAGIC:
        raise VdlaError(f"{path}: not a VDLA program, starts with {data[: len(MAGIC)]!r}")
    if len(data) < _HEADER.size:
        raise VdlaError(f"{path}: truncated, {len(data)} bytes are less than a header")
    _, version, text_bytes, raw_bytes, digest = _HEADER.unpack_from(data)
    if version != FORMAT_VERSION:
        raise VdlaError(
            f"{path}: expected format version {FORMAT_VERSION}, got {version}; compile it again"
        )
    expected = _HEADER.size + text_bytes + raw_bytes
    if len(data) != expected:
        what = "truncated" if len(data) < expected else "bytes behind the end"
        raise VdlaError(f"{path}: {what}, expected {expected} bytes, got {len(data)}")
    body = data[_HEADER.size :]
    if hashlib.sha256(body).digest() != digest:
        raise VdlaError(f"{path}: corrupt, its content does not match its checksum")
    return body[:text_bytes], body[text_bytes:]


def _check_hash(path: str | Path, claimed: str, params: HwParams) -> None:
    if params.hash != claimed:
        raise VdlaError(
            f"{path}: claims configuration {claimed}, its knobs give {params.hash}; it was changed "
            "or built for another version of the instruction set, compile it again"
        )


def _decode_all(path: str | Path, raw: bytes, params: HwParams) -> tuple[Insn, ...]:
    size, insns = params.insn_bytes, []
    whole = raw[: len(raw) // size * size]
    many = decode_all(whole, params) if len(raw) >= MANY * size else None
    if many is not None:
        return tuple(many)
    for index in range(len(raw) // size):
        try:
            insns.append(decode(raw[index * size : (index + 1) * size], params))
        except VdlaError as error:
            raise VdlaError(f"{path}: instruction {index}: {error}") from None
    return tuple(insns)
