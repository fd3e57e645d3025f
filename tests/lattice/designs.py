"""Machines with more and more of everything, and what the compiler makes of a network on them.

A program for a machine also runs on one with more entries, and a faster memory does not make it
slower. So more of anything must not take more cycles: the compiler could take the program that it
makes for less.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from vdla.bench.networks import find_model
from vdla.compiler.build import build
from vdla.compiler.targets.base import Options
from vdla.compiler.targets.registry import find_target
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MemoryParams
from vdla.isa.params import MEMORIES, PRESETS, HwParams
from vdla.sim.model.core import count_cycles

#: What a machine may have more of: entries of each scratchpad, and twice the bus or half the
#: latency.
KNOBS = (*MEMORIES, "bus", "latency")
#: By how much more cycles are a finding. What is left are cycles of the order of instructions,
#: which follows the latency.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Design:
    """A machine and the memory behind it."""

    hw: HwParams
    memory: MemoryParams

    @staticmethod
    def of_preset(name: str) -> Design:
        """A preset with the usual memory."""
        return Design(PRESETS[name], MemoryParams.load("vta"))

    def doubled(self, knob: str) -> Design:
        """The design with twice as much of something.

        Raises VdlaError where that is not legal.
        """
        hw, memory = self.hw, self.memory
        if knob == "latency":
            halves = {f"{way}_latency_cycles" for way in ("read", "write")}
            return Design(hw, replace(memory, **{n: getattr(memory, n) // 2 for n in halves}))
        if knob == "bus":
            bus_bits = 2 * hw.bus_bits
            return Design(replace(hw, bus_bits=bus_bits), replace(memory, bus_bits=bus_bits))
        depth = f"{knob}_depth"
        return Design(replace(hw, **{depth: 2 * getattr(hw, depth)}), memory)

    def more(self, knobs: str) -> Design:
        """The design with twice as much of each of some knobs, in words: "par par bus" has four
        times the entries of par."""
        found = self
        for knob in knobs.split():
            found = found.doubled(knob)
        return found


@dataclass(frozen=True)
class Result:
    """What a network takes on a design, and how many of its layers the host runs."""

    cycles: int
    host_layers: int


@lru_cache(maxsize=2)
def _model(network: str):
    return find_model(network, 1)


@cache
def result_of(network: str, design: Design) -> Result:
    """What a network, or a layer of table 2, takes on a design."""
    target = find_target("sim", Options(design.hw, design.memory))
    compiled = build(_model(network), target)
    return Result(
        sum(count_cycles(program.table, design.memory) for program in compiled.programs),
        sum(layer.target != "accel" for layer in compiled.layers),
    )


@dataclass(frozen=True)
class Step:
    """A network on a design, and on one that has more of some knobs."""

    network: str
    less: Design
    more: Design
    knobs: str

    @property
    def growth(self) -> float:
        """By what part of them the cycles are more; negative where they are fewer."""
        before, after = (result_of(self.network, d).cycles for d in (self.less, self.more))
        return after / before - 1

    @property
    def exception(self) -> str:
        """Why the larger design may take more cycles; empty if it may not."""
        sizes = [d.hw.insn_bytes for d in (self.less, self.more)]
        if self.more.hw.bus_bits == self.less.hw.bus_bits and sizes[0] != sizes[1]:
            return f"instructions of {sizes[1]} bytes, not {sizes[0]}: addresses are longer"
        sizes = [d.hw.entry_bytes("uop") for d in (self.less, self.more)]
        if sizes[0] != sizes[1]:
            return f"micro-ops of {sizes[1]} bytes, not {sizes[0]}: addresses are longer"
        layers = [result_of(self.network, d).host_layers for d in (self.less, self.more)]
        if layers[0] != layers[1]:
            return f"not the same work: the host runs {layers[1]} layers, not {layers[0]}"
        return ""

    @property
    def is_finding(self) -> bool:
        """Whether more costs."""
        return self.growth > TOLERANCE and not self.exception


def walk(network: str, preset: str, steps: int, chance: random.Random) -> Iterator[Step]:
    """Steps from a preset, each to twice as much of something by chance, and from the preset to
    where all of them lead."""
    first = design = Design.of_preset(preset)
    knobs: list[str] = []
    while len(knobs) < steps:
        knob = chance.choice(KNOBS)
        larger = _legal(design.doubled, knob)
        if larger is None:
            continue
        yield Step(network, design, larger, " ".join([*knobs, knob]))
        knobs.append(knob)
        design = larger
    yield Step(network, first, design, " ".join(knobs))


def _legal(doubled: Callable[[str], Design], knob: str) -> Design | None:
    try:
        return doubled(knob)
    except VdlaError:
        return None
