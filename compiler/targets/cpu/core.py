"""What one core of a processor can do, by which schedules are planned.

The operating system knows the sizes of caches (``runtime/processor.py``). It does not know how many
instructions a core begins in a cycle, and how long a sum waits for the one before it: short loops
measure that once for a processor, and it is kept in the cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from ....runtime.cache import cache_dir, keep_checked, read_checked
from ....runtime.native import aligned_memory
from .llvm_vector import add_products

#: Objects of llvmlite, whose type annotations do not agree with its code.
Value = Any

#: What a core may begin in a cycle.
RATES = (0.5, 1.0, 2.0, 4.0)
#: The largest rate counts of which at least this fraction is measured: another thread that uses the
#: same core makes it slower, nothing makes it faster.
RATE_FRACTION = 0.55
#: Cycles of a product of two int64 and of an exclusive or after it, the same on AMD's and Intel's
#: processors for years. Unlike a chain of sums, such a chain stays nearly as fast when another
#: thread uses the same core.
MULTIPLY_CYCLES = 3 + 1
#: Instructions in one iteration of a loop, iterations of a call, and calls, of which the fastest
#: counts: others may use the core meanwhile.
UNROLLED, ITERATIONS, ROUNDS = 48, 1024, 100
#: Sums of a loop that measures how many products a core begins: enough for two units of latency 6.
CHAINS = 12
#: Bytes that the loops which load go through, again and again: they stay in the nearest cache, or,
#: being more than any nearest cache holds, in the second-level cache.
LOADED_BYTES, FAR_BYTES = 8 << 10, 256 << 10
#: Bytes that the second-level cache may send in a cycle. The largest counts of which nine tenths
#: are measured: choices must not depend on noise.
FAR_RATES = (4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0)
#: Part of the cycles of loads that products do not hide, so that of two tiles with equally many
#: products that one is better which loads less.
EXPOSED = 1 / 8
#: Bytes that caches send at once.
LINE_BYTES = 64
#: The most bytes of a vector.
VECTOR_BYTES = 64

_POINTER, _I8, _I32, _I64 = ir.PointerType(), *(ir.IntType(bits) for bits in (8, 32, 64))


@dataclass(frozen=True)
class Core:
    """What one core can do.

    Attributes
    ----------
    products_per_cycle : multiply-adds of vectors that it begins in a cycle
    latency_cycles, dot_latency_cycles : from adding a product to a sum until the next product can
        be added to it, of float32 and of four products of int8
    loads_per_cycle, broadcasts_per_cycle : vectors that it loads in a cycle from the nearest cache,
        and elements that it loads to all lanes
    l2_bytes_per_cycle : that the second-level cache sends to the nearest one
    l1_bytes, l2_bytes : sizes of the nearest cache for data, and of the next one
    l1_way_bytes : of the nearest cache; lines at such a distance share a set
    """

    products_per_cycle: float = 1.0
    latency_cycles: int = 4
    dot_latency_cycles: int = 4
    loads_per_cycle: float = 1.0
    broadcasts_per_cycle: float = 2.0
    l2_bytes_per_cycle: float = 24.0
    l1_bytes: int = 32 << 10
    l2_bytes: int = 1 << 20
    l1_way_bytes: int = 4 << 10

    @property
    def near_bytes(self) -> int:
        """Size of data that stays in the second-level cache while other data passes through it."""
        return self.l2_bytes * 3 // 8

    def step_cycles(
        self,
        products: float,
        latency_cycles: int,
        broadcasts: float = 0,
        loads: float = 0,
        far_bytes: float = 0,
    ) -> float:
        """Cycles of a step that adds a product to each sum of a tile, and loads its operands, of
        which ``far_bytes`` come from the second-level cache."""
        loading = broadcasts / self.broadcasts_per_cycle + loads / self.loads_per_cycle
        arriving = far_bytes / self.l2_bytes_per_cycle
        multiplying = products / self.products_per_cycle
        longest = max(multiplying, latency_cycles, loading, arriving)
        return longest + EXPOSED * (loading + arriving)


# ---- speeds --------------------------------------------------------------------------------------


def measured_speeds(
    machine: Callable[[], llvm.TargetMachine], lanes: int, dots: bool
) -> dict[str, float]:
    """The speeds of this core, as fields of :class:`Core`.

    Parameters
    ----------
    machine : makes a target machine for this processor
    lanes : float32 values in one of its vector registers
    dots : whether it has the instruction that adds four products of uint8 and int8
    """
    module = ir.Module("core")
    names = list(_emit_loops(module, lanes, dots))
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine())
    engine.finalize_object()
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    loops = {name: prototype(engine.get_function_address(name)) for name in names}
    data = aligned_memory(FAR_BYTES + VECTOR_BYTES * UNROLLED)
    data[:] = 0
    best = dict.fromkeys(loops, math.inf)
    for _ in range(ROUNDS):
        for name, loop in loops.items():
            begin = time.perf_counter_ns()
            loop(data.ctypes.data)
            best[name] = min(best[name], time.perf_counter_ns() - begin)
    return speeds_of(best)


def speeds_of(times: Mapping[str, float]) -> dict[str, float]:
    """The fields of a core by the times of equally many steps of each loop, in any unit."""
    cycle = times["multiply"] / MULTIPLY_CYCLES
    found: dict[str, float] = {
        f"{name}_per_cycle": _rate(cycle / times[name])
        for name in ("products", "loads", "broadcasts")
    }
    found["l2_bytes_per_cycle"] = max(
        (rate for rate in FAR_RATES if LINE_BYTES * cycle / times["lines"] >= 0.9 * rate),
        default=FAR_RATES[0],
    )
    for name in ("latency", "dot_latency"):
        if name in times:
            found[f"{name}_cycles"] = max(1, round(times[name] / cycle))
    return found


def _rate(measured: float) -> float:
    return max((rate for rate in RATES if measured >= RATE_FRACTION * rate), default=RATES[0])


def _emit_loops(module: ir.Module, lanes: int, dots: bool) -> Iterator[str]:
    """Add a function for each loop to a module; yield its name. All have equally many steps, each
    of which waits for the one before where the latency is measured."""
    real, whole = (ir.VectorType(kind, lanes) for kind in (ir.FloatType(), _I32))
    bytes_ = ir.VectorType(_I8, 4 * lanes)

    def multiply(builder: Value, x: Value, operands: Sequence[Value], place: int) -> Value:
        return builder.xor(builder.mul(x, operands[0]), operands[0])

    def multiply_add(builder: Value, x: Value, operands: Sequence[Value], place: int) -> Value:
        name = f"llvm.fma.v{lanes}f32"
        known = module.globals.get(name)
        fused = known or ir.Function(module, ir.FunctionType(real, [real] * 3), name)
        return builder.call(fused, [operands[0], operands[0], x])

    def dot(builder: Value, x: Value, operands: Sequence[Value], place: int) -> Value:
        return add_products(builder, x, operands[0], operands[0])

    def load(builder: Value, x: Value, operands: Sequence[Value], place: int) -> Value:
        found = builder.load(_at(builder, operands[-1], place * VECTOR_BYTES), align=4, typ=whole)
        return builder.xor(x, found)

    def broadcast(builder: Value, x: Value, operands: Sequence[Value], place: int) -> Value:
        element = builder.load(_at(builder, operands[-1], place * VECTOR_BYTES), align=4, typ=_I32)
        first = builder.insert_element(ir.Constant(whole, ir.Undefined), element, _I32(0))
        places = ir.Constant(ir.VectorType(_I32, lanes), [0] * lanes)
        return builder.xor(x, builder.shuffle_vector(first, first, places))

    near = LOADED_BYTES
    loops: dict[str, tuple[Value, Value, int, Callable[..., Value], int]] = {
        "multiply": (_I64, _I64, 1, multiply, near),
        "products": (real, real, CHAINS, multiply_add, near),
        "latency": (real, real, 1, multiply_add, near),
        "loads": (whole, whole, CHAINS, load, near),
        "broadcasts": (whole, whole, CHAINS, broadcast, near),
        "lines": (whole, whole, CHAINS, load, FAR_BYTES),
    }
    if dots:
        loops["dot_latency"] = (whole, bytes_, 1, dot, near)
    for name, loop in loops.items():
        _emit_loop(module, name, *loop)
        yield name


def _emit_loop(
    module: ir.Module,
    name: str,
    kind: Value,
    operand: Value,
    chains: int,
    step: Callable[..., Value],
    passed_bytes: int,
) -> None:
    """``name(data)``: a loop of ``UNROLLED`` steps, which go on with ``chains`` values in turn and
    through ``passed_bytes`` of data, a power of two."""
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER]), name)
    entry, loop, end = (function.append_basic_block(b) for b in ("entry", "loop", "end"))
    builder, (data,) = ir.IRBuilder(entry), function.args
    operands: list[Value] = [builder.load(data, align=4, typ=operand)]
    first = builder.load(data, align=4, typ=kind)
    builder.branch(loop)
    builder.position_at_end(loop)
    counter = builder.phi(_I64)
    counter.add_incoming(_I64(0), entry)
    values = [builder.phi(kind) for _ in range(chains)]
    before = list(values)
    moved = builder.and_(
        builder.mul(counter, _I64(VECTOR_BYTES * UNROLLED)), _I64(passed_bytes - VECTOR_BYTES)
    )
    operands.append(builder.gep(data, [moved], source_etype=_I8))
    for place in range(UNROLLED):
        values[place % chains] = step(builder, values[place % chains], operands, place)
    following = builder.add(counter, _I64(1))
    counter.add_incoming(following, loop)
    for phi, value in zip(before, values, strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(value, loop)
    builder.cbranch(builder.icmp_unsigned("<", following, _I64(ITERATIONS)), loop, end)
    builder.position_at_end(end)
    for value in values:
        builder.store(value, data, align=4)
    builder.ret_void()


def _at(builder: Value, base: Value, offset_bytes: int) -> Value:
    return builder.gep(base, [_I64(offset_bytes)], source_etype=_I8)


# ---- kept ----------------------------------------------------------------------------------------


def core_speeds(
    key: str, machine: Callable[[], llvm.TargetMachine], lanes: int, dots: bool
) -> dict[str, float]:
    """The speeds of a core of this machine; ``key`` names its processor, under which they are kept.
    The other parameters are those of :func:`measured_speeds`.
    """
    known = (key, [field.name for field in fields(Core)])
    digest = hashlib.sha256(repr(known).encode()).hexdigest()[:32]
    place = cache_dir() / f"core_{digest}.json"
    kept = read_checked(place)
    if kept is None:
        kept = json.dumps(measured_speeds(machine, lanes, dots)).encode()
        keep_checked(place, kept)
    return json.loads(kept)
