"""Where trtllm-serve takes its options from: the command line, and the YAML file that it names.

Up to 1.2 the file wins over the command line (`llmapi/llm_args.py` `update_llm_args_with_extra_dict`); later releases
let an option win that is on the command line in so many words. In which of the 1.3 candidates that changed is not
known, so two values that disagree are refused there, and a new one is written to both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from leadline.dialect import yamlfile
from leadline.dialect.commandline import CommandLine
from leadline.dialect.question import numbers
from leadline.dialect.yamlfile import Path
from leadline.engines.trtllm.methods import AUTODEPLOY, TORCH
from leadline.engines.trtllm.options import BACKEND, BATCH, CONFIG, FRACTION, KV_DTYPE, OVERRIDE, read
from leadline.engines.trtllm.values import fraction, text, whole
from leadline.errors import InputError
from leadline.launch import LaunchFile, LaunchSpec
from leadline.space import Value

SPEC, GRAPHS, KV = "speculative_config", "cuda_graph_config", "kv_cache_config"
METRICS = "return_perf_metrics"
_MOUNT = re.compile(r"(/[^\s:,]+):\1(?=[\s:,]|$)")
_OURS = (SPEC, GRAPHS, KV, METRICS, "max_batch_size")


@dataclass(frozen=True, slots=True)
class Place:
    """A knob that may stand on the command line and in the file. `flag` = as we write it; None = only into the file."""

    option: str
    path: Path
    flag: str | None


PLACES = {
    "memory_fraction": Place(FRACTION, (KV, "free_gpu_memory_fraction"), "--kv_cache_free_gpu_memory_fraction"),
    "max_running": Place(BATCH, ("max_batch_size",), "--max_batch_size"),
    "kv_dtype": Place(KV_DTYPE, (KV, "dtype"), None),
}


@dataclass(frozen=True, slots=True)
class Site:
    """`put` and `drop` are the changes of the file that are wanted so far."""

    line: CommandLine
    file: LaunchFile | None
    config: Mapping[str, Any]
    version: tuple[int, int] | None
    put: Mapping[Path, object] = field(default_factory=dict)
    drop: frozenset[Path] = frozenset()

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.file.path if self.file else "the YAML file"

    @property
    def backend(self) -> str:
        return str(self.config.get("backend") or self.line.value(BACKEND) or TORCH)

    def at(self, path: Path) -> Any:
        """What the file says; None when it does not."""
        value: Any = self.config
        for key in path:
            if not isinstance(value, Mapping):
                raise InputError(f"{self.name}: {'.'.join(path[:-1])} must hold options by name")
            value = value.get(key)
            if value is None:
                return None
        return value

    def holds(self, path: Path) -> bool:
        """Whether the key stands there at all, without a value too."""
        above = self.at(path[:-1])
        return isinstance(above, Mapping) and path[-1] in above

    def before(self, release: tuple[int, int]) -> bool:
        """Whether the server is known to be older."""
        return self.version is not None and self.version < release

    def since(self, release: tuple[int, int]) -> bool:
        return self.version is not None and self.version >= release

    def putting(self, path: Path, value: object) -> Site:
        return replace(self, put={**self.put, path: value})

    def dropping(self, path: Path) -> Site:
        return replace(self, drop=self.drop | {path}) if self.holds(path) else self

    def value(self, knob: str) -> Value | None:
        """What is in force for a knob of PLACES; None when neither side says it."""
        place = PLACES[knob]
        given, filed = self.line.value(place.option), self.at(place.path)
        here = None if given is None else _value(knob, place.option, given)
        there = None if filed is None else _value(knob, f"{self.name}: {'.'.join(place.path)}", filed)
        if here is not None and there is not None and here != there and not self.before((1, 3)):
            raise InputError(
                f"the command line says {here} for {knob}, and {self.name} says {there}: trtllm-serve 1.2 takes the "
                "file's value and later ones that of the command line. Remove one of them."
            )
        return here if there is None else there

    def set(self, knob: str, value: Value) -> Site:
        """The value wherever one stands; else where such a value belongs."""
        place = PLACES[knob]
        given = self.line.last(place.option) is not None
        # A block of the file may replace the one that the command line makes, so that it must say it too.
        filed = self.at(place.path) is not None or (len(place.path) > 1 and self.at(place.path[:1]) is not None)
        site = self
        if given or (place.flag is not None and not filed):
            site = replace(site, line=site.line.put(place.option, place.flag or "--kv_cache_dtype", str(value)))
        return site.putting(place.path, value) if filed or place.flag is None else site

    def _visible(self) -> None:
        """A container must see the copy under the path that it has outside."""
        launch = self.line.launch
        mounts = [m[1] for m in _MOUNT.finditer(" ".join(launch.argv))]
        if self.line.source.contained and not any(launch.scratch.startswith(folder) for folder in mounts):
            raise InputError(
                "the server runs in a container, and each setting needs a changed copy of its YAML file, which that "
                f"would not see: mount {launch.scratch} there under the same path (-v FOLDER:FOLDER)"
            )

    def written(self) -> LaunchSpec:
        """The launch with a changed copy of the file in the file's place; without changes, with the file as it is."""
        put = {
            path: value for path, value in self.put.items() if not (self.holds(path) and _same(self.at(path), value))
        }
        if not put and not self.drop:
            return self.line.written()
        if self.file is not None:
            content = yamlfile.edited(self.file, put, self.drop)
        else:
            content = yamlfile.written(_nested(put))
            if yamlfile.load(LaunchFile("the new file", content)) != _nested(put):
                raise InputError(
                    "a text of this setting reads as something else in YAML (yes, no, on, off): not written"
                )
        self._visible()
        # Ours comes last in the list of files; the operator's own is no longer named, and no longer listed.
        launch, path = yamlfile.ours(self.line.launch, None if self.file is None else self.file.path, content)
        flag = "--config" if self.since((1, 2)) else "--extra_llm_api_options"
        written = self.line.put(CONFIG, flag, path).written()
        return _with_files(written, launch)


