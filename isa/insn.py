"""Instructions as frozen dataclasses: legal by construction once :func:`validate` has passed,
encodable to bytes.

Every field has the name of its bit field in ``encoding.py``. Symbolic codes (memories, operators)
are strings here and numbers in the encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from .encoding import (  # fmt: skip
    INT8_MAX,
    INT8_MIN,
    OPCODE_MASK,
    PARAM_ENTRIES,
    VECTOR_LOOPS,
    Field,
    layout,
    layout_bits,
    pack,
    unpack,
    uop_layout,
)
from .errors import VdlaError
from .opcodes import (  # fmt: skip
    DST_MEMORIES,
    LOADABLE,
    SRC0_MEMORIES,
    SRC1_MEMORIES,
    Opcode,
    Unit,
    Units,
    opcodes,
    widened,
)
from .params import HwParams
from .vector_ops import BY_NAME, OP_CODES, POST_BY_NAME, operators


@dataclass(frozen=True, kw_only=True)
class Insn:
    """Common part: token masks. ``pop``: wait for and take a token from each; ``push``: give one to
    each at the end.
    """

    opcode: ClassVar[Opcode]
    #: The unit that executes the instruction.
    unit: ClassVar[Unit]
    pop: Units = Units.NONE
    push: Units = Units.NONE

    def __init_subclass__(cls) -> None:
        cls.unit = cls.opcode.unit

    def with_tokens(self, pop: Units, push: Units) -> Self:
        """The instruction with other token masks."""
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__, pop=pop, push=push)
        return changed


@dataclass(frozen=True, kw_only=True)
class Load(Insn):
    """DRAM to scratchpad: ``z_size`` planes of ``pad_top + y_size + pad_bottom`` rows of ``pad_left
    + x_size + pad_right`` entries, written contiguously from ``base``; padding entries hold
    ``pad_value`` in every byte (of a widened entry of par, in every int32 element). Addresses and
    strides are bytes, multiples of min(entry bytes in DRAM, bus bytes)."""

    opcode = Opcode.LOAD
    memory: str
    base: int
    dram_addr: int
    x_size: int
    y_size: int = 1
    z_size: int = 1
    y_stride: int = 0
    z_stride: int = 0
    pad_top: int = 0
    pad_bottom: int = 0
    pad_left: int = 0
    pad_right: int = 0
    pad_value: int = 0
    widen: int = 0

    @property
    def row_entries(self) -> int:
        """Entries of a row with padding."""
        return self.pad_left + self.x_size + self.pad_right

    @property
    def rows(self) -> int:
        """Rows of a plane with padding."""
        return self.pad_top + self.y_size + self.pad_bottom

    @property
    def entries(self) -> int:
        """Scratchpad entries written."""
        return self.z_size * self.rows * self.row_entries

    def dram_entry_bytes(self, params: HwParams) -> int:
        """Bytes that an entry takes in DRAM."""
        return params.dram_entry_bytes(self.memory, self.widen)


@dataclass(frozen=True, kw_only=True)
class Gemm(Insn):
    """Tensor core: for o in outer, i in inner, u in micro-ops: acc[x] (+)= inp[y] @ wgt[z].T with
    x = u.acc + o*acc_outer + i*acc_inner and y, z likewise; ``init`` and ``u.first`` overwrite
    instead of adding."""

    opcode = Opcode.GEMM
    uop_begin: int
    uop_count: int
    outer: int = 1
    inner: int = 1
    init: int = 0
    acc_outer: int = 0
    acc_inner: int = 0
    inp_outer: int = 0
    inp_inner: int = 0
    wgt_outer: int = 0
    wgt_inner: int = 0

    @property
    def iterations(self) -> int:
        """Cycles of the array."""
        return self.outer * self.inner * self.uop_count


@dataclass(frozen=True, kw_only=True)
class Vector(Insn):
    """Vector unit: four loops n0..n3, operand indices affine in them; see ``vector_ops.py`` for
    operators, reduction and post-operation. ``src0`` in acc, inp, tmp; ``src1`` in imm, par, tmp;
    ``dst`` in tmp (int32), out (int8)."""

    opcode = Opcode.VECTOR
    op: str
    src0: str
    src1: str
    dst: str
    post: str = "none"
    reduce: int = 0
    imm: int = 0
    extents: tuple[int, ...] = (1,) * VECTOR_LOOPS
    src0_base: int = 0
    src0_strides: tuple[int, ...] = (0,) * VECTOR_LOOPS
    src1_base: int = 0
    src1_strides: tuple[int, ...] = (0,) * VECTOR_LOOPS
    dst_base: int = 0
    dst_strides: tuple[int, ...] = (0,) * VECTOR_LOOPS

    @property
    def iterations(self) -> int:
        """Vectors read per operand."""
        return prod(self.extents)

    @property
    def unwritten(self) -> int:
        """Results that are not written in each run of the innermost loop that is not reduced:
        those before the first whole window."""
        return self.imm if BY_NAME[self.op].slides else 0

    @property
    def written_extents(self) -> tuple[int, ...]:
        """Extents of the loops over what is written."""
        row = VECTOR_LOOPS - 1 - self.reduce
        return tuple(
            n - self.unwritten if loop == row else n for loop, n in enumerate(self.extents)
        )


@dataclass(frozen=True, kw_only=True)
class Param(Insn):
    """Vector unit: par[par_base], +1, +2 become the bias, multiplier and shift registers of
    requantisation (int32 per channel), together with the zero point and the clamp; they hold for
    the vector instructions that follow."""

    opcode = Opcode.PARAM
    par_base: int
    zero_point: int = 0
    lo: int = INT8_MIN
    hi: int = INT8_MAX


@dataclass(frozen=True, kw_only=True)
class Table(Insn):
    """Vector unit: 256 values of par from entry par_base on, in the order in which they lie in
    DRAM, become the table of the operators that look up values: int8 if ``vector_table`` is 1,
    int16 if it is 2. Value i is for int8 i if i is less than 128, else for i - 256. It holds for
    the vector instructions that follow. Configurations without ``vector_table`` do not have it."""

    opcode = Opcode.TABLE
    par_base: int


@dataclass(frozen=True, kw_only=True)
class Store(Insn):
    """Scratchpad ``out`` to DRAM: ``z_size`` planes of ``y_size`` rows of ``x_size`` contiguous
    entries. Addresses and strides are bytes, multiples of min(entry bytes, bus bytes)."""

    opcode = Opcode.STORE
    base: int
    dram_addr: int
    x_size: int
    y_size: int = 1
    z_size: int = 1
    y_stride: int = 0
    z_stride: int = 0

    @property
    def entries(self) -> int:
        """Scratchpad entries read."""
        return self.z_size * self.y_size * self.x_size


@dataclass(frozen=True, kw_only=True)
class Uop:
    """GEMM micro-op: indices that the loop offsets are added to."""

    acc: int
    inp: int
    wgt: int
    first: int = 0


CLASSES: dict[Opcode, type[Insn]] = {
    cls.opcode: cls for cls in (Load, Gemm, Vector, Param, Store, Table)
}

#: Fields whose value is a name: how names map to codes.
CODES: dict[tuple[Opcode, str], dict[str, int]] = {
    (Opcode.LOAD, "memory"): {name: code for code, name in enumerate(LOADABLE)},
    (Opcode.VECTOR, "src0"): {name: code for code, name in enumerate(SRC0_MEMORIES)},
    (Opcode.VECTOR, "src1"): {name: code for code, name in enumerate(SRC1_MEMORIES)},
    (Opcode.VECTOR, "dst"): {name: code for code, name in enumerate(DST_MEMORIES)},
    (Opcode.VECTOR, "op"): OP_CODES,
    (Opcode.VECTOR, "post"): {name: post.code for name, post in POST_BY_NAME.items()},
}
#: What a configuration lacks whose ``vector_table`` is less than it must be.
_NO_TABLE = {
    1: "the vector unit of this configuration has no table; set vector_table = 1",
    2: "the vector unit of this configuration has no table of int16; set vector_table = 2",
}
_NO_WINDOW = "the vector unit of this configuration has no sliding window; set vector_window = 3"
#: Tuples that the encoding spreads over numbered fields.
_SPREAD = {
    "extents": "n{}",
    "src0_strides": "src0_s{}",
    "src1_strides": "src1_s{}",
    "dst_strides": "dst_s{}",
}


def field_values(insn: Insn) -> dict[str, int]:
    """Encoded value of every bit field. Raises VdlaError for unknown names."""
    for unknown in _unknown(insn):
        raise VdlaError(unknown)
    return _values(insn)


@dataclass(frozen=True)
class Attributes:
    """How the attributes of a class of instructions become bit fields: those whose value is a name,
    with its codes; tuples, with the fields that they are spread over; and numbers.
    """

    named: tuple[tuple[str, dict[str, int]], ...]
    spread: tuple[tuple[str, tuple[str, ...]], ...]
    numbers: tuple[str, ...]

    @classmethod
    def of(cls, opcode: Opcode) -> Attributes:
        """Those of an opcode's class."""
        names = [field.name for field in fields(CLASSES[opcode])]
        named = tuple((n, CODES[opcode, n]) for n in names if (opcode, n) in CODES)
        spread = tuple(
            (n, tuple(_SPREAD[n].format(i) for i in range(VECTOR_LOOPS)))
            for n in names if n in _SPREAD
        )  # fmt: skip
        others = {n for n, _ in (*named, *spread)}
        return cls(named, spread, tuple(n for n in names if n not in others))


