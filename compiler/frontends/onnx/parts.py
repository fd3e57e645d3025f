"""The ONNX nodes that one operator stands for, while they are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from ....isa.errors import VdlaError


class Parts:
    """What ``node`` is made of: ``nodes`` in order, whose numbers are added to ``constants``.

    ``shapes`` and ``dtypes`` are those of its operands; ``constants`` has their values, as far as
    they are known.
    """

    def __init__(
        self,
        node: onnx.NodeProto,
        shapes: Mapping[str, tuple[int, ...]],
        constants: dict[str, np.ndarray],
        dtypes: Mapping[str, str],
    ) -> None:
        self.node, self.shapes, self.constants, self.dtypes = node, shapes, constants, dtypes
        self.nodes: list[onnx.NodeProto] = []
        found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.attributes: dict[str, Any] = found

    def refuse(self, why: str) -> VdlaError:
        """An error that says why the operator is not supported."""
        name = self.node.name or self.node.output[0]
        return VdlaError(f"node {name!r} ({self.node.op_type}): {why}")

    def operand(self, position: int) -> str:
        """The name of an operand; "" where it is left out."""
        return self.node.input[position] if position < len(self.node.input) else ""

    def shape(self, position: int, rank: int) -> tuple[int, ...]:
        """The shape of an operand that must be there.

        Raises
        ------
        VdlaError
            For another rank.
        """
        found = self.shapes.get(self.operand(position))
        if found is None or len(found) != rank:
            got = "none" if found is None else f"shape {[*found]}"
            raise self.refuse(f"expected {rank} dimensions of input {position}, got {got}")
        return found

    def constant(self, position: int, what: str) -> np.ndarray:
        """The known value of an operand."""
        name = self.operand(position)
        if name not in self.constants:
            raise self.refuse(f"expected constant {what} as input {position}, got {name!r}")
        return self.constants[name]

    def size(self, name: str, default: int | None = None) -> int:
        """An attribute that is a number above 0."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int) or value < 1:
            got = "none" if value is None else repr(value)
            raise self.refuse(f"expected a number above 0 as {name}, got {got}")
        return value

    def number(self, name: str, default: int | float) -> int | float:
        """An attribute that is a number, of integers an integer."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int | type(default)):
            raise self.refuse(f"expected a number as {name}, got {value!r}")
        return value

    def only(self, **supported: object) -> None:
        """Refuse attributes with other values than these; an absent one is fine."""
        for name, value in supported.items():
            got = self.attributes.get(name, value)
            if got != value:
                raise self.refuse(f"supported is {name} = {value!r}, got {got!r}")

    def without(self, *positions: int) -> None:
        """Refuse operands at these positions."""
        for position in filter(self.operand, positions):
            raise self.refuse(f"input {position} ({self.operand(position)!r}) is not supported")

    def add(self, kind: str, *operands: str | float | np.ndarray, **attributes: Any) -> str:
        """A node of ONNX; numbers become constants of float32, arrays as they are. Returns the name
        of its result."""
        base = f"{self.node.output[0]}.{kind} {len(self.nodes)}"
        names = []
        for position, x in enumerate(operands):
            names.append(x if isinstance(x, str) else f"{base}.number {position}")
            if not isinstance(x, str):
                self.constants[names[-1]] = x if isinstance(x, np.ndarray) else np.array(x, "f4")
        self.nodes.append(helper.make_node(kind, names, [base], base, **attributes))
        return base

    def sum(self, *names: str) -> str:
        """The sum of operands that are not left out."""
        first, *others = (name for name in names if name)
        for other in others:
            first = self.add("Add", first, other)
        return first

    def activated(self, x: str, numbers: Sequence[float]) -> str:
        """The activation that the node names; ``numbers`` come before the usual ones."""
        kind = self.attributes.get("activation", b"").decode()
        usual = {"LeakyRelu": (0.01,), "HardSigmoid": (0.2, 0.5)}.get(kind, ())
        values = (*numbers, *usual[len(numbers) :])
        if kind == "Clip":
            return self.add("Clip", x, *values[:2])
        names = dict(zip(("alpha", "beta"), values[: len(usual)], strict=False))
        return self.add(kind, x, **names) if kind else x

    def named(self, results: Sequence[str]) -> list[onnx.NodeProto]:
        """The nodes, with the node's own names for these results."""
        renamed = {made: n for made, n in zip(results, self.node.output, strict=False) if n}
        for part in self.nodes:
            for names in (part.input, part.output):
                names[:] = [renamed.get(name, name) for name in names]
        return self.nodes
