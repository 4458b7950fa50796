"""YAML configuration files that a launch names: reading one, and writing a changed copy that keeps comments and order.

The operator's file is never written: a copy goes to the launch's folder for files of ours. Values are read as PyYAML
reads them (YAML 1.1: `yes` is true), since that is what the servers use.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec

if TYPE_CHECKING:
    from ruamel.yaml import YAML

Path = tuple[str, ...]
"""Keys from the top of the document down to a value."""

_NESTED = re.compile(r":[ \t]*(?:#[^\n]*)?\n(?:[ \t]*(?:#[^\n]*)?\n)*(?P<spaces> +)[^\s#-]")
_DASH = re.compile(r"^(?P<spaces> *)- ", re.MULTILINE)
_WIDE = 1 << 20
"""Columns before a line is folded: never."""


def find(launch: LaunchSpec, path: str) -> LaunchFile:
    """The content of a file that the launch names. Raises InputError when nobody has read it."""
    for file in launch.files:
        if file.path == path:
            return file
    raise InputError(f"the launch is configured by the file {path}, which could not be read: check its path and rights")


def load(file: LaunchFile) -> dict[str, Any]:
    """The top-level mapping; empty for an empty file. Raises InputError that names the file and the line."""
    value = _loaded(file.path, file.content)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{file.path}, line 1: the file must hold options as `name: value`")
    return value


def edited(file: LaunchFile, put: Mapping[Path, object], drop: Collection[Path] = ()) -> str:
    """The file's text with some values put in place and some taken away; all else, comments too, stays as it is.

    A new key comes last in its mapping. Raises InputError when the file cannot be read, when something else than a
    mapping stands in a path's way, or when the text would not read back as what was meant.
    """
    meant = load(file)
    _change(file.path, meant, put, drop)
    yaml = _round_trip(file.content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = yaml.load(file.content)
            document = {} if document is None else document
            _change(file.path, document, put, drop)
            text = _dumped(yaml, document)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{file.path} cannot be rewritten: {type(error).__name__}") from None
    if _loaded(file.path, text) != meant:
        raise InputError(
            f"{file.path} cannot be rewritten so that it means the same: put {_named(put, drop)} on the command line"
        )
    return text


def changed(file: LaunchFile, values: Mapping[str, Any]) -> str:
    """The file's text with these values instead of its own: only what differs is touched, also inside a value."""
    put: dict[Path, object] = {}
    drop: list[Path] = []
    _compare((), load(file), values, put, drop)
    return edited(file, put, drop)


def written(values: Mapping[str, object]) -> str:
    """A new file."""
    return _dumped(_round_trip(""), dict(values))


def ours(launch: LaunchSpec, path: str | None, content: str) -> tuple[LaunchSpec, str]:
    """The launch with a file of ours in the place of the one at `path`, and the path that argv must name now.

    The name is made from the content, so that the same content has the same name. Raises InputError when the launch
    has no folder for files of ours.
    """
    if not launch.scratch:
        raise InputError(
            f"a changed copy of {path or 'a configuration file'} is needed, and there is no folder for it: "
            "give the option on the command line instead"
        )
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    new = LaunchFile(f"{launch.scratch.rstrip('/')}/{digest}.yaml", content)
    kept = tuple(f for f in launch.files if f.path not in (path, new.path))
    return msgspec.structs.replace(launch, files=(*kept, new)), new.path


def _loaded(path: str, content: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    yaml.version = (1, 1)
    try:
        with warnings.catch_warnings():  # about numbers that YAML 1.1 and 1.2 read differently
            warnings.simplefilter("ignore")
            return yaml.load(content)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = max(1, len(content.splitlines()))
        line = min(mark.line + 1, last) if mark is not None else 1
        raise InputError(f"{path}, line {line}: this is no YAML: {_problem(error.problem)}") from None
    except YAMLError:
        raise InputError(f"{path}, line {_line_of_junk(content)}: a character that YAML does not allow") from None
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{path}, line 1: it holds a value that cannot be read") from None


def _problem(text: str | None) -> str:
    """Without what follows a key's name: the value may be a secret."""
    return (text or "it cannot be read").partition(" with value ")[0]


def _line_of_junk(content: str) -> int:
    junk = re.search(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", content)
    return content.count("\n", 0, junk.start()) + 1 if junk else 1


def _round_trip(content: str) -> YAML:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDE
    nested, dash = _NESTED.search(content), _DASH.search(content)
    offset = len(dash["spaces"]) if dash else 0
    yaml.indent(mapping=len(nested["spaces"]) if nested else 2, sequence=offset + 2, offset=offset)
    return yaml


def _dumped(yaml: YAML, document: object) -> str:
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _change(path: str, document: Any, put: Mapping[Path, object], drop: Collection[Path]) -> None:
    for keys, value in put.items():
        _parent(path, document, keys, make=True)[keys[-1]] = value
    for keys in drop:
        holder = _parent(path, document, keys, make=False)
        if holder is not None:
            holder.pop(keys[-1], None)


def _compare(
    at: Path, old: Mapping[str, Any], new: Mapping[str, Any], put: dict[Path, object], drop: list[Path]
) -> None:
    drop.extend((*at, key) for key in old if key not in new)
    for key, value in new.items():
        if key in old and old[key] == value and type(old[key]) is type(value):
            continue
        if isinstance(value, dict) and isinstance(old.get(key), dict):
            _compare((*at, key), old[key], value, put, drop)
        else:
            put[(*at, key)] = value


def _parent(path: str, document: Any, keys: Path, *, make: bool) -> Any:
    holder = document
    for depth, key in enumerate(keys[:-1], 1):
        below = holder.get(key)
        if below is None:
            if not make:
                return None
            below = holder[key] = {}
        if not isinstance(below, dict):
            raise InputError(f"{path}: {'.'.join(keys[:depth])} holds no options by name, so that none can be changed")
        holder = below
    return holder


def _named(put: Mapping[Path, object], drop: Collection[Path]) -> str:
    return ", ".join(".".join(keys) for keys in (*put, *drop))
