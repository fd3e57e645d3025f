"""The values of a program: its instructions as a table, executed by the kernels of its
configuration.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm
import numpy as np

from ..isa.encoding import decode_fields
from ..isa.params import HwParams
from ..isa.program import Program
from ..isa.reference import AddressError, State, execute
from .kernels import COLUMNS, POINTERS, build_module


def compute(program: Program, order: np.ndarray, state: State) -> None:
    """Execute instructions of a program on memories.

    Parameters
    ----------
    program : Program
    order : int64 [instructions]
        Which, and in what order.
    state : State
        Its memories are changed in place; DRAM must be contiguous.

    Raises AddressError where one leaves a memory.
    """
    params = program.params
    table = decode_fields(program.encoded(), params, COLUMNS)
    order = np.ascontiguousarray(order, np.int64)
    memories = {
        "registers": np.array([0] * (3 * params.block) + [0, -128, 127], np.int32),
        "pairs": np.zeros((params.wgt_depth, params.block_in, params.block_out), np.int16),
    }
    arrays = [memories[n] if n in memories else state.memory(n) for n in POINTERS]
    pointers = np.array([array.ctypes.data for array in arrays], np.uint64)
    done = kernels(params).run(
        table.ctypes.data, order.ctypes.data, order.size, pointers.ctypes.data, state.dram.size
    )
    if done < order.size:
        index = int(order[done])
        try:
            execute(program.insns[index], state)  # the reference says what is wrong with it
        except AddressError as error:
            raise AddressError(f"instruction {index}: {error}") from None


@dataclass(frozen=True, eq=False)
class Kernels:
    """The module of :func:`build_module` as machine code of this processor; ``engine`` owns it."""

    engine: llvm.ExecutionEngine
    run: Callable[..., int]


@lru_cache(maxsize=16)
def kernels(params: HwParams) -> Kernels:
    """The kernels of a configuration, made once a process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module = build_module(params)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(parsed, builder)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    prototype = ctypes.CFUNCTYPE(integer, pointer, pointer, integer, pointer, integer)
    return Kernels(engine, prototype(engine.get_function_address("run")))
