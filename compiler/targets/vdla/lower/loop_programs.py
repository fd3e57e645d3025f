"""Equal loop programs have one code, whether layers of a network or candidates of a search need
them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from ....dumps import Dumps
from ....tir.ir import PrimFunc
from ....tir.printer import print_func
from ..machine import Machine
from .codegen import Code
from .loop_passes import run_loop_passes
from .prefetch_weights import weights_ahead


@dataclass(frozen=True)
class LoopPrograms:
    """Keeps the code of every loop program. Different choices often give the same loop program,
    which its text shows.
    """

    machine: Machine
    _by_choice: dict[Hashable, Code] = field(default_factory=dict)
    _scheduled: dict[Hashable, PrimFunc] = field(default_factory=dict)
    _by_text: dict[str, Code] = field(default_factory=dict)

    def code(
        self, choice: Hashable, schedule: Callable[[], PrimFunc], wgt_eighths: int, dumps: Dumps
    ) -> Code:
        """The code of a loop program.

        Parameters
        ----------
        choice : all that ``schedule``, which makes the loop program, depends on but for its name
        wgt_eighths : eighths of ``wgt`` for its weights
        """
        key = choice, wgt_eighths
        if key not in self._by_choice:
            if choice not in self._scheduled:
                self._scheduled[choice] = schedule()
            func = self._scheduled[choice]
            # The only pass that depends on the eighths; most weights need less.
            text = _text(weights_ahead(func, self.machine, wgt_eighths))
            if text not in self._by_text:
                func = run_loop_passes(func, self.machine, dumps, wgt_eighths)
                self._by_text[text] = Code(func, self.machine.params)
            self._by_choice[key] = self._by_text[text]
        return self._by_choice[key]


def _text(func: PrimFunc) -> str:
    """What a loop program computes, and how, but for its name."""
    return print_func(replace(func, name=""))