ATTRIBUTES = {opcode: Attributes.of(opcode) for opcode in CLASSES}


def _values(insn: Insn) -> dict[str, int]:
    attributes = ATTRIBUTES[insn.opcode]
    values: dict[str, int] = {"opcode": int(insn.opcode)}
    for name in attributes.numbers:
        values[name] = getattr(insn, name)
    for name, codes in attributes.named:
        values[name] = codes[getattr(insn, name)]
    for name, numbered in attributes.spread:
        values.update(zip(numbered, getattr(insn, name), strict=True))
    return values


def _unknown(insn: Insn) -> Iterator[str]:
    """What cannot be encoded: names without a code, and tuples of another length."""
    attributes, what = ATTRIBUTES[insn.opcode], insn.opcode.name
    for name, codes in attributes.named:
        if (value := getattr(insn, name)) not in codes:
            yield f"{what} {name}: expected one of {', '.join(codes)}, got {value!r}"
    for name, numbered in attributes.spread:
        if len(value := getattr(insn, name)) != len(numbered):
            yield f"{what} {name}: expected {len(numbered)} values, got {value!r}"


def _out_of_range(what: str, spec: tuple[Field, ...], values: dict[str, int]) -> Iterator[str]:
    for field in spec:
        value = values[field.name]
        if _any((value < field.minimum) | (value > field.maximum)):
            yield (
                f"{what} {field.name}: expected {field.minimum}..{field.maximum} "
                f"({field.bits} bits), got {value}"
            )


