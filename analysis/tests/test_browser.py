"""The page in a real browser: phone and desktop, light and dark, and on paper. Skipped where there is no Chromium.

`MYRIAD_PICTURES=DIR` keeps the screenshots, to be looked at.
"""

import os
import re
from pathlib import Path

import pytest
from browser import Browser, program

pytestmark = pytest.mark.skipif(program() is None, reason="the page in a browser: no chromium here (apt-get install chromium)")
UGLY = (Path(__file__).parent / "overlaps.js").read_text()


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


@pytest.fixture
def keep(tmp_path):
    place = Path(os.environ.get("MYRIAD_PICTURES") or tmp_path)
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 900)], ids=["phone", "desktop"])
def test_the_page_is_readable(made, browser, keep, width, height, scheme):
    browser.open(made / "index.html", width, height, scheme)
    assert browser.complaints == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    # Of each picture the drawing of this width is seen, and only that.
    seen = "[...document.querySelectorAll('.drawing.%s')].filter((d) => d.offsetHeight > 100).length"
    pictures = browser.evaluate("document.querySelectorAll('figure').length")
    assert browser.evaluate(seen % "narrow") == (pictures if width < 600 else 0)
    assert browser.evaluate(seen % "wide") == (0 if width < 600 else pictures)
    dark = "getComputedStyle(document.documentElement).backgroundColor"
    assert browser.evaluate(dark) == ("rgb(21, 24, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
    assert browser.evaluate(UGLY) == []
    # Text is never smaller than what can be read on a phone: 8 pixels in a picture, 12 on the page.
    small = """[...document.querySelectorAll('body *')].filter((e) => e.offsetParent !== null && !e.closest('svg') &&
        [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && parseFloat(getComputedStyle(e).fontSize) < 12).length"""
    assert browser.evaluate(small) == 0
    tiny = """Math.min(...[...document.querySelectorAll('svg text')].filter((t) => t.getBoundingClientRect().width)
        .map((t) => parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b)))"""
    assert browser.evaluate(tiny) > 7.5
    browser.screenshot(keep / f"{width}-{scheme}.png", height=8000)


def test_the_page_can_be_printed(made, browser, keep):
    # A dark screen: paper is white all the same.
    browser.open(made / "index.html", 1280, 900, "dark")
    pdf = browser.pdf(keep / "report.pdf")
    assert pdf.startswith(b"%PDF") and 10 < len(re.findall(rb"/Type\s*/Page\b", pdf)) < 200
    browser.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert browser.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    # Tables that are folded on the screen are open on paper.
    assert browser.evaluate("Math.min(...[...document.querySelectorAll('details table')].map((t) => t.offsetHeight))") > 20
    assert browser.complaints == []
