"""The values of a program: its instructions as a table, executed by the kernels of its
configuration.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import llvmlite.binding as llvm
import numpy as np

from ...isa.params import HwParams
from ...isa.program import Program
from ...isa.reference import AddressError, State, execute
from ...isa.vector_ops import VECTOR_OPS, VectorOp
from ...runtime.cache import cache_dir, keep_checked, read_checked
from ...runtime.processor import host
from .kernels import POINTERS, build_module


def run(program: Program, dram: np.ndarray, order: np.ndarray | None = None) -> State:
    """Execute instructions on memories that are zero at reset: ``isa.reference.run``, fast.

    Parameters
    ----------
    program : Program
    dram : uint8 [bytes], contiguous, changed in place
    order : int64 [n], optional
        Which instructions, and in what order; by default all in program order.

    Raises AddressError, with the index of the instruction, where one accesses beyond a memory.
    """
    params, state = program.params, State(program.params, dram)
    table = program.table.rows
    order = np.arange(len(table)) if order is None else np.ascontiguousarray(order, np.int64)
    registers = np.zeros(3 * params.block + 3, np.int32)
    registers[-3:] = state.zero_point, state.lo, state.hi
    pairs = np.zeros((params.wgt_depth, params.block_in * params.block_out), np.int16)
    own = {"registers": registers, "pairs": pairs}
    memories = [own[name] if name in own else state.memory(name) for name in POINTERS]
    pointers = np.array([memory.ctypes.data for memory in memories], np.uint64)
    done = kernels(params).run(
        table.ctypes.data, order.ctypes.data, order.size, pointers.ctypes.data, dram.size
    )
    if done < order.size:
        index = int(order[done])
        try:
            execute(program.insns[index], state)  # the reference says what is wrong with it
        except AddressError as error:
            raise AddressError(f"instruction {index}: {error}") from None
    return state


@dataclass(frozen=True, eq=False)
class Kernels:
    """The module of :func:`build_module` as machine code of this processor; ``engine`` owns it."""

    engine: llvm.ExecutionEngine
    run: Callable[..., int]


def kernels(params: HwParams) -> Kernels:
    """The kernels of a configuration, made once for a machine (kept in ``cache_dir()``) and loaded
    once a process."""
    return _kernels(params, tuple(VECTOR_OPS))


@lru_cache(maxsize=16)
def _kernels(params: HwParams, _operators: tuple[VectorOp, ...]) -> Kernels:
    """The kernels of a configuration whose vector unit has these operators."""
    machine = host().target_machine(opt=2)
    module = build_module(params)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    key = "\0".join([str(module), host().key, str(llvm.llvm_version_info)])
    kept = cache_dir() / f"values_{hashlib.sha256(key.encode()).hexdigest()[:24]}.o"
    parsed = llvm.parse_assembly(str(module))
    known = read_checked(kept)  # LLVM ends the process when it reads a damaged file
    if known is None:
        parsed.verify()
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(2))
        builder.getModulePassManager().run(parsed, builder)
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.set_object_cache(
        lambda _module, code: keep_checked(kept, code),
        lambda _module: known,
    )
    engine.finalize_object()
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    prototype = ctypes.CFUNCTYPE(integer, pointer, pointer, integer, pointer, integer)
    return Kernels(engine, prototype(engine.get_function_address("run")))
