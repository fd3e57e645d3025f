"""The page of one run: ``vdla run --html``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..isa.params import MEMORIES, HwParams
from . import layers
from .measured import Run, instructions, joined, lanes, occupancy, tensors
from .page import write_page
from .parts import Area, Areas, Page, Section, Series, Slices, StepLines, Steps, Table, Timeline

#: The most slices of a timeline, steps of a line, and tensors in a picture of DRAM.
MOST_SLICES, MOST_STEPS, MOST_TENSORS = 40_000, 1200, 2000
#: Charts of the time of the run move together.
_LINK = "run"


def run_page(report: layers.Report, run: Run | None) -> str:
    """The page of a run as HTML.

    Parameters
    ----------
    report : of the run, as ``vdla run --json`` writes it
    run : what ran and when; None where no program ran on the accelerator
    """
    sections = [*_layer_sections(report)]
    if run is not None and run.has_times:
        sections += _time_sections(run)
    sections += [*_profile_sections(report), *_choice_sections(report)]
    title = f"{report['model']} on {report['target']}"
    return write_page(Page(title, layers.summary(report), layers.report_facts(report), sections))


def _layer_sections(report: layers.Report) -> Iterator[Section]:
    if not layers.on_accelerator(report):
        return
    yield Section(
        "Layers",
        "Which layers take the time, and what the units do meanwhile. A layer is as fast as its"
        " busiest unit can be; what that unit waits for is what to change.",
        [layers.cycle_bars(report), layers.stall_bars(report)],
    )
    yield Section(
        "Roofline",
        "How near each layer is to what the hardware and the memory allow. Left of the bend the"
        " memory is the limit, right of it the multipliers.",
        [layers.roofline(report)],
    )
    yield Section("DRAM traffic", "What each layer moves over the bus.", [layers.dram_bars(report)])


def _time_sections(run: Run) -> Iterator[Section]:
    yield Section(
        "Timeline",
        "What each unit does when. The pictures of this section and of the next two show the same"
        " part of the run.",
        [timeline(run)],
    )
    yield Section(
        "Scratchpads",
        "How full the memories on the chip are. What is always far from full is larger than this"
        " model needs; what is full limits the size of tiles.",
        [scratchpads(run)],
    )
    if (found := dram_map(run)) is not None:
        yield Section(
            "Tensors in DRAM",
            "Where each tensor between two operators lies, from its first access to its last."
            " Tensors that are never needed at the same time share addresses.",
            [found],
        )


def _profile_sections(report: layers.Report) -> Iterator[Section]:
    if "profile" in report:
        yield Section(
            "Profile",
            "Which loop programs of the CPU's code take the time, and how near those with products"
            " are to the measured peak of their instruction. Convolutions count as direct ones.",
            [layers.profile_bars(report["profile"])],
        )


def _choice_sections(report: layers.Report) -> Iterator[Section]:
    yield Section(
        "Memory plan",
        "How tensors between operators share memory: the plan, all of them side by side, and the"
        " largest set that is needed at the same time, which no plan can go below.",
        [layers.memory_table(report)],
    )
    yield Section(
        "Choices",
        "Who chose the knobs of each layer. --knobs takes a report of --json, or other knobs.",
        [layers.choice_table(report)],
    )
    yield Section(
        "Placement",
        "Which nodes run on the accelerator, and why the others do not.",
        [layers.placement_table(report)],
    )


def timeline(run: Run, most: int = MOST_SLICES) -> Timeline:
    """Units against time, at most ``most`` slices."""
    found = instructions(run)
    slices = joined(found, most)
    note = "A slice is one instruction, from its start to its end."
    if slices.gap >= 0:
        note = (
            f"{len(found.unit):,} instructions are too many for one page, so a slice joins those of"
            f" one unit and one layer between which at most {slices.gap:,} cycles pass:"
            f" {len(slices.start):,} slices. Each says in how many of its cycles one of them runs."
            " --trace has every instruction."
        )
    rows = [
        (
            unit,
            int((found.unit == number).sum()),
            int((slices.unit == number).sum()),
            int(slices.active[slices.unit == number].sum()),
        )
        for number, unit in enumerate(layers.UNITS)
    ]
    columns = ("unit", "instructions", "slices", "cycles of all slices, overlaps counted twice")
    return Timeline(
        title="Units against time",
        note=note + " Instructions of a unit overlap where it is pipelined; then they are drawn in"
        " several lanes. Colours are layers.",
        table=Table("Instructions", columns, rows),
        end=run.timing.cycles,
        rows=layers.UNITS,
        labels=found.layers,
        texts=found.texts if slices.gap < 0 else [],
        slices=Slices(
            *(
                values.tolist()
                for values in (
                    slices.unit, lanes(slices), slices.start, slices.cycles, slices.layer,
                    slices.text, slices.count, slices.active,
                )
            )
        ),
        link=_LINK,
    )  # fmt: skip


def scratchpads(run: Run, most: int = MOST_STEPS) -> StepLines:
    """How full each scratchpad is, over time."""
    params = run.programs[0].params
    held = occupancy(run, most)
    percents = {name: 100 * held[name] / params.depth(name) for name in MEMORIES}
    step = run.timing.cycles / len(held[MEMORIES[0]])
    return StepLines(
        title="Scratchpads in use, in percent",
        note="An entry is in use from the instruction that writes it to the last one that reads it."
        f" Each step is the most in {step:,.0f} cycles.",
        table=_scratchpad_table(params, held),
        end=run.timing.cycles,
        y_title="percent in use",
        y_end=100,
        lines=[
            Steps(Series(name, number), [round(float(x), 1) for x in percents[name]])
            for number, name in enumerate(MEMORIES)
        ],
        link=_LINK,
    )


def _scratchpad_table(params: HwParams, held: dict[str, np.ndarray]) -> Table:
    columns = ("scratchpad", "entries", "bytes of an entry", "most in use", "most in use %")
    rows = []
    for name in MEMORIES:
        most, depth = int(held[name].max()), params.depth(name)
        rows.append((name, depth, params.entry_bytes(name), most, most / depth))
    return Table("Scratchpads", columns, rows)


def dram_map(run: Run) -> Areas | None:
    """Tensors in DRAM: addresses against time; None where programs do not name them."""
    found = tensors(run)
    if not found:
        return None
    columns = ("tensor", "first byte", "bytes", "from cycle", "to cycle", "read", "written")
    shown = sorted(found, key=lambda t: t.begin - t.end)[:MOST_TENSORS]
    fewer = "" if len(shown) == len(found) else f" The {len(shown):,} largest are drawn."
    return Areas(
        title="Addresses against time",
        note="Constants lie behind these addresses for the whole run, and are not drawn." + fewer,
        table=Table(
            "Tensors, in bytes",
            columns,
            [
                (t.name, t.begin, t.end - t.begin, t.first, t.last, t.read_bytes, t.written_bytes)
                for t in found
            ],
        ),
        end=run.timing.cycles,
        y_title="byte of DRAM",
        y_end=max(tensor.end for tensor in found),
        areas=[Area(t.name, (t.first, t.last + 1), (t.begin, t.end)) for t in shown],
        link=_LINK,
    )
