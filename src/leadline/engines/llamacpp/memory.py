"""How much memory a launch will take: what earlier launches reported, carried over to another depth, context or type.

All is allocated at start, and the slots are the concurrency: no formula admits fewer. What grows: KV with the cells;
recurrent states with `slots * (1 + depth)` rows, where a draft can be rolled back (b11434: `n_rs_seq`); a draft's own
context, once, at any depth above 0. On public tables of two cards (MTP of a hybrid model, depths 1 to 6;
github.com/sudoingX/qwen38-mtp) the line through two depths was right within 0.02 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from leadline.dialect.footprint import free_bytes, line, unknown
from leadline.engines.llamacpp import logs
from leadline.engines.llamacpp.gguf import BYTES_PER_32, cell_bytes, context_length
from leadline.engines.llamacpp.layout import Layout, layout
from leadline.errors import InputError
from leadline.evidence import Footprint, Ground, Seen, Verdict
from leadline.launch import LaunchSpec

LINE_ERROR = 0.0002
_NAMES = {"model": "weights", "KV": "kv", "RS": "states", "compute": "compute", "output": "compute"}
_HOST = "the host"
_MIB = 1 << 20

Parts = dict[str, int | None]


@dataclass(frozen=True, slots=True)
class Look:
    """An earlier launch that came up and told its buffers: the bytes of the fullest device, by what they are for.

    `cells` of all slots; `free` = bytes that the device had before.
    """

    layout: Layout
    device: str
    parts: Mapping[str, int]
    cells: int
    caches: tuple[logs.Cache, ...]
    states: tuple[logs.States, ...]
    free: int | None


def footprint(launch: LaunchSpec, ground: Ground, build: int | None) -> Footprint:
    """On the fullest device. What follows neither from an earlier launch nor from the model's fields is not said."""
    try:
        wanted = layout(launch, build)
    except InputError as error:
        return unknown(str(error))
    looks = [look for seen in ground.seen if (look := _look(seen, build)) and look.layout.places == wanted.places]
    same = [look for look in looks if look.layout.draft == wanted.draft]
    if same:
        return _foreseen(wanted, _of_one_device(same), ground)
    bare = [look for look in looks if look.layout.draft is None]
    if bare:
        return _at_least(wanted, _of_one_device(bare), ground)
    return _by_fields(wanted, ground)


def _look(seen: Seen, build: int | None) -> Look | None:
    told, buffers = logs.slots(seen.log), logs.buffers(seen.log)
    if told is None or not buffers:  # it did not come up, or ran without -lv 4
        return None
    try:
        its = layout(seen.launch, build)
    except InputError:
        return None
    by_device: dict[str, dict[str, int]] = {}
    for one in buffers:
        parts = by_device.setdefault(_HOST if one.on_host else one.device, {})
        parts[_NAMES[one.kind]] = parts.get(_NAMES[one.kind], 0) + one.size
    devices = {name: parts for name, parts in by_device.items() if name != _HOST} or by_device
    fullest = max(devices, key=lambda name: sum(devices[name].values()))
    free = logs.free_bytes(seen.log).get(fullest)
    caches, states = tuple(logs.caches(seen.log)), tuple(logs.states(seen.log))
    return Look(its, fullest, devices[fullest], told.cells, caches, states, free)


def _of_one_device(looks: Sequence[Look]) -> list[Look]:
    """Those whose fullest device is the fullest of all."""
    fullest = max(looks, key=lambda look: sum(look.parts.values())).device
    return [look for look in looks if look.device == fullest]


def _foreseen(wanted: Layout, same: Sequence[Look], ground: Ground) -> Footprint:
    """From launches with the same weights and the same draft."""
    alike = {look.layout.depth: look for look in same if look.layout.but_for_depth == wanted.but_for_depth}
    if wanted.depth in alike or len(alike) > 1:
        parts = _by_depth(alike, wanted.depth)
        cells: int | None = alike[min(alike, key=lambda depth: abs(depth - wanted.depth))].cells
        basis, error = "the buffers of earlier launches that differ in depth alone", LINE_ERROR
    else:
        look = min(same, key=lambda one: (not _same_cells(one, wanted), abs(one.layout.depth - wanted.depth)))
        parts = _carried_over(look, wanted)
        cells = look.cells if _same_cells(look, wanted) else wanted.cells
        basis, error = "the buffers of an earlier launch", None
    return _judged(wanted, parts, cells, _room(ground, same), Footprint(basis=basis, error_frac=error))


def _by_depth(alike: Mapping[int, Look], depth: int) -> Parts:
    """Each part as it was at that depth, or else on the line through the others."""
    if depth in alike:
        return dict(alike[depth].parts)
    names = {name: None for look in alike.values() for name in look.parts}
    amounts = {name: line([(d, look.parts.get(name, 0)) for d, look in alike.items()], depth) for name in names}
    return {name: None if amount is None else max(0, round(amount)) for name, amount in amounts.items()}


def _carried_over(look: Look, wanted: Layout) -> Parts:
    """Weights and compute buffers as they were (the batch is the same); KV by cells and type; states by rows."""
    shares = {"kv": _kv_share(look, wanted), "states": _states_share(look, wanted)}
    parts: Parts = dict(look.parts)
    for name, share in shares.items():
        if name in parts:
            parts[name] = None if share is None else round(look.parts[name] * share)
    return parts


