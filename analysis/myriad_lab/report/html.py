"""Elements of the page as text. What comes from outside passes `text`; everything else here is markup already."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from ..figures.style import DARK, LIGHT, Picture


def text(value: object) -> str:
    return escape(str(value), quote=True)


def element(name: str, *content: str, **attributes: str | None) -> str:
    """`class_` and `for_` lose their underscore; attributes of value None are left out."""
    words = "".join(f' {k.rstrip("_").replace("_", "-")}="{text(v)}"' for k, v in attributes.items() if v is not None)
    return f"<{name}{words}>{''.join(content)}</{name}>"


def paragraph(*sentences: str, **attributes: str | None) -> str:
    return element("p", " ".join(sentences), **attributes)


def bullets(items: Iterable[str]) -> str:
    return element("ul", *[element("li", item) for item in items])


def figure(picture: Picture, caption: str) -> str:
    """The page shows the drawing that fits its width; the other is hidden from everybody."""
    drawings = [element("div", svg, class_=f"drawing {shape}") for shape, svg in picture.svgs.items()]
    link = element("a", "PNG", href=f"figures/{picture.name}.png")
    return element("figure", *drawings, element("figcaption", caption, " ", link))


def table(caption: str, columns: list[tuple[str, str]], rows: Iterable[list[str]], stacked: bool = False) -> str:
    """`columns`: heading and class of each; cells are markup. `stacked`: on a phone each row becomes a card with the headings
    inside. Elements that are no longer laid out as a table lose that meaning in browsers, so their roles are written out."""
    head = element("tr", *[element("th", text(h), class_=c or None, scope="col", role="columnheader") for h, c in columns], role="row")
    body = []
    for cells in rows:
        assert len(cells) == len(columns)
        # One element beside the heading of the card.
        cells = [element("div", x) if x and stacked else x for x in cells]
        body.append(
            element(
                "tr",
                *[element("td", x, class_=c or None, role="cell", data_label=h) for x, (h, c) in zip(cells, columns, strict=True)],
                role="row",
            )
        )
    inner = element(
        "table",
        element("caption", caption),
        element("thead", head, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        class_="stacked" if stacked else None,
        role="table",
    )
    if stacked:
        return inner
    # Reached by keyboard, or those without a mouse could not scroll it.
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label=_plain(caption))


def _plain(markup: str) -> str:
    out, inside = [], False
    for c in markup:
        inside = (inside or c == "<") and c != ">"
        if not inside and c != ">":
            out.append(c)
    return "".join(out)


def details(summary: str, *content: str) -> str:
    return element("details", element("summary", text(summary)), *content)


def page(title: str, body: str) -> str:
    """The whole file. Style and pictures are inside; there is no script."""
    roles = {name: ";".join(f"--{role}:{colour}" for role, colour in scheme.items()) for name, scheme in _schemes()}
    style = files("myriad_lab.report").joinpath("style.css").read_text("utf-8")
    style = style.replace("/*LIGHT*/", roles["light"]).replace("/*DARK*/", roles["dark"])
    body, classes = _with_classes(body)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title><style>{style}{classes}</style>"
    )
    # A picture without a name of its own, or the browser asks the server for one.
    head += '<link rel="icon" href="data:,">'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _with_classes(body: str) -> tuple[str, str]:
    """Lines and words of all pictures share a few styles. Each style that comes again becomes a class: half of the page's bytes."""
    drawn = re.compile(r"<svg.*?</svg>", re.S)
    found = Counter(style for svg in drawn.findall(body) for style in re.findall(r' style="([^"]*)"', svg))
    names = {style: f"k{i}" for i, (style, count) in enumerate(found.most_common()) if count > 1}

    def named(match: re.Match) -> str:
        style = match[1]
        return f' class="{names[style]}"' if style in names else match[0]

    body = drawn.sub(lambda svg: re.sub(r' style="([^"]*)"', named, svg[0]), body)
    return body, "".join(f".{name}{{{style}}}" for style, name in names.items())


def _schemes() -> list[tuple[str, dict]]:
    return [("light", LIGHT), ("dark", DARK)]
