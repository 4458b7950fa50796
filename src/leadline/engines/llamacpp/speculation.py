"""The speculation group of a command line: what is in force, and how to put another depth in force."""

from __future__ import annotations

from leadline.dialect.commandline import CommandLine
from leadline.dialect.values import whole
from leadline.engines.llamacpp.flags import NEWER, OLDER, OPTIONS, speculative
from leadline.engines.llamacpp.methods import METHODS, Method
from leadline.engines.llamacpp.values import uses_draft_model
from leadline.errors import InputError
from leadline.space import Setting

SPEC_TYPE, SPEC_DEFAULT = "--spec-type", "--spec-default"
DRAFT_MODEL, DRAFT_HF = "--spec-draft-model", "--spec-draft-hf"
_LOOKUP = 2
"""Tokens that are looked up when the base does not say: the server's own 12 hardly ever match in a chat."""


def in_force(line: CommandLine, build: int | None) -> tuple[int, str | None]:
    """Depth and method, with the server's defaults; (0, None) when speculation is off.

    Raises InputError for a draft model without a method, unless the build is known not to infer one from the file.
    """
    text = _method_text(line)
    if text is None:
        given = next((n for n in (DRAFT_MODEL, DRAFT_HF) if line.value(n)), None)
        if given and (build is None or build > OLDER):
            what = "speculates as the file says" if build and build >= NEWER else "may speculate or not, by its build"
            raise InputError(
                f"{given} without {SPEC_TYPE}: llama-server {what}. Add {SPEC_TYPE} draft-simple (or what the draft is "
                f"made for) to the command, or remove {given}."
            )
        return 0, None
    names = text.split(",")
    if "none" in names or not text:  # one `none` in the list switches all of them off
        return 0, None
    depth = max(_depth(line, method) for method in _methods(text))
    return (depth, text) if depth else (0, None)


def put_in_force(line: CommandLine, now: Setting, full: Setting) -> CommandLine:
    """The depth, method and draft model of `full`; nothing is touched when they are in force `now`.

    So today's setting is launched with today's words, and not, for one, with another lookup length.
    """
    if full.depth == 0:
        return _off(line)
    if all(now.get(n) == full.get(n) for n in ("depth", "spec_method", "draft_model")):
        return line
    method = full.get("spec_method")
    if not isinstance(method, str):
        names = ", ".join(METHODS)
        raise InputError(
            f"depth={full.depth} needs a method: set spec_method under [keep] or [knobs] to one of {names}"
        )
    methods = _methods(method)
    line = _draft_model(line, full, methods)
    if line.last(SPEC_DEFAULT) or line.value(SPEC_TYPE) != method:
        line = line.put(SPEC_TYPE, SPEC_TYPE, method, over=(SPEC_DEFAULT,))
    for one in methods:
        line = _deepen(line, one, full)
    return line


def _method_text(line: CommandLine) -> str | None:
    item = line.last(SPEC_TYPE, SPEC_DEFAULT)
    return "ngram-mod" if item is not None and item.name == SPEC_DEFAULT else line.value(SPEC_TYPE)


def _methods(text: str) -> list[Method]:
    unknown = [name for name in text.split(",") if name not in METHODS]
    if unknown:
        raise InputError(f"spec_method is one of {', '.join(METHODS)}, or a comma list of them, not {text!r}")
    return [METHODS[name] for name in text.split(",")]


def _depth(line: CommandLine, method: Method) -> int:
    given = whole(method.depth_flag, line.value(method.depth_flag)) if method.depth_flag else None
    depth = method.default if given is None else given
    # A draft model drafts one token even at n-max 0 (seen).
    return max(depth, 1 if method.draft_model else 0)


def _off(line: CommandLine) -> CommandLine:
    """No word of speculation but `--spec-type none`: when it stands there, or to overrule the environment."""
    if any(name.startswith("LLAMA_ARG_SPEC_") for name in line.env):
        line = line.put(SPEC_TYPE, SPEC_TYPE, "none", over=(SPEC_DEFAULT,))
    said = _method_text(line) == "none"
    kept = {DRAFT_MODEL, DRAFT_HF, *([SPEC_TYPE] if said else [])}
    return _unload_draft(line.drop(lambda name: speculative(name) and name not in kept))


def _unload_draft(line: CommandLine) -> CommandLine:
    """A draft model is loaded, and takes memory, whatever the method is: so it must not be named.

    An empty word on the command line wins over one that the environment names.
    """
    from_env = [name for name in (DRAFT_MODEL, DRAFT_HF) if line.env.get(OPTIONS[name].env or "")]
    line = line.drop(lambda name: name in (DRAFT_MODEL, DRAFT_HF) and name not in from_env)
    for name in from_env:
        line = line.set(name, "")
    return line


def _draft_model(line: CommandLine, full: Setting, methods: list[Method]) -> CommandLine:
    if not uses_draft_model(",".join(m.name for m in methods)):
        return _unload_draft(line)
    model = full.get("draft_model")
    if isinstance(model, str):
        return line.drop(lambda name: name == DRAFT_HF).set(DRAFT_MODEL, model)
    needy = next((m.name for m in methods if m.needs_draft), None)
    if needy and not line.value(DRAFT_HF):
        raise InputError(
            f"{needy} needs a draft model, and runs without speculation when it has none: set draft_model under [keep] "
            f"or [knobs]"
        )
    return line


def _deepen(line: CommandLine, method: Method, full: Setting) -> CommandLine:
    depth = full.depth
    if method.depth_flag is None:
        if depth != method.default:
            raise InputError(f"{method.name} always drafts up to {method.default}: depth={depth} cannot be set")
        return line
    line = line.set(method.depth_flag, str(depth))
    if method.lookup_flag:
        given = whole(method.lookup_flag, line.value(method.lookup_flag))
        return _at_most(line, method.lookup_flag, _LOOKUP if given is None else given, full, write=given is None)
    if method.least_flag:
        given = whole(method.least_flag, line.value(method.least_flag))
        return _at_most(line, method.least_flag, method.least if given is None else given, full, write=False)
    return line


def _at_most(line: CommandLine, flag: str, value: int, full: Setting, *, write: bool) -> CommandLine:
    """`flag` no more than the depth, since nothing would be drafted; written when it must be lowered, or anyway."""
    if value <= full.depth:
        return line.set(flag, str(value)) if write else line
    if f"flag:{flag}" in full:
        raise InputError(f"flag:{flag}={value} with depth={full.depth} would draft nothing: it is at most the depth")
    return line.set(flag, str(full.depth))
