"""A commented campaign.toml for a server that is in use today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from leadline.config import table
from leadline.config.reference import default_text
from leadline.config.spec import LoadSpec
from leadline.config.table import Section
from leadline.config.target_rules import takes
from leadline.config.toml import toml_key, toml_text
from leadline.space import Setting

_COLUMN = 44
_WIDTH = 118
_HEAD = """Leadline campaign: which depth of speculation, and which settings around it, suit this service.
Lines that start with "# key =" show a key that may be left out, and its default or an example.
Next: `leadline plan` shows what a run would do and changes nothing; `leadline run` does it."""


def template(
    command: Sequence[str],
    incumbent: Setting,
    engine: str,
    port: int,
    depths: Sequence[int],
    keep: Setting,
    *,
    target: str = "command",
    workloads: Sequence[str] = ("coding", "chat"),
    concurrency: Sequence[int] = LoadSpec().concurrency,
    cwd: str | None = None,
    where: Mapping[str, object] = {},
) -> str:
    """Every section with one line on each key that the target takes; those that may be left out are commented out.

    `depths`, `workloads` and `concurrency` hold at least one value each. `where` = further keys of [service], like unit
    and host. What the target reads from the live service is left out: `command` and `cwd`. `parse_campaign` accepts the
    result unless the command line itself is refused (a secret in clear), so parse it before it is written. Raises
    InputError for an argument that is not UTF-8.
    """
    today = {"command": list(command)} if cwd is None else {"command": list(command), "cwd": cwd}
    told = {key: value for key, value in {**today, **where}.items() if takes(target, f"service.{key}")}
    service = {key: toml_text(value) for key, value in {"engine": engine, "target": target, **told}.items()}
    scripts = {key.name: key.example for key in table.SCRIPTS.keys}
    examples = {"url": f'"http://127.0.0.1:{port}"', "private_port": str(port + 1 if port < 65535 else port - 1)}
    return "\n".join(
        [
            _comment(_HEAD),
            "",
            *_keys(target, table.SERVICE, service, examples),
            *_keys(target, table.SCRIPTS, scripts, {}),
            *_keys(target, table.WINDOW, {}, {}),
            *_keys(target, table.TRAFFIC, {}, examples),
            *_keys(target, table.SAFETY, {}, {}),
            *_knobs(incumbent, depths, keep),
            *_keys(target, table.LOAD, {"concurrency": toml_text(list(concurrency))}, {}),
            *_workloads(workloads),
            *_goals(workloads, min(concurrency), max(concurrency)),
            *_keys(target, table.BUDGET, {}, {}),
            *_keys(target, table.CANARY, {}, {}),
        ]
    )


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in text.split("\n"))


def _line(text: str, meaning: str) -> str:
    """A key with its meaning beside it, or above when the key is long."""
    if len(text) < _COLUMN and _COLUMN + len(meaning) < _WIDTH:
        return f"{text:<{_COLUMN}}# {meaning}"
    return f"# {meaning}:\n{text}"


def _keys(target: str, section: Section, given: dict[str, str], examples: dict[str, str]) -> list[str]:
    """A section as far as it is of use to the target."""
    keys = [key for key in section.keys if takes(target, f"{section.name}.{key.name}")]
    lines = [_line(f"[{section.name}]", section.help)]
    for key in keys:
        value = given.get(key.name) or examples.get(key.name) or default_text(section, key.name) or key.example
        lines.append(_line(f"{'' if key.name in given else '# '}{key.name} = {value}", key.help))
    return [*lines, ""] if keys else []


def _knobs(incumbent: Setting, depths: Sequence[int], keep: Setting) -> list[str]:
    """Only the depth is tuned until the operator says more; other knobs are shown when they are not kept."""
    meanings = {key.name: key for key in table.KNOBS.keys}
    lines = [
        _line("[knobs]", table.KNOBS.help),
        _comment(f"In force today: {incumbent}"),
        _line(f"depth = {toml_text(list(depths))}", meanings["depth"].help),
    ]
    for shown, name in (("max_running", "max_running"), ("flag:--NAME", "flag:--threads"), ("env:NAME", "env:THREADS")):
        if name not in keep:
            lines.append(_line(f"# {toml_key(name)} = {meanings[shown].example}", meanings[shown].help))
    lines += ["", _line("[keep]", table.KEEP.help)]
    for name, value in keep:
        lines.append(
            _line(f"{toml_key(name)} = {toml_text(value)}", meanings[name].help if name in meanings else "kept")
        )
    return [*lines, ""]


def _workloads(workloads: Sequence[str]) -> list[str]:
    key = {k.name: k for k in table.WORKLOADS.keys}
    lines = [_comment(f"{table.WORKLOADS.help}.")]
    for name in workloads:
        lines += [f"[workloads.{name}]", _line(f"builtin = {toml_text(name)}", key["builtin"].help)]
        lines += [_line(f"# body = {key['body'].example}", key["body"].help), ""]
    lines += ["# [workloads.mine]", _line(f"# file = {key['file'].example}", key["file"].help), ""]
    return lines


def _goals(workloads: Sequence[str], low: int, high: int) -> list[str]:
    def weights(suffix: str) -> str:
        return "{ " + ", ".join(f"{toml_key(name + suffix)} = 1" for name in workloads) + " }"

    def goal(name: str, meaning: str, suffix: str, objective: str, require: str) -> list[str]:
        return [
            _line(f"[goals.{name}]", meaning),
            f"weights = {weights(suffix)}",
            _line(f"objective = {toml_text(objective)}", key["objective"].help),
            _line(f"# require = {require}", key["require"].help),
            "",
        ]

    key = {k.name: k for k in table.GOALS.keys}
    wait, errors = '["ttft_ms.p99 < 2000"]', '["error_frac <= 0.01"]'
    return [
        _comment(f"{table.GOALS.help}.\nWeights: WORKLOAD@CONCURRENCY, or WORKLOAD = evenly over [load].concurrency."),
        *goal("interactive", "few users, each served fast", f"@{low}", "per_request_tok_s.mean", wait),
        *goal("throughput", "many users, most text in all", f"@{high}", "output_tok_s", errors),
        *goal("everything", "all of it, each load alike", "", "output_tok_s", wait),
    ]
