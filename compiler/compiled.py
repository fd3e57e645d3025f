"""A compiled model: segments of nodes, each a program for the accelerator or work of the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..isa.errors import VdlaError
from ..isa.params import HwParams
from ..isa.program import Program
from .codegen.cpu import CpuModule, build_cpu, build_part
from .graph.ir import Graph, Node, Tensor
from ..runtime.layout import pack_activation, unpack_activation

#: Runs a program on a DRAM image (uint8), in place.
Execute = Callable[[Program, np.ndarray], object]


@dataclass(frozen=True)
class LayerInfo:
    """One operator of the model: where it runs and why, its work, its instructions.

    ``macs`` and ``compulsory_bytes`` count the model's own channels; ``runs`` are its instructions:
    first and last, inclusive, of every unbroken run, counted through all programs of the model;
    None on the host.
    """

    name: str
    op: str
    target: str
    reason: str
    macs: int
    compulsory_bytes: int
    runs: tuple[tuple[int, int], ...] | None


@dataclass(frozen=True)
class Segment:
    """Nodes that run one after the other in one place; without a program, on the host."""

    nodes: tuple[Node, ...]
    program: Program | None = None


@dataclass(frozen=True)
class CompiledModel:
    """A model with everything that is needed to run it.

    Tensors go from segment to segment as NumPy arrays. A segment on the host is one native
    function; for the CPU there are no segments: the whole graph is one.
    """

    graph: Graph
    params: HwParams
    layers: tuple[LayerInfo, ...]
    segments: tuple[Segment, ...] = ()

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The model's inputs."""
        return tuple(self.graph[name] for name in self.graph.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The model's outputs."""
        return tuple(self.graph[name] for name in self.graph.outputs)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The accelerator's programs, in running order."""
        return tuple(s.program for s in self.segments if s.program is not None)

    @property
    def program(self) -> Program | None:
        """The accelerator's program, None if there is none.

        Raises
        ------
        VdlaError
            When there are several.
        """
        if len(self.programs) > 1:
            host = next(n for s in self.segments[1:] if s.program is None for n in s.nodes)
            raise VdlaError(
                f"expected a model of one program, got {len(self.programs)}: node {host.name!r}"
                " runs on the host between them"
            )
        return self.programs[0] if self.programs else None

    def run(self, arrays: Sequence[np.ndarray], execute: Execute) -> list[np.ndarray]:
        """The outputs for inputs that fit; ``execute`` runs every program."""
        values = self._start(arrays)
        for segment in self.segments:
            if segment.program is None:
                self._host(self._parts[id(segment)], values)
            else:
                dram = self._image(segment.program, values)
                execute(segment.program, dram)
                self._read(segment.program, dram, values)
        return [values[name] for name in self.graph.outputs]

    def dram(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """DRAM before the one program runs (uint8): constants, instructions, packed inputs."""
        assert self.program is not None
        values = self._start(arrays)
        for segment in self.segments:
            if segment.program is not None:
                break
            self._host(self._parts[id(segment)], values)
        return self._image(self.program, values)

    def results(self, dram: np.ndarray, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs: the one program's from DRAM after its run, then the host's behind it."""

        def done(_program: Program, image: np.ndarray) -> None:
            image[...] = dram

        assert self.program is not None
        return self.run(arrays, done)

    def run_cpu(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The whole model as machine code on the host."""
        return self._cpu.run(*arrays)

    @cached_property
    def _cpu(self) -> CpuModule:
        return build_cpu(self.graph)

    @cached_property
    def _parts(self) -> dict[int, CpuModule | None]:
        """Machine code of each segment on the host, None where nothing reads what it makes."""
        read = {*self.graph.outputs}
        parts: dict[int, CpuModule | None] = {}
        for segment in reversed(self.segments):
            if segment.program is None:
                wanted = [node.output for node in segment.nodes if node.output in read]
                made = build_part(self.graph, segment.nodes, wanted) if wanted else None
                parts[id(segment)] = made
            read |= {name for node in segment.nodes for name in node.inputs}
        return parts

    def _start(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        values = {t.name: t.data for t in self.graph.tensors.values() if t.data is not None}
        return values | dict(zip(self.graph.inputs, arrays, strict=True))

    @staticmethod
    def _host(part: CpuModule | None, values: dict[str, np.ndarray]) -> None:
        if part is not None:
            found = part.run(*(values[name] for name in part.graph.inputs))
            values |= dict(zip(part.graph.outputs, found, strict=True))

    def _image(self, program: Program, values: dict[str, np.ndarray]) -> np.ndarray:
        dram = program.dram_image()
        for region in program.meta["inputs"]:
            data = pack_activation(values[region["name"]], self.params)
            dram[region["address"] : region["address"] + data.size] = data
        return dram

    def _read(self, program: Program, dram: np.ndarray, values: dict[str, np.ndarray]) -> None:
        for region in program.meta["outputs"]:
            data = dram[region["address"] : region["address"] + region["bytes"]]
            values[region["name"]] = unpack_activation(data, tuple(region["shape"]), self.params)
