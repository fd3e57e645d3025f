"""Schedules by rules against those of templates, and against none, on this processor:
``python -m tests.campaign.auto_schedules [--trials N] NAME ...``.

A NAME is a convolution of table 2, whose schedule by hand is the rival ("direct", in blocks of
channels), or an operator that has no template, whose rival is the default schedule. Times are
processor time, the least of many rounds in which both rivals take turns; the first one runs twice,
and *control* is the ratio of its two times.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from vdla import te, topi
from vdla.bench.workloads import TABLE_2, ConvLayer
from vdla.compiler.build import prepare
from vdla.compiler.choose.chooser import Chooser
from vdla.compiler.choose.steps import STEPS
from vdla.compiler.dumps import Dumps
from vdla.compiler.partition import split_parts
from vdla.compiler.targets.base import Options, Part
from vdla.compiler.targets.cpu.layer import CpuLayer
from vdla.compiler.targets.cpu.target import Cpu
from vdla.compiler.targets.cpu.templates.by_steps import BySteps
from vdla.compiler.te.expr import Call
from vdla.compiler.tune.auto.expression import ExpressionLayer
from vdla.compiler.tune.auto.programs import BY_ITSELF
from vdla.compiler.tune.search import Outcome, Search, make_explorer, make_programs
from vdla.compiler.tune.task import Task
from vdla.isa.errors import VdlaError
from vdla.isa.memory import MEMORY_PRESETS
from vdla.isa.params import HwParams

#: Rounds of a trial and of the last comparison, and the least seconds of a round.
TRIAL_ROUNDS, ROUNDS, ROUND_S = 3, 41, 0.0005
SMALL = te.Const(1e-5, "float32")


def placeholders(*shapes: tuple[int, ...]) -> list[te.Tensor]:
    return [te.placeholder(shape, "float32", f"x{i}") for i, shape in enumerate(shapes)]


def matmul(rows: int, inner: int, columns: int) -> list[te.Tensor]:
    x, w = placeholders((rows, inner), (inner, columns))
    return [x, w, topi.matmul(x, w)]


def softmax(rows: int, columns: int) -> list[te.Tensor]:
    (x,) = placeholders((rows, columns))
    k, m = te.reduce_axis(columns, "k"), te.reduce_axis(columns, "m")
    most = te.compute((rows,), lambda i: te.max_of(x[i, k], k), "most")
    powers = te.compute(
        x.shape, lambda i, j: Call("exp", (x[i, j] - most[i],), "float32"), "powers"
    )
    total = te.compute((rows,), lambda i: te.sum_of(powers[i, m], m), "total")
    return [x, te.compute(x.shape, lambda i, j: powers[i, j] / total[i], "out")]


def layer_norm(rows: int, columns: int) -> list[te.Tensor]:
    x, scale, bias = placeholders((rows, columns), (columns,), (columns,))
    k, m = te.reduce_axis(columns, "k"), te.reduce_axis(columns, "m")
    sums = te.compute((rows,), lambda i: te.sum_of(x[i, k], k), "sums")
    squares = te.compute((rows,), lambda i: te.sum_of(x[i, m] * x[i, m], m), "squares")
    share = te.Const(1 / columns, "float32")

    def rule(i, j):
        mean = sums[i] * share
        spread = squares[i] * share - mean * mean
        deviation = Call("sqrt", (spread + SMALL,), "float32")
        return (x[i, j] - mean) / deviation * scale[j] + bias[j]

    return [x, scale, bias, te.compute(x.shape, rule, "out")]


def depthwise(channels: int, size: int, kernel: int) -> list[te.Tensor]:
    x, w = placeholders((1, channels, size, size), (channels, 1, kernel, kernel))
    pads = (kernel // 2,) * 4
    return [x, w, topi.convolution(x, w, (1, 1), pads, (1, 1), groups=channels)]


OPERATORS: dict[str, Callable[[], list[te.Tensor]]] = {
    "matmul": partial(matmul, 128, 256, 1024),
    "matmul-flat": partial(matmul, 512, 64, 512),
    "softmax": partial(softmax, 256, 512),
    "layer-norm": partial(layer_norm, 128, 768),
    "depthwise": partial(depthwise, 64, 56, 7),
}
CONVOLUTIONS = {layer.name: layer for layer in TABLE_2 if layer.name != "C1" and layer.groups == 1}


def direct_layer(layer: ConvLayer, target: Cpu) -> CpuLayer:
    """The convolution of a model of one layer, by steps."""
    graph = prepare(layer.model(1, False), target, Chooser(target.name, ""), Dumps())
    given = {node.name: {"algorithm": "direct"} for node in graph.nodes if graph.macs(node)}
    chooser = Chooser(target.name, target.machine_key, given)
    made = (one for _, part in split_parts(graph, target) for one in target.layers(part, chooser))
    found = max(made, key=lambda one: len(one.node.inputs))  # not what changes the layout
    alone = Part(found.graph, (found.node,), (found.node.output,)).as_graph()
    return replace(found, graph=alone, template=BySteps(found.processor))


def times_ms(kernels: Sequence[Callable[[], None]], rounds: int) -> list[float]:
    """The least processor time of each, in turns."""
    repeats = []
    for kernel in kernels:
        kernel()
        begun = time.thread_time()
        kernel()
        repeats.append(max(1, int(ROUND_S / max(1e-7, time.thread_time() - begun))))
    least = [np.inf] * len(kernels)
    for _ in range(rounds):
        for index, (kernel, count) in enumerate(zip(kernels, repeats, strict=True)):
            kernel()
            begun = time.thread_time()
            for _ in range(count):
                kernel()
            least[index] = min(least[index], (time.thread_time() - begun) / count * 1e3)
    return least


def compared(name: str, trials: int, seed: int) -> dict:
    """Search a schedule, and compare it with its rival."""
    target = Cpu(Options(HwParams(), MEMORY_PRESETS["vta"]))
    if name in OPERATORS:
        layer = ExpressionLayer(tuple(OPERATORS[name]()), target)
        programs = layer.programs()
    else:
        layer = direct_layer(CONVOLUTIONS[name], target)
    task = Task(target.name, target.machine_key, layer, (name,))
    if name in CONVOLUTIONS:
        programs = make_programs(task)
    search = Search(task, make_explorer("auto", task, programs, seed, [BY_ITSELF]))

    def measure(task, batch):
        for index, knobs in enumerate(batch):
            try:
                yield index, Outcome(times_ms([layer.kernel(knobs)], TRIAL_ROUNDS)[0])
            except VdlaError as error:
                yield index, Outcome(None, str(error))

    search.run(measure, trials)
    ours = [(cost, point) for point, cost in zip(*search.tried, strict=True) if point != BY_ITSELF]
    best = programs.knobs(min(ours)[1])
    rival = layer.kernel({STEPS: ""})
    first, found, again = times_ms([rival, layer.kernel(best), rival], ROUNDS)
    return {
        "name": name, "trials": trials, "failed": search.failed, "rival_ms": first,
        "ms": found, "speed": min(first, again) / found, "control": again / first,
        "processor": platform.processor() or platform.machine(), "steps": best[STEPS],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.auto_schedules")
    parser.add_argument("names", nargs="*", choices=[[], *CONVOLUTIONS, *OPERATORS])
    parser.add_argument("--trials", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in options.names or (*CONVOLUTIONS, *OPERATORS):
        print(json.dumps(compared(name, options.trials, options.seed)), flush=True)


if __name__ == "__main__":
    main()
