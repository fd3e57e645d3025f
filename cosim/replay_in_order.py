"""A recording on a block by itself, in order only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from ..hw.core.store import Store
from ..isa.opcodes import Unit
from .axi import unpack_burst
from .blocks import find_streams
from .replaying import Memories, ReplayedBlock
from .traffic import Item, Traffic, masked, write_ports

#: Cycles after the last expected item in which nothing more may come.
_AFTER_CYCLES = 64
_ALL_TOKENS = (1 << len(Unit)) - 1


async def replay_in_order(block: ReplayedBlock, quiet_cycles: int) -> None:
    """Drive what was recorded as soon as the block takes it, and compare what comes in order.

    Raises Diverged at the first difference, or when nothing happens for ``quiet_cycles``.
    """
    for run in block.recording.runs:
        await block.reset()
        await _InOrder(block, Traffic(block.recording, run), quiet_cycles).play()


@dataclass
class _Expected:
    """What must come from a port, in order."""

    items: list[Item]
    done: int = 0


@dataclass
class _Source:
    """What is put into a stream, in order; ``allowed(n)`` says whether the n-th item may go."""

    items: list[Item]
    allowed: Callable[[int], bool]
    done: int = 0
    offered: int = field(default=0)

    @property
    def offers(self) -> bool:
        return self.done < len(self.items) and self.allowed(self.done)


class _InOrder:
    """One run, in order only. What comes in is what was recorded, as soon as what it follows has
    happened: an instruction after the ends that were before its start, a beat after its request, a
    response after its data.
    """

    def __init__(self, block: ReplayedBlock, traffic: Traffic, quiet_cycles: int) -> None:
        self.block, self.traffic, self.quiet_cycles = block, traffic, quiet_cycles
        recording = block.recording
        self.name, tracks = recording.block, recording.tracks
        self.memories = Memories(traffic)
        ports = {name: (track.direction, track.bits) for name, track in tracks.items()}
        self.expected: dict[str, _Expected] = {}
        self.sources: dict[str, _Source] = {}
        for name in find_streams(ports):
            items = traffic.stream(name)
            if ports[f"{name}__payload"][0] == "output":
                self.expected[name] = _Expected(items)
            else:
                gate = self._insn_may_go if name == "unit__insn" else self._beat_may_go
                self.sources[name] = _Source(items, gate)
        for name in write_ports(recording):
            self.expected[name] = _Expected(traffic.writes(name))
        if self.name == "fetch":
            items = traffic.items(("beat",), "beat_valid")
            self.sources["beat"] = _Source(items, self._beat_may_go)
            self.expected["error"] = _Expected(traffic.items(("error", "error_index"), "error"))
        else:
            for name, port in (("start", "pop"), ("end", "push"), ("error", "error_index")):
                items = traffic.items((f"unit__{port}",), f"unit__{name}")
                self.expected[f"unit__{name}"] = _Expected(items)
        if self.name == "store":
            last = Store(recording.params).signature.members["beat"]
            self._last_bit = last.signature.members["payload"].shape["last"].offset
        self.responses, self.answers = 0, []
        self.requested = self.quiet = self.cycle = 0
        self.now: dict[str, int] = {}
        self.shown: dict[str, int] = {}

    # ---- what may go in ----

    def _insn_may_go(self, place: int) -> bool:
        """After the ends that were before its start; alone, if it reads memories: what these show
        is known for one instruction at a time.
        """
        traffic = self.traffic
        before = place if self.memories.ports else bisect_left(traffic.ends, traffic.starts[place])
        return self.expected["unit__end"].done >= before

    def _beat_may_go(self, place: int) -> bool:
        return place < self.requested

    # ---- cycle by cycle ----

    async def play(self) -> None:
        after = 0
        self._constant_inputs()
        while after < _AFTER_CYCLES:
            self._drive()
            await self.block.clock
            self.block.cycles += 1
            self.quiet += 1
            self._sample()
            after = after + 1 if self._finished() else 0
            if not after and self.quiet >= self.quiet_cycles:
                raise self._gave_up()

    def _constant_inputs(self) -> None:
        for name in self.block.inputs:
            if name.endswith("__ready"):
                self._set(name, 1)
        if self.name == "fetch":
            begin = self.traffic.where("start")
            for name in ("addr", "count"):
                self._set(name, self.traffic.values(name, begin)[0])

    def _drive(self) -> None:
        """The inputs of the next cycle."""
        for name, source in self.sources.items():
            offers = source.offers
            valid, payload = (
                ("beat_valid", "beat") if name == "beat" and self.name == "fetch"
                else (f"{name}__valid", f"{name}__payload")
            )  # fmt: skip
            self._set(valid, int(offers))
            if offers:
                self._set(payload, source.items[source.done].value[0])
            if name == "unit__insn":  # tokens come later than the instruction
                source.offered = source.offered + 1 if offers else 0
                self._set("unit__available", _ALL_TOKENS if source.offered > 1 else 0)
        if self.name == "fetch":
            self._set("start", int(self.cycle == 0))
            self._set("enable", int(self.cycle > 0))
            self.cycle += 1
        if self.name == "store":
            answer = bool(self.answers) and self.answers[0] <= self.block.cycles
            self._set("response", int(answer))
            if answer:
                self.answers.pop(0)
                self.responses += 1

    def _set(self, name: str, value: int) -> None:
        if self.shown.get(name) != value:
            self.shown[name] = value
            self.block.inputs[name].value = value

    def _sample(self) -> None:
        """The outputs of the cycle that ends."""
        now = self.now = {name: read() for name, read in self.block.read.items()}
        for name, source in self.sources.items():
            valid, ready = (
                ("beat_valid", 1) if f"{name}__ready" not in now
                else (f"{name}__valid", now[f"{name}__ready"])
            )  # fmt: skip
            if self.shown[valid] and ready:
                source.done += 1
                source.offered = 0
                self.quiet = 0
        self._reads()
        for name, expected in self.expected.items():
            if (value := self._comes(name)) is not None:
                self._compare(name, expected, value)
        if now.get("unit__end"):
            self._all_written()

    def _reads(self) -> None:
        ends, starts = (
            self.expected.get(f"unit__{x}", _Expected([])).done for x in ("end", "start")
        )
        starts += self.now.get("unit__start", 0)
        for port in self.memories.ports:
            data = self.memories.read(port, self.now[f"{port}__addr"], range(ends, starts))
            self._set(f"{port}__data", data)

    def _comes(self, name: str) -> tuple[int, ...] | None:
        """What a group of ports gives in this cycle."""
        now = self.now
        if f"{name}__payload" in now:
            return (now[f"{name}__payload"],) if now[f"{name}__valid"] else None
        if name in self.block.writes:
            enable, address = now[f"{name}__en"], now[f"{name}__addr"]
            if not enable:
                return None
            parts, bits = self.block.writes[name]
            return enable, address, masked(enable, now[f"{name}__data"], parts, bits)
        if name == "error":
            return (now["error"], now["error_index"]) if now["error"] else None
        mask = {"unit__start": "pop", "unit__end": "push", "unit__error": "error_index"}[name]
        return (now[f"unit__{mask}"],) if now[name] else None

    def _compare(self, name: str, expected: _Expected, value: tuple[int, ...]) -> None:
        place, block = expected.done, self.block
        got = ", ".join(map(hex, value))
        if place == len(expected.items):
            last = expected.items[-1].sample if expected.items else self.traffic.run.begin
            raise self._diverged(name, f"{name}: item {place}", "nothing more", got, last)
        item = expected.items[place]
        if value != item.value:
            what = f"{name}: item {place}, recorded in cycle {item.sample - self.traffic.run.zero}"
            raise self._diverged(name, what, str(item), got, item.sample)
        expected.done += 1
        self.quiet = 0
        if name in block.writes:
            self.memories.write(name, value, block.writes[name])
        elif name == "request":
            self.requested += unpack_burst(value[0], block.recording.params)[1]
        elif self.name == "store" and name == "beat" and value[0] >> self._last_bit & 1:
            self.answers.append(block.cycles + 2)

    def _all_written(self) -> None:
        """An instruction has ended: what it writes must be written."""
        place, starts = self.expected["unit__end"].done - 1, self.traffic.starts
        end = self.traffic.ends[place]
        if place + 1 < len(starts):  # what comes from then on may be the next one's
            end = min(end, starts[place + 1])
        for name, expected in self.expected.items():
            if name in self.block.writes or name in ("address", "beat"):
                items, done = expected.items, expected.done
                if done < len(items) and items[done].sample <= end:
                    what = f"unit__end: before it {name}: item {done}"
                    raise self._diverged(name, what, str(items[done]), "none", items[done].sample)

    def _diverged(self, port: str, what: str, expected: str, got: str, sample: int) -> Exception:
        return self.traffic.diverged(port, what, expected, got, sample, self.block.cycles - 1)

    def _finished(self) -> bool:
        everything = (*self.expected.values(), *self.sources.values())
        return all(each.done == len(each.items) for each in everything)

    def _gave_up(self) -> Exception:
        """Nothing has happened for long; what should have come first is named."""
        missing = [
            (each.items[each.done].sample, name, str(each.items[each.done]))
            for name, each in (*self.expected.items(), *self.sources.items())
            if each.done < len(each.items)
        ]
        sample, name, item = min(missing)
        got = f"nothing for {self.quiet_cycles:,} cycles"
        done = (self.expected.get(name) or self.sources[name]).done
        return self._diverged(name, f"{name}: item {done}", item, got, sample)
