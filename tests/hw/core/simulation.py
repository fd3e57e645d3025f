"""A component in Amaranth's simulator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from amaranth.lib.wiring import Component
from amaranth.sim import Simulator

Bench = Callable[[Any], Awaitable[None]]
PERIOD_S = 1e-6


def simulate(
    component: Component, *benches: Bench, limit: int = 30_000, processes: Sequence[Bench] = ()
) -> None:
    """Run test benches beside one another until all of them end, or fail after ``limit`` cycles.
    ``processes`` never end."""
    ended = []

    def watched(bench: Bench) -> Bench:
        async def run(ctx) -> None:
            await bench(ctx)
            ended.append(bench)

        return run

    simulator = Simulator(component)
    simulator.add_clock(PERIOD_S)
    for process in processes:
        simulator.add_process(process)
    for bench in benches:
        simulator.add_testbench(watched(bench))
    simulator.run_until(limit * PERIOD_S)
    missing = [bench.__name__ for bench in benches if bench not in ended]
    assert not missing, f"{', '.join(missing)}: not over after {limit} cycles"


def decode(component: Component, bench: Bench) -> None:
    """Run a test bench of a component without registers."""
    simulator = Simulator(component)
    simulator.add_testbench(bench)
    simulator.run()
