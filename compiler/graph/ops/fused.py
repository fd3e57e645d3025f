"""Operators that are computed together, element by element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...te.tensor import Tensor
from .base import Expression, Fusion, Op, Shape, Type, operands


@dataclass(frozen=True)
class Fused(Op):
    """Element-wise operators whose results have one shape; the last one's result is the result.

    Attributes
    ----------
    operand_count : number of operands
    ops : the operators, each after those whose results it reads
    reads : for each operator, the numbers of what it reads: operand i has number i, the result of
        ``ops[j]`` has number ``operand_count + j``
    """

    operand_count: int
    ops: tuple[Op, ...]
    reads: tuple[tuple[int, ...], ...]

    fusion = Fusion.ELEMENTWISE

    @property
    def name(self) -> str:
        """The names of the operators, in order."""
        return "+".join(op.name for op in self.ops)

    def infer(self, *types: Type) -> Type:
        return self._types(types)[-1]

    def _types(self, types: Sequence[Type]) -> list[Type]:
        """The types of the operands and of every result."""
        known = list(operands(types, self.operand_count))
        for op, reads in self._steps():
            known.append(op.infer(*(known[i] for i in reads)))
        return known

    def _steps(self) -> Iterator[tuple[Op, tuple[int, ...]]]:
        yield from zip(self.ops, self.reads, strict=True)

    def evaluate(self, *args: np.ndarray) -> np.ndarray:
        values = list(args)
        for op, reads in self._steps():
            values.append(op.evaluate(*(values[i] for i in reads)))
        return values[-1]

    def expression(self, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Expression:
        """A stage for each operator, ``step0`` and so on; the last one is ``out``."""
        tensors, args, attributes = list(inputs), list(inputs), list[np.ndarray]()
        given = [(shape, x.dtype) for shape, x in zip(shapes, inputs, strict=True)]
        known = [shape for shape, _ in self._types(given)]
        for step, (op, reads) in enumerate(self._steps()):
            found = op.expression([tensors[i] for i in reads], [known[i] for i in reads])
            last = step == len(self.ops) - 1
            tensors.append(replace(found.output, name="out" if last else f"step{step}"))
            args += found.args[len(reads) :]
            attributes += found.attributes
        return Expression(tensors[-1], tuple(args), tuple(attributes))

    def attributes(self) -> Iterator[tuple[str, str]]:
        yield "ops", ", ".join(op.name + op.text for op in self.ops)
        yield "reads", " ".join(",".join(map(str, reads)) for reads in self.reads)


@dataclass(frozen=True)
class FusedParts(Fused):
    """As :class:`Fused`, with operators that take parts of larger operands at the beginning: each
    element of the result needs one element of every operand, but not the one at its index."""

    fusion = Fusion.OPAQUE


@dataclass(frozen=True)
class FusedRows(Fused):
    """As :class:`Fused`, with reductions along the last axis, which keep size 1; the other results
    have the shape of the result, or of these reductions."""

    fusion = Fusion.REDUCTION
