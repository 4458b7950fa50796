"""Kinds of [service], [traffic] and request bodies: commands, addresses, and what must not stand in clear text."""

from __future__ import annotations

import re
import shlex
from urllib.parse import urlsplit

from leadline.config.kinds import Kind, as_float, as_int, as_text
from leadline.config.review import OUTSIDE, Review, dotted, found, listed, looks_secret, unshown
from leadline.config.spec import Secret
from leadline.masking import masked_words, secret_name

_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_MASK = re.compile(r"(?P<user>://[^\s/@:]*:)?<secret:(?P<name>[^<>]*)>")
_SECRET = '{ env = "NAME" }, { file = "PATH" } or { command = ["PROGRAM", "WORD"] }'
_BODY_OURS = {
    "stream": "every request is streamed",
    "stream_options": "token counts are always asked for",
    "messages": "each request of the workload brings its own",
    "prompt": "each request of the workload brings its own",
}


def _read_argv(review: Review, key: str, value: object) -> tuple[str, ...] | None:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError:
        review.wrong(key, "a text with a quote that is not closed", ARGV.words)
        return None
    if not isinstance(words, list) or not words or words[0] == "":
        review.wrong(key, '"" as the program' if isinstance(words, list) and words else found(value), ARGV.words)
        return None
    for i, word in enumerate(words):
        if as_text(word) is None:
            hint = f'did you mean "{word}"?' if as_float(word) is not None else ""
            review.wrong(f"{key}[{i}]", found(word), "a word in quotes", hint)
    return tuple(word for word in words if isinstance(word, str))


ARGV = Kind(words="a list of words, or one text that is split as a shell would", read=_read_argv)


def _read_command(review: Review, key: str, value: object) -> tuple[str, ...] | None:
    argv = _read_argv(review, key, value)
    allowed = "a command that anybody may see: it is printed and kept"
    options = [w.partition("=")[0] for w in argv or () if w.startswith("-")]
    for option in options:
        if looks_secret(option):
            review.wrong(key, f"{option}, which takes a secret in clear", allowed, OUTSIDE)
    for name, what in _secrets_in_clear(argv or ()).items():
        if not any(option.lstrip("-") == name for option in options):
            review.wrong(key, f"{what} (not shown)", allowed, OUTSIDE)
    return argv


def _secrets_in_clear(argv: tuple[str, ...]) -> dict[str, str]:
    """Secrets that stand in the words themselves, by name, and what each is; a script's `"$KEY"` and `$(cat FILE)` do
    not stand there."""
    shown = [s for word, s in zip(argv, masked_words(argv, references=False), strict=True) if word != s]
    return {m["name"]: _clear(m["name"], m["user"]) for word in shown for m in _MASK.finditer(word)}


def _clear(name: str, user: str | None) -> str:
    if user:
        return "an address with a password"
    return "what looks like a secret in clear" if name == "token" else f"{name}, which is given a secret in clear"


COMMAND = Kind(words=ARGV.words, read=_read_command)


def _secret(value: object) -> Secret | None:
    if not isinstance(value, dict) or len(value) != 1:
        return None
    match next(iter(value.items())):
        case ("env", str(name)) if _VARIABLE.fullmatch(name):
            return Secret("env", name)
        case ("file", str(path)) if as_text(path) and path.strip():
            return Secret("file", path)
        case ("command", [str(first), *_] as argv) if first and all(as_text(word) is not None for word in argv):
            return Secret("command", shlex.join(argv))
    return None


def _read_secret(review: Review, key: str, value: object) -> Secret | None:
    """A problem never shows the value: it may be the secret itself."""
    secret = _secret(value)
    if secret is None:
        what = f"a table with {listed(value)} (not shown)" if isinstance(value, dict) else "a value that is no table"
        what = "a text in clear (not shown)" if isinstance(value, str) else what
        review.wrong(key, what, _SECRET, "say where the secret is to be had, never the secret itself")
    return secret


API_KEY = Kind(words=_SECRET, read=_read_secret)


def _read_env(review: Review, key: str, value: object) -> tuple[tuple[str, str], ...] | None:
    if not isinstance(value, dict):
        review.wrong(key, unshown(value), ENV.words)
        return None
    for name, text in value.items():
        at = dotted(key, name)
        if not _VARIABLE.fullmatch(name):
            review.wrong(at, "a name that no variable can have", "letters, digits and _, no digit first")
        elif looks_secret(name) or secret_name(name):
            review.wrong(at, "a secret in clear (not shown)", "variables that anybody may see", OUTSIDE)
        elif as_text(text) is None:
            hint = f'did you mean "{text}"?' if as_int(text) is not None else ""
            review.wrong(at, found(text), "a text", hint)
    return tuple(value.items())


ENV = Kind(words="a table of NAME = text", read=_read_env)


def _read_headers(review: Review, key: str, value: object) -> tuple[tuple[str, str | Secret], ...] | None:
    if not isinstance(value, dict):
        review.wrong(key, unshown(value), HEADERS.words)
        return None
    good: list[tuple[str, str | Secret]] = []
    for name, content in value.items():
        at = dotted(key, name)
        if not _HEADER.fullmatch(name):
            review.wrong(at, "a name that no header can have", "letters, digits and -")
        elif isinstance(content, str) and not looks_secret(name):
            if not content.isprintable():
                review.wrong(at, "a text with control characters", "one line of text")
            good.append((name, content))
        elif not isinstance(content, str | dict):
            review.wrong(at, "what is neither text nor table (not shown)", f'"TEXT", {_SECRET}')
        elif (secret := _read_secret(review, at, content)) is not None:
            good.append((name, secret))
    return tuple(good)


HEADERS = Kind(words="a table of NAME = text, or NAME = a table as for api_key", read=_read_headers)


def _url_problem(value: str) -> str:
    """What is wrong with an address, without showing a password; empty when nothing is."""
    if "@" in value:
        return "an address with a user or a password (not shown)"
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return found(value)
    return "" if good and value.isprintable() and not re.search(r"[\s?#]", value) else found(value)


def _read_url(review: Review, key: str, value: object) -> str | None:
    problem = _url_problem(value) if isinstance(value, str) else found(value)
    if problem:
        meant = f"http://{value}" if isinstance(value, str) and "://" not in value else ""
        hint = f"did you mean {meant}?" if meant and not _url_problem(meant) else ""
        review.wrong(key, problem, URL.words, hint)
        return None
    return str(value)


URL = Kind(words="http://HOST:PORT or https://HOST:PORT in quotes, port 1 to 65535, no password", read=_read_url)


def _json_able(value: object) -> bool:
    if isinstance(value, dict):
        return all(_json_able(inner) for inner in value.values())
    if isinstance(value, list):
        return all(_json_able(inner) for inner in value)
    return isinstance(value, str | bool) or as_float(value) is not None


def _read_body(review: Review, key: str, value: object) -> dict[str, object] | None:
    if not isinstance(value, dict):
        review.wrong(key, found(value), BODY.words)
        return None
    for name, content in value.items():
        at = dotted(key, name)
        if name in _BODY_OURS:
            review.wrong(at, f"a field that Leadline sets: {_BODY_OURS[name]}", "any other field", "remove it")
        elif not _json_able(content):
            review.wrong(at, found(content), "what JSON can hold: texts, finite numbers, true, false, lists, tables")
    return value


BODY = Kind(words=f"a table of request fields, except {listed(_BODY_OURS)}", read=_read_body)
