"""Assembly text: one instruction a line, exact in both directions.

::

    .config {"block_in": 16, ...}      ; knobs that differ from the defaults
    .program 0x1000                    ; where the instructions lie
    .meta {"dram_bytes": 65536}        ; verbatim JSON to the end of the line
    .data 0x0                          ; a DRAM segment: hexadecimal bytes and micro-ops follow
    .hex 00112233
    .uop acc=0 inp=0 wgt=0 first=1
    load memory=inp base=0 dram_addr=0x2000 x_size=9 push=gemm   ; comment
    gemm uop_begin=0 uop_count=9 outer=4 inner=8 init=1 pop=load push=vector,store

Fields have the names of the instruction classes in ``insn.py``; a field at its default is left out.
Numbers are decimal or hexadecimal, tuples and token masks are separated by commas.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any

from .errors import VdlaError
from .insn import CLASSES, Insn, Load, Uop, decode_uop, encode_uop, validate
from .opcodes import Opcode, Units
from .params import DEFAULT, PRESETS, HwParams
from .program import Program

_HEX_BYTES_A_LINE = 32
_MNEMONICS = {opcode.name.lower(): CLASSES[opcode] for opcode in Opcode}
_UNIT_NAMES = {(unit.name or "").lower(): unit for unit in Units if unit}


def format_insn(insn: Insn) -> str:
    """One instruction as a line of text, fields at their defaults left out, tokens last."""
    spec = sorted(fields(insn), key=lambda f: f.name in ("pop", "push"))
    return _format(insn.opcode.name.lower(), insn, spec)


def parse_insn(text: str) -> Insn:
    """The inverse of :func:`format_insn`; comments are ignored, ranges are not checked.

    Raises
    ------
    VdlaError
        For an unknown mnemonic or field, a field missing or given twice, or a malformed value.
    """
    words = text.partition(";")[0].split()
    mnemonic = words[0] if words else ""
    if mnemonic not in _MNEMONICS:
        raise VdlaError(f"expected one of {', '.join(_MNEMONICS)}, got {mnemonic!r}")
    return _parse(mnemonic, _MNEMONICS[mnemonic], words[1:])


def disassemble(program: Program) -> str:
    """A whole program as text that :func:`assemble` turns into an equal program."""
    params = program.params
    knobs = {name: v for name, v in params.to_dict().items() if v != getattr(HwParams(), name)}
    lines = [
        f"; configuration {params.hash}, {len(program.insns)} instructions",
        f".config {json.dumps(knobs)}",
        f".program {program.program_addr:#x}",
    ]
    if program.meta:
        lines.append(f".meta {json.dumps(program.meta, sort_keys=True)}")
    uops = _uop_addresses(program)
    constants = program.meta.get("names", {}).get("constants", ())
    names = {constant["address"]: constant["name"] for constant in constants}
    for addr, data in program.image.items():
        lines.append(f".data {addr:#x}{_comment(names.get(addr))}")
        lines += _format_segment(addr, data, uops, params)
    spans = {run[0]: layer for layer in program.meta.get("layers", ()) for run in layer["runs"]}
    for index, insn in enumerate(program.insns):
        if (layer := spans.get(index)) is not None:
            lines.append(f"; {index}: {layer['name']} ({layer['op']})")
        note = program.notes[index] if program.notes else None
        lines.append(format_insn(insn) + _comment(note))
    return "\n".join(lines) + "\n"


def _comment(what: object | None) -> str:
    return "" if what is None else f"  ; {' '.join(str(what).split())}"


def assemble(text: str, params: HwParams | None = None) -> Program:
    """Text to a program whose instructions are all legal.

    Parameters
    ----------
    text : str
        See the module's docstring.
    params : HwParams, optional
        The configuration; where the text has a ``.config`` it must be the same. Without both, the
        default configuration.

    Raises
    ------
    VdlaError
        With the line number, what was expected and what came.
    """
    draft = _Draft(params)
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            draft.add(line.strip())
        except VdlaError as error:
            raise VdlaError(f"line {number}: {error}") from None
    return draft.finish()


@dataclass
class _Draft:
    """A program while its lines are read."""

    params: HwParams | None
    insns: list[Insn] = field(default_factory=list)
    segments: dict[int, bytearray] = field(default_factory=dict)
    open_segment: bytearray | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    program_addr: int = 0

    def add(self, line: str) -> None:
        """One line."""
        word, _, rest = line.partition(" ")
        match word:
            case ".config":
                self._configure(_json_object(word, rest))
            case ".meta":
                self.meta = _json_object(word, rest)
            case ".program":
                self.program_addr = _integer(word, _code(rest))
            case ".data":
                self._open(_integer(word, _code(rest)))
            case ".hex":
                self._segment(word).extend(_hex_bytes(_code(rest)))
            case ".uop":
                uop = _parse(word, Uop, _code(rest).split())
                self._segment(word).extend(encode_uop(uop, self._params))
            case _ if _code(line):
                insn = parse_insn(line)
                validate(insn, self._params)
                self.insns.append(insn)

    @property
    def _params(self) -> HwParams:
        """The configuration; from its first use on the default one, if none was given before."""
        if self.params is None:
            self.params = PRESETS[DEFAULT]
        return self.params

    def _configure(self, knobs: dict[str, Any]) -> None:
        params = HwParams.from_dict(knobs, where=".config")
        if self.params is not None and self.params != params:
            raise VdlaError(
                f".config: expected configuration {self.params.hash}, got {params.hash}; "
                "give the same --hw, and .config before the first instruction"
            )
        self.params = params

    def _open(self, addr: int) -> None:
        if addr in self.segments:
            raise VdlaError(f".data: a segment at {addr:#x} exists already")
        self.open_segment = self.segments[addr] = bytearray()

    def _segment(self, word: str) -> bytearray:
        if self.open_segment is None:
            raise VdlaError(f"{word}: expected .data ADDRESS before it")
        return self.open_segment

    def finish(self) -> Program:
        """The program."""
        image = {addr: bytes(data) for addr, data in self.segments.items()}
        return Program(self._params, tuple(self.insns), image, self.meta, self.program_addr)


# ---- one line of name=value ----


def _format(word: str, thing: Insn | Uop, spec: list[Field] | tuple[Field, ...]) -> str:
    words = [word]
    for f in spec:
        value = getattr(thing, f.name)
        if value != f.default:
            words.append(f"{f.name}={_format_value(f.name, value)}")
    return " ".join(words)


def _format_value(name: str, value: object) -> str:
    match value:
        case Units():
            return ",".join(n for n, unit in _UNIT_NAMES.items() if unit & value)
        case tuple():
            return ",".join(map(str, value))
        case int() if name.endswith("addr"):
            return f"{value:#x}"
    return str(value)


def _parse(word: str, cls: type, words: list[str]) -> Any:
    spec = {f.name: f for f in fields(cls)}
    values: dict[str, Any] = {}
    for pair in words:
        name, equals, text = pair.partition("=")
        if not equals:
            raise VdlaError(f"{word}: expected field=value, got {pair!r}")
        if name not in spec:
            raise VdlaError(f"{word}: expected one of {', '.join(spec)}, got field {name!r}")
        if name in values:
            raise VdlaError(f"{word} {name}: given twice")
        values[name] = _parse_value(f"{word} {name}", str(spec[name].type), text)
    missing = [n for n, f in spec.items() if f.default is MISSING and n not in values]
    if missing:
        raise VdlaError(f"{word}: field {missing[0]!r} is missing")
    return cls(**values)


def _parse_value(where: str, kind: str, text: str) -> Any:
    """``kind`` is the annotation of the dataclass field: int, str, Units or a tuple of integers."""
    match kind:
        case "int":
            return _integer(where, text)
        case "str":
            return text
        case "Units":
            mask = Units.NONE
            for name in text.split(","):
                if name not in _UNIT_NAMES:
                    raise VdlaError(f"{where}: expected {', '.join(_UNIT_NAMES)}, got {name!r}")
                mask |= _UNIT_NAMES[name]
            return mask
    parts = text.split(",")
    if len(parts) != 4:
        raise VdlaError(f"{where}: expected 4 numbers separated by commas, got {text!r}")
    return tuple(_integer(where, part) for part in parts)


def _integer(where: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise VdlaError(f"{where}: expected an integer, got {text!r}") from None


def _code(text: str) -> str:
    """The text without comment and surrounding blanks."""
    return text.partition(";")[0].strip()


def _json_object(word: str, text: str) -> dict[str, Any]:
    """The JSON object that starts a directive's text; only a comment may follow it."""
    try:
        value, end = json.JSONDecoder().raw_decode(text.strip())
    except json.JSONDecodeError as error:
        raise VdlaError(f"{word}: expected a JSON object, {error}") from None
    if not isinstance(value, dict) or _code(text.strip()[end:]):
        raise VdlaError(f"{word}: expected one JSON object, got {text!r}")
    return value


