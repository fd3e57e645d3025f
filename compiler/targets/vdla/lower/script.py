"""What the code generator says, step by step, before it becomes instructions: passes like
``split_k.py`` change the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ....tir.ir import Buffer
from .stream import Loop, Mark, Padding, Stream, VectorWork


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

    def __call__(self, stream: Stream) -> None:
        stream.load(
            self.memory, self.base, self.offset_bytes, [*self.loops], [*self.padding],
            self.pad_value, self.widen,
        )  # fmt: skip


@dataclass(frozen=True)
class Multiplying:
    """:meth:`.Stream.gemm`."""

    bases: tuple[int, int, int]
    loops: Sequence[Loop]
    init: bool

    def __call__(self, stream: Stream) -> None:
        stream.gemm(self.bases, [*self.loops], self.init)


@dataclass(frozen=True)
class Step:
    """What appends some instructions to a stream; the stage that they compute, the buffers whose
    data they move, and the parameter that they copy from or to."""

    stage: str
    moved: Sequence[Buffer]
    work: Callable[[Stream], None]
    buffer: Buffer | None = None


@dataclass
class Script:
    """The steps of a loop program. They are added by methods that are named as those of
    :class:`~.stream.Stream`. Entries are counted from the loop program's first one in each
    scratchpad, and bytes from the beginning of a parameter.
    """

    steps: list[Step] = field(default_factory=list)
    _stage: str = ""
    _moved: Sequence[Buffer] = ()

    def begin(self, stage: str, moved: Sequence[Buffer]) -> None:
        """Say that the next instructions compute a stage and move data of these buffers."""
        self._stage, self._moved = stage, moved

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
        work = Loading(memory, base, source, offset_bytes, loops, padding, pad_value, widen)
        self._add(work, source)

    def store(self, base: int, target: Buffer, offset_bytes: int, loops: list[Loop]) -> None:
        """:meth:`.Stream.store` to a parameter."""
        self._add(lambda stream: stream.store(base, offset_bytes, loops), target)

    def gemm(self, bases: tuple[int, int, int], loops: list[Loop], init: bool) -> None:
        """:meth:`.Stream.gemm`."""
        self._add(Multiplying(bases, loops, init))

    def param(self, par_base: int, zero_point: int, lo: int, hi: int) -> None:
        """:meth:`.Stream.param`."""
        self._add(lambda stream: stream.param(par_base, zero_point, lo, hi))

    def table(self, par_base: int) -> None:
        """:meth:`.Stream.table`."""
        self._add(lambda stream: stream.table(par_base))

    def vector(self, work: VectorWork, post: str = "none") -> None:
        """:meth:`.Stream.vector`."""
        self._add(lambda stream: stream.vector(work, post))

    def _add(self, work: Callable[[Stream], None], buffer: Buffer | None = None) -> None:
        self.steps.append(Step(self._stage, self._moved, work, buffer))


def write_steps(steps: Sequence[Step], stream: Stream) -> None:
    """Append the instructions of steps to a stream."""
    for step in steps:
        stream.mark = Mark(step.stage, step.moved, step.buffer)
        step.work(stream)
