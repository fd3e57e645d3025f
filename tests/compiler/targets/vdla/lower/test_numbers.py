"""Loop programs that differ in numbers have one code where that is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from vdla.bench.modern import FloatNet
from vdla.compiler.build import build
from vdla.compiler.dumps import Dumps
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.lower.codegen import Code
from vdla.compiler.targets.vdla.lower.link import Linker, Place
from vdla.compiler.targets.vdla.lower.loop_passes import run_loop_passes
from vdla.compiler.targets.vdla.lower.loop_programs import LoopPrograms
from vdla.compiler.targets.vdla.lower.numbers import Number, abstract, map_constants, with_slots
from vdla.compiler.targets.vdla.machine import ACCELERATOR, USUAL_EIGHTHS, Budget, Context, Machine
from vdla.compiler.targets.vdla.target import Accelerator
from vdla.compiler.targets.vdla.templates.base import AcceleratorTemplate
from vdla.compiler.te.expr import Const, Expr
from vdla.compiler.tir.ir import PrimFunc
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams

from ..test_squeeze import quantised

PARAMS = HwParams(vector_window=3, vector_table=2)
NO_DUMPS = Dumps(None)


@cache
def loop_programs() -> Sequence[tuple[str, PrimFunc, Machine]]:
    """Of the operators of a network with attention, additions, a table, and windows."""
    net = FloatNet("numbers")
    x = net.silu(net.conv(net.input(1, 32, 8, 8), 32, 3, relu=False))
    x = net.binary("Add", x, net.conv(net.conv(x, 32, 3, groups=32), 32, 1, relu=False))
    net.output(x)
    tokens = FloatNet("tokens")
    t = tokens.layer_norm(tokens.tokens(16, 50, 32))
    tokens.output(tokens.layer_norm(tokens.binary("Add", t, tokens.attention(t, 2))))
    target = find_target("sim", Options(PARAMS, MEMORY_PRESETS["vta"]))
    assert isinstance(target, Accelerator)
    found = []
    for model in net.model(), tokens.model():
        graph = build(quantised(model), target).graph
        for node in graph.nodes:
            template = target.template_of(graph, node) if node.target == ACCELERATOR else None
            if isinstance(template, AcceleratorTemplate):
                workload = template.workload(graph, node, Context(Budget.whole(PARAMS)))
                knobs = template.plan(workload, {}).knobs
                func = template.schedule(workload, knobs, "f")
                found.append((template.name, func, target.machine))
    return found


def rows(code: Code, numbers: dict[int, int] | None = None) -> np.ndarray:
    """The instructions of a loop program alone."""
    linker = Linker(PARAMS)
    places = {buffer: Place(0, "") for buffer in code.func.params}
    linker.add(code.object_code(), "f", places, numbers=numbers)
    return linker.insns().rows


def tried(make: Callable[[], np.ndarray]) -> np.ndarray | str:
    try:
        return make()
    except VdlaError as error:
        return str(error)


def with_number(func: PrimFunc, slot: int, value: int) -> PrimFunc:
    """The loop program with plain integers, of which one is another one."""

    def change(const: Const) -> Expr:
        number = const.value
        if not isinstance(number, Number):
            return const
        return Const(value if number.slot == slot else int(number), const.dtype)

    return map_constants(func, change)


@pytest.mark.slow
def test_code_with_other_numbers_is_the_code_of_these_numbers() -> None:
    """Each number of each loop program is changed in turn. What is shared then, and what is not, is
    what the loop program gives that never had other numbers."""
    shared, apart = 0, 0
    for name, plain, machine in loop_programs():
        func = with_slots(plain)
        _, numbers = abstract(func)
        ready = LoopPrograms(machine)
        first = ready.code("first", lambda: plain, USUAL_EIGHTHS, NO_DUMPS)  # noqa: B023
        for slot, value in numbers.items():
            other = with_number(func, slot, value + 1)

            def linked() -> np.ndarray:
                found = ready.code(("other", slot), lambda: other, USUAL_EIGHTHS, NO_DUMPS)  # noqa: B023
                nonlocal shared, apart
                shared, apart = shared + (found.code is first.code), apart + 1  # noqa: B023
                return rows(found.code, dict(found.numbers))

            fresh = Code(run_loop_passes(other, machine, NO_DUMPS, USUAL_EIGHTHS), machine.params)
            want, got = tried(lambda: rows(fresh)), tried(linked)  # noqa: B023
            same = want == got if isinstance(want, str) else np.array_equal(want, got)
            assert same, (name, slot, value)
    assert 10 < shared < apart


def test_numbers_that_decide_are_no_numbers() -> None:
    """A clip to int8 costs nothing, one to less takes an instruction: the bounds stay as they
    are."""
    numbers = [abstract(with_slots(plain))[1] for _, plain, _ in loop_programs()]
    assert any(numbers)
    assert not {-128, 127, 0, 1}.intersection(
        value for found in numbers for value in found.values()
    )
