"""What the words of a script stand for, as far as that is certain, and where each value could be changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from leadline.dialect.opaque import is_opaque, opaque, text_of
from leadline.dialect.shellwords import Dark, Piece, Span, Text, Token, Var

_DEFAULTS = frozenset({"-", ":-", "=", ":="})


@dataclass(frozen=True, slots=True)
class Named:
    """A value from the environment, or from its absence: setting the variable changes it."""

    name: str


@dataclass(frozen=True, slots=True)
class Arg:
    """A word after the script: `$0` is 0."""

    index: int


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a value; `home` is where it comes from, None = it stands there itself."""

    text: str
    home: Seen | Named | Arg | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """One word as a command gets it; `value` may be opaque.

    `site` is the word of the command that it comes from, `span` its own text (None: it cannot be changed alone), `arg`
    its index among the words after the script. `bare`: the shell splits the text at blanks where it stands, so that
    nothing in it can be quoted.
    """

    value: str
    site: Span
    span: Span | None
    parts: tuple[Part, ...] = ()
    arg: int | None = None
    bare: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    """`seen` or `elements`; neither: unknown, because of `why`. `hint` is the text of all its assignments."""

    seen: Seen | None = None
    elements: tuple[Seen, ...] | None = None
    why: str = ""
    exported: bool = False
    hint: str = ""

    @property
    def text(self) -> str | None:
        """Its value when that is known."""
        return None if self.seen is None or is_opaque(self.seen.value) else self.seen.value


