"""What every cocotb bench needs: clock and reset, waiting with a limit, its parameters."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

from ..isa.errors import VdlaError
from .runner import PARAMETER_PREFIX

PERIOD_NS = 10


def parameter(name: str) -> str:
    """A value that :func:`~vdla.cosim.runner.run_bench` was given for the bench.

    Raises VdlaError where it was not.
    """
    value = os.environ.get(PARAMETER_PREFIX + name.upper())
    if value is None:
        raise VdlaError(f"bench: expected a parameter {name!r}, got none; run_bench(..., {name}=)")
    return value


def reader(signal: Any) -> Callable[[], int]:
    """What reads a signal as an integer. Cocotb's ``value`` makes an object that costs several
    times as much as the reading; this is for signals that are read in every cycle.
    """
    read = signal._handle.get_signal_val_binstr
    return lambda: int(read(), 2)


async def reset(dut: Any, *inputs: str) -> None:
    """Start ``dut.clk``, hold ``dut.rst`` for two cycles, and set the named inputs to 0."""
    for name in inputs:
        getattr(dut, name).value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, PERIOD_NS, "ns").start())
    for _ in range(2):
        await RisingEdge(dut.clk)
    dut.rst.value = 0


async def until(dut: Any, condition: Callable[[], Any], limit: int, what: str) -> None:
    """Wait until a condition holds just after a rising edge.

    Raises AssertionError, naming ``what``, after ``limit`` cycles.
    """
    for _ in range(limit):
        await RisingEdge(dut.clk)
        if condition():
            return
    raise AssertionError(f"{what}: not within {limit} cycles")
