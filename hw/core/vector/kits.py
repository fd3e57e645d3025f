"""The operators of ``isa/vector_ops.py`` as hardware.

A lane has one comparison, one right shift and one product for an operator, and one addition in the
next cycle. So the kit for operators of one step computes nothing: it says which of these add up to
the result. An operator of several steps gets logic of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Value

from ....isa.encoding import INT32_BITS
from ....isa.opcodes import Features
from ....isa.vector_ops import operators
from .logic import any_of, shift_right

#: Bits of the amount that an operator shifts by, and the powers of two that it is made of.
SHIFT_BITS = (INT32_BITS - 1).bit_length()
SHIFT_STEPS = tuple(1 << k for k in reversed(range(SHIFT_BITS)))


class Source(Enum):
    """A value in a lane that results are made of."""

    A = "the first operand"
    B = "the second operand"
    INVERSE = "the complement of the second operand"
    FLOOR = "the first operand, shifted right"
    ROUNDS = "whether what was shifted out rounds it up, half to even"
    ONE = "1"
    LOW = "the product of the lower halves of the operands"
    MIDDLE = "2**16 times the product of the first one's lower and the second one's upper half"
    HIGH = "the product of the first one's upper and the second one's lower half"
    TABLE = "the table's value for the first operand, or for the second less the first"
    WINDOW = "a sum of the sliding window"
    RESULT = "what was reduced so far"
    TERM = "the next term of the reduction"
    SUM = "the sum of these two"


A, B = Source.A, Source.B


class When(Enum):
    """When a source counts. What is compared are the two operands, or what was reduced so far and
    the next term.
    """

    ALWAYS = "always"
    LESS = "the first is less"
    NOT_LESS = "the first is not less"


class Leg(NamedTuple):
    """A source and when it counts. An operator of several steps is a source, too."""

    source: Source | Callable
    when: When = When.ALWAYS


class Parts(NamedTuple):
    """A result that the next stage adds up: x + y + 2**16 * upper + up, modulo 2**32."""

    x: Leg | None
    y: Leg | None = None
    upper: Leg | None = None
    up: Leg | None = None


#: Bits of each part.
PART_BITS = {"x": INT32_BITS, "y": INT32_BITS, "upper": INT32_BITS // 2, "up": 1}

#: The second operand less the first, which only the table can be asked for.
_DIFFERENCE = object()


class FirstKit:
    """The arithmetic kit of ``isa/vector_ops.py`` for operators of one step: the legs that make up
    their result.
    """

    @staticmethod
    def _parts(a: Source, b: Source, parts: Parts) -> Parts:
        if (a, b) != (A, B):
            raise ValueError("expected an operator of one step")
        return parts

    def min(self, a, b) -> Parts:
        return self._parts(a, b, Parts(Leg(A, When.LESS), Leg(B, When.NOT_LESS)))

    def max(self, a, b) -> Parts:
        return self._parts(a, b, Parts(Leg(A, When.NOT_LESS), Leg(B, When.LESS)))

    def add(self, a, b) -> Parts:
        if (a, b) == (Source.TABLE, B):
            return Parts(Leg(a), Leg(b))
        return self._parts(a, b, Parts(Leg(A), Leg(B)))

    def table(self, a) -> Source:
        if a not in (A, _DIFFERENCE):
            raise ValueError("expected an operator of one step")
        return Source.TABLE

    def sub(self, a, b) -> Any:
        if (a, b) == (B, A):
            return _DIFFERENCE
        return self._parts(a, b, Parts(Leg(A), Leg(Source.INVERSE), up=Leg(Source.ONE)))

    def mul(self, a, b) -> Parts:
        product = Parts(Leg(Source.LOW), Leg(Source.MIDDLE), Leg(Source.HIGH))
        return self._parts(a, b, product)

    shl = mul  # by a power of two

    def shr(self, a, b) -> Parts:
        return self._parts(a, b, Parts(Leg(Source.FLOOR)))

    def rshr(self, a, b) -> Parts:
        return self._parts(a, b, Parts(Leg(Source.FLOOR), up=Leg(Source.ROUNDS)))


class _IndexKit(FirstKit):
    """Notes what the table is asked for."""

    index: Any = None

    def table(self, a) -> Source:
        self.index = a
        return super().table(a)


class ValueKit:
    """The kit over values of 32 bits, for operators of several steps: logic of their own."""

    def __init__(self, m: Module) -> None:
        self._m = m

    def min(self, a, b):
        return Mux(a < b, a, b)

    def max(self, a, b):
        return Mux(a < b, b, a)

    def add(self, a, b):
        return (a + b)[:INT32_BITS].as_signed()

    def sub(self, a, b):
        return (a - b)[:INT32_BITS].as_signed()

    def mul(self, a, b):
        return (a * b)[:INT32_BITS].as_signed()

    def shl(self, a, b):
        return (a << b[:SHIFT_BITS])[:INT32_BITS].as_signed()

    def shr(self, a, b):
        return a >> b[:SHIFT_BITS]

    def rshr(self, a, b):
        floor, dropped = shift_right(self._m, a, Const(0, 2), b[:SHIFT_BITS], SHIFT_STEPS)
        return (floor + rounds_up(floor, dropped))[:INT32_BITS].as_signed()


class CombineKit:
    """The kit for what merges the result of a reduction with its next term: legs, of which one
    counts.
    """

    def min(self, result, term) -> list[Leg]:
        return [Leg(result, When.LESS), Leg(term, When.NOT_LESS)]

    def max(self, result, term) -> list[Leg]:
        return [Leg(result, When.NOT_LESS), Leg(term, When.LESS)]

    def add(self, _result, _term) -> list[Leg]:
        return [Leg(Source.SUM)]


class Case(NamedTuple):
    """The iterations in which a leg is chosen: those that match every field that is not None."""

    parameter: bool | None = None
    op: int | None = None
    first: bool | None = None


#: Legs, and the cases in which each is chosen.
Choices = dict[Leg, list[Case]]


def operator_choices(params: Features) -> dict[str, Choices]:
    """The legs of every part of an operator's result."""
    kit = FirstKit()
    # Parameters pass as the result of an addition to zero.
    cases = [(Case(parameter=True), kit.add(A, B))]
    for op in operators(params):
        if op.slides:
            continue  # nothing adds up to its result, which comes from the window's sums
        cases.append((Case(False, op.code, first=True), _whole(kit, op.first)))
        if op.term is not None:
            cases.append((Case(False, op.code, first=False), _whole(kit, op.term)))
    return {
        name: _choices((case, getattr(parts, name)) for case, parts in cases)
        for name in Parts._fields
    }


