"""How pictures look, and how they become files.

Each picture is drawn in two shapes: `WIDE` for a screen or paper, `NARROW` for a phone, so that text stays readable. Colours are
*roles* ("ink", "s1"). A drawing uses those of the light scheme; in the SVG each becomes a CSS variable of the page, which follows
the reader's scheme. So roles must differ in every colour.

The series are Okabe and Ito's colours, made darker for white paper and lighter for a dark page until each has a contrast of 3 to 1
with it, as WCAG asks of lines.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

LIGHT = {
    "surface": "#ffffff",
    "ink": "#1a1c1f",
    "muted": "#5a6068",
    "grid": "#dfe3e8",
    "band": "#eef1f4",
    "s1": "#0072b2",
    "s2": "#d55e00",
    "s3": "#006b4a",
    "s4": "#b04f8d",
    "s5": "#a87400",
    "s6": "#2f8fc6",
    "s7": "#4c4f54",
}
DARK = {
    "surface": "#15181c",
    "ink": "#eceff2",
    "muted": "#a4adb7",
    "grid": "#31373e",
    "band": "#22272d",
    "s1": "#56b4e9",
    "s2": "#ff8f4a",
    "s3": "#5fe3b8",
    "s4": "#e59ac8",
    "s5": "#e8b53a",
    "s6": "#9cd3f3",
    "s7": "#c3c8ce",
}
SERIES = ("s1", "s2", "s3", "s4", "s5", "s6", "s7")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES: tuple = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1.2, 1, 1.2, 1, 1.2)), (0, (9, 3)), (0, (2, 3)))
FONTS = ["DejaVu Sans"]


@dataclass(frozen=True)
class Shape:
    """Width in inches of 72 points, as CSS has 96 pixels an inch; text in points."""

    name: str
    width: float
    text: float


WIDE = Shape("wide", 7.4, 9.0)
NARROW = Shape("narrow", 3.35, 8.0)


class Canvas:
    """A figure of one shape; `height` in inches."""

    def __init__(self, shape: Shape, height: float):
        self.shape = shape
        self.figure = Figure(figsize=(shape.width, height), layout="constrained", facecolor=LIGHT["surface"])
        self.figure.get_layout_engine().set(w_pad=0.04, h_pad=0.05)

    @property
    def is_narrow(self) -> bool:
        return self.shape is NARROW

    def axes(self, *args, **kwargs) -> Axes:
        return dress(self.figure.add_subplot(*args, **kwargs))


def dress(axes: Axes) -> Axes:
    """Takes away what is not data."""
    axes.set_facecolor(LIGHT["surface"])
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LIGHT["muted"])
    axes.tick_params(which="both", colors=LIGHT["muted"], labelcolor=LIGHT["ink"])
    axes.grid(True, which="major", color=LIGHT["grid"], linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def _settings(shape: Shape) -> dict:
    return {
        "font.family": FONTS,
        "font.size": shape.text,
        "axes.titlesize": shape.text + 1,
        "axes.labelsize": shape.text,
        "xtick.labelsize": shape.text - 0.5,
        "ytick.labelsize": shape.text - 0.5,
        "legend.fontsize": shape.text - 0.5,
        "text.color": LIGHT["ink"],
        "axes.labelcolor": LIGHT["ink"],
        "axes.titlelocation": "left",
        "legend.frameon": False,
        "hatch.linewidth": 0.8,
        # Text stays text: it can be searched, and follows the reader's scheme.
        "svg.fonttype": "none",
        # Without it, identifiers differ from run to run.
        "svg.hashsalt": "myriad-lab",
    }


@dataclass(frozen=True)
class Picture:
    """A picture as files: `svgs` by shape, for a page; `png` of the wide one."""

    name: str
    svgs: dict[str, str]
    png: bytes


def render(name: str, alt: str, draw: Callable[[Shape], Canvas]) -> Picture:
    """Draws in both shapes. `name` is the file's, and unique on a page; `alt` says in words what is seen."""
    svgs, png = {}, b""
    for shape in (WIDE, NARROW):
        with matplotlib.rc_context(_settings(shape)):
            canvas = draw(shape)
            text = io.StringIO()
            canvas.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
            svgs[shape.name] = _for_page(text.getvalue(), f"{name}-{shape.name}", alt)
            if shape is WIDE:
                pixels = io.BytesIO()
                canvas.figure.savefig(pixels, format="png", dpi=144, metadata={"Software": None})
                png = pixels.getvalue()
    return Picture(name, svgs, png)


ROLE = {colour: role for role, colour in LIGHT.items()}


def _for_page(svg: str, prefix: str, alt: str) -> str:
    """The element alone, with colours of the page, and with identifiers that no other picture has. A page has a hundred pictures and more:
    what a browser does not need is left out, and coordinates have hundredths of a point."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--{ROLE[m[0]]})" if m[0] in ROLE else m[0], svg)
    # Their font is the page's, and an angle of 0 turns nothing.
    svg = re.sub(r"font-family: [^;\"]*; ", "", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*\)"', "", svg)
    svg = re.sub(r"<[^>]+>", lambda m: re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."), m[0]), svg)
    svg = re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*", " ", svg))
    svg = _without_bare_groups(svg)
    used = sorted(set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)))
    short = {name: f"p{hashlib.sha256(prefix.encode()).hexdigest()[:8]}-{i}" for i, name in enumerate(used)}
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{short[m[1]]}"' if m[1] in short else "", svg)
    svg = re.sub(r'((?:href="#|url\(#))([^")]+)', lambda m: m[1] + short[m[2]], svg)
    # The page scales it: only the box stays.
    head, rest = svg.split(">", 1)
    width = re.search(r'viewBox="0 0 ([\d.]+) ', head)[1]
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{_escaped(alt)}" style="max-width: {float(width):.0f}pt">{rest}'


def _without_bare_groups(svg: str) -> str:
    """Groups that have nothing but an identifier group nothing, and empty ones show nothing."""
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    out, kept = [], []
    for part in re.split(r"(<g(?:[ /][^>]*)?>|</g>)", svg):
        if part == "</g>":
            if kept.pop():
                out.append(part)
        elif re.fullmatch(r"<g[^>]*/>", part):
            continue
        elif part.startswith(("<g ", "<g>")):
            kept.append(part != "<g>")
            if kept[-1]:
                out.append(part)
        else:
            out.append(part)
    return "".join(out)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def number(value: float) -> str:
    """Three digits, without exponents between a thousandth and a million."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        digits = f"{value:.3g}"
        return f"{float(digits):,.0f}" if abs(value) >= 1000 else (f"{value:.3g}" if "e" not in digits else f"{float(digits):g}")
    return f"{value:.2e}"


def seconds(value: float, _position: object = None) -> str:
    """A time with its unit, as in 35 µs."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if abs(value) >= size * 0.9995 or unit == "ns":
            return f"{value / size:.3g} {unit}" if abs(value / size) < 999.5 else f"{value / size:,.0f} {unit}"
    raise AssertionError("ns takes what is left")


def count(value: float, _position: object = None) -> str:
    """A whole number, short: 100k, 1M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def times(value: float, _position: object = None) -> str:
    return f"×{number(value)}"
