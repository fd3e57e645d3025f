"""Waveforms, read for tests."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Vcd:
    """The part of a VCD file that the tests look at: scopes, and signals' values over time."""

    scopes: set[str] = field(default_factory=set)
    changes: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    times: list[int] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Vcd:
        vcd, codes, stack, now = cls(), {}, [], 0
        for line in path.read_text().splitlines():
            words = line.split()
            match words:
                case ["$scope", _, name, "$end"]:
                    stack.append(name)
                    vcd.scopes.add(".".join(stack))
                case ["$upscope", "$end"]:
                    stack.pop()
                case ["$var", _, _, code, name, *_]:
                    codes.setdefault(code, []).append(".".join([*stack, name]))
                case [word] if word[0] == "#":
                    now = int(word[1:])
                    vcd.times.append(now)
                case [word, code] if word[0] == "b":
                    vcd._change(codes[code], now, int(word[1:], 2))
                case [word] if re.fullmatch("[01].+", word):
                    vcd._change(codes[word[1:]], now, int(word[0]))
        return vcd

    def _change(self, names: list[str], time: int, value: int) -> None:
        for name in names:
            times, values = self.changes.setdefault(name, ([], []))
            times.append(time)
            values.append(value)

    def at(self, name: str, cycle: int) -> int:
        """The value in a cycle, inputs in place: after the falling edge."""
        times, values = self.changes[name]
        return values[bisect.bisect_right(times, 1000 * cycle + 500) - 1]
