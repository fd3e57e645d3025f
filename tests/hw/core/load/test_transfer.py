"""Decoding of LOAD: every memory, every size of an entry, fields at random."""

from __future__ import annotations

import random

import pytest
from vdla.hw.core.load.transfer import Decoder
from vdla.isa.encoding import layout
from vdla.isa.insn import Load
from vdla.isa.opcodes import LOADABLE, Opcode, widened
from vdla.isa.params import HwParams

from ..bench import poke
from ..simulation import decode
from .loads import CONFIGS


def expected(fields: dict[str, int], params: HwParams) -> dict[str, dict[str, int]]:
    """The transfer, from the fields of an instruction."""
    memory, bus = LOADABLE[fields["memory"]], params.bus_bytes
    size = params.entry_bytes(memory)
    if fields["widen"]:
        scales = -(-params.block // 2 // bus) * bus
        size = params.block if memory == "par" else scales + params.block**2 // 2
    return {
        "box": {
            "base": fields["base"], "pad_left": fields["pad_left"], "pad_top": fields["pad_top"],
            "data_end": fields["pad_left"] + fields["x_size"],
            "row_end": fields["pad_left"] + fields["x_size"] + fields["pad_right"],
            "y_size": fields["y_size"], "z_size": fields["z_size"],
            "data_rows_end": fields["pad_top"] + fields["y_size"],
            "plane_end": fields["pad_top"] + fields["y_size"] + fields["pad_bottom"],
            "offset": fields["dram_addr"] % bus,
            "y_stride": fields["y_stride"] % bus, "z_stride": fields["z_stride"] % bus,
        },
        "beats": {
            "narrow": size < bus, "wide": size > bus, "entry_bytes": size if size < bus else 0,
            "more_beats": max(size // bus, 1) - 1,
        },
        "target": {name: fields[name] for name in ("memory", "widen", "pad_value", "push")},
    }  # fmt: skip


@pytest.mark.parametrize("params", CONFIGS.values(), ids=CONFIGS)
def test_every_field(params: HwParams) -> None:
    rng = random.Random(1)
    decoder = Decoder(params)
    specs = layout(Opcode.LOAD, params)[1:]
    plain = Load(memory="inp", base=0, dram_addr=0, x_size=1)

    async def bench(ctx):
        for memory in range(4):
            for widen in (0, 1) if LOADABLE[memory] in widened(params) else (0,):
                for extreme in (False, True, False, False):
                    fields = {
                        f.name: f.maximum if extreme else rng.randint(f.minimum, f.maximum)
                        for f in specs
                    } | {"memory": memory, "widen": widen}
                    index = rng.getrandbits(24)
                    ctx.set(decoder.descriptor.word, poke(plain, params, **fields))
                    ctx.set(decoder.descriptor.index, index)
                    for part, values in expected(fields, params).items():
                        got = {n: int(ctx.get(getattr(decoder.transfer, part)[n])) for n in values}
                        assert got == values, part
                    assert ctx.get(decoder.transfer.target.index) == index

    decode(decoder, bench)
