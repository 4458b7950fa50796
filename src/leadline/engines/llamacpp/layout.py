"""What of a launch decides how much memory it takes."""

from __future__ import annotations

from dataclasses import dataclass

from leadline.dialect.commandline import CommandLine
from leadline.dialect.options import plain
from leadline.dialect.values import whole
from leadline.engines.llamacpp.dialect import parse
from leadline.engines.llamacpp.reading import read
from leadline.engines.llamacpp.speculation import DRAFT_HF
from leadline.engines.llamacpp.values import kv_pair, uses_draft_model
from leadline.launch import LaunchSpec

_PLACES = (
    *("--model", "--hf-repo", "--hf-file", "--mmproj", "--lora", "--gpu-layers", "--split-mode", "--tensor-split"),
    *("--main-gpu", "--device", "--override-tensor", "--n-cpu-moe", "--batch-size", "--ubatch-size", "--flash-attn"),
)
_SWITCHES = ("--cpu-moe", "--kv-offload", "--kv-unified", "--swa-full", "--mmap", "--op-offload")
_DRAFT_PLACES = (
    *(DRAFT_HF, "--spec-draft-ngl", "--spec-draft-device", "--spec-draft-type-k", "--spec-draft-type-v"),
    *("--spec-draft-override-tensor", "--spec-draft-n-cpu-moe"),
)
_CONTEXT, _LAYERS, _UNIFIED = "--ctx-size", "--gpu-layers", "--kv-unified"
_OFF = ("off", "0", "false", "disabled")
_PAD = 256
_AUTO_SLOTS = 4
_FIT_TARGET_MIB = 1024
_FIT_CONTEXT = 4096

Said = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """`places` = where weights go, and the batch; `draft` = the draft's context, None when there is none.

    `slots` None = the server chooses; `context` None or 0 = the model's own. `fits` = whether the server shrinks what
    it may to the device (`-fit`), down to `fit_context` tokens, leaving `fit_target` bytes; `layers_given` = it may not
    move layers to the host.
    """

    places: Said
    draft: Said | None
    depth: int
    slots: int | None
    context: int | None
    unified: bool
    dtypes: tuple[str, str]
    fits: bool
    fit_target: int
    fit_context: int
    layers_given: bool

    @property
    def cells(self) -> int | None:
        """Cells of all slots; None when the model decides. Each slot's share is rounded up to 256 (llama_context)."""
        if not self.context:
            return None
        if self.unified:
            return _padded(self.context)
        count = self.slots or _AUTO_SLOTS
        return count * _padded(self.context // count)

    @property
    def but_for_depth(self) -> tuple[object, ...]:
        return self.slots, self.context, self.unified, self.dtypes

    @property
    def gives_way(self) -> bool:
        """Whether there is anything that `-fit` may still change."""
        return self.fits and not (self.context and self.layers_given)

    @property
    def sequences(self) -> int:
        return self.slots or _AUTO_SLOTS


def layout(launch: LaunchSpec, build: int | None) -> Layout:
    """Raises InputError when the launch cannot be read."""
    line = read(launch, build)
    setting = parse(launch, build)
    slots = setting.integer("max_running")
    method = str(setting.get("spec_method", ""))
    draft: Said | None = None
    if setting.depth and uses_draft_model(method):
        draft = (("method", method), ("model", line.value("--spec-draft-model")), *_said(line, _DRAFT_PLACES))
    return Layout(
        places=(*_said(line, _PLACES), *((name, _switch(line, name)) for name in _SWITCHES)),
        draft=draft,
        depth=setting.depth,
        slots=slots,
        context=whole(_CONTEXT, line.value(_CONTEXT)),
        unified=_switch(line, _UNIFIED) == "on" or (slots is None and line.last(_UNIFIED) is None),
        dtypes=kv_pair(str(setting.get("kv_dtype", "f16"))),
        fits=line.value("--fit") not in _OFF,
        fit_target=_number(line, "--fit-target", _FIT_TARGET_MIB) << 20,
        fit_context=_number(line, "--fit-ctx", _FIT_CONTEXT),
        layers_given=line.value(_LAYERS) not in (None, "auto", "-1"),
    )


def _said(line: CommandLine, names: tuple[str, ...]) -> Said:
    return tuple((name, line.value(name)) for name in names)


def _switch(line: CommandLine, name: str) -> str | None:
    """ "on" or "off"; None when it is not said."""
    item = line.last(name)
    option = line.grammar.options[name]
    if item is not None:
        return "off" if plain(item.spelling) in option.off else "on"
    text = line.env.get(option.env or "")
    return None if text is None else "off" if text in _OFF else "on"


def _number(line: CommandLine, name: str, default: int) -> int:
    """The largest of a list, one for each device."""
    text = line.value(name)
    return default if text is None else max(whole(name, part) or 0 for part in text.split(","))


def _padded(cells: int) -> int:
    return -(-cells // _PAD) * _PAD
