"""The interface of a graph's operators: all that is known about an operator stands in its class.

An operator is a frozen dataclass of attributes. It knows the type of its result, its value in NumPy
(the oracle of every target: no machine code of ours takes part), its tensor expression (from which
targets make loops), what it may be fused with, and its text. Targets (``compiler/targets``) decide
where and how it is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import ClassVar

import numpy as np

from ... import topi
from ...te.expr import Expr
from ...te.tensor import Tensor
from ..text import attribute_text

Shape = tuple[int, ...]
#: Shape and dtype.
Type = tuple[Shape, str]
Pair = tuple[int, int]
#: Padding of a two-dimensional image: top, left, bottom, right.
Pads = tuple[int, int, int, int]


class Misfit(Exception):
    """The operands do not fit the operator; the text says what it expects."""


class Fusion(Enum):
    """How an operator may be computed together with its neighbours (TVM paper, section 3)."""

    ELEMENTWISE = "each element of the result needs the elements in its place only, wherever it is"
    ALIAS = "the operand's elements in their order: another name for its memory"
    REDUCTION = "an element of the result combines many elements of the operands"
    OPAQUE = "anything else"


@dataclass(frozen=True)
class Expression:
    """An operator as a tensor expression.

    Attributes
    ----------
    output : the tensor that it computes
    args : its placeholders: the operands in order, then attributes that are arrays
    attributes : the values of those attributes
    """

    output: Tensor
    args: tuple[Tensor, ...]
    attributes: tuple[np.ndarray, ...] = ()


class Op:
    """Base of all operators; the class name is the operator's name in texts and reports."""

    fusion: ClassVar[Fusion] = Fusion.OPAQUE
    #: Whether the result consists of elements of the first operand, whatever their values are.
    moves: ClassVar[bool] = False
    #: Whether values are computed; not where elements of the operands, and constants, are only put
    #: in other places. What ``moves`` does not compute, whatever this says.
    computes: ClassVar[bool] = True

    def infer(self, *types: Type) -> Type:
        """Shape and dtype of the result; raises :class:`Misfit`, saying what was expected."""
        raise NotImplementedError

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        """The result for operands that fit, in NumPy."""
        raise NotImplementedError

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """The operator as a tensor expression of ``inputs``, whose shapes in the graph are
        ``shapes``: a scalar's is (), its tensor's (1,).

        Raises
        ------
        VdlaError
            For attributes that no tensor expression has.
        """
        raise NotImplementedError

    def macs(self, *shapes: Shape) -> int:
        """Multiply-accumulates for operands of these shapes; 0 unless it is a kind of product."""
        return 0

    def window_macs(self, *shapes: Shape) -> int:
        """Those of them that are a depthwise convolution's behind another product."""
        return 0

    @property
    def name(self) -> str:
        """The operator's name."""
        return type(self).__name__

    def attributes(self) -> Iterator[tuple[str, str]]:
        """Name and text of every attribute; equal attributes have equal texts."""
        for item in fields(self):  # pyright: ignore[reportArgumentType]
            yield item.name, attribute_text(getattr(self, item.name))

    @property
    def text(self) -> str:
        """The attributes as ``{name=value, ...}``, or nothing if there are none."""
        shown = ", ".join(f"{name}={text}" for name, text in self.attributes())
        return f"{{{shown}}}" if shown else ""


class Elementwise(Op):
    """Base of operators whose results need the operands' elements in the same place only."""

    fusion = Fusion.ELEMENTWISE
    #: Dtypes of the operands, which are broadcast by NumPy's rules, and of the result.
    signature: ClassVar[tuple[tuple[str, ...], str]] = (("float32",), "float32")

    def infer(self, *types: Type) -> Type:
        given, result = self.signature
        return broadcast(*expect_dtypes(types, *given)), result

    def element(self, *operands: Expr) -> Expr:
        """An element of the result, from those of the operands in its place."""
        raise NotImplementedError

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        return Expression(topi.elementwise(self.element, inputs, shapes), tuple(inputs))


class Bounded(Op):
    """Base of float operators that end in ``min(max(y, lo), hi)``."""

    lo: float
    hi: float

    def between(self, lo: float, hi: float) -> Bounded:
        """The operator with other bounds."""
        return replace(self, lo=lo, hi=hi)  # pyright: ignore[reportArgumentType]


def expect(condition: bool, expected: str) -> None:
    """Raise :class:`Misfit` unless a condition on operands holds."""
    if not condition:
        raise Misfit(expected)


def operands(types: Sequence[Type], count: int) -> Sequence[Type]:
    """The types of operands, of which there must be ``count``."""
    expect(len(types) == count, f"{count} operand{'s' if count > 1 else ''}")
    return types


def expect_dtypes(types: Sequence[Type], *dtypes: str) -> list[Shape]:
    """The shapes of operands, which must have these dtypes, one for each operand."""
    found = tuple(dtype for _, dtype in types)
    expect(found == dtypes, f"operands {', '.join(dtypes)}")
    return [shape for shape, _ in types]


def one_dtype(types: Sequence[Type]) -> str:
    """The dtype of all operands, which must be the same."""
    expect(len({dtype for _, dtype in types}) == 1, "operands of one dtype")
    return types[0][1]


def broadcast(*shapes: Shape) -> Shape:
    """The common shape by NumPy's rules; sizes may be 0."""
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        raise Misfit("shapes that broadcast") from None


def clip(x: np.ndarray, lo: float, hi: float) -> np.ndarray:
    """``min(max(x, lo), hi)`` of floats, in the dtype of ``x``; not-a-number stays."""
    if lo == -np.inf and hi == np.inf:
        return x
    return np.minimum(np.maximum(x, x.dtype.type(lo)), x.dtype.type(hi))


def int32(acc: np.ndarray) -> np.ndarray:
    """int64 wrapped to int32, as accumulators do."""
    return acc.astype(np.int32)
