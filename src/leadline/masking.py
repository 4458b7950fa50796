"""Secrets in the words of a command, in scripts and in configuration files: found by name or form, and hidden.

Rather too much is hidden than too little. What is hidden reads `<secret:NAME>`, and is not hidden again. Every pattern
is bounded, or begins where few places can match: a text of 100 kB that nobody meant is read in a moment.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_SECRET_NAME = re.compile(
    r"KEY|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTHORIZATION|COOKIE|TOKEN(?!S|IZ|\w*(?:COUNT|LIMIT))", re.IGNORECASE
)
_ORDINARY = re.compile(
    r"(?:^|[-_])(?:BOS|EOS|PAD|UNK|SEP|CLS|MASK|STOP|IMAGE|VIDEO|AUDIO)[-_]TOKEN$|[-_]?(?:FILE|PATH|DIR)$",
    re.IGNORECASE,
)
"""Tokens of a vocabulary, and names of places: `HF_TOKEN_PATH`."""
WORDS = r"(?:api[-_]?keys?|(?:access|secret)[-_]?key|token|secrets?|passw(?:or)?d|passphrase)"
"""How the name of an option or a key ends that holds a secret."""
PREFIX = r"(?:[a-z0-9]{1,40}[-_]){0,12}"
BARE = r"(?<![\w./-])(?:hf_(?=[A-Za-z]{0,60}\d)[A-Za-z0-9]{8,}|hf_[A-Za-z0-9]{16,}|(?:sk|nvapi)-[\w-]{8,})"
"""A secret that shows by its form: of Hugging Face, of OpenAI and those who took that form over, of NVIDIA."""

_NAMED = rf"(?P<name>(?i:{PREFIX}{WORDS}))"
_VARIABLE = r"(?P<name>[A-Za-z_]\w*)"
_GAP = r"(?:[ \t]|\\\n)+"
_TAKEN = r"(?:\$\{[^}]{0,400}\}|\$\((?:[^()]|\([^()]{0,400}\)){0,400}\)|`[^`]{0,400}`)"
_TEXT = (
    r"""(?!\\\n|<secret:)(?:\\"(?:(?!\\").)*\\"|"(?:[^"\\]|\\(?s:.))*"|'[^']*'|"""
    rf"""{_TAKEN}|\\[^"\n]|[^\s'"\\;&|<>(){{}}])+"""
)
_TO_QUOTE = r"(?!<secret:)(?:(?!(?P=quote))(?s:.))+"
_IN_SCRIPT = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?P<head>(?P<quote>[\"'])--{_NAMED}=){_TO_QUOTE}",
        rf"(?P<head>--{_NAMED}\\?[\"']?(?:=|{_GAP}(?!--)))(?:{_TEXT})(?:{_GAP}(?!-){_TEXT})*",
        rf"(?P<head>(?:-e|--env)(?:=|{_GAP})?(?P<quote>[\"']){_VARIABLE}=){_TO_QUOTE}",
        rf"(?P<head>(?:(?<![\w-])|(?<=\s-e)){_VARIABLE}\+?=){_TEXT}",
        rf"(?P<head>\$\{{{_VARIABLE}:?[-=])(?!<secret:)[^}}]+",
        rf"(?P<head>(?P<key>\\{{0,3}}[\"']){_NAMED}(?P=key)\s{{0,99}}:\s{{0,99}}(?P<quote>\\{{0,3}}[\"']))(?!<secret:)"
        r"(?:(?!(?P=quote))(?:\\{3}.|\\.|.))+",
        rf"(?P<head>(?<![\w-])(?P<name>(?i:(?:proxy-)?authorization|(?:set-)?cookie|{PREFIX}(?:api-key|token)))[ \t]*:"
        r"(?![-=?+])[ \t]*)(?![ \t]|<secret:)[^'\"\n\\]+",
        r"(?P<head>(?<!\w)(?P<name>(?i:[a-z]{2,9}))://[^\s/@:]{0,200}:)(?!<secret:)[^\s/@]{1,400}(?=@)",
    )
)
_ONE_TAKEN = (
    r"\\?\"?(?:\$\w+|\$\{\w+(?::?\?[^}]*|:?-)?\}|`[^`]*`"
    r"|\$\((?!\s*(?:echo|printf)\b)(?:[^()]|\([^()]*\))*\))\\?\"?"
)
_ALL_TAKEN = re.compile(rf"(?:Bearer )?{_ONE_TAKEN}(?:{_GAP}{_ONE_TAKEN})*")
_BARE = re.compile(BARE)
_FLAG = re.compile(rf"--{_NAMED}(?P<value>=.*)?", re.DOTALL)
_SET = re.compile(rf"(?P<head>(?:-e|--env=)?{_VARIABLE}=)(?P<value>.*)", re.DOTALL)
_SCRIPT_FOLLOWS = re.compile(r"-[a-z]{0,9}c[a-z]{0,9}")

