"""A second meaning of the instruction set, for the tests: one number at a time, in Python integers
and fractions, written from the docstrings of ``isa/insn.py`` and ``isa/vector_ops.py`` and sharing
no code with them.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
from vdla.isa.insn import Gemm, Insn, Load, Param, Store, Table, Vector
from vdla.isa.params import HwParams

Entry = list[int]


def wrap(value: int, bits: int = 32) -> int:
    """Two's complement."""
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


class Oracle:
    """Memories as lists of entries, entries as lists of bytes (``raw``) or of numbers."""

    def __init__(self, params: HwParams, dram: bytearray):
        self.params, self.dram = params, dram
        lanes = params.batch * params.block
        self.raw = {
            name: [bytes(params.entry_bytes(name))] * params.depth(name)
            for name in ("inp", "wgt", "uop", "par")
        }
        self.acc: list[Entry] = [[0] * lanes for _ in range(params.acc_depth)]
        self.tmp: list[Entry] = [[0] * lanes for _ in range(params.tmp_depth)]
        self.out: list[Entry] = [[0] * lanes for _ in range(params.out_depth)]
        self.requant = [[0] * params.block] * 3
        self.zero_point, self.lo, self.hi = 0, -128, 127
        self.table = [0] * 256
        #: Of a window, the sums for each result of a row.
        self.sums: list[Entry] = []

    def numbers(self, memory: str, entry: int, size: int) -> Entry:
        """Signed little-endian numbers of ``size`` bytes."""
        data = self.raw[memory][entry]
        return [
            int.from_bytes(data[i : i + size], "little", signed=True)
            for i in range(0, len(data), size)
        ]

    def scratchpads(self) -> dict[str, bytes]:
        """Contents of all memories."""
        found = {name: b"".join(entries) for name, entries in self.raw.items()}
        for name, size in (("acc", 4), ("tmp", 4), ("out", 1)):
            values = (v for entry in getattr(self, name) for v in entry)
            found[name] = b"".join(v.to_bytes(size, "little", signed=True) for v in values)
        return found

    def execute(self, insn: Insn) -> None:
        """One instruction."""
        match insn:
            case Load():
                self.load(insn)
            case Gemm():
                self.gemm(insn)
            case Vector():
                self.vector(insn)
            case Param():
                rows = range(insn.par_base, insn.par_base + 3)
                self.requant = [self.numbers("par", row, 4) for row in rows]
                self.zero_point, self.lo, self.hi = insn.zero_point, insn.lo, insn.hi
            case Table():
                size = self.params.vector_table
                data = b"".join(self.raw["par"][insn.par_base :])[: 256 * size]
                self.table = [
                    int.from_bytes(data[at : at + size], "little", signed=True)
                    for at in range(0, 256 * size, size)
                ]
            case Store():
                self.store(insn)

    def load(self, insn: Load) -> None:
        params = self.params
        packed = insn.widen and insn.memory == "wgt"
        size = params.block if insn.widen else params.entry_bytes(insn.memory)
        if packed:
            beats = -(-params.block * 4 // params.bus_bits) + params.block**2 * 4 // params.bus_bits
            size = beats * params.bus_bytes
        entry = insn.base
        for z in range(insn.z_size):
            for y in range(-insn.pad_top, insn.y_size + insn.pad_bottom):
                for x in range(-insn.pad_left, insn.x_size + insn.pad_right):
                    data = bytes([insn.pad_value % 256]) * size
                    if packed:
                        data = bytes([insn.pad_value % 256]) * params.block**2
                    if 0 <= y < insn.y_size and 0 <= x < insn.x_size:
                        at = insn.dram_addr + z * insn.z_stride + y * insn.y_stride + x * size
                        data = bytes(self.dram[at : at + size])
                        data = unpack(data, params) if packed else data
                    if insn.widen and not packed:
                        signed = [b - 256 if b > 127 else b for b in data]
                        data = b"".join(v.to_bytes(4, "little", signed=True) for v in signed)
                    self.raw[insn.memory][entry] = data
                    entry += 1

    def store(self, insn: Store) -> None:
        size = self.params.batch * self.params.block
        boxes = product(range(insn.z_size), range(insn.y_size), range(insn.x_size))
        for entry, (z, y, x) in enumerate(boxes, insn.base):
            at = insn.dram_addr + z * insn.z_stride + y * insn.y_stride + x * size
            self.dram[at : at + size] = bytes(v % 256 for v in self.out[entry])

    def gemm(self, insn: Gemm) -> None:
        params = self.params
        block, widths = params.block, [params.index_bits(m) for m in ("acc", "inp", "wgt")]
        for o, i, u in product(range(insn.outer), range(insn.inner), range(insn.uop_count)):
            word = int.from_bytes(self.raw["uop"][insn.uop_begin + u], "little")
            index = []
            for width in widths:
                index.append(word % (1 << width))
                word >>= width
            first = word & 1
            x = index[0] + o * insn.acc_outer + i * insn.acc_inner
            y = index[1] + o * insn.inp_outer + i * insn.inp_inner
            z = index[2] + o * insn.wgt_outer + i * insn.wgt_inner
            inp, wgt = self.numbers("inp", y, 1), self.numbers("wgt", z, 1)
            old = [0] * len(self.acc[x]) if insn.init and first else self.acc[x]
            self.acc[x] = [
                wrap(
                    old[b * block + c]
                    + sum(inp[b * block + k] * wgt[c * block + k] for k in range(block))
                )
                for b in range(params.batch)
                for c in range(block)
            ]

    def operand(self, memory: str, entry: int, imm: int) -> Entry:
        match memory:
            case "imm":
                return [imm] * (self.params.batch * self.params.block)
            case "par":
                return self.numbers("par", entry, 4) * self.params.batch
            case "inp":
                return self.numbers("inp", entry, 1)
        return getattr(self, memory)[entry]

    def vector(self, insn: Vector) -> None:
        result: Entry = []
        for n in product(*map(range, insn.extents)):
            where = {
                name: getattr(insn, f"{name}_base")
                + sum(i * s for i, s in zip(n, getattr(insn, f"{name}_strides"), strict=True))
                for name in ("src0", "src1", "dst")
            }
            op, a = insn.op, self.operand(insn.src0, where["src0"], insn.imm)
            if op == "table":
                # By the byte that the number ends with.
                op, a = "add", [self.table[number & 0xFF] for number in a]
            b = self.operand(insn.src1, where["src1"], insn.imm)
            if op == "window":
                self.window(insn, n, where["dst"], a, b)
                continue
            if op == "table_diff":
                op, a = "add", [self.table[(q - p) & 0xFF] for p, q in zip(a, b, strict=True)]
                b = [0] * len(b)
            folded = range(4 - insn.reduce, 4)
            if all(n[k] == 0 for k in folded):
                result = [compute(op, p, q) for p, q in zip(a, b, strict=True)]
            else:
                terms = [p * q if op == "mul" else p for p, q in zip(a, b, strict=True)]
                merge = "add" if op == "mul" else op
                result = [compute(merge, r, t) for r, t in zip(result, terms, strict=True)]
            if all(n[k] == insn.extents[k] - 1 for k in folded):
                getattr(self, insn.dst)[where["dst"]] = [
                    self.finish(insn, value, lane % self.params.block)
                    for lane, value in enumerate(result)
                ]

    def window(self, insn: Vector, n: tuple[int, ...], dst: int, a: Entry, b: Entry) -> None:
        """Add the products of an iteration to every result of its row that they are for, and write
        the result that is complete. Byte i is for the result ``imm`` - i behind this one."""
        row = 3 - insn.reduce
        if not any(n[row:]):
            self.sums = [[0] * len(a) for _ in range(insn.extents[row] + insn.imm)]
        for i in range(insn.imm + 1):
            its = self.sums[n[row] + insn.imm - i]
            for lane, (p, q) in enumerate(zip(a, b, strict=True)):
                its[lane] = wrap(its[lane] + wrap(p, 8) * wrap(q // 256**i, 8))
        if n[row] < insn.imm or any(n[k] < insn.extents[k] - 1 for k in range(row + 1, 4)):
            return
        getattr(self, insn.dst)[dst - insn.imm * insn.dst_strides[row]] = [
            self.finish(insn, value, lane % self.params.block)
            for lane, value in enumerate(self.sums[n[row]])
        ]

    def finish(self, insn: Vector, value: int, channel: int) -> int:
        """Post-operation of one number."""
        if insn.post == "none":
            return max(-128, min(127, value)) if insn.dst == "out" else value
        bias, multiplier, shift = (row[channel] for row in self.requant)
        value = wrap(value + bias)
        if insn.post == "even":
            rounded = round(Fraction(value * multiplier, 1 << shift % 64))
        else:
            rounded = tflite(value, multiplier, shift)
        return max(self.lo, min(self.hi, rounded + self.zero_point))


def unpack(data: bytes, params: HwParams) -> bytes:
    """A tile of packed weights, from the numbers that its bytes are as a whole."""
    bits = int.from_bytes(data, "little")
    body = bits >> -(-params.block * 4 // params.bus_bits) * params.bus_bits
    found = []
    for place in range(params.block**2):
        scale = (bits >> 4 * (place // params.block)) % 16 + 1
        found.append(wrap(body >> 4 * place, 4) * scale % 256)
    return bytes(found)


def compute(op: str, a: int, b: int) -> int:
    """An operator on two int32."""
    match op:
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "add":
            return wrap(a + b)
        case "sub":
            return wrap(a - b)
        case "mul":
            return wrap(a * b)
        case "shr":
            return a // 2 ** (b % 32)
        case "rshr":
            return round(Fraction(a, 2 ** (b % 32)))
        case "shl":
            return wrap(a * 2 ** (b % 32))
    raise AssertionError(f"the oracle does not know operator {op!r}: write its meaning here")


def tflite(value: int, multiplier: int, shift: int) -> int:
    """MultiplyByQuantizedMultiplier of TensorFlow Lite, from its definition: a doubling high
    multiply that rounds ties up (down for negative products) and saturates, then a division that
    rounds ties away from zero.
    """
    value = wrap(value * 2 ** (-shift % 32)) if shift < 0 else value
    exact = Fraction(value * multiplier, 1 << 31)
    half = Fraction(1, 2)
    # The nudge is 2**30 or 1 - 2**30, and C++ division drops the fraction towards zero.
    total = exact + (half if exact >= 0 else Fraction(1, 1 << 31) - half)
    high = min(int(total), (1 << 31) - 1)
    quotient = Fraction(high, 2 ** (shift % 32) if shift > 0 else 1)
    nearest = int(abs(quotient) + half)
    return nearest if quotient >= 0 else -nearest


def run(params: HwParams, insns: list[Insn], dram: np.ndarray) -> tuple[dict[str, bytes], bytes]:
    """Scratchpads and DRAM after a program."""
    oracle = Oracle(params, bytearray(dram.tobytes()))
    for insn in insns:
        oracle.execute(insn)
    return oracle.scratchpads(), bytes(oracle.dram)