def _any(holds: Any) -> bool:
    """Whether something holds for an instruction, or for one of a batch (``batch.py``)."""
    return bool(holds.any()) if isinstance(holds, np.ndarray) else bool(holds)


def encode(insn: Insn, params: HwParams) -> bytes:
    """Validated instruction to ``params.insn_bytes`` little-endian bytes."""
    values = field_values(insn)
    for found in _faults(insn, params, values):
        raise VdlaError(found)
    return pack(layout(insn.opcode, params), values).to_bytes(params.insn_bytes, "little")


def decode(data: bytes, params: HwParams) -> Insn:
    """Bytes to an instruction. Raises VdlaError for an unknown opcode, unknown codes or set bits
    outside the layout.
    """
    if len(data) != params.insn_bytes:
        raise VdlaError(f"instruction: expected {params.insn_bytes} bytes, got {len(data)}")
    word = int.from_bytes(data, "little")
    code = word & OPCODE_MASK
    if code not in opcodes(params):
        known = ", ".join(f"{o.value} {o.name}" for o in opcodes(params))
        raise VdlaError(f"instruction: undecodable, opcode {code} is none of {known}")
    opcode = Opcode(code)
    spec = layout(opcode, params)
    if word >> layout_bits(spec):
        raise VdlaError(f"{opcode.name}: undecodable, bits above {layout_bits(spec)} are set")
    raw = unpack(spec, word)
    cls = CLASSES[opcode]
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name in _SPREAD:
            values[field.name] = tuple(
                raw[_SPREAD[field.name].format(i)] for i in range(VECTOR_LOOPS)
            )
        elif (opcode, field.name) in CODES:
            names = names_by_code(opcode, field.name, params)
            if raw[field.name] not in names:
                raise VdlaError(
                    f"{opcode.name} {field.name}: undecodable, code {raw[field.name]} names nothing"
                )
            values[field.name] = names[raw[field.name]]
        elif field.name in ("pop", "push"):
            values[field.name] = Units(raw[field.name])
        else:
            values[field.name] = raw[field.name]
    return cls(**values)