_KEY = rf"(?P<quote>[\"']?){_NAMED}(?P=quote)"
_KEY_LINE = re.compile(rf"(?P<head>(?P<lead>[ \t]*(?:[-?][ \t]+)*){_KEY}[ \t]*:)(?P<value>(?:[ \t\"'\[{{].*)?)")
_ASKED = re.compile(
    rf"^(?P<head>[ \t]*(?:-[ \t]+)*\?[ \t]+{_KEY}[ \t]*\n[ \t]*:)[ \t]+(?!<secret:)\S.*(?:\n[ \t]+.*)*", re.MULTILINE
)
_IN_FLOW = re.compile(
    rf"(?P<head>[{{,\[]\s{{0,400}}(?P<quote>\\{{0,3}}[\"']?){_NAMED}(?P=quote)\s{{0,400}}:(?:(?<=[\"']:)|(?=\s))\s{{0,400}})"
    r"(?!\s|<secret:|\\{0,3}[\"']<secret:)"
)
_QUOTE = re.compile(r"\\{0,3}[\"']")
_BRACKET = re.compile(r"[\[\]{}]")
_PLAIN_ENDS = re.compile(r"[,}\]]")
_CLOSED = {'"': re.compile(r'(?:[^"\\]|\\.)*"'), "'": re.compile(r"[^']*'")}


def secret_name(name: str) -> bool:
    """Whether a variable, option or key of that name is taken to hold a secret."""
    return bool(_SECRET_NAME.search(name)) and not _ORDINARY.search(name)


def masked_words(argv: Sequence[str], *, references: bool = True) -> tuple[str, ...]:
    """The words of a command without secrets. As many words as before.

    With `references` false, a script's `"$KEY"` or `$(cat FILE)` stays: what differs then is a secret in clear.
    """
    out: list[str] = []
    hiding = ""
    for before, word in pairwise(("", *argv)):
        flag = _FLAG.fullmatch(word)
        name = flag["name"] if flag and secret_name(flag["name"]) else ""
        just_after = bool(hiding) and out[-1].startswith("--")
        if hiding and (just_after or not word.startswith("-")):
            out.append(f"<secret:{hiding}>")
        elif flag and name and flag["value"] is not None:
            out.append(f"--{name}=<secret:{name}>")
            hiding = ""
        else:
            out.append(_masked_word(word, before, references))
            hiding = name
    return tuple(out)


def masked_text(text: str) -> str:
    """A configuration file (YAML or JSON) without the values of keys with a secret's name, however they are written."""
    text = _ASKED.sub(lambda m: f"{m['head']} <secret:{m['name']}>" if secret_name(m["name"]) else m[0], text)
    text = _without_values(_without_flow_values(text, over_lines=True), references=True)
    return _BARE.sub("<secret:token>", _IN_SCRIPT[-1].sub(_hidden, text))


