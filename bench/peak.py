"""The peak of the host's processor, from loops of nothing but products and sums by an instruction;
and native loops around functions that are measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from ..compiler.targets.cpu import micro_kernels as mk
from ..compiler.targets.cpu.llvm_vector import add_products, splat
from ..compiler.targets.cpu.micro_kernel_code import (
    MICRO_KERNELS,
    Operand,
    configure_tiles,
    release_tiles,
)
from ..compiler.targets.cpu.processor import MachineCode, host_processor, load, optimise

#: Chains of products and sums that do not depend on one another, by instruction, enough to hide the
#: latency of one; and the steps of each chain, which take about a millisecond in all. FMA is of
#: float32 (without such an instruction, a product and a sum), the others of int8.
PEAK_CHAINS = 24
CHAINS = {"FMA": PEAK_CHAINS, "VNNI": PEAK_CHAINS, "AMX": 4}
STEPS = {"FMA": 120_000, "VNNI": 120_000, "AMX": 40_000}

#: Objects of llvmlite; its type annotations do not match its code.
Value = Any


def peak_ops(instruction: str) -> int:
    """Products and sums in one call of :func:`peak_kernel`."""
    lanes = host_processor().vector_lanes
    products = {
        "FMA": lanes,
        "VNNI": lanes * mk.DOT_WIDTH,
        "AMX": mk.TILE_ROWS * mk.TILE_ROWS * mk.TILE_BYTES,
    }
    return 2 * CHAINS[instruction] * STEPS[instruction] * products[instruction]


def peak_kernel(instruction: str) -> None:
    """Products and sums in registers, as fast as the processor can."""
    numbers = np.zeros((PEAK_CHAINS + 2) * mk.TILE_ROWS, np.float32)
    peak_code(instruction).entry(numbers.ctypes.data)


@cache
def peak_code(instruction: str) -> MachineCode:
    """``for step: for chain: sum[chain] = sum[chain] + a * b``, with a and b from memory."""
    if instruction == "AMX":
        return _tile_loop()
    return _loop(_dot_step if instruction == "VNNI" else _fma_step, STEPS[instruction])


@cache
def repeat_code(arguments: int, calls: int) -> MachineCode:
    """A native function that takes the address of another function and this many pointers, and
    makes this many calls of that function with them."""
    i64, pointer = ir.IntType(64), ir.PointerType()
    callee = ir.FunctionType(ir.VoidType(), [pointer] * arguments)
    module = ir.Module("repeat")
    signature = ir.FunctionType(ir.VoidType(), [callee.as_pointer(), *callee.args])
    function = ir.Function(module, signature, "repeat")
    entry, body, end = (function.append_basic_block(name) for name in ("entry", "body", "end"))
    ir.IRBuilder(entry).branch(body)
    builder = ir.IRBuilder(body)
    step = builder.phi(i64)
    builder.call(function.args[0], function.args[1:])
    following = builder.add(step, i64(1))
    step.add_incoming(i64(0), entry)
    step.add_incoming(following, body)
    builder.cbranch(builder.icmp_unsigned("<", following, i64(calls)), body, end)
    ir.IRBuilder(end).ret_void()
    return load(optimise(module, host_processor()), "repeat", 1 + arguments)


def _fma_step(builder: Value, total: Value, a: Value, b: Value) -> Value:
    vector, name = a.type, f"llvm.fmuladd.v{a.type.count}f32"
    callee = builder.module.globals.get(name)
    if callee is None:
        callee = ir.Function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
    return builder.call(callee, [a, b, total])


def _dot_step(builder: Value, total: Value, a: Value, b: Value) -> Value:
    sums = ir.VectorType(ir.IntType(32), a.type.count)
    bytes_ = ir.VectorType(ir.IntType(8), a.type.count * mk.DOT_WIDTH)
    operands = [builder.bitcast(x, kind) for x, kind in ((total, sums), (a, bytes_), (b, bytes_))]
    return builder.bitcast(add_products(builder, *operands), total.type)


def _loop(step_of: Callable[[Value, Value, Value, Value], Value], steps: int) -> MachineCode:
    lanes, i64, real = host_processor().vector_lanes, ir.IntType(64), ir.FloatType()
    vector = ir.VectorType(real, lanes)
    module = ir.Module("peak")
    signature = ir.FunctionType(ir.VoidType(), [ir.PointerType()])
    function = ir.Function(module, signature, "peak")
    entry, body = function.append_basic_block("entry"), function.append_basic_block("body")
    end = function.append_basic_block("end")
    builder = ir.IRBuilder(entry)

    def place(index: int) -> Value:
        return builder.gep(function.args[0], [i64(index)], source_etype=real)

    first = PEAK_CHAINS * lanes
    a, b = (splat(builder, builder.load(place(first + i), typ=real), lanes) for i in range(2))
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(i64)
    sums = [builder.phi(vector) for _ in range(PEAK_CHAINS)]
    following = builder.add(step, i64(1))
    step.add_incoming(i64(0), entry)
    step.add_incoming(following, body)
    for chain, total in enumerate(sums):
        total.add_incoming(ir.Constant(vector, [float(chain)] * lanes), entry)
        total.add_incoming(step_of(builder, total, a, b), body)
    builder.cbranch(builder.icmp_unsigned("<", following, i64(steps)), body, end)
    builder.position_at_end(end)
    for chain, total in enumerate(sums):
        builder.store(total.incomings[1][0], place(chain * lanes), align=4)
    builder.ret_void()
    return load(optimise(module, host_processor()), "peak", 1)


def _tile_loop() -> MachineCode:
    """Four tiles of sums, and two of each operand, as schedules use them."""
    i64, pointer, products = ir.IntType(64), ir.PointerType(), mk.TILE_PRODUCTS[mk.TILE_BYTES]
    module = ir.Module("peak")
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), "peak")
    entry, body, end = (function.append_basic_block(name) for name in ("entry", "body", "end"))
    builder = ir.IRBuilder(entry)
    sums, xs, ws = (
        [Operand(tile=tile) for tile in mk.TILE_REGISTERS[scope.name]]
        for scope in (mk.TILE_SUMS, mk.TILE_X, mk.TILE_W)
    )
    configure_tiles(builder, mk.TILE_BYTES)
    add = MICRO_KERNELS[products.product].emit
    for tile in sums:
        add(builder, tile)
    for intrinsic, tiles in ((products.load_x, xs), (products.load_w, ws)):
        for tile in tiles:
            MICRO_KERNELS[intrinsic].emit(builder, tile, Operand(function.args[0], mk.TILE_BYTES))
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(i64)
    for number, tile in enumerate(sums):
        add(builder, tile, xs[number % 2], ws[number // 2])
    following = builder.add(step, i64(1))
    step.add_incoming(i64(0), entry)
    step.add_incoming(following, body)
    builder.cbranch(builder.icmp_unsigned("<", following, i64(STEPS["AMX"])), body, end)
    builder.position_at_end(end)
    release_tiles(builder)
    builder.ret_void()
    return load(optimise(module, host_processor()), "peak", 1)
