"""The bins of a configuration, derived from the tables of the instruction set: a new opcode, field,
operator, memory or cause adds its bins by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from ...isa.encoding import HEADER, VECTOR_LOOPS, layout
from ...isa.insn import CODES
from ...isa.opcodes import LOADABLE, READERS, WRITER, Opcode, Unit, opcodes
from ...isa.params import MEMORIES, HwParams
from ...isa.regmap import CAUSES, named_causes
from ...isa.timing import GEMM_DEPTH, VECTOR_DEPTH
from ...isa.vector_ops import POST_OPS, operators

#: What each group of bins is about.
GROUPS = {
    "kinds": "instructions, and every value of every field that selects something",
    "pairs": "two such fields of an instruction together",
    "tokens": "pop and push masks of each instruction",
    "hazards": "what orders two instructions: a write before a read, a read or a write before a "
    "write of the same entries; at once: the second starts in the cycle after the end of the "
    "first; in flight: before it, in the same unit",
    "waits": "the unit whose token came last, in the cycle in which the instruction started",
    "stalls": "causes of the cycles of each unit",
    "overlap": "units that have an instruction in flight in the same cycle; instructions that one "
    "unit has in flight",
    "entries": "the first and the last entry of each memory, by instruction",
    "fields": "the least and the greatest legal value of each other field",
    "padding": "sides of a load that are padded, and which of them for each memory",
    "dram": "where rows lie in beats, bursts and pages, and relative to the row before",
    "numbers": "results beyond 32 bits, and on both sides of what saturates and clamps",
    "distances": "iterations between a write and a read of the same entry in one instruction",
}
#: Sides of a load that can be padded.
SIDES = ("top", "bottom", "left", "right")
#: How a row lies in DRAM, and to the row before it.
ROW_BINS = (
    "burst of one beat", "longest burst", "cut at the longest burst", "crosses a page",
    "begins at a page", "ends at a page", "begins inside a beat", "ends inside a beat",
    "rows at one address", "rows overlap", "rows touch", "rows apart",
)  # fmt: skip
#: How a post-operation's values lie to its clamp; and what its sum and its product are.
CLAMP_BINS = (
    "below the clamp", "inside the clamp", "above the clamp", "sum wraps", "least times least",
)  # fmt: skip

#: What the table is asked for.
INDEX_BINS = ("below -128", "from -128 to -1", "from 0 to 127", "above 127")
#: Fields that say where something lies: the groups entries and dram are about them.
_PLACE = re.compile(r"(base|_begin|_addr|[yz]_stride)$")
#: Fields that may not be 0.
_POSITIVE = {
    Opcode.LOAD: ("x_size", "z_size"),
    Opcode.GEMM: ("uop_count", "outer", "inner"),
    Opcode.VECTOR: tuple(f"n{loop}" for loop in range(VECTOR_LOOPS)),
    Opcode.STORE: ("x_size", "y_size", "z_size"),
}
#: Fields that count entries of one of these memories, and so are at most its depth.
_COUNTED = {
    Opcode.LOAD: dict.fromkeys(
        ("x_size", "y_size", "z_size", *(f"pad_{side}" for side in ("top", "bottom"))), LOADABLE
    ),
    Opcode.GEMM: {"uop_count": ("uop",)},
    Opcode.STORE: dict.fromkeys(("x_size", "y_size", "z_size"), ("out",)),
}


@cache
def bins(params: HwParams) -> dict[str, tuple[str, ...]]:
    """Every bin of a configuration by group, those that cannot be reached included."""
    known = opcodes(params)
    found = {
        "kinds": _kinds(params),
        "pairs": _pairs(params),
        "tokens": _tokens(params),
        "hazards": _hazards(),
        "waits": (f"{name(op)} for {name(u)}" for op in known for u in Unit if u != op.unit),
        "stalls": (
            f"{name(unit)} {cause}" for unit in Unit for cause in named_causes(unit, [0] * _CAUSES)
        ),
        "overlap": _overlap(),
        "entries": _entries(params),
        "fields": _fields(params),
        "padding": (*(f"sides {s}" for s in _subsets(SIDES)),
                    *(f"{m} {side}" for m in LOADABLE for side in SIDES)),
        "dram": (f"{name(op)} {row}" for op in known if has_rows(op) for row in ROW_BINS),
        "numbers": _numbers(params),
        "distances": _distances(params),
    }  # fmt: skip
    return {group: tuple(found[group]) for group in GROUPS}


_CAUSES = len(CAUSES)


def name(code: Opcode | Unit) -> str:
    """An opcode or a unit as bins name it."""
    return code.name.lower()


# ---- the tables, as bins need them ----


@cache
def choices(opcode: Opcode) -> dict[str, dict[int, str]]:
    """The fields of an instruction that select something: values and their names."""
    found: dict[str, dict[int, str]] = {}
    for field in layout(opcode, _OneDeep()):
        if field.name == "reduce":
            found[field.name] = {n: str(n) for n in range(VECTOR_LOOPS + 1)}
        elif codes := CODES.get((opcode, field.name)):
            found[field.name] = {code: text for text, code in codes.items()}
        elif field.bits == 1:
            found[field.name] = {0: "0", 1: "1"}
    return found


def _offered(opcode: Opcode, params: HwParams) -> dict[str, dict[int, str]]:
    """The same, with only the operators of a configuration."""
    found = choices(opcode)
    return (
        found | {"op": {op.code: op.name for op in operators(params)}} if "op" in found else found
    )


@cache
def extremes(opcode: Opcode, params: HwParams) -> dict[str, tuple[int, int]]:
    """The least and the greatest legal value of the fields that are numbers and no places."""
    found = {}
    for field in layout(opcode, params):
        if field in HEADER or field.name in choices(opcode) or _PLACE.search(field.name):
            continue
        memories = _COUNTED.get(opcode, {}).get(field.name, ())
        room = max(map(params.depth, memories), default=field.maximum)
        if field.name in ("pad_left", "pad_right"):  # beside an entry at least
            room = max(map(params.depth, LOADABLE)) - 1
        positive = field.name in _POSITIVE.get(opcode, ())
        found[field.name] = (max(field.minimum, 1) if positive else field.minimum,
                             min(field.maximum, room))  # fmt: skip
    return found


def has_rows(opcode: Opcode) -> bool:
    """Whether an instruction moves rows from or to DRAM."""
    return any(field.name == "dram_addr" for field in layout(opcode, _OneDeep()))


@dataclass(frozen=True)
class _OneDeep:
    """Scratchpads of which one is deep: the widths of the fields that index it show."""

    deep: str = ""

    def index_bits(self, memory: str) -> int:
        """More for the deep one."""
        return 8 if memory == self.deep else 4


@cache
def indexed(opcode: Opcode) -> tuple[str, ...]:
    """The scratchpads that fields of an instruction index."""
    plain = layout(opcode, _OneDeep())
    return tuple(m for m in MEMORIES if layout(opcode, _OneDeep(m)) != plain)


# ---- the groups ----


def _kinds(params: HwParams) -> Iterator[str]:
    for opcode in opcodes(params):
        yield name(opcode)
        for field, values in _offered(opcode, params).items():
            yield from (f"{name(opcode)} {field}={text}" for text in values.values())


def _pairs(params: HwParams) -> Iterator[str]:
    for opcode in opcodes(params):
        for (a, of_a), (b, of_b) in combinations(_offered(opcode, params).items(), 2):
            for x in of_a.values():
                yield from (f"{name(opcode)} {a}={x} {b}={y}" for y in of_b.values())


def _tokens(params: HwParams) -> Iterator[str]:
    units = [name(unit) for unit in Unit]
    for opcode in opcodes(params):
        for mask in ("pop", "push"):
            yield from (f"{name(opcode)} {mask} {subset}" for subset in _subsets(units))


def _subsets(names: list[str] | tuple[str, ...]) -> Iterator[str]:
    for size in range(len(names) + 1):
        yield from ("+".join(chosen) or "none" for chosen in combinations(names, size))


def _hazards() -> Iterator[str]:
    users = {m: (WRITER[m], READERS[m]) for m in MEMORIES} | {"dram": (Unit.STORE, (Unit.LOAD,))}
    for memory, (writer, readers) in users.items():
        orders = [("waw", writer, writer)]
        for reader in readers:
            orders += [("raw", writer, reader), ("war", reader, writer)]
        for kind, first, second in orders:
            plain = f"{kind} {memory}: {name(first)}, {name(second)}"
            yield from (plain, plain + (", in flight" if first == second else ", at once"))


def _overlap() -> Iterator[str]:
    yield from (s for s in _subsets([name(unit) for unit in Unit]) if s != "none")
    yield from (f"two of {name(unit)}" for unit in Unit)
    yield "the most of load"


def _entries(params: HwParams) -> Iterator[str]:
    for opcode in opcodes(params):
        for memory in indexed(opcode):
            uses = ["reads"] * (opcode.unit in READERS[memory])
            uses += ["writes"] * (opcode.unit == WRITER[memory])
            for use in uses:
                yield from (f"{name(opcode)} {use} {memory} {end}" for end in ("first", "last"))


def _fields(params: HwParams) -> Iterator[str]:
    for opcode in opcodes(params):
        for field in extremes(opcode, params):
            yield from (f"{name(opcode)} {field} {end}" for end in ("least", "most"))


def _numbers(params: HwParams) -> Iterator[str]:
    yield "gemm sum wraps"
    # A sum of values of 16 bits wraps only after 65,536 of them.
    # Nor does a sum of products of bytes before there are 131,072 of them.
    wrapping = (op for op in operators(params) if op.lut_bytes < 2 and not op.slides)
    yield from (f"vector {op.name} wraps" for op in wrapping)
    for op in operators(params):
        if op.lut_bytes:
            yield from (f"vector {op.name} looks up {place}" for place in INDEX_BINS)
        if op.slides:
            left_out = range(params.vector_window)
            yield from (f"vector {op.name} leaves out {count}" for count in left_out)
    yield from (f"vector saturates at {end}" for end in ("the least", "the greatest"))
    for post in POST_OPS:
        if post.rounding is not None:
            yield from (f"vector {post.name}: {place}" for place in CLAMP_BINS)


def _distances(params: HwParams) -> Iterator[str]:
    yield from (f"gemm adds after {n}" for n in range(1, GEMM_DEPTH + 1))
    longest = VECTOR_DEPTH // params.vector_passes
    yield from (f"vector reads tmp after {n}" for n in range(1, longest + 1))
