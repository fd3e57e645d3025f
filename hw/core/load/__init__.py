"""DRAM to scratchpads. One half of the unit requests bursts, and runs ahead by whole instructions;
the other places what arrives::

    instructions ─► Requester ─► bursts
                        │ descriptors
                      Queue
                        ▼
    beats ──────────► Placer ─► Writer ─► scratchpads

The placer has a :class:`~.walker.Walker`, which knows where in the transfer the next entry is, and
makes entries of beats: a :class:`~.beats.Splitter` where a beat holds several entries, a
:class:`~.beats.Collector` where an entry takes several beats. With ``packed_weights`` the writer
has an :class:`~.unpacker.Unpacker`.
"""

from .unit import Load

__all__ = ["Load"]
