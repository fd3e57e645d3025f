"""Loop programs that are equal but for numbers have one code, whether layers of a network or
candidates of a search need them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from .....isa.errors import VdlaError
from ....dumps import Dumps
from ....tir.ir import PrimFunc
from ..machine import Machine
from .codegen import Code
from .loop_passes import run_loop_passes
from .numbers import abstract, with_slots
from .prefetch_weights import weights_ahead


@dataclass(frozen=True)
class CodeWithNumbers:
    """The code of a loop program, and the numbers that its instructions have."""

    code: Code
    numbers: Mapping[int, int]


@dataclass(frozen=True)
class LoopPrograms:
    """Keeps the code of every loop program. Different choices often give the same loop program,
    which its text shows.
    """

    machine: Machine
    _by_choice: dict[Hashable, CodeWithNumbers] = field(default_factory=dict)
    _scheduled: dict[Hashable, PrimFunc] = field(default_factory=dict)
    _by_text: dict[str, list[CodeWithNumbers]] = field(default_factory=dict)

    def code(
        self,
        choice: Hashable,
        schedule: Callable[[], PrimFunc],
        wgt_eighths: int | Fraction,
        dumps: Dumps,
    ) -> CodeWithNumbers:
        """The code of a loop program.

        Parameters
        ----------
        choice : all that ``schedule``, which makes the loop program, depends on but for its name
        wgt_eighths : eighths of ``wgt`` for its weights
        """
        key = choice, wgt_eighths
        if key not in self._by_choice:
            if choice not in self._scheduled:
                self._scheduled[choice] = with_slots(schedule())
            func = self._scheduled[choice]
            # The only pass that depends on the eighths; most weights need less.
            text, numbers = abstract(weights_ahead(func, self.machine, wgt_eighths))
            ready = self._by_text.setdefault(text, [])
            code = next((r.code for r in ready if _differ_in_fields(r, numbers)), None)
            if code is None:
                func = run_loop_passes(func, self.machine, dumps, wgt_eighths)
                code = Code(func, self.machine.params)
                ready.append(CodeWithNumbers(code, numbers))
            self._by_choice[key] = CodeWithNumbers(code, numbers)
        return self._by_choice[key]


def _differ_in_fields(ready: CodeWithNumbers, numbers: Mapping[int, int]) -> bool:
    """Whether the same loop program with other numbers differs in fields of instructions only."""
    others = {slot for slot, value in numbers.items() if value != ready.numbers[slot]}
    try:
        return not others or others <= ready.code.slots
    except VdlaError:  # no instructions compute it; with other numbers some may
        return False
