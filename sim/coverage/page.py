"""The coverage of one or several configurations as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from .bins import GROUPS, bins
from .coverage import Coverage
from .unreachable import unreachable

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>VDLA: functional coverage</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; }
table { border-collapse: collapse; } td, th { padding: .15em .8em; text-align: left; }
td.n { text-align: right; } tr.missing { background: #fdd; } tr.never { color: #888; }
summary { cursor: pointer; margin-top: .6em; } p { color: #555; margin: .3em 0; }
</style></head><body>
<h1>Functional coverage</h1>
"""


def page(coverages: Sequence[Coverage]) -> str:
    """A page that needs nothing else: a table of groups for each configuration, what is missing,
    and every bin with its count or the reason why nothing can reach it.
    """
    return "\n".join([_HEAD, *(part for c in coverages for part in _of(c)), "</body></html>\n"])


def _of(coverage: Coverage) -> Iterator[str]:
    holes, reachable = coverage.holes(), coverage.reachable()
    yield f"<h2>Configuration {coverage.params.hash}</h2>"
    knobs = ", ".join(f"{knob} {value}" for knob, value in coverage.params.to_dict().items())
    yield f"<p>{escape(knobs)}</p>"
    for run in coverage.runs:
        said = f"{run['source']} on {run['simulator']}, seed {run['seed']}: "
        yield f"<p>{escape(said)}{run['programs']:,} programs</p>"
    yield (
        f"<p><b>{len(reachable) - len(holes):,} of {len(reachable):,} reachable bins, "
        f"{100 * coverage.fraction():.1f} %</b></p>"
    )
    if holes:
        yield f"<details open><summary>Missing: {len(holes):,} bins</summary><table>"
        for group, bin_name in holes:
            yield f"<tr class='missing'><td>{group}</td><td>{escape(bin_name)}</td></tr>"
        yield "</table></details>"
    for group in bins(coverage.params):
        yield from _group(coverage, group)


def _group(coverage: Coverage, group: str) -> Iterator[str]:
    never, names = unreachable(coverage.params), bins(coverage.params)[group]
    reachable, holes = coverage.reachable(group), coverage.holes(group)
    yield (
        f"<details><summary>{group}: {len(reachable) - len(holes):,} of {len(reachable):,}"
        f"</summary><p>{escape(GROUPS[group])}</p><table>"
    )
    for bin_name in names:
        hits, reason = coverage.hits[group, bin_name], never.get((group, bin_name))
        kind = "never" if reason else "" if hits else "missing"
        said = escape(reason) if reason and not hits else f"{hits:,}"
        yield f"<tr class='{kind}'><td>{escape(bin_name)}</td><td class='n'>{said}</td></tr>"
    yield "</table></details>"