def site_of(launch: LaunchSpec, version: str | None) -> Site:
    """Raises InputError when the options cannot be read, or when they are not all where they can be seen."""
    line = read(launch)
    path = line.value(CONFIG)
    file = None if path is None else yamlfile.find(launch, path)
    site = Site(line, file, {} if file is None else yamlfile.load(file), release(version))
    if site.backend not in (TORCH, AUTODEPLOY):
        raise InputError(
            f"{BACKEND} {site.backend} runs an engine that was built for one way of speculating: only the {TORCH} and "
            f"{AUTODEPLOY} backends can be tuned"
        )
    for item in line.items:
        root = (item.value or "").partition("=")[0].partition(".")[0]
        if item.name == OVERRIDE and root in _OURS:
            raise InputError(f"{OVERRIDE} {root}... overrules the YAML file: move what it says into the file")
    if site.config.get("disagg_cluster"):
        raise InputError(f"{site.name}: disagg_cluster makes the server a part of a disaggregated service, not tuned")
    return site


def release(version: str | None) -> tuple[int, int] | None:
    """`1.3.0rc25` -> (1, 3); None when it is not known."""
    found = numbers(version)
    return None if found is None else found[:2]


def _value(knob: str, where: str, value: Any) -> Value:
    if knob == "memory_fraction":
        return fraction(where, value)
    return whole(where, value) if knob == "max_running" else text(where, value)


def _same(old: object, new: object) -> bool:
    return type(old) is type(new) and old == new


def _nested(put: Mapping[Path, object]) -> dict[str, object]:
    values: dict[str, Any] = {}
    for path, value in put.items():
        holder = values
        for key in path[:-1]:
            holder = holder.setdefault(key, {})
        holder[path[-1]] = value
    return values


def _with_files(launch: LaunchSpec, other: LaunchSpec) -> LaunchSpec:
    return LaunchSpec(argv=launch.argv, env=launch.env, cwd=launch.cwd, files=other.files, scratch=launch.scratch)
