"""The report: one HTML page without anything from outside, and the same pictures and numbers as PNG and CSV beside it.

    build     everything of one report
    sections  the parts of the page; methods has the last
    tables    tables of the page and their numbers as text
    html      elements
"""

from .build import write

__all__ = ["write"]
