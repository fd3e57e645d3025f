"""MemoryParams: the one memory model behind the AXI4 port, shared by the SimPy and the RTL
simulation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from .errors import VdlaError
from .params import PRESETS, HwParams, Legal, legal_text
from .sdram import ANSWER_CYCLES, IDLE_CYCLES, PARTS, READ_BEAT
from .text_files import read_toml

#: Legal values of each field of :class:`MemoryParams`.
MEMORY_LEGAL: dict[str, Legal] = {
    "bus_bits": range(64, 257),
    "read_latency_cycles": range(1, 10_001),
    "write_latency_cycles": range(1, 10_001),
    "outstanding": range(1, 257),
    "cycles_per_beat": range(1, 65),
}


@dataclass(frozen=True)
class MemoryParams:
    """Deterministic DRAM behaviour. Without a part, reads and writes are independent channels, each
    answered in order.

    Parameters
    ----------
    bus_bits : int
        Data width that the core's ``HwParams.bus_bits`` must equal.
    read_latency_cycles : int
        A read burst accepted in cycle ``a`` has its first beat valid in cycle ``a +
        read_latency_cycles`` at the earliest.
    write_latency_cycles : int
        A write burst whose last beat is taken in cycle ``w`` is answered in cycle ``w +
        write_latency_cycles``.
    outstanding : int
        Bursts per channel accepted and not yet finished, at most.
    cycles_per_beat : int
        Bandwidth divider: beats on a channel are at least this many cycles apart.
    part : str
        A part of ``isa/sdram.py``, behind the controller of the boards: its cycles follow from its
        rows, banks and refreshes, and the latencies are those of an access to an open row when
        nothing else is under way. Empty: none. Only a preset has one.
    """

    bus_bits: int = 64
    read_latency_cycles: int = 16
    write_latency_cycles: int = 4
    outstanding: int = 16
    cycles_per_beat: int = 1
    part: str = ""

    def __post_init__(self) -> None:
        if self.part != "" and replace(self, part="") != _in_front_of(self.part):
            raise VdlaError(
                f"MemoryParams.part: expected {self.part} with its own numbers, which --memory "
                f"{self.part} has, got others"
            )
        for name, legal in MEMORY_LEGAL.items():
            value = getattr(self, name)
            if type(value) is not int or value not in legal:
                raise VdlaError(
                    f"MemoryParams.{name}: expected an integer {legal_text(legal)}, got {value!r}"
                )

    def to_dict(self) -> dict[str, int | str]:
        """Fields as a JSON-ready dictionary, without a part that there is not."""
        return {name: value for name, value in asdict(self).items() if value != ""}

    def check_bus(self, params: HwParams) -> None:
        """Raise VdlaError unless the core's data bus has this memory's width."""
        if self.bus_bits != params.bus_bits:
            raise VdlaError(
                f"memory: expected a bus of {params.bus_bits} bits as in the configuration, "
                f"got {self.bus_bits}; {_how_to_agree(params)}"
            )

    def check(self, params: HwParams, dram_bytes: int) -> None:
        """Raise VdlaError unless the core's data bus has this memory's width, and the memory has so
        many bytes."""
        self.check_bus(params)
        if self.part and dram_bytes > PARTS[self.part].size_bytes:
            raise VdlaError(
                f"memory: expected a program of at most {PARTS[self.part].size_bytes:,} bytes, "
                f"which {self.part} has, got {dram_bytes:,}"
            )

    @property
    def label(self) -> str | dict[str, int | str]:
        """The preset's name, or the fields where no preset equals this."""
        return next(
            (name for name, preset in MEMORY_PRESETS.items() if preset == self), self.to_dict()
        )

    @classmethod
    def load(cls, name: str | Path) -> MemoryParams:
        """A preset by name, or a TOML file with the fields at top level."""
        if str(name) in MEMORY_PRESETS:
            return MEMORY_PRESETS[str(name)]
        path = Path(name)
        if path.is_dir() or not path.exists():
            raise VdlaError(
                f"memory: expected a TOML file or one of {', '.join(MEMORY_PRESETS)}, "
                f"got {str(name)!r}"
            )
        knobs = read_toml(path)
        unknown = sorted(set(knobs) - {field.name for field in fields(cls)})
        if unknown:
            raise VdlaError(f"{path}: unknown field {unknown[0]!r}")
        return cls(**knobs)


def _in_front_of(name: str) -> MemoryParams:
    """What is said of a part beside its name.

    Raises VdlaError for an unknown one.
    """
    if type(name) is not str or name not in PARTS:  # a list of a file has no hash
        raise VdlaError(f"MemoryParams.part: expected one of {', '.join(PARTS)}, got {name!r}")
    part = PARTS[name]
    return MemoryParams(
        bus_bits=part.bus_bits,
        read_latency_cycles=IDLE_CYCLES + READ_BEAT,
        write_latency_cycles=1 + IDLE_CYCLES + ANSWER_CYCLES,  # it arrives behind its last beat
        outstanding=16,
        cycles_per_beat=part.rules.beat,
    )


MEMORY_PRESETS: dict[str, MemoryParams] = {
    "vta": MemoryParams(bus_bits=64, read_latency_cycles=16, write_latency_cycles=4),
    "wide": MemoryParams(bus_bits=128, read_latency_cycles=64, write_latency_cycles=16),
    "slow": MemoryParams(bus_bits=64, read_latency_cycles=200, write_latency_cycles=50),
    **{name: replace(_in_front_of(name), part=name) for name in PARTS},
}


def _how_to_agree(params: HwParams) -> str:
    """What makes a configuration and a memory have the same bus."""
    same = (name for name, preset in MEMORY_PRESETS.items() if preset.bus_bits == params.bus_bits)
    known = " or ".join(f"--memory {name}" for name in same)
    return f"take {known}, or set bus_bits of one" if known else "set bus_bits of one of them"


def load_platform(
    hw: HwParams | str | Path, memory: MemoryParams | str | Path
) -> tuple[HwParams, MemoryParams]:
    """Load the configuration and the memory, and make sure that their bus widths agree.

    A preset takes the bus width of the memory. A configuration of the user's own must state the
    same width as the memory.

    Raises
    ------
    VdlaError
        For unknown names, bad files, or widths that differ.
    """
    memory = memory if isinstance(memory, MemoryParams) else MemoryParams.load(memory)
    if not isinstance(hw, HwParams) and str(hw) in PRESETS:
        return replace(PRESETS[str(hw)], bus_bits=memory.bus_bits), memory
    params = hw if isinstance(hw, HwParams) else HwParams.load(hw)
    if params.bus_bits != memory.bus_bits:
        raise VdlaError(
            f"memory: expected a data bus of {params.bus_bits} bits as in the hardware "
            f"configuration, got {memory.bus_bits}; {_how_to_agree(params)}"
        )
    return params, memory
