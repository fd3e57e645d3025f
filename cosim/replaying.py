"""A recording on a block by itself, in the simulator: cycle by cycle, or in order only."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cocotb.triggers import RisingEdge

from ..hw.core.store import Store
from ..isa.opcodes import Unit
from .axi import unpack_burst
from .bench import reader, reset
from .blocks import streams_of
from .recording import Recording
from .traffic import Item, Traffic, counts_with, masked, read_ports, write_ports

#: What a block reads that the recording does not: bits of no meaning.
_UNKNOWN = 0xA5
#: Cycles after the last expected item in which nothing more may come.
_AFTER_CYCLES = 64
_ALL_TOKENS = (1 << len(Unit)) - 1


class _Memories:
    """What read ports show: of memories that the block itself writes what it has written, of others
    what the recording shows.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        tracks = traffic.recording.tracks
        self.ports = read_ports(traffic.recording)
        self._bits = {port: tracks[f"{port}__data"].bits for port in self.ports}
        self._own: dict[str, dict[int, int]] = {
            name.removesuffix("_write"): {} for name in write_ports(traffic.recording)
        }
        #: The last read that nothing in the recording answers, if any: port and address.
        self.unknown: tuple[str, int] | None = None

    def read(self, port: str, address: int, places: Iterable[int]) -> int:
        """The data of an address for the instructions in flight, by their places."""
        own = self._own.get(port.rstrip("0123456789"))
        if own is not None:
            return own.get(address, 0)
        data = self._traffic.observed(port, address, places)
        if data is not None:
            return data
        self.unknown = (port, address)
        bits = self._bits[port]
        return int.from_bytes(bytes([_UNKNOWN] * -(-bits // 8)), "little") & ((1 << bits) - 1)

    def write(self, name: str, value: tuple[int, ...], shape: tuple[int, int]) -> None:
        """The block writes: enable, address and data, on a port of this many parts and bits."""
        enable, address, data = value
        own = self._own[name.removesuffix("_write")]
        kept = own.get(address, 0) & ~masked(enable, -1, *shape)
        own[address] = kept | masked(enable, data, *shape)


class Replay:
    """A recording on a block.

    Parameters
    ----------
    dut : the block: ports of the recording by their flat names, ``clk`` and ``rst``
    recording : Recording
    quiet_cycles : int
        In order only: how long the block may do nothing.

    Attributes
    ----------
    cycles : int
        Cycles so far.
    """

    def __init__(self, dut: Any, recording: Recording, quiet_cycles: int) -> None:
        self.dut, self.recording, self.quiet_cycles = dut, recording, quiet_cycles
        tracks = recording.tracks
        self.cycles = 0
        #: Handles of inputs, readers of outputs, and parts and bits of what write ports write.
        self.inputs = {n: getattr(dut, n) for n, t in tracks.items() if t.direction == "input"}
        self.read = {
            n: reader(getattr(dut, n)) for n, t in tracks.items() if t.direction == "output"
        }
        self.clock = RisingEdge(dut.clk)
        self.writes = {
            name: (tracks[f"{name}__en"].bits, tracks[f"{name}__data"].bits)
            for name in write_ports(recording)
        }

    async def timed(self) -> None:
        """Drive what was recorded, and compare every output that counts in every cycle.

        Raises Diverged at the first difference.
        """
        await reset(self.dut, *self.inputs)
        for run in self.recording.runs:
            await _Timed(self, Traffic(self.recording, run)).play()

    async def untimed(self) -> None:
        """Drive what was recorded as soon as the block takes it, and compare what comes in order.

        Raises Diverged at the first difference, or when nothing happens for ``quiet_cycles``.
        """
        for run in self.recording.runs:
            await reset(self.dut, *self.inputs)
            await _InOrder(self, Traffic(self.recording, run)).play()


class _Timed:
    """One run, cycle by cycle."""

    def __init__(self, replay: Replay, traffic: Traffic) -> None:
        self.replay, self.traffic = replay, traffic
        recording = replay.recording
        self.memories = _Memories(traffic)
        #: What the recording shows in this cycle, and what the block has read in the one before.
        self.now = dict.fromkeys(recording.tracks, 0)
        self._addresses: dict[str, int] = {}
        self._answers = {f"{port}__data" for port in self.memories.ports}
        self._changes: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for name, track in recording.tracks.items():
            for time, value in zip(track.times, track.numbers, strict=True):
                self._changes[int(time)].append((name, value))
        # Starts and ends first, which say more than the tokens that come with them.
        names = sorted(replay.read, key=lambda name: name not in ("unit__start", "unit__end"))
        self._outputs = [(n, replay.read[n], counts_with(n, recording)) for n in names]

    async def play(self) -> None:
        now, replay = self.now, self.replay
        for sample in range(self.traffic.run.begin, self.traffic.run.end):
            recorded = {port: now[f"{port}__addr"] for port in self.memories.ports}
            self._drive(sample, recorded)
            await replay.clock
            replay.cycles += 1
            if not now["rst"]:
                self._compare(sample)
            for name, shape in replay.writes.items():
                if now[f"{name}__en"]:
                    enable, address, data = (now[f"{name}__{x}"] for x in ("en", "addr", "data"))
                    self.memories.write(name, (enable, address, data), shape)

    def _drive(self, sample: int, recorded: dict[str, int]) -> None:
        """The inputs of a cycle. An address that was not recorded in the cycle before brings what
        the memory holds there.
        """
        now, inputs = self.now, self.replay.inputs
        for name, value in self._changes.get(sample, ()):
            now[name] = value
            if name in inputs and name not in self._answers:
                inputs[name].value = value
        for port in self.memories.ports:
            address, data = self._addresses.get(port), now[f"{port}__data"]
            if address is not None and address != recorded[port]:
                data = self.memories.read(port, address, self.traffic.in_flight(sample - 1))
            inputs[f"{port}__data"].value = data

    def _compare(self, sample: int) -> None:
        now = self.now
        for name, read, others in self._outputs:
            got = read()
            if others is None:
                self._addresses[name.removesuffix("__addr")] = got
            elif got != now[name] and all(now[other] for other in others):
                self._check(name, got, sample)

    def _check(self, name: str, got: int, sample: int) -> None:
        """A port shows something else: the parts that are not written do not count."""
        now, stem = self.now, name.removesuffix("__data")
        enable, shape = now.get(f"{stem}__en"), self.replay.writes.get(stem)
        if enable is None or shape is None or masked(enable, now[name] ^ got, *shape):
            text = hex(got)
            if name.endswith(("__data", "__payload")):
                text += _unknown(self.memories)
            raise self.traffic.diverged(name, f"port {name}", hex(now[name]), text, sample)


def _unknown(memories: _Memories) -> str:
    if memories.unknown is None:
        return ""
    port, address = memories.unknown
    return f" (before, it read {port}[{address}], which the recording does not read there)"


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

    def __init__(self, replay: Replay, traffic: Traffic) -> None:
        self.replay, self.traffic, self.dut = replay, traffic, replay.dut
        recording = replay.recording
        self.block, tracks = recording.block, recording.tracks
        self.memories = _Memories(traffic)
        ports = {name: (track.direction, track.bits) for name, track in tracks.items()}
        self.expected: dict[str, _Expected] = {}
        self.sources: dict[str, _Source] = {}
        for name in streams_of(ports):
            items = traffic.stream(name)
            if ports[f"{name}__payload"][0] == "output":
                self.expected[name] = _Expected(items)
            else:
                gate = self._insn_may_go if name == "unit__insn" else self._beat_may_go
                self.sources[name] = _Source(items, gate)
        for name in write_ports(recording):
            self.expected[name] = _Expected(traffic.writes(name))
        if self.block == "fetch":
            items = traffic.items(("beat",), "beat_valid")
            self.sources["beat"] = _Source(items, self._beat_may_go)
            self.expected["error"] = _Expected(traffic.items(("error", "error_index"), "error"))
        else:
            for name, port in (("start", "pop"), ("end", "push"), ("error", "error_index")):
                items = traffic.items((f"unit__{port}",), f"unit__{name}")
                self.expected[f"unit__{name}"] = _Expected(items)
        if self.block == "store":
            last = Store(recording.params).signature.members["beat"]
            self._last_bit = last.signature.members["payload"].shape["last"].offset
        self.responses, self.answers = 0, []
        self.requested = self.quiet = 0
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
            await self.replay.clock
            self.replay.cycles += 1
            self.quiet += 1
            self._sample()
            after = after + 1 if self._finished() else 0
            if not after and self.quiet >= self.replay.quiet_cycles:
                raise self._gave_up()

    def _constant_inputs(self) -> None:
        for name in self.replay.inputs:
            if name.endswith("__ready"):
                self._set(name, 1)
        if self.block == "fetch":
            begin = self.traffic.where("start")
            for name in ("addr", "count"):
                self._set(name, self.traffic.values(name, begin)[0])

    def _drive(self) -> None:
        """The inputs of the next cycle."""
        for name, source in self.sources.items():
            offers = source.offers
            valid, payload = (
                ("beat_valid", "beat") if name == "beat" and self.block == "fetch"
                else (f"{name}__valid", f"{name}__payload")
            )  # fmt: skip
            self._set(valid, int(offers))
            if offers:
                self._set(payload, source.items[source.done].value[0])
            if name == "unit__insn":  # tokens come later than the instruction
                source.offered = source.offered + 1 if offers else 0
                self._set("unit__available", _ALL_TOKENS if source.offered > 1 else 0)
        if self.block == "fetch":
            self._set("start", int(self.replay_cycle == 0))
            self._set("enable", int(self.replay_cycle > 0))
            self.replay_cycle += 1
        if self.block == "store":
            answer = bool(self.answers) and self.answers[0] <= self.replay.cycles
            self._set("response", int(answer))
            if answer:
                self.answers.pop(0)
                self.responses += 1

    replay_cycle = 0

    def _set(self, name: str, value: int) -> None:
        if self.shown.get(name) != value:
            self.shown[name] = value
            self.replay.inputs[name].value = value

    def _sample(self) -> None:
        """The outputs of the cycle that ends."""
        now = self.now = {name: read() for name, read in self.replay.read.items()}
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
        if name in self.replay.writes:
            enable, address = now[f"{name}__en"], now[f"{name}__addr"]
            if not enable:
                return None
            parts, bits = self.replay.writes[name]
            return enable, address, masked(enable, now[f"{name}__data"], parts, bits)
        if name == "error":
            return (now["error"], now["error_index"]) if now["error"] else None
        mask = {"unit__start": "pop", "unit__end": "push", "unit__error": "error_index"}[name]
        return (now[f"unit__{mask}"],) if now[name] else None

    def _compare(self, name: str, expected: _Expected, value: tuple[int, ...]) -> None:
        place, replay = expected.done, self.replay
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
        if name in replay.writes:
            self.memories.write(name, value, replay.writes[name])
        elif name == "request":
            self.requested += unpack_burst(value[0], replay.recording.params)[1]
        elif self.block == "store" and name == "beat" and value[0] >> self._last_bit & 1:
            self.answers.append(replay.cycles + 2)

    def _all_written(self) -> None:
        """An instruction has ended: what it writes must be written."""
        place, starts = self.expected["unit__end"].done - 1, self.traffic.starts
        end = self.traffic.ends[place]
        if place + 1 < len(starts):  # what comes from then on may be the next one's
            end = min(end, starts[place + 1])
        for name, expected in self.expected.items():
            if name in self.replay.writes or name in ("address", "beat"):
                items, done = expected.items, expected.done
                if done < len(items) and items[done].sample <= end:
                    what = f"unit__end: before it {name}: item {done}"
                    raise self._diverged(name, what, str(items[done]), "none", items[done].sample)

    def _diverged(self, port: str, what: str, expected: str, got: str, sample: int) -> Exception:
        return self.traffic.diverged(port, what, expected, got, sample, self.replay.cycles - 1)

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
        got = f"nothing for {self.replay.quiet_cycles:,} cycles"
        return self._diverged(name, f"{name}: item {self._done(name)}", item, got, sample)

    def _done(self, name: str) -> int:
        return (self.expected.get(name) or self.sources[name]).done