@dataclass(frozen=True, slots=True)
class _Got:
    text: str | None
    home: Seen | Named | Arg | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is known of the variables at one place of a script.

    `args` are the words after the script, from `$0` on; None = a function's own, or changed. `foreign` is a file that
    was read in and may have set any variable.
    """

    script: str
    names: Mapping[str, Variable]
    env: Mapping[str, str]
    args: tuple[str, ...] | None
    foreign: str = ""

    def words(self, token: Token) -> tuple[Seen, ...]:
        """What a word of a command becomes: none, one or several words."""
        pieces = token.pieces
        if token.elements is not None:
            return (self._dark(token, "", "it is an array"),)
        if token.name:
            pieces = (Text(self.script[token.span[0] : token.value_at], quoted=False), *pieces)
        if len(pieces) == 1 and isinstance(only := pieces[0], Var):
            if only.name == "@" or only.name.endswith("[@]"):
                return self._several(token, only)
            if not only.quoted:
                return self._split(token, only)
        plain = "".join(p.text if isinstance(p, Text) and not p.quoted else "" for p in pieces)
        if _globs(plain) or _braces(plain) or plain.startswith("~"):
            return (self._dark(token, "", "the shell makes names of files, or several words, of it"),)
        seen = self._one(token, pieces, token.span)
        if not is_opaque(seen.value) and any(
            isinstance(p, Var) and not p.quoted and (text := self._get(p).text) and _splits(text) for p in pieces
        ):
            return (self._dark(token, "", "the shell makes several words of it"),)
        return (seen,)

    def value(self, token: Token) -> Seen:
        """The value of an assignment, which is never split."""
        first = token.pieces[0] if token.pieces else None
        if isinstance(first, Text) and not first.quoted and first.text.startswith("~"):
            return self._dark(token, "", "it is in somebody's home", (token.value_at, token.span[1]))
        return self._one(token, token.pieces, (token.value_at, token.span[1]))

    def _one(self, token: Token, pieces: tuple[Piece, ...], span: Span) -> Seen:
        parts: list[Part] = []
        for piece in pieces:
            got = self._piece(piece)
            if got.text is None:
                return self._dark(token, "".join(p.text for p in parts), got.why, span)
            parts.append(Part(got.text, got.home, piece.name if isinstance(piece, Var) else ""))
        return Seen("".join(p.text for p in parts), token.span, span, tuple(parts))

    def _several(self, token: Token, var: Var) -> tuple[Seen, ...]:
        if var.name == "@":
            if self.args is None or var.op:
                return (self._dark(token, "", "the script changes the words that it is given"),)
            found = tuple(Seen(v, token.span, None, arg=i) for i, v in enumerate(self.args) if i)
        else:
            name = var.name.removesuffix("[@]")
            variable = self.names.get(name)
            if variable is None or variable.elements is None or var.op:
                return (self._dark(token, "", self._why(name)),)
            found = tuple(Seen(s.value, token.span, s.span, s.parts, s.arg, s.bare) for s in variable.elements)
        if not var.quoted and any(_splits(s.value) for s in found):
            return (self._dark(token, "", "the shell splits it at blanks: put it in double quotes"),)
        return found

    def _split(self, token: Token, var: Var) -> tuple[Seen, ...]:
        """A variable without quotes: the shell makes a word of each part between blanks."""
        got = self._get(var)
        if got.text is None or _globs(got.text):
            return (self._dark(token, "", got.why or "the shell looks for files of that name"),)
        if got.text and not _splits(got.text):
            return (Seen(got.text, token.span, token.span, (Part(got.text, got.home, var.name),)),)
        at = self._inner(got)
        spans = [m.span() for m in re.finditer(r"\S+", got.text)]
        return tuple(
            Seen(got.text[a:b], token.span, None if at is None else (at + a, at + b), bare=True) for a, b in spans
        )

    def _inner(self, got: _Got) -> int | None:
        """Where the text of a variable stands in the script, letter for letter."""
        home = got.home
        if not isinstance(home, Seen) or home.span is None or got.text is None or any(p.home for p in home.parts):
            return None
        at = self.script.find(got.text, *home.span)
        return at if at >= 0 and home.span[1] - home.span[0] - len(got.text) <= 2 else None

    def _piece(self, piece: Piece) -> _Got:
        if isinstance(piece, Text):
            return _Got(piece.text)
        if isinstance(piece, Dark):
            return _Got(None, why=f"it is {piece.what}")
        return self._get(piece)

    def _get(self, var: Var) -> _Got:
        if var.name == "@" or var.name.endswith("[@]"):
            return _Got(None, why="it is a part of a word")
        got, unset = self._lookup(var.name)
        falls_back = unset or (got.text == "" and var.op.startswith(":"))
        if not falls_back or var.op not in _DEFAULTS:
            return got
        texts = [self._piece(p) for p in var.default]
        if any(t.text is None for t in texts):
            return next(t for t in texts if t.text is None)
        text = "".join(t.text or "" for t in texts)
        inner = var.default[0] if len(var.default) == 1 else None
        if isinstance(inner, Var) and unset and not self._lookup(inner.name)[1]:
            return texts[0]  # it comes from a variable that is set
        return _Got(text, (None if var.name.isdigit() else Named(var.name)) if unset else got.home)

    def _lookup(self, name: str) -> tuple[_Got, bool]:
        """The value of a variable, and whether it is certainly not set by the script or the launch."""
        if name.isdigit():
            if self.args is None:
                return _Got(None, why="the script changes the words that it is given"), False
            at = int(name)
            here = at < len(self.args)
            return (_Got(self.args[at], Arg(at)) if here else _Got(None, why="no such word is given")), not here
        variable = self.names.get(name)
        if variable is not None and variable.text is not None:
            return _Got(variable.text, variable.seen), False
        if variable is not None or self.foreign:
            return _Got(None, why=self._why(name)), False
        if name in self.env:
            return _Got(self.env[name], Named(name)), False
        return _Got(None, why=self._why(name)), True

    def _why(self, name: str) -> str:
        variable = self.names.get(name)
        if variable is None and self.foreign:
            return f"{self.foreign} may set {name}"
        if variable is None:
            return f"{name} is set neither in the script nor in the launch"
        if variable.seen is not None and is_opaque(variable.seen.value):
            return f"{name} is {text_of(variable.seen.value)}"
        return f"{name} {variable.why or 'is an array'}"

    def _dark(self, token: Token, known: str, why: str, span: Span | None = None) -> Seen:
        start, end = span or token.span
        return Seen(opaque(known, self.script[start:end], why), token.span, span or token.span)


def _splits(text: str) -> bool:
    return text == "" or re.search(r"\s", text) is not None or _globs(text)


def _globs(text: str) -> bool:
    """Whether the shell takes it for a pattern of file names."""
    return "*" in text or "?" in text or -1 < text.find("[") < text.rfind("]")


def _braces(text: str) -> bool:
    """Whether the shell may make several words of it, as of `{a,b}` and `{1..3}`."""
    inside = text[text.find("{") + 1 : max(text.rfind("}"), 0)] if "{" in text else ""
    return "," in inside or ".." in inside
