"""Compile a part of a graph to one program: choices, loop programs, instructions, order, tokens,
check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from .....isa.asm import disassemble
from .....isa.check import check
from .....isa.depend import deadlines, dependencies, order_by_tokens, reorder
from .....isa.errors import VdlaError
from .....isa.insn import Insn, Param, Table
from .....isa.notes import Note, pack_notes
from .....isa.params import HwParams
from .....isa.program import MAX_DRAM_BYTES, PROGRAM_ALIGN_BYTES, Program
from .....isa.runs import Footprints
from .....runtime.executable import LayerInfo
from .....runtime.layout import activation_bytes
from ....choose.chooser import Chooser
from ....dumps import Dumps
from ....graph.ir import Graph, Node
from ....tir.ir import PrimFunc, written_params
from ...base import Compiled, Part, layer_info
from ..cost.tiling import fetch_beats
from ..lower.codegen import Code
from ..lower.loop_passes import run_loop_passes
from ..lower.lru_allocation import Rotation
from ..lower.order import (
    SAVING,
    TURNS,
    Preference,
    constants_apart,
    dispatch_order,
    loads_by_need,
    without_repeated_settings,
)
from ..lower.script import Place, Site
from ..lower.stream import Stream
from ..machine import USUAL_EIGHTHS, Machine
from ..scopes import TENSOR_SCRATCHPADS
from ..templates.base import AcceleratorTemplate, Track
from .dram_layout import place_activations
from .scratchpads import LoopPrograms, Operator, share_scratchpads


def choose_operators(
    part: Part,
    templates: dict[str, AcceleratorTemplate],
    machine: Machine,
    chooser: Chooser,
    dumps: Dumps,
    ready: LoopPrograms,
) -> dict[str, Operator]:
    """The operators of a part that have instructions, by output, with their choices. ``ready`` has
    the loop programs of earlier calls, and gets the new ones."""
    working = [node for node in part.nodes if node.output in templates]
    return share_scratchpads(
        part.graph, working, lambda node: templates[node.output], machine, chooser,
        lambda func, eighths: run_loop_passes(func, machine, dumps, eighths), dumps.step,
        ready,
    )  # fmt: skip


def write_program(
    part: Part,
    made: dict[str, Operator],
    machine: Machine,
    chooser: Chooser,
    dumps: Dumps,
) -> Compiled:
    """The program of operators that are chosen. What only wants its cycles need not check it."""
    writer = _Writer(part, machine, Stream(machine.params), made, chooser)
    writer.place()
    for node in part.nodes:
        writer.generate(node)
        dumps.step()
    return Compiled(writer.finish(), writer.layers)


def build_func(func: PrimFunc, machine: Machine, dumps: Dumps) -> Program:
    """Build and check the program of one loop program. Its parameters lie in DRAM as NumPy arrays.

    Raises
    ------
    VdlaError
        For a nest that no instruction computes, a buffer that does not fit, and a program that the
        checker refuses.
    """
    stream, params = Stream(machine.params), machine.params
    func = run_loop_passes(func, machine, dumps, USUAL_EIGHTHS)
    places = {p: Place(stream.dram.allocate(p.size_bytes), p.name) for p in func.params}
    Code(func, params).write(Site(stream, func.name, places))
    insns, order, image = _ordered(stream, [0] * len(stream.insns), machine)
    regions = {
        p: {"name": p.name, "address": place.address, "bytes": p.size_bytes,
            "shape": list(p.shape), "dtype": p.dtype, "layout": "C"}
        for p, place in places.items()
    }  # fmt: skip
    results = written_params(func)
    meta = {
        "inputs": [region for p, region in regions.items() if p not in results],
        "outputs": [region for p, region in regions.items() if p in results],
    }
    return checked(_program(stream, insns, order, image, params, meta), dumps)


def _ordered(
    stream: Stream, tracks: Sequence[int], machine: Machine
) -> tuple[list[Insn], list[int], dict[int, bytes]]:
    """The instructions with tokens in the order in which they are fetched, the index that each one
    had in the stream, and the constants in DRAM.
    """
    params, memory, image = machine.params, machine.memory, dict(stream.dram.image)
    found = Footprints.of(stream.insns, params, image)
    late = loads_by_need(deadlines(found))
    insns, tracks = [stream.insns[i] for i in late], [tracks[i] for i in late]
    needs = dependencies(found.reordered(late), tracks)
    preferences = SAVING if machine.saves_loads else (Preference(),)
    repeated = (Param, Table) if machine.saves_loads else (Table,)
    dropped = repeated if machine.saves_loads else ()
    insn_cycles = round(fetch_beats(params, memory)) if machine.saves_loads else 0
    order = dispatch_order(insns, tracks, needs, params, memory, preferences, dropped, insn_cycles)
    insns, needs = reorder(insns, needs, order)
    kept = without_repeated_settings(insns, params, repeated)
    if len(kept) < len(insns):
        insns, order = [insns[i] for i in kept], [order[i] for i in kept]
        needs = dependencies(found.reordered([late[i] for i in order]))[:, 0]
    return order_by_tokens(insns, needs), [late[i] for i in order], image


def _program(
    stream: Stream,
    insns: Sequence[Insn],
    order: Sequence[int],
    image: dict[int, bytes],
    params: HwParams,
    meta: dict,
) -> Program:
    """The program of ordered instructions, which lie behind everything else in DRAM."""
    notes = [stream.notes[i] for i in order]
    size_bytes = len(insns) * params.insn_bytes
    address = stream.dram.allocate(size_bytes, PROGRAM_ALIGN_BYTES)
    dram_bytes = max(1, -(-stream.dram.end // PROGRAM_ALIGN_BYTES)) * PROGRAM_ALIGN_BYTES
    names = _names(notes, stream, address, size_bytes)
    return Program(
        params, tuple(insns), image, {"dram_bytes": dram_bytes, **meta, "names": names}, address
    )


def checked(program: Program, dumps: Dumps) -> Program:
    """The program, which the static checker finds nothing in.

    Raises
    ------
    VdlaError
        With the first finding: a bug of the compiler.
    """
    dumps.write("program", "insns", partial(disassemble, program))
    findings = check(program)
    if findings:
        raise VdlaError(f"compiled program does not pass the checker: {findings[0]}")
    return program


@dataclass
class _Writer:
    """Writes the instructions of a part."""

    part: Part
    machine: Machine
    stream: Stream
    made: dict[str, Operator]
    chooser: Chooser

    def __post_init__(self) -> None:
        self.placed: dict[str, int] = {}
        self.tracks: list[int] = []
        self.layers: list[LayerInfo] = []
        self.memory_plan: dict = {}
        self.turn_taking = {
            name: Rotation(self.machine.params.depth(name)) for name in TENSOR_SCRATCHPADS
        }
        # Operators of the tensor track so far, and their number at each instruction.
        self.tensor_operators = 0
        self.turns: list[int] = []

    def place(self) -> None:
        """Give every activation its place in DRAM."""
        graph, params = self.part.graph, self.machine.params
        tracks = {output: operator.template.track for output, operator in self.made.items()}
        reach = self._reach()
        offsets, plan = place_activations(self.part, tracks, params, reach)
        base = self.stream.dram.allocate(plan.planned_bytes)
        if self.stream.dram.end >= MAX_DRAM_BYTES:
            raise VdlaError(
                f"graph {graph.name}: expected activations of less than {MAX_DRAM_BYTES} bytes,"
                f" which addresses of 32 bits reach, got {self.stream.dram.end}; compile for"
                " target cpu"
            )
        self.placed = {name: base + offset for name, offset in offsets.items()}
        self.memory_plan = asdict(plan)
        for name, end in reach.items():
            own = activation_bytes(graph[name].shape, params)
            self.stream.dram.zeros(self.placed[name] + own, end - own, f"{name}, behind it")

    def _reach(self) -> dict[str, int]:
        """The bytes that are read of activations, where these are more than they have."""
        reach: dict[str, int] = {}
        for operator in self.made.values():
            for name, end in operator.template.reach(self.part.graph, operator.node).items():
                reach[name] = max(end, reach.get(name, 0))
        return reach

    def generate(self, node: Node) -> None:
        """Append the instructions of a node, if it has any, and its layer."""
        first = len(self.stream.insns)
        operator = self.made.get(node.output)
        if operator is not None:
            self._generate(operator)
            count = len(self.stream.insns) - first
            self.tracks += [operator.template.track] * count
            is_tensor = operator.template.track is Track.TENSOR
            self.turns += [self.tensor_operators % TURNS if is_tensor else 0] * count
            self.tensor_operators += is_tensor
        runs = ((first, len(self.stream.insns) - 1),) if len(self.stream.insns) > first else ()
        choice = self.chooser.of(node.name)
        self.layers.append(layer_info(self.part.graph, node, runs, choice))

    def _generate(self, operator: Operator) -> None:
        graph, node = self.part.graph, operator.node
        activations = [name for name in node.inputs if not graph[name].is_constant]
        places = [Place(self.placed[name], name) for name in activations]
        for kind, data in operator.template.constants(graph, node).items():
            name = f"{node.name}.{kind}"
            places.append(Place(self.stream.dram.constant(data.tobytes(), name), name))
        places.append(Place(self.placed[node.output], node.output))
        by_buffer = dict(zip(operator.code.func.params, places, strict=True))
        operator.code.write(Site(self.stream, node.name, by_buffer, self._firsts(operator)))

    def _firsts(self, operator: Operator) -> Mapping[str, int]:
        """The first entries of an operator's buffers, by scratchpad. Operators of the vector track
        have theirs at the end. Operators of the tensor track have those that are theirs alone where
        the longest time has passed since the last use, so that an operator's first weights are
        loaded while others before it still use theirs.
        """
        params = self.machine.params
        used = operator.code.used
        if operator.template.track is Track.VECTOR:
            return {name: params.depth(name) - entries for name, entries in used.items()}
        if not self.machine.saves_loads:
            return {}
        return {name: self.turn_taking[name].take(used[name]) for name in TENSOR_SCRATCHPADS}

    def finish(self) -> Program:
        """Put the instructions in order, with tokens, and make the program of them. Every layer
        gets the places of its instructions.
        """
        tracks: Sequence[int] = self.tracks
        if len(self.made) > 1 and self.machine.saves_loads:
            image = self.stream.dram.image
            tracks = constants_apart(self.stream.insns, tracks, self.turns, image)
        insns, order, image = _ordered(self.stream, tracks, self.machine)
        self.layers = [_placed_layer(layer, order) for layer in self.layers]
        params = self.machine.params
        return _program(self.stream, insns, order, image, params, self._meta())

    def _meta(self) -> dict:
        graph, nodes = self.part.graph, self.part.nodes
        produced = {node.output for node in nodes}
        needed = {name for node in nodes for name in node.inputs}
        layers = [
            {"name": layer.name, "op": layer.op, "runs": layer.runs, "macs": layer.macs,
             "bytes": layer.compulsory_bytes}
            for layer in self.layers if layer.runs
        ]  # fmt: skip
        return {
            "inputs": [
                self._region(graph, n) for n in self.placed if n in needed and n not in produced
            ],
            "outputs": [self._region(graph, n) for n in self.placed if n in self.part.wanted],
            "layers": layers,
            "memory_plan": self.memory_plan,
        }

    def _region(self, graph: Graph, name: str) -> dict:
        tensor = graph[name]
        return {
            "name": name, "address": self.placed[name],
            "bytes": activation_bytes(tensor.shape, self.machine.params),
            "shape": list(tensor.shape), "layout": "NCHWc",
        }  # fmt: skip


def _names(notes: Sequence[Note], stream: Stream, address: int, size_bytes: int) -> dict:
    """What every instruction is for, and the names of constants in DRAM."""
    constants = [
        {"address": at, "bytes": len(data), "name": stream.dram.names[at]}
        for at, data in sorted(stream.dram.image.items())
    ]
    constants.append({"address": address, "bytes": size_bytes, "name": "instructions"})
    return pack_notes(notes) | {"constants": constants}


def _placed_layer(layer: LayerInfo, order: Sequence[int]) -> LayerInfo:
    """The layer with the runs that its instructions are in the final order."""
    if not layer.runs:
        return layer
    ((first, last),) = layer.runs
    mine = np.flatnonzero([first <= index <= last for index in order])
    breaks = np.flatnonzero(np.diff(mine) > 1)
    begins, ends = mine[np.r_[0, breaks + 1]], mine[np.r_[breaks, mine.size - 1]]
    runs = tuple((int(a), int(b)) for a, b in zip(begins, ends, strict=True))
    return replace(layer, runs=runs)
