"""The pages in a headless Chromium: ``make test-pages``. Nothing on the console, no request, and
nothing wider than the window; charts answer to the pointer and to keys.

``VDLA_PICTURES`` names a folder that the screenshots are written to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from vdla.cli import run_app

from .chromium import NAMES, Chromium, find_chromium

pytestmark = pytest.mark.sweep

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "models" / "digits_int8.onnx"
PAGES = ("run", "host", "compare", "sweep", "explore", "resnet18")
WIDTHS = (1280, 400)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    path = find_chromium()
    if path is None:
        pytest.skip(f"no {', '.join(NAMES)} on the PATH; on Debian apt-get install chromium")
    with Chromium(path, tmp_path_factory.mktemp("profile")) as chromium:
        yield chromium


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a page of every kind."""
    folder = tmp_path_factory.mktemp("pages")
    run = ["run", str(DIGITS)]
    for name, more in (("run", []), ("slow", ["--memory", "slow", "--vthreads", "1"])):
        files = ["--html", str(folder / f"{name}.html"), "--json", str(folder / f"{name}.json")]
        assert run_app([*run, *more, *files]) == 0
    assert run_app([*run, "--target", "cpu", "--html", str(folder / "host.html")]) == 0
    reports = [str(folder / "run.json"), str(folder / "slow.json")]
    assert run_app(["compare", *reports, "--html", str(folder / "compare.html")]) == 0
    sweep = ["sweep", str(DIGITS), "C8", "--set", "acc_depth=1024,2048,7", "--memory", "vta"]
    files = ["--results", str(folder / "r.jsonl"), "--html", str(folder / "sweep.html")]
    assert run_app([*sweep, "--memory", "slow", *files]) == 0
    (folder / "spec.toml").write_text(
        f'objectives = ["cycles", "bram"]\nsearch = "random"\n[networks]\n"{DIGITS}" = 1\n'
        "[knobs]\nblock = [4, 8]\nacc_depth = [256, 512]\n"
    )
    explore = ["explore", str(folder / "spec.toml"), "--html", str(folder / "explore.html")]
    assert run_app([*explore, "--results", str(folder / "e.jsonl"), "--trials", "5"]) == 0
    from vdla.bench.workloads import resnet18

    (folder / "resnet18.onnx").write_bytes(resnet18().SerializeToString())
    files = ["--html", str(folder / "resnet18.html")]
    assert run_app(["run", str(folder / "resnet18.onnx"), *files]) == 0
    return folder


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_clean(name: str, width: int, dark: bool, pages: Path, browser: Chromium) -> None:
    seen = browser.open(pages / f"{name}.html", width, dark)
    if folder := os.environ.get("VDLA_PICTURES"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shade = "dark" if dark else "light"
        browser.screenshot(Path(folder) / f"{name}_{width}_{shade}.png")
    assert seen.console == [] and seen.requests == []
    wide = browser.evaluate(
        "[...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll') &&"
        " e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 200))"
    )
    assert wide == [], f"wider than {width}: {wide[:3]}"
    root = "document.documentElement"
    assert browser.evaluate(f"{root}.scrollWidth") <= width
    assert browser.evaluate(f"Number({root}.dataset.drawn)") == browser.evaluate(
        "document.querySelectorAll('figure').length"
    )
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(20, 24, 31)") == dark
    empty = browser.evaluate(
        "[...document.querySelectorAll('figure')].filter((f) => !f.querySelector('canvas, rect,"
        " circle, path, polyline, pre')).map((f) => f.querySelector('figcaption').textContent)"
    )
    assert empty == []


def test_the_page_of_a_large_network_stays_small(pages: Path) -> None:
    assert (pages / "resnet18.html").stat().st_size <= 5_000_000


def test_a_request_and_an_error_would_be_seen(tmp_path: Path, browser: Chromium) -> None:
    """That the test above can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<html data-drawn='0'><body style='width:3000px'><img src='http://localhost:9/x.png'>"
        "<script>console.log('hello'); undefinedFunction()</script></body></html>"
    )
    seen = browser.open(bad, 400, False)
    assert seen.requests == ["http://localhost:9/x.png"]
    assert any("hello" in text for text in seen.console)
    assert any("undefinedFunction" in text for text in seen.console)
    assert browser.evaluate("document.documentElement.scrollWidth") > 400


def test_the_policy_of_a_page_stops_requests(pages: Path, browser: Chromium) -> None:
    """Even a script that got into a page could not load anything."""
    seen = browser.open(pages / "host.html", 400, False)
    browser.evaluate(
        "fetch('http://localhost:9/').then(() => { document.title = 'loaded' }, () => {})"
    )
    assert browser.evaluate("document.title") != "loaded"
    assert any("Content Security Policy" in text for text in seen.console)


def test_numbers_of_an_axis_differ(pages: Path, browser: Chromium) -> None:
    """Also where what they count differs by a thousandth."""
    browser.open(pages / "sweep.html", 1280, False)
    axes = (
        "[...document.querySelectorAll('.scatter')]"
        ".map((c) => [...c.querySelectorAll('text.soft')].map((t) => t.textContent))"
    )
    charts = browser.evaluate(axes)
    assert len(charts) == 2 and any("27.5K" in texts for texts in charts)
    assert all(len(set(texts)) == len(texts) > 8 for texts in charts), charts


def test_charts_answer(pages: Path, browser: Chromium) -> None:
    browser.open(pages / "run.html", 1280, False)
    text = "document.querySelector('.timeline .readout').textContent"
    assert browser.evaluate(text).startswith("Cycles 0 to 6,248 of 6,248")
    key = "document.querySelector('canvas').dispatchEvent(new KeyboardEvent('keydown', {key: '+'}))"
    browser.evaluate(key)
    frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    browser.evaluate(frames)
    assert browser.evaluate(text).startswith("Cycles 1,562 to 4,686 of 6,248")
    ticks = "[...document.querySelectorAll('.steps text.soft')].map((t) => t.textContent)"
    assert "2K" in browser.evaluate(ticks) and "6K" not in browser.evaluate(ticks)
    choose = (
        "const s = document.querySelector('select'); s.value = '2';"
        " s.dispatchEvent(new Event('change')); s.selectedOptions[0].textContent"
    )
    layer = browser.evaluate(choose)
    browser.evaluate(frames)
    assert layer and not browser.evaluate(text).startswith("Cycles 1,661")
    bars = "document.querySelectorAll('.bars')[1]"
    browser.evaluate(f"[...{bars}.querySelectorAll('.controls button')].at(-1).click()")
    assert browser.evaluate(f"{bars}.querySelector('[aria-pressed=true]').textContent") == "store"
    browser.evaluate("document.querySelector('.scatter .mark').dispatchEvent(new Event('click'))")
    told = browser.evaluate("document.querySelector('.scatter .readout').textContent")
    assert "active cycles" in told and "of bound" in told


def test_a_design_that_is_chosen_is_shown(pages: Path, browser: Chromium) -> None:
    browser.open(pages / "explore.html", 1280, False)
    sides = "[...document.querySelectorAll('.designs select')].map((s) => s.value)"
    assert browser.evaluate(sides) == ["0", "1"]
    lines = "document.querySelectorAll('.parallel .mark')"
    browser.evaluate(f"{lines}[2].dispatchEvent(new Event('click'))")
    assert browser.evaluate(sides) == ["2", "0"]
    told = browser.evaluate("document.querySelector('.parallel .readout').textContent")
    name = "document.querySelector('.designs select').selectedOptions[0].textContent"
    assert told.startswith(browser.evaluate(name))
    points = "document.querySelectorAll('.scatter .mark')"
    browser.evaluate(f"{points}[1].dispatchEvent(new Event('click'))")
    assert browser.evaluate(sides) == ["1", "2"]
    assert "block_in = " in browser.evaluate("document.querySelector('.designs pre').textContent")


def test_tables_are_sorted_by_a_click(pages: Path, browser: Chromium) -> None:
    browser.open(pages / "run.html", 1280, False)
    table = (
        "[...document.querySelectorAll('table')].find((t) => t.caption.textContent === 'Layers')"
    )
    cells = f"[...{table}.tBodies[0].rows].map((r) => Number(r.children[2].dataset.value))"
    before = browser.evaluate(cells)
    for expected in (sorted(before, reverse=True), sorted(before)):
        browser.evaluate(f"{table}.querySelectorAll('th button')[2].click()")
        assert browser.evaluate(cells) == expected
