"""The first stages of a lane against the operators' table: operands, operator, reduction."""

from __future__ import annotations

import random

import numpy as np
import pytest
from vdla.hw.core.vector import kits
from vdla.hw.core.vector.controls import source_legs
from vdla.hw.core.vector.kits import PART_BITS, Choices, merge_choices, operator_choices
from vdla.hw.core.vector.lane import LookUp, Operands, Operator, Reduction
from vdla.isa.opcodes import SRC0_MEMORIES, SRC1_MEMORIES
from vdla.isa.params import HwParams
from vdla.isa.vector_ops import NumpyKit, VectorOp, operators

from ..bench import SMALL
from ..simulation import simulate
from .passes import CONFIGS

#: The table's values, none of which is its index or its neighbour's value.
TABLE = (np.arange(256) * 37 + 11).astype(np.int8)
EXTREMES = (0, 1, -1, 2, 31, 32, 33, 0xFFFF, 0x10000, -(1 << 31), (1 << 31) - 1)


def random_word(rng: random.Random) -> int:
    return rng.choice((*EXTREMES, rng.randrange(-(1 << 31), 1 << 31), rng.randrange(-99, 99)))


def value(function, *operands: int) -> int:
    """An operator's function of some numbers."""
    return int(function(NumpyKit(TABLE), *(np.array([n], np.int32) for n in operands))[0])


def bits(choices: Choices, **facts) -> int:
    """The legs that are chosen where these facts hold."""

    def holds(case: kits.Case) -> bool:
        return all(getattr(case, name) in (None, fact) for name, fact in facts.items())

    return sum(1 << n for n, cases in enumerate(choices.values()) if any(map(holds, cases)))


@pytest.mark.slow
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_operands(params: HwParams) -> None:
    """Of each memory, and of each part of those that are read whole."""
    rng = random.Random(1)
    operands = Operands(params)

    def poke_words(ctx) -> dict[tuple[str, int], int]:
        its = {}
        for memory in ("acc", "inp", "par"):
            for part, port in enumerate(getattr(operands.words, memory)):
                its[memory, part] = rng.randrange(-128, 128)
                ctx.set(port, its[memory, part])
        ctx.set(operands.told.imm, its.setdefault(("imm", 0), random_word(rng)))
        return its

    async def bench(ctx) -> None:
        ctx.set(operands.told.valid, 1)
        for _ in range(100):
            its, expected = poke_words(ctx), []
            for name, memories in (("src0", SRC0_MEMORIES), ("src1", SRC1_MEMORIES)):
                tmp = random_word(rng)
                ctx.set(getattr(operands.words, f"tmp{name[-1]}"), tmp)
                legs = source_legs(memories, params)
                number = rng.randrange(len(legs))
                ctx.set(getattr(operands.told, name), 1 << number)
                expected.append(tmp if legs[number][0] == "tmp" else its[legs[number]])
            await ctx.tick()
            assert [ctx.get(operands.a), ctx.get(operands.b)] == expected

    simulate(operands, bench)


def check_operator(params: HwParams, ops: tuple[VectorOp, ...]) -> None:
    """The parts of every operator add up to its result."""
    rng = random.Random(2)
    operator, choices = Operator(params), operator_choices(params)

    async def result(ctx, op: VectorOp, first: bool, a: int, b: int) -> int:
        ctx.set(operator.a, a)
        ctx.set(operator.b, b)
        ctx.set(operator.told.valid, 1)
        ctx.set(operator.told.by_power, int(op.name == "shl"))
        for name, legs in choices.items():
            chosen = bits(legs, parameter=False, op=op.code, first=first)
            ctx.set(getattr(operator.told, name), chosen)
        await ctx.tick()
        x, y, upper, up = (ctx.get(getattr(operator, name)) for name in PART_BITS)
        facts = {"parameter": False, "op": op.code, "first": first}
        for leg, cases in choices["x"].items():
            if leg.source is kits.Source.TABLE and bits({leg: cases}, **facts):
                assert x == 0
                x = int(TABLE[(b - a if op.name == "table_diff" else a) % 256])
        total = x + y + (upper << 16) + up
        return (total + (1 << 31)) % (1 << 32) - (1 << 31)

    async def bench(ctx) -> None:
        for op in ops:
            if op.slides:
                continue
            for _ in range(60):
                a, b = random_word(rng), random_word(rng)
                assert await result(ctx, op, True, a, b) == value(op.first, a, b), op.name
                if op.term is not None:
                    assert await result(ctx, op, False, a, b) == value(op.term, a, b), op.name

    simulate(operator, bench)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with a table", "with a table of int16"])
