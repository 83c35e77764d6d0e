import base64
import io
import re
from html.parser import HTMLParser

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from feasibly.report import Report

NASTY = """<script>alert("x")</script> & 'y' <b>"""
LINKING = {"a", "link", "script", "iframe", "object", "embed", "base"}


def parse(page):
    """What a browser makes of a page: its elements as (tag, attributes, text)."""
    found, stack = [], []
    parser = HTMLParser()

    def start(tag, attributes):
        element = [tag, dict(attributes), ""]
        found.append(element)
        if tag not in ("img", "meta", "input"):
            stack.append(element)

    def end(tag):
        assert stack.pop()[0] == tag

    def data(text):
        if stack:
            stack[-1][2] += text

    parser.handle_starttag, parser.handle_endtag, parser.handle_data = start, end, data
    parser.feed(page)
    parser.close()
    assert stack == []
    return found


@pytest.fixture
def figure():
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([0, 1], [1, 0])
    return figure


@pytest.fixture
def page(tmp_path, figure):
    report = Report("A title")
    report.heading("A heading")
    report.text("Some text.")
    report.code("x = 1\ny = 2")
    report.table([{"name": "PPR", "k-NN": 0.5}, {"name": "DPS", "k-NN": 0.25}])
    report.figure(figure, "A caption")
    report.write(tmp_path / "new" / "report.html")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["report.html"]
    return (tmp_path / "new" / "report.html").read_text(encoding="utf-8")


def texts(page, tag):
    return [text for name, _, text in parse(page) if name == tag]


def test_a_page_holds_what_was_added_in_order(page):
    assert texts(page, "title") == texts(page, "h1") == ["A title"]
    assert texts(page, "h2") == ["A heading"]
    assert texts(page, "p") == ["Some text."]
    assert texts(page, "pre") == ["x = 1\ny = 2"]
    assert texts(page, "figcaption") == ["A caption"]
    tags = [tag for tag, _, _ in parse(page) if tag in ("h1", "h2", "p", "pre", "table", "img")]
    assert tags == ["h1", "h2", "p", "pre", "table", "img"]


def test_a_table_has_a_head_and_a_row_for_each_record(page):
    assert texts(page, "th") == ["name", "k-NN"]
    assert texts(page, "td") == ["PPR", "0.5", "DPS", "0.25"]
    assert len(texts(page, "tr")) == 3


def test_a_page_needs_nothing_from_elsewhere(page):
    assert not re.search(r"https?:|//|url\(|@import", re.sub(r"base64,[^\"]*", "", page))
    for tag, attributes, _ in parse(page):
        assert tag not in LINKING
        assert "href" not in attributes
        assert attributes.get("src", "data:").startswith("data:")


def test_a_figure_is_embedded_as_a_png(page):
    (image,) = [attributes for tag, attributes, _ in parse(page) if tag == "img"]
    kind, _, data = image["src"].partition(",")
    assert kind == "data:image/png;base64"
    assert image["alt"] == "A caption"
    png = base64.b64decode(data, validate=True)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = matplotlib.image.imread(io.BytesIO(png))
    assert pixels.shape[:2] == (130, 260)
    assert pixels[..., :3].min() < 1 <= pixels[..., :3].max()


def test_a_slider_shows_the_last_figure_and_says_at_what_it_is(tmp_path, figure):
    report = Report("A title")
    report.slider({f"noise level {sigma}": figure for sigma in (9, 1, "<0.1>")}, "Estimates.")
    report.write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    images = [a for tag, a, _ in parse(page) if tag == "img"]
    assert ["hidden" in image for image in images] == [True, True, False]
    assert images[2]["alt"] == "Estimates. At noise level <0.1>."
    (slider,) = [a for tag, a, _ in parse(page) if tag == "input"]
    assert (slider["type"], slider["max"], slider["value"]) == ("range", "2", "2")
    assert texts(page, "output") == ["noise level <0.1>"]
    (label,) = [a for tag, a, _ in parse(page) if tag == "label"]
    assert "hidden" in label  # until the script runs
    assert "hidden = false" in texts(page, "script")[0]


def test_a_page_fits_a_phone_and_the_dark_and_breaks_no_number(page):
    assert "width=device-width" in page
    assert "prefers-color-scheme: dark" in page
    assert "img { max-width: 100%" in page
    assert "white-space: nowrap" in page


def test_text_is_shown_as_it_was_written(tmp_path, figure):
    report = Report(NASTY)
    report.heading(NASTY)
    report.text(NASTY)
    report.code(NASTY)
    report.table([{NASTY: NASTY}])
    report.figure(figure, NASTY)
    report.write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    for tag in ("title", "h1", "h2", "p", "pre", "th", "td", "figcaption"):
        assert texts(page, tag) == [NASTY]
    assert [a["alt"] for tag, a, _ in parse(page) if tag == "img"] == [NASTY]
    assert "<script" not in page