def names_by_code(opcode: Opcode, field: str, params: HwParams) -> dict[int, str]:
    """The names that a symbolic field's codes have in this configuration."""
    if field == "op":
        return {op.code: op.name for op in operators(params)}
    return {code: name for name, code in CODES[opcode, field].items()}


def encode_uop(uop: Uop, params: HwParams) -> bytes:
    """Micro-op to ``params.entry_bytes('uop')`` little-endian bytes."""
    values = {field.name: getattr(uop, field.name) for field in fields(uop)}
    for fault in _out_of_range("uop", uop_layout(params), values):
        raise VdlaError(fault)
    return pack(uop_layout(params), values).to_bytes(params.entry_bytes("uop"), "little")


def encode_uops(uops: np.ndarray, params: HwParams) -> bytes:
    """:func:`encode_uop` of many, int64 [n, fields]."""
    spec, words, lsb = uop_layout(params), np.zeros(len(uops), np.uint64), 0
    values = dict(zip((field.name for field in spec), uops.T, strict=True))
    for fault in _out_of_range("uop", spec, values):
        raise VdlaError(fault)
    for field in spec:
        words |= values[field.name].astype(np.uint64) << np.uint64(lsb)
        lsb += field.bits
    size = params.entry_bytes("uop")
    return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :size].tobytes()


def decode_uop(data: bytes, params: HwParams) -> Uop:
    """The inverse of :func:`encode_uop`; bits above the layout are ignored, as the core stores only
    the layout.
    """
    return Uop(**unpack(uop_layout(params), int.from_bytes(data, "little")))


# ---- legality: what a core refuses to run, whatever the data ----


def validate(insn: Insn, params: HwParams) -> None:
    """Raise VdlaError, with the :func:`fault`, unless an instruction is legal."""
    found = fault(insn, params)
    if found is not None:
        raise VdlaError(found)


def fault(insn: Insn, params: HwParams) -> str | None:
    """Why a core refuses an instruction, in one line: a field is out of range, or a scratchpad
    index leaves its memory. None if the instruction is legal.

    Micro-op indices are data and are checked when the instruction runs (and by ``check.py`` where
    the data is known).
    """
    for unknown in _unknown(insn):
        return unknown
    return next(_faults(insn, params, _values(insn)), None)


def _faults(insn: Insn, params: HwParams, values: dict[str, int]) -> Iterator[str]:
    """All faults of an instruction with these fields, in an order in which later checks rely on
    earlier ones. The numbers of the instruction may be arrays: those of a batch.
    """
    what = insn.opcode.name
    if insn.opcode not in opcodes(params):
        yield f"{what}: {_NO_TABLE[1]}"
    yield from _out_of_range(what, layout(insn.opcode, params), values)
    if _any((insn.pop | insn.push) >> insn.unit & 1):
        yield (
            f"{what} pop/push: a unit has no token queue to itself, "
            f"got pop={insn.pop!r} push={insn.push!r}"
        )
    match insn:
        case Load():
            yield from _load_faults(insn, params)
        case Gemm():
            yield from _not_positive(what, insn, ("uop_count", "outer", "inner"))
            yield from _outside(what, "uop", insn.uop_begin + insn.uop_count, params)
        case Vector():
            yield from _vector_faults(insn, params)
        case Param():
            yield from _outside(what, "par", insn.par_base + PARAM_ENTRIES, params)
            if _any(insn.lo > insn.hi):
                yield f"{what} lo: expected at most hi ({insn.hi}), got {insn.lo}"
        case Table():
            yield from _outside(what, "par", insn.par_base + params.table_entries, params)
        case Store():
            yield from _not_positive(what, insn, ("x_size", "y_size", "z_size"))
            yield from _outside(what, "out", insn.base + insn.entries, params)
            yield from _not_aligned(what, insn, min(params.entry_bytes("out"), params.bus_bytes))