def difference_codes(params: Features) -> list[int]:
    """The codes of the operators that ask the table for the difference of their operands."""
    codes = []
    for op in operators(params):
        if op.slides:
            continue
        kit = _IndexKit()
        _whole(kit, op.first)
        if kit.index is _DIFFERENCE:
            codes.append(op.code)
    return codes


def merge_choices(params: Features) -> Choices:
    """The legs of a reduction's next result."""
    kit, cases = CombineKit(), [(Case(first=True), Leg(Source.TERM))]
    for op in operators(params):
        if op.slides:
            # Its term is 0.
            cases.append((Case(False, op.code), Leg(Source.WINDOW)))
        elif op.combine is not None:
            legs = op.combine(kit, Source.RESULT, Source.TERM)
            cases += [(Case(op=op.code, first=False), leg) for leg in legs]
    return _choices(cases)


def _choices(cases: Iterable[tuple[Case, Leg | None]]) -> Choices:
    choices: Choices = defaultdict(list)
    for case, leg in cases:
        if leg is not None:
            choices[leg].append(case)
    return dict(choices)


def _whole(kit: FirstKit, function: Callable) -> Parts:
    """The parts of an operator's result; an operator of several steps is a single part."""
    try:
        parts = function(kit, A, B)
    except ValueError:
        return Parts(Leg(function))
    if parts is _DIFFERENCE:
        return Parts(Leg(function))
    return parts if isinstance(parts, Parts) else Parts(Leg(parts))


def choose(
    legs: Iterable[Leg], chosen: Value, has: dict[Source | Callable, Value], less: Value
) -> Value:
    """The value of the leg that is chosen and counts; 0 if there is none.

    Parameters
    ----------
    chosen : a bit for each leg, of which at most one is set for each case of ``less``
    """
    counts = {When.ALWAYS: Const(1, 1), When.LESS: less, When.NOT_LESS: ~less}
    gates = defaultdict(list)
    for number, leg in enumerate(legs):
        gates[leg.source].append(chosen[number] & counts[leg.when])
    # Not Mux: for a single leg synthesis would use the registers' reset, with a net to all lanes.
    each = ((has[source], Cat(its).any()) for source, its in gates.items())
    return any_of(value & gate.replicate(len(value)) for value, gate in each)


def rounds_up(floor: Value, dropped: Value) -> Value:
    """Whether a right shift rounds up, half to even: the half decides unless it is all that was
    dropped (``dropped`` as of :func:`..rounding.shift_right`).
    """
    return dropped[1] & (dropped[0] | floor[0])