def _kv_share(look: Look, wanted: Layout) -> float | None:
    share = 1.0
    if wanted.dtypes != look.layout.dtypes:
        old, new = (_even_type(dtypes) for dtypes in (look.layout.dtypes, wanted.dtypes))
        if wanted.draft is not None or old is None or new is None:  # the draft's cache keeps its type
            return None
        share = new / old
    if _same_cells(look, wanted):
        return share
    sizes = {cache.cells for cache in look.caches}
    if wanted.cells is None or len(sizes) != 1:  # a window's cache does not grow with the context
        return None
    return share * wanted.cells / max(1, *sizes)


def _even_type(dtypes: tuple[str, str]) -> int | None:
    """Keys and values of a head may differ in length, so that only one type for both tells the bytes."""
    return BYTES_PER_32.get(dtypes[0]) if dtypes[0] == dtypes[1] else None


def _same_cells(look: Look, wanted: Layout) -> bool:
    its = look.layout
    return (its.slots, its.context, its.unified) == (wanted.slots, wanted.context, wanted.unified)


def _states_share(look: Look, wanted: Layout) -> float | None:
    """By rows; None when the log does not say how many a sequence has."""
    if any(s.per_depth is None for s in look.states):
        return None
    old = sum(s.rows for s in look.states)
    new = sum(wanted.sequences * (1 + (wanted.depth if s.per_depth else 0)) for s in look.states)
    return new / old if old else None


def _at_least(wanted: Layout, bare: Sequence[Look], ground: Ground) -> Footprint:
    """From launches without a draft's context, which comes on top."""
    least = _foreseen(replace(wanted, draft=None, depth=0), bare, ground)
    if least.verdict is Verdict.WILL_NOT_START:
        return msgspec.structs.replace(least, reason=f"{least.reason}, even without the draft's context")
    reason = "what the draft's own context takes is known only after one launch with it"
    return unknown(reason, asked_running=wanted.slots, parts=least.parts, basis=least.basis)


def _by_fields(wanted: Layout, ground: Ground) -> Footprint:
    """The KV cache alone; the weights are not among the fields."""
    if ground.model is None:
        return unknown("no earlier launch told its buffers (-lv 4)", asked_running=wanted.slots)
    per_cell = cell_bytes(ground.model, wanted.dtypes)
    cells = wanted.cells or context_length(ground.model)
    kv = per_cell * cells if per_cell and cells else None
    if kv is None:
        return unknown("the model's fields do not tell the size of its cache", asked_running=wanted.slots)
    parts: Parts = {"weights": None, "kv": kv}
    return _judged(wanted, parts, cells, _room(ground, ()), Footprint(basis="the model's GGUF fields"))


def _room(ground: Ground, looks: Sequence[Look]) -> int | None:
    """What was free when an earlier launch began to load, or else what a device of its size has for us."""
    free = [look.free for look in looks if look.free is not None]
    if free or ground.device is None:
        return min(free, default=None)
    on_host = any(look.device == _HOST for look in looks)
    return ground.device.total_bytes if on_host else round(free_bytes(ground.device))


def _judged(wanted: Layout, parts: Parts, cells: int | None, room: int | None, told: Footprint) -> Footprint:
    sizes = {name: size for name, size in parts.items() if size is not None}
    need = sum(sizes.values())
    told = msgspec.structs.replace(told, parts=sizes, asked_running=wanted.slots)
    if room is None:
        return msgspec.structs.replace(told, reason="the memory of the device is not known")
    if need > (room - wanted.fit_target if wanted.gives_way else room):
        return _too_much(wanted, sizes, cells, room, told)
    unknown = [name for name, size in parts.items() if size is None]
    if unknown:
        reason = f"how much the {' and the '.join(unknown)} will take does not follow from what was seen"
        return msgspec.structs.replace(told, reason=reason)
    return msgspec.structs.replace(told, verdict=Verdict.FITS, kv_tokens=cells, max_running=wanted.sequences)


def _too_much(wanted: Layout, sizes: Mapping[str, int], cells: int | None, room: int, told: Footprint) -> Footprint:
    """`-fit` shrinks the context unless it was given, then moves layers to the host unless those were given
    (common/fit.cpp)."""
    need, kv = sum(sizes.values()), sizes.get("kv", 0)
    reason = f"{need // _MIB} MiB are needed on the device, and {room // _MIB} MiB are free"
    left = room - wanted.fit_target - (need - kv)
    if wanted.gives_way and not wanted.context and cells and kv:
        tokens = max(0, left) * cells // kv
        if tokens >= wanted.fit_context:
            return msgspec.structs.replace(
                told,
                verdict=Verdict.STARVED,
                reason=f"{reason}: the context shrinks to about {tokens} tokens",
                kv_tokens=tokens,
                max_running=wanted.sequences,
            )
    if wanted.gives_way and not wanted.layers_given:
        reason = f"{reason}: layers move to the host, which is slow"
        return msgspec.structs.replace(told, verdict=Verdict.STARVED, reason=reason)
    return msgspec.structs.replace(told, verdict=Verdict.WILL_NOT_START, reason=reason)
