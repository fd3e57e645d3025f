"""Loop programs are made once for all choices that give the same one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from vdla.compiler.build import build
from vdla.compiler.dumps import Dumps
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.compiler.targets.vdla.lower.codegen import Code
from vdla.compiler.targets.vdla.lower.loop_passes import run_loop_passes
from vdla.compiler.targets.vdla.lower.loop_programs import LoopPrograms
from vdla.compiler.tir.ir import PrimFunc
from vdla.compiler.tir.printer import print_func
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams

from ..templates.test_inverted_residual import network
from ..test_squeeze import quantised, squeezed

MODELS = Path(__file__).parents[5] / "examples" / "models"
WINDOWS = HwParams(vector_window=3, vector_table=2, tmp_depth=64)


def models() -> dict[str, Callable[[], onnx.ModelProto]]:
    """By name: with every template whose loop programs depend on the scratchpads that it has."""
    return {
        "digits": lambda: onnx.load(MODELS / "digits_int8.onnx"),
        "digits_transformer": lambda: onnx.load(MODELS / "digits_transformer_int8.onnx"),
        "squeezed": lambda: quantised(squeezed()),
        "windows": lambda: network((3, 1), (5, 2)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", models())
def test_a_loop_program_follows_from_its_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another program has made it: nothing that decides is missing from the choice."""
    seen: set[Hashable] = set()
    repeated = 0

    def code(
        self: LoopPrograms,
        choice: Hashable,
        schedule: Callable[[], PrimFunc],
        wgt_eighths: int,
        dumps: Dumps,
    ) -> Code:
        nonlocal repeated
        found = known(self, choice, schedule, wgt_eighths, dumps)
        again = run_loop_passes(schedule(), self.machine, dumps, wgt_eighths)
        texts = [print_func(replace(func, name="")) for func in (found.func, again)]
        assert texts[0] == texts[1]
        repeated += (choice, wgt_eighths) in seen
        seen.add((choice, wgt_eighths))
        return found

    known = LoopPrograms.code
    monkeypatch.setattr(LoopPrograms, "code", code)
    build(models()[name](), find_target("sim", Options(WINDOWS, MEMORY_PRESETS["vta"])))
    assert repeated > len(seen) // 2