def _not_positive(what: str, insn: Insn, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if _any(getattr(insn, name) < 1):
            yield f"{what} {name}: expected at least 1, got {getattr(insn, name)}"


def _outside(what: str, memory: str, end: int, params: HwParams) -> Iterator[str]:
    if _any(end > params.depth(memory)):
        yield (
            f"{what}: address out of range, last {memory} entry is {end - 1}, "
            f"depth {params.depth(memory)}"
        )


def _not_aligned(what: str, insn: Load | Store, unit: int) -> Iterator[str]:
    for name in ("dram_addr", "y_stride", "z_stride"):
        if _any(getattr(insn, name) % unit):
            yield f"{what} {name}: expected a multiple of {unit} bytes, got {getattr(insn, name)}"


def _load_faults(insn: Load, params: HwParams) -> Iterator[str]:
    yield from _not_positive("LOAD", insn, ("x_size", "z_size", "rows"))
    if _any(insn.widen) and insn.memory not in widened(params):
        hint = "; set packed_weights = 1" if insn.memory == "wgt" else ""
        legal = " or ".join(widened(params))
        yield f"LOAD widen: expected memory {legal}, got {insn.memory!r}{hint}"
    yield from _outside("LOAD", insn.memory, insn.base + insn.entries, params)
    yield from _not_aligned("LOAD", insn, min(insn.dram_entry_bytes(params), params.bus_bytes))


def _vector_faults(insn: Vector, params: HwParams) -> Iterator[str]:
    if any(_any(n < 1) for n in insn.extents):
        yield f"VECTOR extents: expected at least 1 each, got {insn.extents}"
    if insn.reduce > VECTOR_LOOPS:
        yield f"VECTOR reduce: expected 0..{VECTOR_LOOPS} loops, got {insn.reduce}"
    if (needed := BY_NAME[insn.op].lut_bytes) > params.vector_table:
        yield f"VECTOR op: {insn.op!r}: {_NO_TABLE[needed]}"
    if BY_NAME[insn.op].slides:
        yield from _window_faults(insn, params)
    if insn.reduce and BY_NAME[insn.op].term is None:
        yield f"VECTOR reduce: operator {insn.op!r} does not reduce"
    if any(_any(stride) for stride in insn.dst_strides[VECTOR_LOOPS - insn.reduce :]):
        yield (
            f"VECTOR dst_strides: expected 0 in the {insn.reduce} reduced loops, "
            f"got {insn.dst_strides}"
        )
    for name in ("src0", "src1", "dst"):
        memory = getattr(insn, name)
        if memory == "imm":
            continue
        strides = getattr(insn, f"{name}_strides")
        extents = insn.written_extents if name == "dst" else insn.extents
        last = getattr(insn, f"{name}_base") + sum(
            (n - 1) * s for n, s in zip(extents, strides, strict=True)
        )
        yield from _outside("VECTOR", memory, last + 1, params)


def _window_faults(insn: Vector, params: HwParams) -> Iterator[str]:
    if not params.vector_window:
        yield f"VECTOR op: {insn.op!r}: {_NO_WINDOW}"
    if insn.reduce == VECTOR_LOOPS:
        yield f"VECTOR reduce: expected a loop that is not reduced, for {insn.op!r} slides along it"
        return
    row = insn.extents[VECTOR_LOOPS - 1 - insn.reduce]
    if _any((insn.imm < 0) | (insn.imm >= params.vector_window)) or _any(insn.imm >= row):
        yield (
            f"VECTOR imm: expected the results of {insn.op!r} that are not written, 0 to "
            f"{params.vector_window - 1} and less than the {row} of the innermost loop that is not "
            f"reduced, got {insn.imm}"
        )
