"""The same setting as a patch of the operator's own compose file, for whoever keeps that elsewhere."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from leadline.dialect import yamlfile
from leadline.errors import InputError
from leadline.launch import LaunchFile
from leadline.targets.compose.override import Override
from leadline.targets.compose.words import spans


def patch(files: Sequence[LaunchFile], service: str, override: Override) -> str:
    """A unified diff of the operator's own file that says the same, for whoever keeps it elsewhere (Git, Ansible).

    Raises InputError when the words come from more than one file's own lines (`extends`, `include`).
    """
    wanted = {"entrypoint": override.entrypoint is not None, "command": override.command is not None}
    entries = [(file, _entry(yamlfile.load(file), service)) for file in reversed(files)]
    holding = [(f, entry) for f, entry in entries if any(wanted.get(key) for key in entry)] or entries
    file, entry = next(((f, e) for f, e in holding if e), (None, {}))
    if file is None or ("extends" in entry and not any(wanted.get(key) for key in entry)):
        raise InputError(
            f"no compose file has the words of service {service} itself (it extends or includes another): change them "
            f"there"
        )
    meant = _meant(entry, override)
    put: dict[tuple[str, ...], object] = {("services", service, key): value for key, value in meant.items()}
    text = _in_place(file, service, entry, meant) or yamlfile.edited(file, put)
    old, new = (t.splitlines(keepends=True) for t in (file.content, text))
    return "".join(difflib.unified_diff(old, new, "a" + file.path, "b" + file.path))


def _entry(document: Mapping[str, Any], service: str) -> Mapping[str, Any]:
    services = document.get("services")
    entry = services.get(service) if isinstance(services, dict) else None
    return entry if isinstance(entry, dict) else {}


def _meant(entry: Mapping[str, Any], override: Override) -> dict[str, object]:
    """The keys of the service that change, in the form in which they are written."""
    changed: dict[str, object] = {}
    for key, words in (("entrypoint", override.entrypoint), ("command", override.command)):
        if words is not None:
            changed[key] = _text(entry[key], words) if isinstance(entry.get(key), str) else list(words)
    if override.environment:
        given = entry.get("environment") or {}
        if isinstance(given, list):
            kept = [line for line in given if str(line).partition("=")[0] not in override.environment]
            changed["environment"] = kept + [f"{n}={v}" for n, v in override.environment.items()]
        else:
            changed["environment"] = {**given, **override.environment}
    return changed


def _text(old: str, words: Sequence[str]) -> str:
    """A command in one text with other words; what did not change keeps its bytes."""
    had, places = spans(old)
    out, at = "", 0
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, had, list(words), autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        new = " ".join(_quoted(word) for word in words[j1:j2])
        if tag == "insert":
            start = places[i1 - 1][1] if i1 else 0
            out, at = out + old[at:start] + (f" {new}" if i1 else f"{new} "), start
        else:
            start, end = places[i1][0], places[i2 - 1][1]
            out, at = out + old[at:start] + new, end
    return out + old[at:]


def _quoted(word: str) -> str:
    """Single quotes do not hold off compose's own `$`, which is escaped already."""
    return word if re.fullmatch(r"[\w@%+=:,./${}?-]+", word) else shlex.quote(word)


def _in_place(file: LaunchFile, service: str, entry: Mapping[str, Any], meant: Mapping[str, object]) -> str | None:
    """The file's text with single words changed where they stand; None when it would not mean the same."""
    text = file.content
    for key, value in meant.items():
        old, new = _list(entry.get(key)), _list(value)
        places = _places(text, service, key, old) if old else None
        if not places or old is None or new is None:
            return None
        text = _edited(text, places, old, new, plain=isinstance(value, str))
    try:
        read = _entry(yamlfile.load(LaunchFile(file.path, text)), service)
    except InputError:
        return None
    return text if json.dumps({**entry, **meant}, default=str) == json.dumps(dict(read), default=str) else None


def _edited(text: str, places: Sequence[tuple[int, int]], old: Sequence[str], new: Sequence[str], plain: bool) -> str:
    """A further word is parted from the one before it as that one is."""
    opcodes = difflib.SequenceMatcher(None, list(old), list(new), autojunk=False).get_opcodes()
    for tag, i1, i2, j1, j2 in reversed(opcodes):
        if tag == "equal":
            continue
        common = min(i2 - i1, j2 - j1)
        last = i1 + common - 1
        gap = re.sub(r"[\"']|#[^\n]*", "", text[places[last - 1][1] : places[last][0]]) if last > 0 else " "
        more = "".join(gap + (_quoted(word) if plain else _scalar(word)) for word in new[j1 + common : j2])
        end = _closed(text, places[last][1]) if last >= 0 else places[0][0]
        if i2 - i1 > common:
            text = text[:end] + text[_closed(text, places[i2 - 1][1]) :]
        text = text[:end] + more + text[end:]
        for i in reversed(range(common)):
            start, end = places[i1 + i]
            text = text[:start] + (_quoted(new[j1 + i]) if plain else new[j1 + i]) + text[end:]
    return text


def _closed(text: str, at: int) -> int:
    """Behind the quote that closes a word."""
    return at + (text[at : at + 1] in ("'", '"'))


def _places(text: str, service: str, key: str, words: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where the words stand, one after the other with nothing but YAML's own signs and comments between them."""
    begun = re.search(
        rf"^[ ]+[\"']?{re.escape(service)}[\"']?:[^\n]*\n(?:(?:[ ]{{3,}}[^\n]*)?\n)*?[ ]+{key}:", text, re.M
    )
    if begun is None:
        return None
    at, places = begun.end(), []
    for word in words:
        gap = re.compile(r"(?:[\s\"',\[>|-]|#[^\n]*\n)*?" + re.escape(word) + r"(?=[\s\"',\]]|$)").match(text, at)
        if gap is None or not word:
            return None
        places.append((gap.end() - len(word), gap.end()))
        at = gap.end()
    return places


def _scalar(word: str) -> str:
    return word if re.fullmatch(r"[A-Za-z/-][\w./-]*[A-Za-z]", word) else json.dumps(word, ensure_ascii=False)


def _list(value: object) -> list[str] | None:
    if isinstance(value, str):
        return spans(value)[0]
    return [str(word) for word in value] if isinstance(value, list) else None
