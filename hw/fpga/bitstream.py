"""Bitstreams: packed, unpacked again, and compared with what was packed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...isa.errors import VdlaError
from ..tool import run_tool

#: Tiles of logic and of routes: in this part of a configuration, unpacking gives the names that
#: were packed. Elsewhere several names mean the same bits.
_FABRIC = ("PLC2", "CIB", "VCIB")


def pack(config: str, name: str, directory: Path) -> dict[str, str]:
    """Make NAME.bit and NAME.svf of a configuration that is in the folder.

    Returns
    -------
    dict
        ``bitstream``, ``svf``: paths; ``bitstream_sha256``.

    Raises
    ------
    VdlaError
        When the bitstream, unpacked, has other lookup tables or routes than the configuration, or
        is not what the unpacked configuration packs to.
    """
    bitstream, svf = directory / f"{name}.bit", directory / f"{name}.svf"
    run_tool("yowasp-ecppack", [config, "--bit", bitstream.name, "--svf", svf.name], directory)
    unpacked, again = f"{name}_unpacked.config", f"{name}_again.bit"
    run_tool("yowasp-ecpunpack", [bitstream.name, "--textcfg", unpacked], directory)
    run_tool("yowasp-ecppack", [unpacked, "--bit", again], directory)
    compare(
        (directory / config).read_text("utf-8"),
        (directory / unpacked).read_text("utf-8"),
        str(bitstream),
    )
    if (directory / again).read_bytes() != bitstream.read_bytes():
        raise VdlaError(f"{bitstream}: unpacked and packed again, it is another bitstream")
    digest = hashlib.sha256(bitstream.read_bytes()).hexdigest()
    return {"bitstream": str(bitstream), "svf": str(svf), "bitstream_sha256": digest}


def compare(packed: str, unpacked: str, where: str) -> None:
    """Raise VdlaError unless two configurations have the same tables and routes."""
    before, after = fabric(packed), fabric(unpacked)
    differing = sorted(before ^ after)
    if differing:
        tile, line = differing[0]
        side = "lost" if differing[0] in before else "made up"
        raise VdlaError(
            f"{where}: expected the {len(before):,} tables and routes that were packed, got "
            f"{len(differing):,} differences; the first {side}: {line!r} in tile {tile}"
        )


def fabric(config: str) -> set[tuple[str, str]]:
    """Lookup tables and routes of a configuration: (tile, line of the text).

    Left out: tables of ones, which are what an unused table holds, and the way out of a slice,
    which has a name for every kind of slice.
    """
    found = set()
    tile = ""
    for line in config.splitlines():
        words = line.split()
        if line.startswith("."):
            tile = words[1] if words[0] == ".tile" else ""
        elif tile.rpartition(":")[2].startswith(_FABRIC) and len(words) == 3:
            table = words[0] == "word:" and "0" in words[2]
            route = words[0] == "arc:" and not words[2].endswith("_SLICE")
            if table or route:
                found.add((tile, line))
    return found
