"""The system with a model for a board: a bitstream, and the image for the board's flash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..hw.fpga import synthesis
from ..hw.fpga.devices import Board
from ..isa.soc import FLASH_IMAGE
from ..runtime.workers import Workers
from .model import SocModel


def build_for_board(
    system: SocModel,
    board: Board,
    directory: Path,
    seeds: int = 1,
    freq_mhz: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
    workers: Workers | None = None,
) -> synthesis.Result:
    """What a board needs to run the model from power-on, in a folder.

    Parameters
    ----------
    board : of :func:`vdla.hw.soc.ulx3s.soc_board`, with the firmware of ``system``
    directory, seeds, freq_mhz, progress, workers
        As for :func:`vdla.hw.fpga.synthesis.build`.

    Returns
    -------
    Result
        As of that function; its body has ``image`` and ``commands`` beside, which write the flash.

    Raises
    ------
    VdlaError
        As that function.
    """
    built = synthesis.build(
        board, system.params, directory, seeds, freq_mhz, False, progress, workers
    )
    image, commands = directory / "image.bin", []
    image.write_bytes(system.image)
    if bitstream := built.body["bitstream"]:
        assert Path(bitstream).stat().st_size <= FLASH_IMAGE, bitstream
        flash = "openFPGALoader -b ulx3s -f"
        commands = [f"{flash} {bitstream}", f"{flash} -o {FLASH_IMAGE:#x} {image}"]
    return replace(built, body=built.body | {"image": str(image), "commands": commands})
