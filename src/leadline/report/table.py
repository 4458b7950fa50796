"""A table as a value: what text, Markdown and HTML all print.

A cell's text may hold newlines: each format shows them as lines of one cell. Nothing is escaped here; each format does
that for itself, on everything.
"""

from __future__ import annotations

import msgspec


class Column(msgspec.Struct, frozen=True):
    """`right` for numbers; `wrap` for sentences, which take what room is left; `code` for settings and names."""

    title: str
    right: bool = False
    wrap: bool = False
    code: bool = False


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """`keys` leading columns name the row; they are repeated when a terminal is too narrow for the rest.

    `spaced` = the rows hold several lines each.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""
    keys: int = 1
    spaced: bool = False


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a report: sentences, then tables. `anchor` is its stable name in links."""

    anchor: str
    title: str
    intro: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
