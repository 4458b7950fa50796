"""Elements of HTML and SVG. Text is escaped unless it is Markup already, so nothing can be forgotten."""

from __future__ import annotations

from html import escape

from leadline.report import words

_VOID = frozenset({"meta", "link", "br", "hr"})


class Markup(str):
    """Text that is HTML already: made by `el` and `join` only."""

    __slots__ = ()


def el(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """`el("td", "a < b", class_="num")`: children that are not Markup are escaped, as are all attributes.

    An attribute that is None is left out; `class_` and `for_` lose the underscore, inner underscores become hyphens.
    """
    head = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{head}>")
    return Markup(f"<{tag}{head}>{join(*children)}</{tag}>")


def join(*children: str) -> Markup:
    return Markup("".join(c if isinstance(c, Markup) else text(c) for c in children))


def text(value: str) -> Markup:
    """Escaped, with control characters made visible; newlines become line breaks."""
    return Markup(escape(words.clean(value)).replace("\n", "<br>"))


def raw(trusted: str) -> Markup:
    """Our own fixed text, never anything from outside."""
    return Markup(trusted)


def _attribute(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return escape(words.clean(str(value)).replace("\n", " "))
