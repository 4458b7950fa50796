"""The commands of a shell script in the order in which they stand, each with what its words are known to be.

The script is followed as the shell would, with everything that cannot be known left open: a branch whose test is known
is taken or left out; what another branch or a loop sets is unknown behind it; a function is read with what is known at
the end. A file that is read in may set any variable, except those that only make programs available (`activate`).
Taken for granted: `cd x && y` reaches y; the environment has no variable of the script's that the launch does not show
when the script gives a default for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from leadline.dialect.opaque import is_opaque
from leadline.dialect.shellstate import State
from leadline.dialect.shelltests import Truth, matches, truth_of
from leadline.dialect.shellvalues import Seen, Variable
from leadline.dialect.shellwords import Token, lex
from leadline.errors import InputError

_REDIRECTION = re.compile(r"\d*[<>]|&>")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TRUTHS = {"true": Truth.YES, ":": Truth.YES, "false": Truth.NO}


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command. `names` are the variables before it, `prefix` those set for it alone (`A=b command`).

    `first` is its first word as it is written; `live` is false when it is known not to be reached, `sure` when it is
    not known either way. `writes` are the files that its output goes to, as far as they are known; a compound command
    (`{ ...; } > file`) is one without words for their sake.
    """

    words: tuple[Seen, ...]
    prefix: Mapping[str, Variable]
    names: Mapping[str, Variable]
    first: str
    at: int
    live: bool
    sure: bool
    writes: tuple[str, ...] = ()


def commands(script: str, args: Sequence[str], env: Mapping[str, str]) -> tuple[Command, ...]:
    """`args` are the words after the script. Raises InputError when the script is not one that the shell would run."""
    run = _Run(script, lex(script), State(script, dict(env), tuple(args)))
    run.everything()
    return tuple(sorted(run.found, key=lambda c: c.at))


