"""Options whose value is a JSON object: as one word, as a mapping in the file, or key by key as `--NAME.key value`.

vLLM gathers the keys that are given one by one into one object and puts that behind all others, so that it replaces,
and does not complete, an object given as one word (`FlexibleArgumentParser.parse_args`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from leadline.dialect.opaque import known
from leadline.engines.vllm import jsontext
from leadline.engines.vllm.reading import Options, word
from leadline.errors import InputError

_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def given(options: Options, head: str) -> dict[str, Any] | None:
    """The object in force, its own keys with `_`; None when the option is not given, or is None.

    Raises InputError when vLLM could not read it.
    """
    keys = _one_by_one(options, head)
    if keys:
        return _gathered(options, head, keys)
    text = options.text(head)
    if text is None or text in ("", "None"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"the value of {head} is no JSON, and vLLM would not start") from None
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InputError(f"the value of {head} is no JSON object, and vLLM would not start")
    return {_plain(key): v for key, v in value.items()}


def put(options: Options, head: str, path: str, value: object) -> Options:
    """One key of the object, or of one inside it (`a.b`), where the object stands; order and all other keys stay.

    A key that is not there yet comes last, and an object that is not there yet at the end of the command line.
    """
    keys = tuple(map(_plain, path.split(".")))
    now = found(given(options, head), keys)
    if now == value and type(now) is type(value):
        return options
    if _one_by_one(options, head):
        name = f"{head}.{'.'.join(keys).replace('_', '-')}"
        text = value if isinstance(value, str) and _value(value) == value else json.dumps(value)
        pieces = options.drop(lambda other: other == f"{name}+")  # `--NAME.key+ value` appends to a list
        return pieces.put(name, f"{_spelled(options, head)}.{'.'.join(keys)}", text)
    return _rewritten(options, head, lambda old: _with(head, old, keys, value))


def found(value: Any, keys: tuple[str, ...]) -> Any:
    """What stands at a path of keys; None when nothing does."""
    for key in keys:
        value = next((v for k, v in value.items() if _plain(k) == key), None) if isinstance(value, dict) else None
    return value


def drop(options: Options, head: str, *unwanted: str) -> Options:
    """Without these keys; without the option when none is left."""
    now = given(options, head)
    if now is None or not set(unwanted) & set(now):
        return options
    if set(now) <= set(unwanted):
        return drop_all(options, head)
    if _one_by_one(options, head):
        names = {f"{head}.{key.replace('_', '-')}" for key in unwanted}
        return options.drop(lambda name: name in names or any(name.startswith(f"{n}.") for n in names))
    return _rewritten(options, head, lambda old: {k: v for k, v in old.items() if _plain(k) not in unwanted})


def drop_all(options: Options, head: str) -> Options:
    return options.drop(lambda name: name == head or name.startswith(f"{head}."))


def _one_by_one(options: Options, head: str) -> list[tuple[str, str]]:
    """Path and text of each key that is given by itself, in vLLM's order."""
    start = f"{head}."
    pairs = [
        (key.partition(".")[2], word(value))
        for key, value in options.values.items()
        if options.name_of(key).startswith(start)
    ]
    for item in options.line.items:
        if item.name is not None and item.name.startswith(start):
            if item.value is None:
                raise InputError(f"{item.words[0]} is the last word of the command and has no value")
            pairs.append((item.spelling.partition(".")[2], known(item.value)))
    return pairs


def _spelled(options: Options, head: str) -> str:
    """The name under which the command gives keys already (`-sc.method`): vLLM drops those under another one."""
    given = (i.spelling for i in options.line.items if i.name is not None and i.name.startswith(f"{head}."))
    return next(given, head).partition(".")[0]


def _gathered(options: Options, head: str, keys: list[tuple[str, str]]) -> dict[str, Any]:
    spellings = {i.spelling.partition(".")[0] for i in options.line.items if (i.name or "").startswith(f"{head}.")}
    if len({s for s in spellings if not s.startswith("--")}) and any(s.startswith("--") for s in spellings):
        raise InputError(f"keys of {head} are given under two of its names, of which vLLM drops one: use one name")
    whole: dict[str, Any] = {}
    for path, text in keys:
        *parents, last = path.split(".")
        holder = whole
        for parent in map(_plain, parents):
            below = holder.setdefault(parent, {})
            holder = below if isinstance(below, dict) else holder.setdefault(parent, {})
        if last.endswith("+"):
            earlier = holder.get(_plain(last[:-1]))
            holder[_plain(last[:-1])] = [*(earlier if isinstance(earlier, list) else []), *map(_value, text.split(","))]
        else:
            holder[_plain(last)] = _value(text)
    return whole


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    number = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([kmgtKMGT])", text)
    return int(float(number[1]) * _UNITS[number[2]]) if number else text


def _rewritten(options: Options, head: str, change: Any) -> Options:
    key = options.key(head)
    if options.line.last(head) is None and key is not None and isinstance(options.values[key], Mapping):
        return replace(options, values={**options.values, key: change(dict(options.values[key]))})
    text = options.text(head)
    if text is None or text in ("", "None"):
        text = ""
    old = (json.loads(text) if text else None) or {}
    return options.set(head, jsontext.changed(text if old else "", change(old)))


def _plain(key: str) -> str:
    return key.replace("-", "_")


def _with(head: str, old: Any, keys: tuple[str, ...], value: object) -> dict[str, Any]:
    if not isinstance(old, dict):
        raise InputError(f"{head} holds no object at {keys[0]}, so that none of its keys can be set")
    key = next((k for k in old if _plain(k) == keys[0]), keys[0])
    return {**old, key: value if len(keys) == 1 else _with(head, old.get(key, {}), keys[1:], value)}
