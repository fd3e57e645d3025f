"""The designs that were routed are those that would be routed now."""

from __future__ import annotations

import pytest
from vdla.hw.boards import find_board
from vdla.hw.built import BUILT, Built, find_built
from vdla.hw.fpga.synthesis import design_digest
from vdla.isa.memory import MEMORY_PRESETS, load_platform
from vdla.isa.params import PRESETS


def _preset(built: Built) -> str:
    """The preset that was built."""
    platforms = {name: load_platform(name, built.memory) for name in PRESETS}
    (name,) = (name for name, (params, _) in platforms.items() if params.hash == built.config_hash)
    return name


def test_each_is_a_preset_on_its_board() -> None:
    """A reader can name it, and it reached what was asked for."""
    assert len({(built.config_hash, built.memory) for built in BUILT}) == len(BUILT)
    for built in BUILT:
        params, memory = load_platform(_preset(built), built.memory)
        assert find_built(params, memory) is built
        assert find_built(params, MEMORY_PRESETS["vta"]) is None
        assert built.fmax_mhz >= built.mhz
        capacity = find_board(built.board).device.capacity
        assert all(getattr(built, name) <= capacity[name] for name in ("lut", "ff", "dsp", "bram"))


@pytest.mark.sweep
@pytest.mark.parametrize("built", BUILT, ids=lambda built: built.config_hash)
def test_the_design_has_not_changed_since(built: Built) -> None:
    """If this fails, route the design again (`vdla fpga build --board BOARD --hw PRESET`) and write
    down what comes of it in ``hw/built.py``.
    """
    board, params = find_board(built.board), load_platform(_preset(built), built.memory)[0]
    assert design_digest(board, params, built.mhz) == built.design_sha256