# ---- DRAM segments ----


def _hex_bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise VdlaError(f".hex: expected pairs of hexadecimal digits, got {text!r}") from None


def _uop_addresses(program: Program) -> list[int]:
    """DRAM addresses that LOAD instructions read micro-ops from, ascending."""
    size = program.params.entry_bytes("uop")
    loads = {i for i in program.insns if isinstance(i, Load) and i.memory == "uop"}
    return sorted(
        {
            insn.dram_addr + z * insn.z_stride + y * insn.y_stride + x * size
            for insn in loads
            for z in range(insn.z_size)
            for y in range(insn.y_size)
            for x in range(insn.x_size)
        }
    )


def _format_segment(addr: int, data: bytes, uops: list[int], params: HwParams) -> list[str]:
    """A segment as lines: ``.uop`` where the program loads a micro-op and the bytes encode one
    exactly, else ``.hex``."""
    size, lines, done = params.entry_bytes("uop"), [], 0
    for uop_addr in uops[bisect_left(uops, addr) : bisect_right(uops, addr + len(data) - size)]:
        start = uop_addr - addr
        chunk = data[start : start + size]
        uop = decode_uop(chunk, params)
        if start < done or encode_uop(uop, params) != chunk:
            continue
        lines += _hex_lines(data[done:start])
        lines.append(_format(".uop", uop, fields(uop)))
        done = start + size
    return lines + _hex_lines(data[done:])


def _hex_lines(data: bytes) -> list[str]:
    starts = range(0, len(data), _HEX_BYTES_A_LINE)
    return [f".hex {data[start : start + _HEX_BYTES_A_LINE].hex()}" for start in starts]
