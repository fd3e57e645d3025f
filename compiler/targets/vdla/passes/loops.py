"""The passes over the loop program of an operator."""

from __future__ import annotations

from functools import partial

from .....isa.params import HwParams
from ....dumps import Dumps
from ....tir.ir import PrimFunc
from ....tir.passes.double_buffer import double_buffer
from ....tir.passes.vthread import interleave_vthreads
from ....tir.printer import print_func
from ....tir.scopes import check_scopes
from ....tir.verify import verify
from ..scopes import memory_scopes

#: The passes for the loop program of every operator, in order.
LOOP_PASSES = (double_buffer, interleave_vthreads)


def run_loop_passes(func: PrimFunc, params: HwParams, dumps: Dumps) -> PrimFunc:
    """A loop program after LOOP_PASSES."""
    verify(func)
    check_scopes(func, memory_scopes(params))
    dumps.write(func.name, "lower", partial(print_func, func))
    for apply in LOOP_PASSES:
        func = apply(func)
        verify(func)
        dumps.write(func.name, apply.__name__, partial(print_func, func))
    return func
