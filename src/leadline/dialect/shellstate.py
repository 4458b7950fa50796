"""The variables of a script while it is followed, and what the commands that are built into the shell do to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from leadline.dialect.opaque import is_opaque
from leadline.dialect.shellvalues import Scope, Variable
from leadline.dialect.shellwords import Token

_NAME = re.compile(r"[A-Za-z_]\w*")
_DECLARES = frozenset({"export", "declare", "readonly", "local", "typeset"})
_SETS = frozenset({"read", "unset", "mapfile", "readarray", "getopts", "let", "printf"})
_HARMLESS = re.compile(r"(^|/)activate$|(bashrc|profile|conda\.sh|setvars\.sh|nvm\.sh)$|conda|mamba")


@dataclass(slots=True)
class State:
    """`args` are the words after the script (None: changed). `ended`: nothing behind here is reached."""

    script: str
    env: dict[str, str]
    args: tuple[str, ...] | None
    names: dict[str, Variable] = field(default_factory=dict)
    foreign: str = ""
    ended: bool = False
    exports: bool = False

    def scope(self) -> Scope:
        return Scope(self.script, self.names, self.env, self.args, self.foreign)

    def copy(self) -> State:
        return replace(self, names=dict(self.names))

    def doubt(self, before: State) -> None:
        """What came between `before` and now may not have happened: whatever it set is unknown."""
        for name, variable in self.names.items():
            old = before.names.get(name, Variable())
            if old != variable:
                exported = variable.exported or old.exported
                hint = f"{old.hint} {variable.hint}"
                self.names[name] = Variable(why="is set in a branch of the script", exported=exported, hint=hint)
        self.args = self.args if self.args == before.args else None
        self.ended = before.ended

    def act(self, tokens: list[Token], words: list[str]) -> None:
        """What a command that is built into the shell does to the variables."""
        name, rest = words[0], words[1:]
        if name in _DECLARES:
            self.declare(tokens[1:], exported=name == "export" or any(w.startswith("-") and "x" in w for w in rest))
        elif name in _SETS:
            if name != "printf" or rest[:1] == ["-v"]:
                self.forget([n for w in rest for n in _NAME.findall(w)], f"is set by {name}")
        elif name == "shift" or (name == "set" and any(not w.startswith(("-", "+")) or w == "--" for w in _own(rest))):
            self.args = None
        elif name == "set":
            self.exports = self.exports or any(w.startswith("-") and "a" in w for w in rest) or "allexport" in rest
        elif name in (".", "source", "eval") and not any(_HARMLESS.search(w) for w in rest):
            self.foreign = " ".join(t.text for t in tokens[:2])
            self.names = {
                n: Variable(why=f"may be set by {self.foreign}", exported=v.exported, hint=v.hint)
                for n, v in self.names.items()
            }
        elif name in ("exit", "return") or (name == "exec" and rest):
            self.ended = True

    def declare(self, tokens: list[Token], exported: bool) -> None:
        for token in tokens:
            if token.name:
                self.assign(token, exported)
            elif exported and (old := self.names.get(token.text)):
                self.names[token.text] = replace(old, exported=True)

    def assign(self, token: Token, exported: bool = False) -> None:
        old = self.names.get(token.name)
        exported = exported or self.exports or token.name in self.env or (old is not None and old.exported)
        new = self.variable(token, exported)
        if token.adds:
            both = None
            if old is not None and old.elements is not None and new.elements is not None:
                both = (*old.elements, *new.elements)
            hint = f"{old.hint if old else ''} {new.hint}"
            new = Variable(elements=both, why="is added to", exported=exported, hint=hint)
        self.names[token.name] = new

    def variable(self, token: Token, exported: bool) -> Variable:
        hint = self.script[token.value_at : token.span[1]]
        if token.elements is None:
            return Variable(seen=self.scope().value(token), exported=exported, hint=hint)
        elements = tuple(w for t in token.elements for w in self.scope().words(t))
        if any(is_opaque(e.value) and e.span is None for e in elements):
            return Variable(why="holds what cannot be known", exported=exported, hint=hint)
        return Variable(elements=elements, exported=exported, hint=hint)

    def forget(self, names: list[str], why: str) -> None:
        for name in names:
            old = self.names.get(name, Variable())
            self.names[name] = Variable(why=why, exported=old.exported, hint=old.hint)


def _own(options: list[str]) -> list[str]:
    """The words of `set` without the names that follow -o and +o (`-euo pipefail`)."""
    return [w for i, w in enumerate(options) if not (i and options[i - 1][:1] in "-+" and options[i - 1][-1:] == "o")]
