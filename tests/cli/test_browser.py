"""The pages that commands write, opened in a real headless Chromium: light, dark and narrow."""

from pathlib import Path
from types import SimpleNamespace

import html5lib
import pytest
from tvm.target import Target

from tests.meta.test_database import FACTS
from tests.meta.test_nearest import CHUNKS, PAIRS, commit
from tests.support.browser import Browser, NoBrowser, find_chromium
from tvm_scan import ScanPlan, default_plan, extract, library
from tvm_scan.cli.app import run
from tvm_scan.meta import RecordStore

CPU = Target.from_device("cpu")
LOOP = ScanPlan.of("cpu", "sequential")
MODEL = """
from tvm import relax

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType([3, 500], "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        out = builder.emit_output(relax.op.negative(builder.emit(relax.op.cumsum(x, 1))))
    builder.emit_func_output(out)
mod = builder.get()
"""
#: What a page must answer about itself, by JavaScript.
TABLES = "[...document.querySelectorAll('table')].map(t => t.getBoundingClientRect().height)"
PICTURES = (
    "[...document.querySelectorAll('svg, img')].map(e => e.getBoundingClientRect())"
    ".map(r => Math.min(r.width, r.height))"
)
BROKEN = "[...document.images].filter(i => !i.complete || i.naturalWidth == 0).length"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
WIDTH = "innerWidth"
#: Of each plot: how much of its card it fills, its smallest text in pixels of the screen, and how
#: far text sticks out of it.
PLOTS = """[...document.querySelectorAll('.chart svg')].map(svg => {
  const card = svg.closest('.card'), style = getComputedStyle(card);
  const box = svg.getBoundingClientRect();
  const inner = card.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  const texts = [...svg.querySelectorAll('text')], scale = box.width / svg.viewBox.baseVal.width;
  const out = texts.map(t => t.getBoundingClientRect()).map(
    r => Math.max(box.left - r.left, r.right - box.right, box.top - r.top, r.bottom - box.bottom));
  return [box.width / inner, scale * Math.min(...texts.map(
    t => parseFloat(getComputedStyle(t).fontSize))), Math.max(...out)];
})"""
#: Of each tree: how large it is drawn beside the size that its text is made for.
TREES = "[...document.querySelectorAll('.tree img')].map(i => i.width / i.naturalWidth)"
#: Brightness of the text of plots, and of the cards behind it.
SHADES = """[['.chart text', 'fill'], ['.card', 'backgroundColor']].map(
  ([what, how]) => getComputedStyle(document.querySelector(what))[how])"""
COLOURS = "['backgroundColor', 'color'].map(k => getComputedStyle(document.body)[k])"


def call(*arguments):
    patch = pytest.MonkeyPatch()
    patch.setattr("sys.argv", ["tvm-scan", *map(str, arguments)])
    with pytest.raises(SystemExit, match=r"^0$"):
        run()
    patch.undo()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of a database with several functions, and that of a compiled model."""
    folder = tmp_path_factory.mktemp("pages")
    store = RecordStore(folder / "records")
    func = library.cumsum(4, 4000)
    plans = [default_plan(CPU, extract(func)), LOOP, PAIRS, CHUNKS]
    for plan, seconds in zip(plans, (4e-6, 8e-6, 2e-6, 3e-6), strict=True):
        commit(store, func, plan, seconds, facts={**FACTS, "function": "cumsum"})
    named = {**FACTS, "function": "a_function_whose_name_is_much_longer_than_a_phone_is_wide"}
    commit(store, library.selective_scan(1, 4, 64, 8), LOOP, 1e-3, facts=named)
    foreign = {**FACTS, "tvm": "0.26.0"}
    commit(store, library.linear_recurrence(2, 90), LOOP, 1e-3, facts=foreign)
    (folder / "model.py").write_text(MODEL)
    call("report", store.folder, "-o", folder / "report.html")
    call("compile", folder / "model.py", "-o", folder / "model", "--report", folder / "model.html")
    return folder


@pytest.fixture(scope="module")
def browser():
    try:
        chromium = find_chromium()
    except NoBrowser as error:
        yield SimpleNamespace(missing=str(error))
        return
    with Browser(chromium) as found:
        yield found


def brightness(colour):
    return sum(int(part) for part in colour.strip("rgba()").split(",")[:3]) / 3


@pytest.mark.parametrize("view", ["light", "dark", "narrow"])
@pytest.mark.parametrize("name", ["report", "model"])
def test_a_page_in_a_real_browser(pages, browser, name, view):
    path: Path = pages / f"{name}.html"
    html5lib.HTMLParser(strict=True).parse(path.read_text(encoding="utf-8"))
    if hasattr(browser, "missing"):
        pytest.skip(f"the page is valid HTML, and was not rendered: {browser.missing}")
    page = browser.open(path, width=400 if view == "narrow" else 1200, dark=view == "dark")
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file://", "data:"))] == []
    assert [url for url in page.requests if url.startswith("file://")] == [path.as_uri()]
    assert page.evaluate(WIDTH) == (400 if view == "narrow" else 1200)
    assert page.evaluate(OVERFLOW) == 0
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    heights = page.evaluate(TABLES)
    assert heights and min(heights) > 20
    assert page.evaluate(BROKEN) == 0
    sizes = page.evaluate(PICTURES)
    assert (name == "model") == (sizes == [])
    assert min(sizes, default=100) > 5
    assert page.evaluate(OVERFLOW) == 0, "with every list of records open"
    if name == "report":
        for filled, size, out in page.evaluate(PLOTS):
            assert 0.98 < filled < 1.02 and size > 11 and out <= 0.5, (filled, size, out)
        assert min(page.evaluate(TREES)) >= 1
        text, card = map(brightness, page.evaluate(SHADES))
        assert abs(text - card) > 96
    paper, ink = map(brightness, page.evaluate(COLOURS))
    assert (paper < 64 < 128 < ink) if view == "dark" else (ink < 128 < 200 < paper)
    picture = page.screenshot(pages / f"{name}-{view}.png")
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000


def test_the_browser_sees_what_is_wrong(browser, tmp_path):
    """The checks above can fail: an error, a request, and a table that is too wide."""
    if hasattr(browser, "missing"):
        pytest.skip(browser.missing)
    path = tmp_path / "bad.html"
    path.write_text(
        "<!DOCTYPE html><title>bad</title><meta name=viewport content='width=device-width'>"
        "<div style='width: 900px'>wide</div><img src='nothing.png'>"
        "<script>console.error('spoken')</script>"
    )
    page = browser.open(path, width=400)
    assert page.evaluate(OVERFLOW) > 400 and page.evaluate(BROKEN) == 1
    assert any("spoken" in text for text in page.errors)
    assert (tmp_path / "nothing.png").as_uri() in page.requests
