"""Tensor intrinsics: instructions on whole tiles, declared by what they compute."""

from __future__ import annotations

from dataclasses import dataclass

from .tensor import Tensor


@dataclass(frozen=True, eq=False)
class TensorIntrin:
    """A tensor instruction: ``behaviour`` is a computed tensor over placeholders, which are its
    operands in order. The ``threads`` along the axes of ``collective`` execute it together, as one
    instruction. An ``asynchronous`` one goes on while its threads do; they wait for its end. With
    ``zeros_outside``, elements of its inputs beyond the ends of their buffers are 0.
    """

    name: str
    behaviour: Tensor
    collective: tuple[str, ...] = ()
    threads: int = 1
    asynchronous: bool = False
    zeros_outside: bool = False

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """Input operands."""
        return self.behaviour.inputs
