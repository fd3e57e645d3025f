"""The instructions of a loop program before it has a place: in DRAM, and in the scratchpads.

Layers that compute the same in the same way have instructions that differ in addresses only. Their
instructions are worked out once, as a script, which is written for each layer at its site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .....isa.notes import Note
from ....tir.ir import Buffer
from .stream import Loop, Padding, Stream, VectorWork


@dataclass(frozen=True)
class Place:
    """Where a parameter of a loop program lies in DRAM (bytes), and what the model calls it."""

    address: int
    name: str


@dataclass(frozen=True)
class Site:
    """Where a layer's instructions go, and where its data lies.

    Attributes
    ----------
    stream : gets the instructions
    layer : its name
    places : where the loop program's parameters lie
    firsts : the first entries of its buffers, by scratchpad; 0 where nothing is said
    """

    stream: Stream
    layer: str
    places: Mapping[Buffer, Place]
    firsts: Mapping[str, int] = field(default_factory=dict)

    def address(self, buffer: Buffer, offset_bytes: int) -> int:
        """The address of a byte of a parameter."""
        return self.places[buffer].address + offset_bytes

    def entry(self, memory: str, entry: int) -> int:
        """The entry of a scratchpad that is the loop program's own ``entry``."""
        return entry + self.firsts.get(memory, 0)

    def note(self, stage: str, moved: Sequence[Buffer]) -> Note:
        """The note for instructions that compute a stage and move data of some buffers."""
        tensors = [self.places[buffer].name for buffer in moved if buffer in self.places]
        return Note(self.layer, stage, tensors[0] if tensors else "")


@dataclass(frozen=True)
class Loading:
    """:meth:`.Stream.load` from a byte of a parameter."""

    memory: str
    base: int
    source: Buffer
    offset_bytes: int
    loops: Sequence[Loop]
    padding: Sequence[Padding]
    pad_value: int = 0
    widen: bool = False

    def __call__(self, site: Site) -> None:
        site.stream.load(
            self.memory, site.entry(self.memory, self.base),
            site.address(self.source, self.offset_bytes), [*self.loops], [*self.padding],
            self.pad_value, self.widen,
        )  # fmt: skip


@dataclass(frozen=True)
class Multiplying:
    """:meth:`.Stream.gemm`."""

    bases: tuple[int, int, int]
    loops: Sequence[Loop]
    init: bool

    def __call__(self, site: Site) -> None:
        acc, inp, wgt = self.bases
        moved = site.entry("acc", acc), site.entry("inp", inp), site.entry("wgt", wgt)
        site.stream.gemm(moved, [*self.loops], self.init)


@dataclass(frozen=True)
class Step:
    """What appends some instructions to the stream of a site; the stage that they compute, and the
    buffers whose data they move."""

    stage: str
    moved: Sequence[Buffer]
    work: Callable[[Site], None]


@dataclass
class Script:
    """The instructions of a loop program. They are added by methods that are named as those of
    :class:`~.stream.Stream`. Entries are counted from the loop program's first one in each
    scratchpad, and bytes from the beginning of a parameter.
    """

    steps: list[Step] = field(default_factory=list)
    _stage: str = ""
    _moved: Sequence[Buffer] = ()

    def begin(self, stage: str, moved: Sequence[Buffer]) -> None:
        """Say that the next instructions compute a stage and move data of these buffers."""
        self._stage, self._moved = stage, moved

    def write(self, site: Site) -> None:
        """Append the instructions to the stream of a site."""
        for step in self.steps:
            site.stream.note = site.note(step.stage, step.moved)
            step.work(site)

    def load(
        self,
        memory: str,
        base: int,
        source: Buffer,
        offset_bytes: int,
        loops: list[Loop],
        padding: list[Padding],
        pad_value: int = 0,
        widen: bool = False,
    ) -> None:
        """:meth:`.Stream.load` from a parameter."""
        self._add(Loading(memory, base, source, offset_bytes, loops, padding, pad_value, widen))

    def store(self, base: int, target: Buffer, offset_bytes: int, loops: list[Loop]) -> None:
        """:meth:`.Stream.store` to a parameter."""
        self._add(
            lambda site: site.stream.store(
                site.entry("out", base), site.address(target, offset_bytes), loops
            )
        )

    def gemm(self, bases: tuple[int, int, int], loops: list[Loop], init: bool) -> None:
        """:meth:`.Stream.gemm`."""
        self._add(Multiplying(bases, loops, init))

    def param(self, par_base: int, zero_point: int, lo: int, hi: int) -> None:
        """:meth:`.Stream.param`."""
        self._add(lambda site: site.stream.param(site.entry("par", par_base), zero_point, lo, hi))

    def table(self, par_base: int) -> None:
        """:meth:`.Stream.table`."""
        self._add(lambda site: site.stream.table(site.entry("par", par_base)))

    def vector(self, work: VectorWork, post: str = "none") -> None:
        """:meth:`.Stream.vector`."""

        def step(site: Site) -> None:
            dst, src0, src1 = map(site.entry, work.memories, work.bases)
            site.stream.vector(replace(work, bases=(dst, src0, src1)), post)

        self._add(step)

    def _add(self, work: Callable[[Site], None]) -> None:
        self.steps.append(Step(self._stage, self._moved, work))
