"""Tensor intrinsics: instructions on whole tiles, declared by what they compute."""

from __future__ import annotations

from dataclasses import dataclass

from .tensor import Tensor


@dataclass(frozen=True, eq=False)
class TensorIntrin:
    """A tensor instruction: ``behaviour`` is a computed tensor over placeholders, which are its
    operands in order. The threads along the axes of ``collective`` execute it together, as one
    instruction.
    """

    name: str
    behaviour: Tensor
    collective: tuple[str, ...] = ()

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Input operands."""
        return self.behaviour.inputs
