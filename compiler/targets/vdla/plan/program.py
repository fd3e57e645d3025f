"""Compile a part of a graph to one program: choices, loop programs, instructions, order, tokens,
check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, replace
from functools import cached_property, partial

import numpy as np

from .....isa.asm import disassemble
from .....isa.check import check
from .....isa.depend import deadlines, dependencies, find_tokens
from .....isa.errors import VdlaError
from .....isa.insn_table import InsnTable
from .....isa.notes import Note, pack_notes
from .....isa.packed import pack
from .....isa.params import HwParams
from .....isa.program import MAX_DRAM_BYTES, PROGRAM_ALIGN_BYTES, Program
from .....isa.runs import Footprints
from .....runtime.executable import LayerInfo
from .....runtime.layout import activation_bytes, pack_activation
from .....sim.model.core import count_cycles
from ....choose.chooser import Chooser
from ....dumps import Dumps
from ....graph.ir import Graph, Node
from ....graph.ops.fused_pairs import QConvAdd
from ....graph.ops.integer import QAdd
from ....tir.ir import PrimFunc, written_params
from ...base import Compiled, Part, layer_info
from ..cost.tiling import fetch_beats
from ..lower.codegen import Code
from ..lower.link import DramPlan, Linker, Place
from ..lower.loop_passes import run_loop_passes
from ..lower.lru_allocation import Rotation
from ..lower.order import (
    AHEAD_CYCLES,
    TURNS,
    constants_apart,
    dispatch_order,
    loads_by_need,
    without_repeated_settings,
)
from ..machine import USUAL_EIGHTHS, Budget, Machine
from ..scopes import TENSOR_SCRATCHPADS
from ..templates.base import Track
from .dram_layout import place_activations
from .program_plan import ROOM_TIMES
from .scratchpads import Operator

#: The micro-ops of operators of the vector track have this part of their memory, at most.
BESIDE_SHARE = 4
#: A column without rows: a part may have no instructions.
_EMPTY = np.zeros(0, np.int64)


def build_func(func: PrimFunc, machine: Machine, dumps: Dumps) -> Program:
    """Build and check the program of one loop program. Its parameters lie in DRAM as NumPy arrays.

    Raises
    ------
    VdlaError
        For a nest that no instruction computes, a buffer that does not fit, and a program that the
        checker refuses.
    """
    linker, params = Linker(machine.params), machine.params
    func = run_loop_passes(func, machine, dumps, USUAL_EIGHTHS)
    places = {p: Place(linker.dram.allocate(p.size_bytes), p.name) for p in func.params}
    linker.add(Code(func, params).object_code(), func.name, places)
    insns, order = _ordered(linker, np.zeros(linker.count, np.int64), machine)
    insns.check()
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
    return checked(_program(linker, insns, order, meta, _place(linker, insns)), dumps)


def _ordered(linker: Linker, tracks: np.ndarray, machine: Machine) -> tuple[InsnTable, np.ndarray]:
    """The instructions with tokens in the order in which they are fetched, and the index that each
    one had."""
    memory, insns = machine.memory, linker.insns()
    found = Footprints.of(insns, linker.dram.image)
    late = loads_by_need(deadlines(found))
    insns, tracks = insns.take(late), tracks[late]
    needs = dependencies(found.reordered(late), tracks)
    insn_cycles = round(fetch_beats(machine.params, memory))
    order = dispatch_order(insns, tracks, needs, memory, AHEAD_CYCLES, insn_cycles)
    insns = insns.take(order)
    kept = without_repeated_settings(insns)
    insns, order = insns.take(kept), order[kept]
    needs = dependencies(found.reordered(late[order]))
    return insns.with_tokens(*find_tokens(insns.units, needs.by_unit())), late[order]


def _place(linker: Linker, insns: InsnTable) -> int:
    """The address of the instructions, behind everything else in DRAM."""
    return linker.dram.allocate(len(insns) * linker.params.insn_bytes, PROGRAM_ALIGN_BYTES)


def _program(
    linker: Linker, insns: InsnTable, order: np.ndarray, meta: dict, address: int
) -> Program:
    """The program of ordered instructions, which lie at an address."""
    params, image = linker.params, dict(linker.dram.image)
    notes = [linker.notes[i] for i in linker.note_of()[order].tolist()]
    size_bytes = len(insns) * params.insn_bytes
    dram_bytes = max(1, -(-linker.dram.end // PROGRAM_ALIGN_BYTES)) * PROGRAM_ALIGN_BYTES
    names = _names(notes, linker.dram, address, size_bytes)
    meta = {"dram_bytes": dram_bytes, **meta, "names": names}
    return Program(params, tuple(insns.insns()), image, meta, address)


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
class LinkedPart:
    """A part whose operators are chosen, and its instructions at their places: what a trial wants
    to know of them, and the program."""

    part: Part
    made: dict[str, Operator]
    machine: Machine
    chooser: Chooser
    dumps: InitVar[Dumps]

    def __post_init__(self, dumps: Dumps) -> None:
        self.linker = Linker(self.machine.params, self._beside_uops())
        self.placed, self.memory_plan = self._place()
        #: The track and the turn of each instruction, by operator.
        self.tracks: list[np.ndarray] = []
        self.layers: list[LayerInfo] = []
        self.room = self._room()
        self.turn_taking = {name: Rotation(self.room.of(name)) for name in TENSOR_SCRATCHPADS}
        self.turns: list[np.ndarray] = []
        self.tensor_operators = 0
        for node in self.part.nodes:
            self._add(node)
            dumps.step()

    def _room(self) -> Budget:
        """The entries that some operator may use."""
        times = [operator.node.shares.get(ROOM_TIMES) for operator in self.made.values()]
        limits = [limit for limit in times if limit is not None]
        return self.machine.room(max(limits) if limits and len(limits) == len(times) else None)

    def _beside_uops(self) -> int:
        """How many entries operators of the vector track have for their micro-ops alone: as many as
        one of them needs at most, if that leaves enough for the others. Else they share all.
        """
        depth, needed, longest = self.machine.params.uop_depth, 0, 0
        for operator in self.made.values():
            code = operator.code.object_code(operator.image_chunks)
            lengths = [len(sequence) for sequence in code.micro_ops]
            if operator.template.track is not Track.TENSOR:
                needed = max(needed, sum(lengths))
            else:
                longest = max([longest, *lengths])
        return needed if needed <= min(depth // BESIDE_SHARE, depth - longest) else 0

    def _place(self) -> tuple[dict[str, int], dict]:
        """The address of every activation, and how they share memory."""
        graph, params = self.part.graph, self.machine.params
        tracks = {output: operator.template.track for output, operator in self.made.items()}
        reach = self._reach()
        offsets, plan = place_activations(self.part, tracks, params, reach)
        base = self.linker.dram.allocate(plan.planned_bytes)
        if self.linker.dram.end >= MAX_DRAM_BYTES:
            raise VdlaError(
                f"graph {graph.name}: expected activations of less than {MAX_DRAM_BYTES} bytes,"
                f" which addresses of 32 bits reach, got {self.linker.dram.end}; compile for"
                " target cpu"
            )
        placed = {name: base + offset for name, offset in offsets.items()}
        for name, end in reach.items():
            own = activation_bytes(graph[name].shape, params)
            self.linker.dram.zeros(placed[name] + own, end - own, f"{name}, behind it")
        return placed, asdict(plan)

    def _reach(self) -> dict[str, int]:
        """The bytes that are read of activations, where these are more than they have."""
        reach: dict[str, int] = {}
        for operator in self.made.values():
            for name, end in operator.template.reach(self.part.graph, operator.node).items():
                reach[name] = max(end, reach.get(name, 0))
        return reach

    def _add(self, node: Node) -> None:
        """Append the instructions of a node, if it has any, and its layer."""
        first = self.linker.count
        operator = self.made.get(node.output)
        if operator is not None:
            count = self._link(operator)
            is_tensor = operator.template.track is Track.TENSOR
            self.tracks.append(np.full(count, int(operator.template.track)))
            self.turns.append(np.full(count, self.tensor_operators % TURNS if is_tensor else 0))
            self.tensor_operators += is_tensor
        last = self.linker.count - 1
        choice = self.chooser.of(node.name)
        runs = ((first, last),) if last >= first else ()
        self.layers.append(layer_info(self.part.graph, node, runs, choice))

    def _link(self, operator: Operator) -> int:
        """Append the instructions of an operator, and return how many."""
        graph, node = self.part.graph, operator.node
        activations = [name for name in node.inputs if not graph[name].is_constant]
        places = [Place(self.placed[name], name) for name in activations]
        addend = graph[node.inputs[-1]].data
        if isinstance(node.op, QAdd | QConvAdd) and addend is not None:
            image, name = pack_activation(addend, self.machine.params), node.inputs[-1]
            places.append(Place(self.linker.dram.constant(image.tobytes(), name), name))
        packed, buffers = [], operator.code.func.params
        for kind, data in operator.template.constants(graph, node).items():
            name, stored = f"{node.name}.{kind}", data
            if kind == "weight" and getattr(operator.workload, "packed", False):
                packed.append(buffers[len(places)])
                stored = pack(data.reshape(-1, *data.shape[-2:]), self.machine.params)
                assert stored is not None, name
            places.append(Place(self.linker.dram.constant(stored.tobytes(), name), name))
        places.append(Place(self.placed[node.output], node.output))
        by_buffer = dict(zip(buffers, places, strict=True))
        code = operator.code.object_code(operator.image_chunks)
        firsts = self._firsts(operator)
        beside = operator.template.track is not Track.TENSOR
        return self.linker.add(code, node.name, by_buffer, firsts, operator.numbers, packed, beside)

    def _firsts(self, operator: Operator) -> Mapping[str, int]:
        """The first entries of an operator's buffers, by scratchpad. Operators of other tracks than
        the tensor core's have theirs at the end, or before those of their neighbours. Operators of
        the tensor track have those that are theirs alone where the longest time has passed since
        the last use, so that an operator's first weights are loaded while others before it still
        use theirs; but none that a neighbour has at the end.
        """
        used = operator.code.used
        if operator.template.track is not Track.TENSOR:
            return {
                name: max(self.room.of(name) - entries - operator.beside.get(name, 0), 0)
                for name, entries in used.items()
            }
        return {
            name: self.turn_taking[name].take(used[name], operator.beside.get(name, 0))
            for name in TENSOR_SCRATCHPADS
        }

    @cached_property
    def digest(self) -> bytes:
        """Equal for parts with equal instructions and micro-ops at equal places."""
        parts = [self.linker.insns().rows, *self.tracks, *self.turns]
        data = [part.tobytes() for part in parts] + self.linker.micro_ops
        return hashlib.sha256(b"".join(data)).digest()

    def count_cycles(self, params: HwParams) -> int:
        """The exact cycles on a configuration for which this is the program."""
        insns, _ = self._ordered
        return count_cycles(replace(insns, params=params), self.machine.memory, self._address)

    def compiled(self, dumps: Dumps) -> Compiled:
        """The checked program, and its layers with the places of their instructions.

        Raises VdlaError for a program that the checker refuses.
        """
        insns, order = self._ordered
        layers = [_placed_layer(layer, order) for layer in self.layers]
        program = _program(self.linker, insns, order, self._meta(layers), self._address)
        return Compiled(checked(program, dumps), layers)

    @cached_property
    def _address(self) -> int:
        return _place(self.linker, self._ordered[0])

    @cached_property
    def _ordered(self) -> tuple[InsnTable, np.ndarray]:
        """The instructions in order, with tokens, and the index that each one had."""
        tracks = np.concatenate([_EMPTY, *self.tracks])
        if len(self.made) > 1:
            turns, image = np.concatenate([_EMPTY, *self.turns]), self.linker.dram.image
            tracks = constants_apart(self.linker.insns(), tracks, turns, image)
        insns, order = _ordered(self.linker, tracks, self.machine)
        insns.check()
        return insns, order

    def _meta(self, placed_layers: Sequence[LayerInfo]) -> dict:
        graph, nodes = self.part.graph, self.part.nodes
        produced = {node.output for node in nodes}
        needed = {name for node in nodes for name in node.inputs}
        layers = [
            {"name": layer.name, "op": layer.op, "runs": layer.runs, "macs": layer.macs,
             "bytes": layer.compulsory_bytes}
            for layer in placed_layers if layer.runs
        ]  # fmt: skip
        return {
            "inputs": [
                self._region(graph, n) for n in self.placed if n in needed and n not in produced
            ],
            "outputs": [self._region(graph, n) for n in self.placed if n in self.part.wanted],
            "layers": layers,
            "memory_plan": self.memory_plan,
            "plan": self.chooser.plan,
        }

    def _region(self, graph: Graph, name: str) -> dict:
        tensor = graph[name]
        return {
            "name": name, "address": self.placed[name],
            "bytes": activation_bytes(tensor.shape, self.machine.params),
            "shape": list(tensor.shape), "layout": "NCHWc",
        }  # fmt: skip


def _names(notes: Sequence[Note], dram: DramPlan, address: int, size_bytes: int) -> dict:
    """What every instruction is for, and the names of constants in DRAM."""
    constants = [
        {"address": at, "bytes": len(data), "name": dram.names[at]}
        for at, data in sorted(dram.image.items())
    ]
    constants.append({"address": address, "bytes": size_bytes, "name": "instructions"})
    return pack_notes(notes) | {"constants": constants}


def _placed_layer(layer: LayerInfo, order: np.ndarray) -> LayerInfo:
    """The layer with the runs that its instructions are in the final order."""
    if not layer.runs:
        return layer
    ((first, last),) = layer.runs
    mine = np.flatnonzero((first <= order) & (order <= last))
    breaks = np.flatnonzero(np.diff(mine) > 1)
    begins, ends = mine[np.r_[0, breaks + 1]], mine[np.r_[breaks, mine.size - 1]]
    runs = tuple((int(a), int(b)) for a, b in zip(begins, ends, strict=True))
    return replace(layer, runs=runs)
