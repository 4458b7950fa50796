"""llama-server's command line, for the lab: which words it knows, and what it says to one that it does not."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.testing.dialects import Exit, Flags

_ALIASES = {
    "-m": "--model",
    "-a": "--alias",
    "-c": "--ctx-size",
    "-np": "--parallel",
    "-md": "--spec-draft-model",
    "--model-draft": "--spec-draft-model",
    "-h": "--help",
    "--usage": "--help",
}
_WITH_VALUE_WORDS = """
--model --alias --ctx-size --parallel --host --port --api-key --api-key-file --spec-type --spec-draft-model
--spec-draft-n-max --spec-draft-n-min --spec-draft-p-min --spec-draft-p-split --draft-p-min --draft-p-split
--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n
--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m
--spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits
--spec-draft-ngl -ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-device -devd --device-draft
--spec-draft-threads -td --threads-draft --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd
--cache-type-v-draft -t --threads -tb --threads-batch -n --predict --n-predict -b --batch-size -ub --ubatch-size
--keep -fa --flash-attn -ctk --cache-type-k -ctv --cache-type-v -dev --device -ot --override-tensor -ncmoe
--n-cpu-moe -ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -fit --fit -fitt
--fit-target -fitc --fit-ctx --override-kv --lora -lm --load-mode --numa --prio --poll -hf -hfr --hf-repo -hff
--hf-file --log-file --log-colors -lv --verbosity --log-verbosity -s --seed --temp --temperature --top-k --top-p
--min-p --samplers --repeat-penalty --presence-penalty --frequency-penalty --cache-reuse -cram --cache-ram -ctxcp
--ctx-checkpoints -to --timeout --threads-http --chat-template --chat-template-file --chat-template-kwargs
--reasoning-format --reasoning-budget -rea --reasoning -sps --slot-prompt-similarity --slot-save-path --path
--api-prefix --ssl-key-file --ssl-cert-file --sleep-idle-seconds --rope-scaling --rope-scale --rope-freq-base
--rope-freq-scale --tags --cors-origins
"""
_BARE_WORDS = """
--help --version --metrics --slots --no-slots --props --spec-default -kvu --kv-unified -no-kvu --no-kv-unified -cb
--cont-batching -nocb --no-cont-batching --jinja --no-jinja --mlock --mmap --no-mmap -cmoe --cpu-moe -kvo
--kv-offload -nkvo --no-kv-offload --warmup --no-warmup --context-shift --no-context-shift --cache-prompt
--no-cache-prompt -v --verbose --log-verbose --log-disable --log-prefix --no-log-prefix --log-timestamps
--no-log-timestamps --offline --perf --no-perf --ignore-eos --ui --no-ui --webui --no-webui --swa-full --repack
--no-repack --embedding --embeddings --reranking --rerank --reuse-port --no-mmproj --check-tensors
"""
_REMOVED = {
    "--draft": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-n": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-max": "--spec-draft-n-max or --spec-ngram-mod-n-max",
    "--draft-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--draft-n-min": "--spec-draft-n-min or --spec-ngram-mod-n-min",
    "--spec-ngram-size-n": "the respective --spec-ngram-*-size-n or --spec-ngram-mod-n-match",
    "--spec-ngram-size-m": "the respective --spec-ngram-*-size-m",
    "--spec-ngram-min-hits": "the respective --spec-ngram-*-min-hits",
}
_METHOD_WORDS = """
none draft-simple draft-eagle3 draft-mtp draft-dflash draft-dspark ngram-simple ngram-map-k ngram-map-k4v ngram-mod
ngram-cache
"""
_WITH_VALUE, _BARE, _METHODS = (frozenset(words.split()) for words in (_WITH_VALUE_WORDS, _BARE_WORDS, _METHOD_WORDS))


class _FlagError(ValueError):
    """A command line that the server refuses, in its own words."""


class _Given:
    """Options as they were given, under one name each; the last one counts."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs

    def has(self, name: str) -> bool:
        return any(n == name for n, _ in self._pairs)

    def text(self, name: str, default: str) -> str:
        return next((v for n, v in reversed(self._pairs) if n == name), default)

    def integer(self, name: str, default: int) -> int:
        text = self.text(name, str(default))
        try:
            return int(text)
        except ValueError:
            raise _FlagError(f'error while handling argument "{name}": stoi') from None

    def last(self, *names: str) -> str:
        return next((n for n, _ in reversed(self._pairs) if n in names), "")


def parse(argv: Sequence[str], *, default_port: int, version: str) -> Flags | Exit:
    """A command line without its program -> what it asks for, or how the server ends."""
    try:
        given = _read(argv)
        if given.has("--version"):
            return Exit((f"version: {version}",), 0)
        if given.has("--help"):
            return Exit(tuple(sorted(_WITH_VALUE | _BARE)), 0)
        return _flags(given, default_port)
    except _FlagError as exc:
        return Exit((str(exc),), 1)


def _read(argv: Sequence[str]) -> _Given:
    pairs: list[tuple[str, str]] = []
    words = iter(argv)
    for word in words:
        name = _ALIASES.get(word, word)
        if name in _REMOVED:
            raise _FlagError(
                f'error while handling argument "{name}": the argument has been removed. use {_REMOVED[name]}'
            )
        if name in _BARE:
            pairs.append((name, ""))
        elif name in _WITH_VALUE:
            value = next(words, None)
            if value is None:
                raise _FlagError(f'error while handling argument "{name}": expected value for argument')
            pairs.append((name, value))
        else:
            raise _FlagError(f"error: invalid argument: {word}")
    return _Given(pairs)


def _flags(given: _Given, default_port: int) -> Flags:
    method, depth, drafts = _speculation(given)
    slots = given.integer("--parallel", -1)
    return Flags(
        host=given.text("--host", "127.0.0.1"),
        port=given.integer("--port", default_port),
        depth=depth,
        drafts=drafts,
        method=method,
        max_running=slots if slots > 0 else None,
        context=given.integer("--ctx-size", 0),
        model=given.text("--model", "lab.gguf"),
        alias=given.text("--alias", ""),
        metrics=given.has("--metrics"),
        slots=given.last("--slots", "--no-slots") != "--no-slots",
        api_keys=tuple(k for k in given.text("--api-key", "").split(",") if k),
    )


def _speculation(given: _Given) -> tuple[str, int, bool]:
    """Method, depth, and whether it can ever draft: ngram-simple silently does not when size-m < size-n."""
    inferred = "draft-simple" if given.has("--spec-draft-model") else "none"
    methods = given.text("--spec-type", inferred).split(",")
    unknown = next((m for m in methods if m not in _METHODS), None)
    if unknown is not None:
        raise _FlagError(f'error while handling argument "--spec-type": unknown speculative type: {unknown}')
    if given.last("--spec-type", "--spec-default") == "--spec-default":
        methods = ["ngram-mod"]
    method = next((m for m in methods if m != "none"), "none")
    if method == "none":
        return method, 0, True
    if method == "ngram-mod":
        return method, given.integer("--spec-ngram-mod-n-max", 64), True
    if method in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
        size_m = given.integer(f"--spec-{method}-size-m", 48)
        size_n = given.integer(f"--spec-{method}-size-n", 12)
        return method, size_m, method != "ngram-simple" or size_m >= size_n
    return method, given.integer("--spec-draft-n-max", 3), True
