"""HwParams: the raw knobs of one accelerator configuration, validated; every derived size is a
property, which is computed once.

Names follow the machine: ``inp`` activations, ``wgt`` weight tiles, ``acc`` accumulators, ``uop``
micro-ops, ``par`` per-channel parameters, ``tmp`` temporaries of the vector unit, ``out`` results
on their way to DRAM. Each scratchpad has exactly one writer: ``load`` writes inp, wgt, uop and par;
``gemm`` writes acc; ``vector`` writes tmp and out.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

from .encoding import PARAM_ENTRIES, fingerprint, layout_bits, uop_layout, widest_layout_bits
from .errors import VdlaError
from .text_files import read_toml
from .vector_ops import TABLE_VALUES

#: Scratchpads in the order of their codes in a LOAD instruction; the last three are not loadable.
MEMORIES = ("inp", "wgt", "uop", "par", "acc", "tmp", "out")

#: The most on-chip memory that a configuration may use in all: the size of VTA's default
#: configuration, with room for 32x32.
MAX_SCRATCHPAD_BYTES = 2 << 20


def _bits_for(count: int) -> int:
    """Bits of an index into ``count`` entries (at least 1)."""
    return max(1, (count - 1).bit_length())


def _pow2_ceil(value: int) -> int:
    return 1 << (value - 1).bit_length()


#: Legal values, or the lowest and the highest one as a range.
Legal = tuple[int, ...] | range


def legal_text(legal: Legal) -> str:
    """Legal values as text, such as ``one of 1, 2, 4`` or ``16..65536``."""
    if isinstance(legal, range):
        return f"{legal[0]}..{legal[-1]}"
    return f"one of {', '.join(map(str, legal))}"


def check_legal(what: str, value: int, legal: Legal) -> None:
    """Raise VdlaError unless a value is legal."""
    if value not in legal:
        raise VdlaError(f"{what}: expected {legal_text(legal)}, got {value}")


_BLOCKS = (4, 8, 16, 32)
#: Legal values of each knob of :class:`HwParams`.
LEGAL: dict[str, Legal] = {
    "batch": (1, 2, 4),
    "block_in": _BLOCKS,
    "block_out": _BLOCKS,
    "inp_depth": range(16, (1 << 16) + 1),
    "wgt_depth": range(8, (1 << 14) + 1),
    "acc_depth": range(8, (1 << 16) + 1),
    "uop_depth": range(8, (1 << 14) + 1),
    "par_depth": range(4, (1 << 12) + 1),
    "tmp_depth": range(8, (1 << 14) + 1),
    "out_depth": range(8, (1 << 16) + 1),
    "bus_bits": (64, 128, 256),
    "max_burst_beats": (4, 8, 16, 32, 64, 128, 256),
    "queue_depth": range(2, 257),
    "fetch_depth": (2, 4, 8, 16, 32),
    "loads_in_flight": range(1, 17),
    "stores_in_flight": range(1, 17),
    "token_bits": range(4, 17),
    "vector_passes": (1, 2, 4),
    "vector_table": (0, 1, 2),
    "vector_window": (0, 2, 3, 4),
    "packed_weights": (0, 1),
}
#: Knobs that say whether a configuration has a feature; 0 if not.
FEATURES = ("vector_table", "vector_window", "packed_weights")
#: Knobs that decide about cycles alone: the programs of a model are the same with any value.
NOT_IN_PROGRAMS = ("loads_in_flight", "stores_in_flight")


@dataclass(frozen=True)
class HwParams:
    """One accelerator configuration. All fields are raw knobs; see the properties for what follows
    from them. Without arguments it is a core without features; :data:`PRESETS` have them.

    Parameters
    ----------
    batch : int
        Rows of activations that the tensor core multiplies at once: 1, 2 or 4.
    block_in, block_out : int
        Input and output channels of the tensor core: 4, 8, 16 or 32, and equal, because the output
        layout of one layer is the input layout of the next.
    inp_depth, wgt_depth, acc_depth, uop_depth, par_depth, tmp_depth, out_depth : int
        Entries of each scratchpad (any number in range, not only powers of two).
    bus_bits : int
        Width of the AXI4 data bus: 64, 128 or 256.
    max_burst_beats : int
        Longest AXI4 burst, in beats: a power of two, 4 to 256. No burst crosses a 4 KiB boundary.
    queue_depth : int
        Instructions that each unit's queue holds.
    fetch_depth : int
        Instructions that the prefetch buffer holds; it is filled in chunks of half its depth.
    loads_in_flight, stores_in_flight : int
        Load (store) instructions whose data (write responses) may be outstanding while the next one
        issues requests.
    token_bits : int
        Width of a dependency token counter.
    vector_passes : int
        Cycles that an iteration of the vector unit takes: 1, 2 or 4. The unit computes a vector in
        this many parts, one after the other, and has fewer lanes by this factor.
    vector_table : int
        Bytes of each of the 256 values of the vector unit's table, 1 or 2; 0 if it has none. All
        lanes read it at once, and so each of them has a copy, in a block RAM of its own.
    vector_window : int
        Products of bytes that each lane adds to the sums of a sliding window in an iteration, 2, 3
        or 4; 0 if it has none. Depthwise convolutions with kernels of 3 and 5 columns want 3.
    packed_weights : int
        1 if the load unit unpacks weights of 4 bits, which then take little more than half of the
        bus (``packed.py`` has their form); 0 if not. Weights that are no scale times 4 bits are
        loaded as ever.
    """

    batch: int = 1
    block_in: int = 16
    block_out: int = 16
    inp_depth: int = 2048
    wgt_depth: int = 1024
    acc_depth: int = 2048
    uop_depth: int = 1024
    par_depth: int = 128
    tmp_depth: int = 128
    out_depth: int = 512
    bus_bits: int = 64
    max_burst_beats: int = 32
    queue_depth: int = 16
    fetch_depth: int = 8
    loads_in_flight: int = 4
    stores_in_flight: int = 4
    token_bits: int = 12
    vector_passes: int = 1
    vector_table: int = 0
    vector_window: int = 0
    packed_weights: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int:
                raise VdlaError(f"HwParams.{field.name}: expected an integer, got {value!r}")
        for name, legal in LEGAL.items():
            check_legal(f"HwParams.{name}", getattr(self, name), legal)
        if self.block_in != self.block_out:
            raise VdlaError(
                f"HwParams.block_out: expected block_in ({self.block_in}), got {self.block_out}; "
                "the output layout of one layer is the input layout of the next, so both must be "
                "equal"
            )
        if self.max_burst_beats * self.bus_bytes > 4096:
            raise VdlaError(
                f"HwParams.max_burst_beats: expected at most {4096 // self.bus_bytes} beats of "
                f"{self.bus_bytes} bytes (AXI4 bursts stay within 4 KiB), "
                f"got {self.max_burst_beats}"
            )
        if self.fetch_chunk * self.insn_bytes > self.max_burst_beats * self.bus_bytes:
            raise VdlaError(
                f"HwParams.fetch_depth: half of it ({self.fetch_chunk} instructions of "
                f"{self.insn_bytes} bytes) must fit one burst of {self.max_burst_beats} beats of "
                f"{self.bus_bytes} bytes; reduce fetch_depth or lengthen the burst"
            )
        if self.vector_table and self.par_depth < self.table_entries + PARAM_ENTRIES:
            raise VdlaError(
                f"HwParams.par_depth: expected at least {self.table_entries + PARAM_ENTRIES} "
                f"entries, for a table and the parameters of a requantisation, got {self.par_depth}"
            )
        if self.packed_weights and self.entry_bytes("wgt") < 4 * self.bus_bytes:
            raise VdlaError(
                f"HwParams.packed_weights: expected tiles of weights of at least 4 beats "
                f"({4 * self.bus_bytes} bytes), as smaller ones take as long packed, got "
                f"{self.entry_bytes('wgt')} bytes; raise block_in and block_out or narrow the bus"
            )
        if self.scratchpad_bytes > MAX_SCRATCHPAD_BYTES:
            raise VdlaError(
                f"HwParams: scratchpads take {self.scratchpad_bytes} bytes, at most "
                f"{MAX_SCRATCHPAD_BYTES} are allowed; reduce a depth"
            )

    # ---- derived sizes
    # -------------------------------------------------------------------------------------------

    @cached_property
    def block(self) -> int:
        """Channels of one entry (block_in = block_out)."""
        return self.block_out

    @cached_property
    def lanes(self) -> int:
        """Elements of one vector: batch x block."""
        return self.batch * self.block

    @cached_property
    def vector_lanes(self) -> int:
        """Elements of a vector that the vector unit computes at once."""
        return self.lanes // self.vector_passes

    @cached_property
    def bus_bytes(self) -> int:
        """Bytes of one AXI4 beat."""
        return self.bus_bits // 8

    @cached_property
    def peak_macs_per_cycle(self) -> int:
        """Multiply-accumulates of the tensor core in one cycle."""
        return self.batch * self.block_in * self.block_out

    @cached_property
    def peak_vector_macs_per_cycle(self) -> int:
        """Multiply-accumulates of the vector unit in one cycle."""
        return self.vector_lanes * max(1, self.vector_window)

    @cached_property
    def uop_bits(self) -> int:
        """Bits of one micro-op."""
        return layout_bits(uop_layout(self))

    def depth(self, memory: str) -> int:
        """Entries of a scratchpad."""
        return getattr(self, f"{memory}_depth")

    def index_bits(self, memory: str) -> int:
        """Bits of an index into a scratchpad."""
        return _bits_for(self.depth(memory))

    def entry_bytes(self, memory: str) -> int:
        """Bytes of one scratchpad entry as it lies in DRAM."""
        match memory:
            case "inp" | "out":
                return self.batch * self.block
            case "wgt":
                return self.block_in * self.block_out
            case "uop":
                return max(4, _pow2_ceil(-(-self.uop_bits // 8)))
            case "par":
                return self.block_out * 4
            case "acc" | "tmp":
                return self.batch * self.block_out * 4
        raise VdlaError(f"memory: expected one of {', '.join(MEMORIES)}, got {memory!r}")

    @cached_property
    def packed_header_bytes(self) -> int:
        """Bytes of the scales in front of a packed tile of weights, whole beats."""
        return -(-self.block_out // 2 // self.bus_bytes) * self.bus_bytes

    def dram_entry_bytes(self, memory: str, widen: int) -> int:
        """Bytes of an entry as a LOAD finds it in DRAM, widened or not."""
        if not widen:
            return self.entry_bytes(memory)
        if memory == "wgt":
            return self.packed_header_bytes + self.entry_bytes("wgt") // 2
        return self.block_out

    @cached_property
    def table_entries(self) -> int:
        """Entries of par that a table takes; 0 without one."""
        return TABLE_VALUES * self.vector_table // self.entry_bytes("par")

    @cached_property
    def scratchpad_bytes(self) -> int:
        """On-chip memory in all."""
        return sum(self.depth(m) * self.entry_bytes(m) for m in MEMORIES)

    @cached_property
    def insn_bytes(self) -> int:
        """Bytes of one instruction: the widest layout, rounded up to a power of two and to a whole
        beat.
        """
        return max(_pow2_ceil(-(-widest_layout_bits(self) // 8)), self.bus_bytes)

    @cached_property
    def fetch_chunk(self) -> int:
        """Instructions that one fetch burst brings."""
        return self.fetch_depth // 2

    # ---- identity, files
    # -----------------------------------------------------------------------------------------

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits that identify the configuration and the instruction set that
        follows from it: knobs, every field of every layout, every vector operator. Programs carry
        it and cores compare it. A plugin may add an operator, so it is not kept."""
        text = json.dumps([self.to_dict(), fingerprint(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def to_dict(self) -> dict[str, int]:
        """Raw knobs as a JSON-ready dictionary. Features that are off are left out: programs and
        hashes of configurations without them do not depend on what features there are."""
        knobs = asdict(self)
        return {name: v for name, v in knobs.items() if v or name not in FEATURES}

    @classmethod
    def from_dict(cls, knobs: dict, where: str = "configuration") -> HwParams:
        """Build from a dictionary of knobs; unknown names are refused."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(knobs) - known)
        if unknown:
            raise VdlaError(
                f"{where}: unknown knob {unknown[0]!r}; known knobs: {', '.join(sorted(known))}"
            )
        try:
            return cls(**knobs)
        except VdlaError as error:
            raise VdlaError(f"{where}: {error}") from None

    @classmethod
    def load(cls, name: str | Path) -> HwParams:
        """A preset by name, or a TOML file with knobs at top level; missing ones are those of
        :data:`DEFAULT`.
        """
        if str(name) in PRESETS:
            return PRESETS[str(name)]
        path = Path(name)
        if path.is_dir() or not path.exists():
            raise VdlaError(
                f"hardware configuration: expected a TOML file or one of {', '.join(PRESETS)}, "
                f"got {str(name)!r}"
            )
        return cls.from_dict({**PRESETS[DEFAULT].to_dict(), **read_toml(path)}, where=str(path))


#: What the presets have besides: a table of 16-bit values, windows, and, where there is room, a
#: ``tmp`` for the results that pass it.
_FEATURES = {"vector_table": 2, "vector_window": 3}
_ROOMY = {**_FEATURES, "tmp_depth": 512}
#: The machine where nobody says another one, and the knobs that a TOML file leaves out.
DEFAULT = "16x16"
PRESETS: dict[str, HwParams] = {
    "16x16": HwParams(**_ROOMY),
    "32x32": HwParams(block_in=32, block_out=32, wgt_depth=512, **_ROOMY),
    "8x8": HwParams(block_in=8, block_out=8, wgt_depth=2048, acc_depth=1024, **_FEATURES),
    "4x4": HwParams(block_in=4, block_out=4, wgt_depth=2048, acc_depth=1024),
    "ecp5-85f": HwParams(wgt_depth=512, acc_depth=1024, vector_passes=2, **_FEATURES),
}
