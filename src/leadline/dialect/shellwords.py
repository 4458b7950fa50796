"""A POSIX shell script (and the common parts of bash) cut into words and operators that know where they stand.

Grammar: POSIX.1-2017 "Shell Command Language" 2.2 (quoting), 2.3 (tokens), 2.6.2 (parameters); for `$'...'`, arrays
and `[[`, the bash manual. Nothing is run or expanded here. Positions are indexes into the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from leadline.errors import InputError

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Var:
    """`$name`, `${name}`, `${name<op>default}`; `name` may be a digit, `@`, or `array[@]`."""

    name: str
    quoted: bool
    op: str = ""
    default: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Dark:
    """What only a running shell can know, and what it is called."""

    what: str


Piece = Text | Var | Dark


@dataclass(frozen=True, slots=True)
class Token:
    """An operator (`op`), or a word. A word that begins as an assignment has `name`, and `value_at` behind its `=`.

    `pieces` leave `NAME=` out. `elements` are those of `NAME=(...)`, else None.
    """

    text: str
    span: Span
    op: bool = False
    pieces: tuple[Piece, ...] = ()
    name: str = ""
    adds: bool = False
    value_at: int = 0
    elements: tuple[Token, ...] | None = None


_META = " \t\n;&|()<>"
_OPS = re.compile(r"\d*(?:<<<|<<-|<<|>>|<&|>&|>\||<>|<|>)|&>>|&>|;;&|;;|;&|;|&&|&|\|\||\|&|\||\(|\)|\n")
_BLANK = re.compile(r"(?:[ \t]|\\\n)*")
_JOINS = re.compile(r"(?:\\\n)+")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^]\s]*\])?(\+?)=")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d|@")
_BRACED = re.compile(r"([A-Za-z_]\w*\[@\]|[A-Za-z_]\w*|\d+|@)(:?[-=?])?")
_ANSI = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)


def lex(script: str) -> tuple[Token, ...]:
    """Raises InputError when a quote or bracket is left open."""
    return tuple(_Lexer(script).tokens())


@dataclass(slots=True)
class _Lexer:
    s: str
    i: int = 0
    here: list[tuple[str, bool]] = field(default_factory=list)
    """Here-documents whose bodies begin after this line: the delimiter, and whether tabs are stripped."""

    def tokens(self, closing: str = "") -> list[Token]:
        found: list[Token] = []
        while True:
            self.i = self.match(_BLANK).end()
            if self.i >= len(self.s):
                if closing:
                    raise self.open("(")
                return found
            if self.s[self.i] == "#":
                end = self.s.find("\n", self.i)
                self.i = end if end >= 0 else len(self.s)
                continue
            token = self.token()
            if token.op and token.text == closing:
                return found
            if found and found[-1].op and found[-1].text.lstrip("0123456789") in ("<<", "<<-"):
                self.here.append((re.sub(r"[\\'\"]", "", token.text), found[-1].text.endswith("-")))
            found.append(token)
            if token.text == "\n":
                self.skip_here()

    def token(self) -> Token:
        start = self.i
        if self.s.startswith("((", start):
            self.i = self.balanced(start)
            return self.made(start, op=True)
        if (op := _OPS.match(self.s, start)) and not self.s.startswith(("<(", ">("), start):
            self.i = op.end()
            return self.made(start, op=True)
        if self.s.startswith(("<(", ">("), start):
            self.i = self.balanced(start + 1)
            return self.made(start, pieces=(Dark("a process substitution"),))
        m = _ASSIGNMENT.match(self.s, start)
        if m is None:
            return self.made(start, pieces=self.pieces(_META))
        self.i = m.end()
        name, adds = m[1], bool(m[3])
        if self.s.startswith("(", self.i):
            self.i += 1
            elements = tuple(t for t in self.tokens(")") if not t.op)
            return self.made(start, name=name, adds=adds, value_at=m.end(), elements=elements)
        pieces = self.pieces(_META)
        if m[2]:  # an element of an array, by its index
            pieces = (Dark("an element of an array"),)
        return self.made(start, pieces=pieces, name=name, adds=adds, value_at=m.end())

    def made(
        self,
        start: int,
        *,
        op: bool = False,
        pieces: tuple[Piece, ...] = (),
        name: str = "",
        adds: bool = False,
        value_at: int = 0,
        elements: tuple[Token, ...] | None = None,
    ) -> Token:
        return Token(self.s[start : self.i], (start, self.i), op, pieces, name, adds, value_at, elements)

    def pieces(self, stops: str, quoted: bool = False) -> tuple[Piece, ...]:
        found: list[Piece] = []
        while self.i < len(self.s) and self.s[self.i] not in stops:
            c = self.s[self.i]
            if c == "\\":
                joins = _JOINS.match(self.s, self.i)
                if joins and (joins.end() >= len(self.s) or self.s[joins.end()] in stops) and not quoted:
                    break  # the line goes on, this word does not
                found.append(self.escaped(quoted))
            elif c == "'" and not quoted:
                end = self.find("'", self.i + 1)
                found.append(Text(self.s[self.i + 1 : end], quoted=True))
                self.i = end + 1
            elif c == '"':
                found.extend(self.double())
            elif c == "$":
                found.append(self.dollar(quoted))
            elif c == "`":
                self.i = self.find("`", self.i + 1) + 1
                found.append(Dark("the output of a command"))
            else:
                start = self.i
                while self.i < len(self.s) and self.s[self.i] not in stops + '\\"$`' + ("" if quoted else "'"):
                    self.i += 1
                found.append(Text(self.s[start : self.i], quoted))
        return tuple(found)

    def escaped(self, quoted: bool) -> Text:
        after = self.s[self.i + 1 : self.i + 2]
        if after == "\n":
            self.i += 2
            return Text("", quoted)
        if not after or (quoted and after not in '$`"\\'):
            self.i += 1
            return Text("\\", quoted)
        self.i += 2
        return Text(after, quoted=True)

    def double(self) -> tuple[Piece, ...]:
        start = self.i
        self.i += 1
        found = self.pieces('"', quoted=True)
        if self.i >= len(self.s):
            raise self.open('"', start)
        self.i += 1
        return found or (Text("", quoted=True),)

    def dollar(self, quoted: bool) -> Piece:
        at = self.i + 1
        c = self.s[at : at + 1]
        if c == "(":
            arithmetic = self.s.startswith("((", at)
            self.i = self.balanced(at)
            return Dark("arithmetic" if arithmetic else "the output of a command")
        if c == "{":
            return self.braced(quoted)
        if c == "'" and not quoted and (m := _ANSI.match(self.s, at)):
            self.i = m.end()
            return Dark("a text with escapes") if "\\" in m[1] else Text(m[1], quoted=True)
        if m := _PARAMETER.match(self.s, at):
            self.i = m.end()
            return Var(m[0], quoted)
        if c and c in "*#?$!-":
            self.i = at + 1
            return Dark(f"${c}")
        self.i = at
        return Text("" if c == '"' and not quoted else "$", quoted)  # $"..." is a text to translate

    def braced(self, quoted: bool) -> Piece:
        start = self.i
        m = _BRACED.match(self.s, start + 2)
        if m and self.s.startswith("}", m.end()) and not m[2]:
            self.i = m.end() + 1
            return Var(m[1], quoted)
        if m and m[2]:
            self.i = m.end()
            default = self.pieces("}", quoted)
            if self.i >= len(self.s):
                raise self.open("${", start)
            self.i += 1
            return Var(m[1], quoted, m[2], default)
        self.i += 2
        self.pieces("}", quoted)
        if self.i >= len(self.s):
            raise self.open("${", start)
        self.i += 1
        return Dark("an expression of the shell")

    def balanced(self, at: int) -> int:
        """Behind the `)` that closes the `(` at this place."""
        depth, self.i = 0, at
        step: dict[str, Callable[[], int]] = {
            "\\": lambda: self.i + 2,
            "'": lambda: self.find("'", self.i + 1) + 1,
            "`": lambda: self.find("`", self.i + 1) + 1,
            '"': self.behind_double,
        }
        while self.i < len(self.s):
            c = self.s[self.i]
            depth += (c == "(") - (c == ")")
            self.i = step[c]() if c in step else self.i + 1
            if depth == 0:
                return self.i
        raise self.open("(", at)

    def behind_double(self) -> int:
        self.double()
        return self.i

    def skip_here(self) -> None:
        for delimiter, tabs in self.here:
            while self.i < len(self.s):
                end = self.s.find("\n", self.i)
                line = self.s[self.i : end if end >= 0 else len(self.s)]
                self.i = end + 1 if end >= 0 else len(self.s)
                if (line.lstrip("\t") if tabs else line) == delimiter:
                    break
        self.here.clear()

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        m = pattern.match(self.s, self.i)
        assert m is not None  # it matches nothing as well
        return m

    def find(self, c: str, start: int) -> int:
        end = self.s.find(c, start)
        if end < 0:
            raise self.open(c, start - 1)
        return end

    def open(self, what: str, at: int | None = None) -> InputError:
        line = self.s.count("\n", 0, self.i if at is None else at) + 1
        return InputError(f"the script of the shell cannot be read: {what} is not closed (line {line} of it)")
