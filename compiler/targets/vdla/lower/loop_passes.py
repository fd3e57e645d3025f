"""The passes over the loop program of an operator."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

from ....dumps import Dumps
from ....tir.ir import PrimFunc
from ....tir.passes.double_buffer import double_buffer
from ....tir.passes.vthread import interleave_vthreads
from ....tir.printer import print_func
from ....tir.scopes import check_scopes
from ....tir.verify import verify
from ..machine import Machine
from ..scopes import memory_scopes
from .prefetch_weights import weights_ahead

#: Scratchpads that one unit alone reads and writes, in order: the vector unit.
SERIAL = ("tmp",)
#: The passes for the loop program of every operator, in order. Each also gets the eighths of
#: ``wgt`` for the operator's weights.
LOOP_PASSES: dict[str, Callable[[PrimFunc, Machine, int | Fraction], PrimFunc]] = {
    "weights_ahead": weights_ahead,
    "double_buffer": lambda func, *_: double_buffer(func),
    "interleave_vthreads": lambda func, machine, _: interleave_vthreads(func, SERIAL),
}


def run_loop_passes(
    func: PrimFunc, machine: Machine, dumps: Dumps, eighths: int | Fraction
) -> PrimFunc:
    """A loop program after LOOP_PASSES. ``eighths`` of ``wgt`` are for its weights."""
    verify(func)
    check_scopes(func, memory_scopes(machine.params))
    dumps.write(func.name, "lower", partial(print_func, func))
    for name, apply in LOOP_PASSES.items():
        func = apply(func, machine, eighths)
        verify(func)
        dumps.write(func.name, name, partial(print_func, func))
    return func