def _masked_word(word: str, before: str, references: bool) -> str:
    """A word that is a script, or sets a variable (`env HF_TOKEN=...`), or is JSON, without the secrets in it."""
    whole = _SET.fullmatch(word)
    if whole and secret_name(whole["name"]) and not _SCRIPT_FOLLOWS.fullmatch(before):
        return f"{whole['head']}<secret:{whole['name']}>"
    for pattern in _IN_SCRIPT:
        word = pattern.sub(_hidden if references else _hidden_if_clear, word)
    word = _without_values(_without_flow_values(word, over_lines=False), references)
    return _BARE.sub("<secret:token>", word)


def _hidden(found: re.Match[str]) -> str:
    secret = secret_name(found["name"]) or "://" in found["head"]
    return f"{found['head']}<secret:{found['name']}>" if secret else found[0]


def _hidden_if_clear(found: re.Match[str]) -> str:
    return found[0] if _ALL_TAKEN.fullmatch(found[0][len(found["head"]) :].strip()) else _hidden(found)


def _without_flow_values(text: str, *, over_lines: bool) -> str:
    """`{model: x, api-key: sk}`. An unquoted value ends at the next comma or bracket, or with its line."""
    out: list[str] = []
    at = 0
    while found := _IN_FLOW.search(text, at):
        out.append(text[at : found.end()])
        at = found.end()
        if secret_name(found["name"]):
            out.append(f"<secret:{found['name']}>")
            at = _flow_end(text, at, over_lines)
    return "".join(out) + text[at:]


def _flow_end(text: str, at: int, over_lines: bool) -> int:
    if quote := _QUOTE.match(text, at):
        end = re.compile(rf"(?:(?!{re.escape(quote[0])})(?s:\\{{3}}.|\\.|.))*{re.escape(quote[0])}").match(
            text, quote.end()
        )
        return end.end() if end else len(text)
    if text[at] in "[{":
        depth = 0
        for bracket in _BRACKET.finditer(text, at):
            depth += 1 if bracket[0] in "[{" else -1
            if not depth:
                return bracket.end()
        return len(text)
    ends = [m.start()] if (m := _PLAIN_ENDS.search(text, at)) else []
    if not over_lines and (line := text.find("\n", at)) >= 0:
        ends.append(line)
    return min(ends, default=len(text))


def _without_values(text: str, references: bool) -> str:
    """Lines `api-key: ...` with what belongs to them below: a list, a block, a text that goes on."""
    lines = text.split("\n")
    out: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        found = _KEY_LINE.fullmatch(line)
        if found is None or not secret_name(found["name"]):
            out.append(line)
            continue
        value = found["value"].strip()
        value = "" if value.startswith("#") else value
        end = _value_end(lines, at, found, value)
        kept = not value or value.startswith("<secret:") or (not references and _ALL_TAKEN.fullmatch(value))
        out.append(line if end == at and kept else f"{found['head']} <secret:{found['name']}>")
        at = end
    return "\n".join(out)


def _value_end(lines: list[str], at: int, key: re.Match[str], value: str) -> int:
    """The first line behind a value that begins on the line before `at`."""
    column = len(key["lead"])
    if closed := _CLOSED.get(value[:1]):
        text = value[1:]
        while not closed.match(text) and at < len(lines):
            text, at = lines[at], at + 1
    depth = _depth(value) if value[:1] in ("[", "{") else 0
    while depth > 0 and at < len(lines):
        depth, at = depth + _depth(lines[at]), at + 1
    end = at
    for i in range(at, len(lines)):
        line = lines[i].lstrip(" \t")
        indent = len(lines[i]) - len(line)
        listed = not value and indent == column and re.match(r"-(?:\s|$)", line)
        below = not value and end == at and key["quote"] and re.match(r"[\"'\[{](?!.{0,200}[\"']\s*:)", line)
        if line.strip() and not (indent > column or listed or below):
            break
        end = i + 1 if line.strip() else end
    return end


def _depth(line: str) -> int:
    return sum(1 if c[0] in "[{" else -1 for c in _BRACKET.finditer(line))
