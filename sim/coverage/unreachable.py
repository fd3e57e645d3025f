"""The bins that no legal program can reach, and why: the one table. ``docs/coverage.md`` argues
them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ...isa.encoding import VECTOR_LOOPS
from ...isa.opcodes import LOADABLE, Opcode, Unit
from ...isa.params import HwParams
from ...isa.vector_ops import VECTOR_OPS
from ..model.dma import PAGE_BYTES
from .bins import bins, name


@dataclass(frozen=True)
class Unreachable:
    """A rule: bins of a group whose whole name matches a pattern, in configurations for which
    ``when`` holds.
    """

    group: str
    pattern: str
    reason: str
    when: Callable[[HwParams], bool] = lambda _: True


def _any(names: list[str]) -> str:
    return f"({'|'.join(map(re.escape, names))})"


def _smallest_entry(params: HwParams) -> int:
    """Bytes in DRAM of the smallest entry that is loaded; widened ones take a byte a channel."""
    return min(params.block_out, *(params.entry_bytes(memory) for memory in LOADABLE))


def _burst_bytes(params: HwParams) -> int:
    return params.max_burst_beats * params.bus_bytes


def _bytes(params: HwParams, memory: str) -> int:
    return params.depth(memory) * params.entry_bytes(memory)


_NOT_REDUCING = [op.name for op in VECTOR_OPS if op.term is None]
_SLIDING = [op.name for op in VECTOR_OPS if op.slides]
_NEVER_LARGER = ["min", "max", "shr", "rshr"]

RULES = (
    Unreachable("pairs", rf"load memory=(?!par|wgt){_any(list(LOADABLE))} widen=1",
                "illegal: only entries of par and weights are widened"),
    Unreachable("pairs", "load memory=wgt widen=1",
                "illegal: without packed_weights, weights are not widened",
                lambda p: not p.packed_weights),
    Unreachable("pairs", rf"vector op={_any(_NOT_REDUCING)} reduce=[1-4]",
                "illegal: the operator does not reduce"),
    Unreachable("pairs", rf"vector op={_any(_SLIDING)} reduce={VECTOR_LOOPS}",
                "illegal: a window slides along a loop that is not reduced"),
    *(Unreachable("tokens", rf"{name(op)} (pop|push) (.*\+)?{name(op.unit)}(\+.*)?",
                  "illegal: a unit has no tokens to itself") for op in Opcode),
    *(Unreachable("stalls", f"{name(unit)} token_{name(unit)}",
                  "a unit has no tokens to itself") for unit in Unit),
    Unreachable("stalls", "gemm stalled", "sums are forwarded: an iteration never waits"),
    Unreachable("hazards", "waw dram: store, store, in flight",
                "with stores_in_flight = 1 a store starts after the one before has ended",
                lambda p: p.stores_in_flight == 1),
    Unreachable("overlap", "two of store",
                "with stores_in_flight = 1 a store starts after the one before has ended",
                lambda p: p.stores_in_flight == 1),
    Unreachable("dram", "load (begins|ends) inside a beat",
                "entries of every loadable memory are whole beats",
                lambda p: _smallest_entry(p) >= p.bus_bytes),
    Unreachable("dram", "store (begins|ends) inside a beat",
                "entries of out are whole beats",
                lambda p: p.entry_bytes("out") >= p.bus_bytes),
    Unreachable("dram", "load longest burst",
                "the largest memory is smaller than the longest burst",
                lambda p: max(_bytes(p, m) for m in LOADABLE) < _burst_bytes(p)),
    Unreachable("dram", "load cut at the longest burst",
                "the largest memory is not larger than the longest burst",
                lambda p: max(_bytes(p, m) for m in LOADABLE) <= _burst_bytes(p)),
    Unreachable("dram", "store longest burst", "out is smaller than the longest burst",
                lambda p: _bytes(p, "out") < _burst_bytes(p)),
    Unreachable("dram", "store cut at the longest burst",
                "out is not larger than the longest burst",
                lambda p: _bytes(p, "out") <= _burst_bytes(p)),
    Unreachable("dram", "(load|store) cut at the longest burst",
                "the longest burst is a page, at which bursts are cut anyway",
                lambda p: _burst_bytes(p) >= PAGE_BYTES),
    Unreachable("numbers", rf"vector {_any(_NEVER_LARGER)} wraps",
                "the result is never larger than an operand"),
)  # fmt: skip


@cache
def unreachable(params: HwParams) -> dict[tuple[str, str], str]:
    """The reason by group and bin, for the bins of a configuration that cannot be reached."""
    found = {}
    for rule in RULES:
        if rule.when(params):
            pattern = re.compile(rule.pattern)
            for bin_name in bins(params)[rule.group]:
                if pattern.fullmatch(bin_name):
                    found.setdefault((rule.group, bin_name), rule.reason)
    return found
