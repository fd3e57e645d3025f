"""Products begin before all of their image is there.

::

    load(image[23 blocks])                   load(image[0..4]);   gemm(blocks 0..4)
    gemm(blocks 0..22)               ->      load(image[5..10]);  gemm(blocks 5..10)
                                             ...

The operator before often makes one block of channels after the other, and to load a block back
takes longer than to multiply it. So blocks that are there already are loaded and multiplied while
others are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from .script import Loading, Multiplying, Step
from .stream import Loop, Padding

#: A part is loaded and multiplied for at least so many cycles.
MIN_PART_CYCLES = 64


def early_products(steps: Sequence[Step], parts: int) -> list[Step]:
    """The steps of a script in which images come in so many ``parts``, or in fewer where they are
    small. The first product of an image becomes one for each part, and others stay whole.
    """
    if parts < 2:
        return list(steps)
    made = [[step] for step in steps]
    unread: dict[int, int] = {}  # loads of images that no product has read, by their first entry
    for index, step in enumerate(steps):
        match step.work:
            case Loading(memory="inp", base=base, loops=[_, *_]):
                unread[base] = index
            case Multiplying(bases=(_, base, _)) if base in unread:
                at = unread.pop(base)
                image = steps[at].work
                assert isinstance(image, Loading)
                found = [*_in_parts(image, step.work, parts)]
                made[at] = [replace(steps[at], work=load) for load, _ in found]
                made[index] = [replace(step, work=product) for _, product in found]
    return [step for several in made for step in several]


def _in_parts(
    load: Loading, product: Multiplying, parts: int
) -> Iterator[tuple[Loading, Multiplying]]:
    """The loads of an image, and for each one the product of what it brings. Both stay whole where
    the product does not add up the planes of the image."""
    planes, padding = load.loops[0], load.padding[0]
    inner = zip(load.loops[1:], load.padding[1:], strict=True)
    entries = prod(loop.extent + pad.before + pad.after for loop, pad in inner)
    reduction = [
        index for index, loop in enumerate(product.loops)
        if loop.extent == planes.extent and loop.strides[:2] == (0, entries)
    ]  # fmt: skip
    cycles = min(planes.extent * entries, prod(loop.extent for loop in product.loops))
    count = min(parts, planes.extent, cycles // MIN_PART_CYCLES)
    if count < 2 or not reduction or padding != Padding():
        yield load, product
        return
    place = reduction[0]
    _, of_inp, of_wgt = product.loops[place].strides
    acc, inp, wgt = product.bases
    bounds = [planes.extent * part // count for part in range(count + 1)]
    for first, end in pairwise(bounds):
        loops = [*product.loops]
        loops[place] = Loop(end - first, loops[place].strides)
        yield (
            replace(
                load, base=load.base + first * entries,
                offset_bytes=load.offset_bytes + first * planes.strides[0],
                loops=(Loop(end - first, planes.strides), *load.loops[1:]),
            ),
            Multiplying(
                (acc, inp + first * of_inp, wgt + first * of_wgt), loops,
                product.init and first == 0,
            ),
        )  # fmt: skip
