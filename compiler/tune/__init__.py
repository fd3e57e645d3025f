"""Search for the knobs that run fastest.

A *task* is a workload of a target's template. An *explorer* proposes points of its space of knobs,
a *measure* function that the caller gives says what they cost, and *records* keep that.
"""