def test_look_ups(name: str) -> None:
    """Of the first operand, and of the second less the first."""
    params, rng = CONFIGS[name], random.Random(4)
    look_up = LookUp(params)
    table = [rng.randrange(-(1 << 7), 1 << 7) for _ in range(256)]
    each = params.vector_table

    async def bench(ctx) -> None:
        ctx.set(look_up.table.en, 1)
        raw = b"".join(n.to_bytes(each, "little", signed=True) for n in table)
        for at in range(len(raw) // 4):
            ctx.set(look_up.table.addr, at)
            ctx.set(look_up.table.data, int.from_bytes(raw[4 * at : 4 * at + 4], "little"))
            await ctx.tick()
        ctx.set(look_up.table.en, 0)
        for _ in range(200):
            a, b, differs = random_word(rng), random_word(rng), rng.randrange(2)
            ctx.set(look_up.a, a)
            ctx.set(look_up.b, b)
            if kits.difference_codes(params):
                ctx.set(look_up.told.difference, differs)
            else:
                differs = 0
            await ctx.tick()
            assert ctx.get(look_up.looked_up) == table[(b - a if differs else a) % 256]

    simulate(look_up, bench)


@pytest.mark.short(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [SMALL, CONFIGS["with a table"], CONFIGS["with a table of int16"]],
    ids=["without", "with a table", "with a table of int16"],
)
def test_every_operator(params: HwParams) -> None:
    check_operator(params, operators(params))


@pytest.mark.slow
def test_operators_of_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new row of the table needs no change here: it gets logic of its own."""
    steps = ("min", "max", "add", "sub", "mul", "shl", "shr", "rshr")
    ours = operators(SMALL)
    assert len(ours) + len(steps) <= 16
    ops = tuple(
        VectorOp(
            f"{step} of sum", len(ours) + n, "",
            lambda kit, a, b, step=step: getattr(kit, step)(kit.add(a, b), b),
        )
        for n, step in enumerate(steps)
    )  # fmt: skip
    monkeypatch.setattr(kits, "operators", lambda _: (*ours, *ops))
    check_operator(SMALL, ops)


@pytest.mark.slow
@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_reduction(params: HwParams) -> None:
    """Passes reduce side by side; a new reduction begins with its first term."""
    rng = random.Random(4)
    reduction, choices = Reduction(params), merge_choices(params)
    folds = [op for op in operators(params) if op.combine is not None and not op.slides]
    # Of each pass: what was reduced so far.
    so_far = [0] * params.vector_passes

    async def fold(ctx, op: VectorOp, part: int, first: bool) -> None:
        x, y, up = random_word(rng), random_word(rng), rng.randrange(2)
        upper = rng.randrange(1 << 16)
        for name, part_of in zip(PART_BITS, (x, y, upper, up), strict=True):
            ctx.set(getattr(reduction, name), part_of % (1 << PART_BITS[name]))
        ctx.set(reduction.add.valid, 1)
        await ctx.tick()
        ctx.set(reduction.add.valid, 0)
        ctx.set(reduction.reduce.valid, 1)
        ctx.set(reduction.reduce.merge, bits(choices, op=op.code, first=first))
        await ctx.tick()
        ctx.set(reduction.reduce.valid, 0)
        term = (x + y + (upper << 16) + up + (1 << 31)) % (1 << 32) - (1 << 31)
        so_far[part] = term if first else value(op.combine, so_far[part], term)
        assert ctx.get(reduction.result) == so_far[part], op.name

    async def bench(ctx) -> None:
        for _ in range(40):
            op = rng.choice(folds)
            for iteration in range(rng.randrange(1, 5)):
                for part in range(params.vector_passes):
                    await fold(ctx, op, part, iteration == 0)

    simulate(reduction, bench)