@dataclass(slots=True)
class _Run:
    script: str
    tokens: tuple[Token, ...]
    state: State
    at: int = 0
    found: list[Command] = field(default_factory=list)
    functions: dict[int, None] = field(default_factory=dict)
    unsure: int = 0

    def everything(self) -> None:
        self.sequence(live=True, stops=frozenset())
        if self.at < len(self.tokens):
            raise self.wrong()
        end = replace(self.state, args=None, ended=False)
        for start in list(self.functions):
            self.at, self.state = start, end.copy()
            self.command(live=True)

    # Tokens

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next_is(self, *texts: str) -> bool:
        token = self.peek()
        return token is not None and token.text in texts

    def take(self, *texts: str) -> bool:
        """Goes on behind one of these, when it is next."""
        if self.next_is(*texts):
            self.at += 1
            return True
        return False

    def need(self, *texts: str) -> None:
        self.lines()
        if not self.take(*texts):
            raise self.wrong()

    def lines(self) -> None:
        while self.take("\n"):
            pass

    def wrong(self) -> InputError:
        token = self.peek()
        where = "its end" if token is None else f"line {self.script.count(chr(10), 0, token.span[0]) + 1} of it"
        return InputError(f"the script of the shell cannot be read: something is missing or too much before {where}")

    # Lists of commands

    def sequence(self, live: bool, stops: frozenset[str]) -> Truth:
        truth = Truth.RAN
        while (token := self.peek()) is not None and token.text not in stops:
            if token.op and token.text in ("\n", ";", "&"):
                self.at += 1
            elif token.op and token.text in (")", ";;", "&&", "||", "|", ";&", ";;&"):
                break
            else:
                truth = self.chain(live)
        return truth

    def chain(self, live: bool) -> Truth:
        truth = self.pipeline(live)
        while self.next_is("&&", "||"):
            wanted = self.next_is("&&")
            self.at += 1
            self.lines()
            if wanted and truth in (Truth.YES, Truth.RAN):
                truth = self.pipeline(live)
            elif truth in (Truth.YES, Truth.NO):
                if wanted is (truth is Truth.YES):
                    truth = self.pipeline(live)
                else:
                    self.pipeline(live=False)
            else:
                self.perhaps(live, lambda: self.pipeline(live))
                truth = Truth.UNSURE
        return truth

    def pipeline(self, live: bool) -> Truth:
        denied = False
        while self.next_is("!", "time"):
            denied ^= self.next_is("!")
            self.at += 1
        truth = self.command(live)
        while self.take("|", "|&"):
            self.lines()
            self.command(live)
            truth = Truth.RAN
        return truth.denied() if denied else truth

    def perhaps(self, live: bool, body: Callable[[], object]) -> None:
        """Runs what may or may not run: what it sets is unknown behind it."""
        if not live:
            body()
            return
        before = self.state.copy()
        self.unsure += 1
        body()
        self.unsure -= 1
        self.state.doubt(before)

    # Compound commands

    def command(self, live: bool) -> Truth:
        token = self.peek()
        if token is None:
            raise self.wrong()
        compound = {
            "if": self.if_,
            "while": self.while_,
            "until": self.while_,
            "for": self.for_,
            "select": self.for_,
            "case": self.case,
            "{": self.group,
            "(": self.subshell,
            "[[": self.test,
            "function": self.function,
        }
        if token.text in compound:
            self.at += 1
            truth = compound[token.text](live)
        elif token.op and token.text.startswith("(("):
            self.at += 1
            if live:
                self.state.forget(_NAME.findall(token.text), "is changed by arithmetic")
            truth = Truth.UNSURE
        elif not token.op and [t.text for t in self.tokens[self.at + 1 : self.at + 3]] == ["(", ")"]:
            truth = self.function(live)
        elif token.op and not _REDIRECTION.match(token.text):
            raise self.wrong()
        else:
            return self.simple(live)
        targets: list[str] = []
        while (more := self.peek()) and more.op and _REDIRECTION.match(more.text):
            targets += self.target(more)
        self.wrote(token, targets, live)
        return truth

    def target(self, operator: Token) -> list[str]:
        """Goes on behind a redirection; the file that it writes, when that is known."""
        self.at += 1
        token = self.peek()
        self.at += 1
        if token is None or token.op or ">" not in operator.text or operator.text.endswith("&"):
            return []
        value = self.state.scope().value(replace(token, value_at=token.span[0])).value
        return [] if is_opaque(value) else [value]

    def wrote(self, first: Token, targets: list[str], live: bool) -> None:
        if targets:
            names, at = dict(self.state.names), first.span[0]
            self.found.append(Command((), {}, names, first.text, at, live, not self.unsure, tuple(targets)))

    def if_(self, live: bool) -> Truth:
        left = live  # some branch is still to be taken
        sure = True
        while True:
            truth = self.sequence(left, frozenset({"then"}))
            self.need("then")
            self.branch(left, sure, truth, frozenset({"elif", "else", "fi"}))
            left = left and truth is not Truth.YES
            sure = sure and truth is Truth.NO
            if not self.take("elif"):
                break
        if self.take("else"):
            self.branch(left, sure, Truth.YES, frozenset({"fi"}))
        self.need("fi")
        return Truth.RAN

    def branch(self, live: bool, sure: bool, truth: Truth, stops: frozenset[str]) -> None:
        if not live or truth is Truth.NO:
            self.sequence(live=False, stops=stops)
        elif sure and truth is Truth.YES:
            self.sequence(live, stops)
        else:
            self.perhaps(live, lambda: self.sequence(live, stops))

    def loop(self, live: bool, body: Callable[[], object]) -> None:
        """Twice: what it sets is unknown already when it begins again."""
        start, count = self.at, len(self.found)
        self.perhaps(live, body)
        del self.found[count:]
        self.at = start
        self.perhaps(live, body)

    def while_(self, live: bool) -> Truth:
        def body() -> None:
            self.sequence(live, frozenset({"do"}))
            self.need("do")
            self.sequence(live, frozenset({"done"}))

        self.loop(live, body)
        self.need("done")
        return Truth.RAN

    def for_(self, live: bool) -> Truth:
        token = self.peek()
        while (head := self.peek()) and head.text != "do":
            self.at += 1
        self.need("do")
        if token is not None and not token.op and live:
            self.state.forget([token.text], "is set by a loop")
        self.loop(live, lambda: self.sequence(live, frozenset({"done"})))
        self.need("done")
        return Truth.RAN

    def case(self, live: bool) -> Truth:
        token = self.peek()
        if token is None or token.op:
            raise self.wrong()
        self.at += 1
        subject = self.state.scope().value(replace(token, value_at=token.span[0])).value
        self.need("in")
        self.lines()
        left, sure = live, True
        while not self.take("esac"):
            self.take("(")
            truth = Truth.NO
            while (pattern := self.peek()) and pattern.text != ")":
                if not pattern.op:
                    truth = max(truth, matches(subject, pattern), key=lambda t: t.value)
                self.at += 1
            self.need(")")
            self.branch(left, sure, truth, frozenset({"esac"}))
            left, sure = left and truth is not Truth.YES, sure and truth is Truth.NO
            self.take(";;", ";&", ";;&")
            self.lines()
        return Truth.RAN

    def group(self, live: bool) -> Truth:
        truth = self.sequence(live, frozenset({"}"}))
        self.need("}")
        return truth

    def subshell(self, live: bool) -> Truth:
        before = self.state.copy()
        self.sequence(live, frozenset({")"}))
        self.need(")")
        self.state = before
        return Truth.RAN

    def function(self, live: bool) -> Truth:
        self.at += 1
        if self.take("("):
            self.need(")")
        self.lines()
        if live:
            self.functions[self.at] = None
        count = len(self.found)
        self.command(live=False)
        if live:
            del self.found[count:]
        return Truth.RAN

    def test(self, live: bool) -> Truth:
        """`[[ ... ]]`"""
        tokens: list[Token] = []
        while (token := self.peek()) and token.text != "]]":
            tokens.append(token)
            self.at += 1
        self.need("]]")
        return truth_of(tokens, self.state.scope()) if live else Truth.UNSURE

    # Simple commands

    def simple(self, live: bool) -> Truth:
        prefix: list[Token] = []
        tokens: list[Token] = []
        targets: list[str] = []
        first = self.peek()
        while (token := self.peek()) and (not token.op or _REDIRECTION.match(token.text)):
            if token.op:
                targets += self.target(token)
                continue
            self.at += 1
            (prefix if token.name and not tokens else tokens).append(token)
        live = live and not self.state.ended
        if live and not tokens:
            for token in prefix:
                self.state.assign(token)
        if first is None:
            return Truth.RAN
        if not tokens:
            self.wrote(first, targets, live)
            return Truth.RAN
        scope = self.state.scope()
        words = tuple(w for t in tokens for w in scope.words(t)) if live else ()
        own = {t.name: self.state.variable(t, exported=True) for t in prefix} if live else {}
        names, at, sure = dict(self.state.names), tokens[0].span[0], not self.unsure
        self.found.append(Command(words, own, names, tokens[0].text, at, live, sure, tuple(targets)))
        if not live or not words:
            return Truth.RAN
        self.state.act(tokens, [w.value for w in words])
        if words[0].value in ("[", "test"):
            return truth_of(tokens[1:-1] if words[0].value == "[" else tokens[1:], scope)
        return _TRUTHS.get(words[0].value, Truth.RAN)
