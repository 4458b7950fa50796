"""ports.Target and ports.Service for one service of compose: its words are tried through an override file of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leadline.errors import InputError
from leadline.evidence import ServiceFacts
from leadline.launch import LaunchFile, LaunchSpec, Run, Step, masked
from leadline.ports import Completed, Guard, Observed, Site, Terms
from leadline.targets.compose import guard, patch, reading, scripts
from leadline.targets.compose import rollout as permanent
from leadline.targets.compose.override import Override, text_of
from leadline.targets.compose.place import Place, by_hand, place_of
from leadline.targets.compose.reading import Definition
from leadline.targets.compose.words import Taken, carried, escaped, raw_words, without_secrets

MEANT, RAW, IMAGE, RUNS = "compose config", "compose config --no-interpolate", "image inspect", "container inspect"
"""Names in Observed.texts of what is no file."""


class ComposeTarget:
    name = "compose"
    guarantee = (
        "disconnect, lease and deadline revert: units of systemd on the service's host recreate the container by your "
        "own files when our connection ends, when we give no sign of life, at the window's end, and after a power cut"
    )

    def __init__(self, site: Site) -> None:
        self._place = place_of(site)
        self.service: ComposeService | None = ComposeService(self._place)

    def observe(self) -> Sequence[Run]:
        return (scripts.observe(self._place),)

    def interpret(self, completed: Sequence[Completed]) -> Observed:
        place, answer = self._place, completed[0]
        found = reading.sections(answer)
        config, source, inspect = (_answered(found, about, answer) for about in ("config", "source", "inspect"))
        meant = reading.definition(config, place.service)
        _refuse_odd(meant.rest, place.service)
        there = reading.containers(inspect)
        _refuse_several(there, place)
        image = reading.section(found, "image")
        words = reading.in_force(meant, reading.image_words(image.text if image else ""))
        if not words.argv or (len(words.entrypoint) == 1 and words.entrypoint[0].endswith(".sh") and not words.command):
            raise InputError(
                f"compose service {place.service} names no words of a server: its image's own script holds them. Give "
                f"the server's command in the compose file"
            )
        trial, was, owner = (reading.section(found, about) for about in ("trial", "was", "owner"))
        held = trial is not None and trial.rest != "absent"
        return Observed(
            launch=LaunchSpec(argv=words.argv, env=meant.env, cwd=meant.rest.get("working_dir")),
            running=was.text.strip() == "running" if held and was else any(map(reading.running, there)),
            files=reading.digests(found),
            texts={
                **reading.texts(found),
                MEANT: config,
                RAW: source,
                IMAGE: image.text if image else "",
                RUNS: inspect if not held else "",
            },
            held=held,
            holder=owner.text.strip() if owner else "",
        )

    def plan(self, launch: LaunchSpec, observed: Observed, log: str) -> Sequence[Step]:
        """Raises InputError for a launch that this service cannot be given, or not without showing a secret."""
        place = self._place
        _refuse_drift(observed, place.service)
        override, taken = self._override(launch, observed)
        header = (
            f"Leadline tries a setting of {place.service} with this file. It holds words of the service, no secret.",
            f"Undo, as root: systemctl start leadline-restore-{place.key}; or, by hand:",
            *(f"  {line}" for line in by_hand(place)),
        )
        text = text_of(place.service, override, header)
        return (
            scripts.candidate(place, text, taken, observed.files),
            scripts.take(place),
            scripts.halt(place),
            scripts.up(place, taken, observed.files),
            scripts.read_back(place),
        )

    def confirm(self, launch: LaunchSpec, answers: Sequence[Completed]) -> None:
        place, found = self._place, reading.sections(answers[-1])
        if answers[-1].code != 0 or not found:
            raise InputError(f"the trial of {place.service} could not be prepared: {reading.why(answers[-1])}")
        if reading.section(found, "config") is None:
            self._confirm_container(launch, answers[-1], found)
            return
        base = reading.definition(_answered(found, "base", answers[-1]), place.service)
        new = reading.definition(_answered(found, "config", answers[-1]), place.service)
        image = reading.section(found, "image")
        words = reading.in_force(new, reading.image_words(image.text if image else ""))
        _compare_words(launch.argv, words.argv)
        _compare_env(launch.env, new.env)
        if base.rest != new.rest:
            raise InputError(f"compose understands more of {place.service} than its words to be changed by the trial")

    def _confirm_container(self, launch: LaunchSpec, answer: Completed, found: Sequence[reading.Section]) -> None:
        there = reading.containers(_answered(found, "inspect", answer))
        if len(there) != 1:
            raise InputError(f"{len(there)} containers of {self._place.service} were made, not one")
        runs = reading.argv_of(there[0])
        if runs[-len(launch.argv) :] != launch.argv:
            _compare_words(launch.argv, runs)

    def restore(self, observed: Observed) -> Sequence[Step]:
        return (scripts.back(self._place),)

    def rollout(self, launch: LaunchSpec, observed: Observed, present: str, note: str) -> Sequence[Step]:
        """Raises InputError when a word that changes place holds a secret in clear."""
        override, taken = self._override(launch, observed)
        if taken:
            raise InputError(
                f"a word of {self._place.service} is a secret in clear, which a file of ours must not hold: put it "
                f"into .env, write ${{NAME}} in its place, start the service once, then apply again"
            )
        return permanent.rollout(self._place, override, present, note)

    def rollout_path(self) -> str:
        return self._place.rollout

    def undo(self, observed: Observed, written: str, previous: str) -> Sequence[Step]:
        return permanent.undo(self._place, observed.files, written, previous)

    def patch(self, launch: LaunchSpec, observed: Observed) -> str:
        """A unified diff of the operator's own compose file that says what a rollout would."""
        own = [file for file in _files(observed, self._place) if file.path in self._place.files]
        return patch.patch(own, self._place.service, self._plain(launch, observed))

    def _override(self, launch: LaunchSpec, observed: Observed) -> tuple[Override, tuple[Taken, ...]]:
        plain, files = self._plain(launch, observed), _files(observed, self._place)
        command, entrypoint = plain.command, plain.entrypoint
        taken: tuple[Taken, ...] = ()
        if command is not None:
            command, taken = without_secrets(command, files)
        if entrypoint is not None:
            entrypoint, taken = without_secrets(entrypoint, files, taken)
        shown = dict(masked(LaunchSpec(argv=(), env=tuple(plain.environment.items()))).env)
        if shown != dict(plain.environment):
            raise InputError("a variable that holds a secret cannot be set by a setting: set it in .env")
        return Override(entrypoint=entrypoint, command=command, environment=plain.environment), taken

    def _plain(self, launch: LaunchSpec, observed: Observed) -> Override:
        """What of the service must be other than it is, with the operator's own words where they stay."""
        if launch.ours:
            raise InputError(
                "this setting needs a changed copy of a configuration file, which the container could not see: give "
                "its options on the command line"
            )
        base = reading.definition(observed.texts[MEANT], self._place.service)
        raw = reading.service_of(observed.texts[RAW], self._place.service)
        words = reading.in_force(base, reading.image_words(observed.texts[IMAGE]))
        environment = _environment(launch, base)
        before = words.argv
        as_written = (
            *(() if words.hidden else _raw(raw.get("entrypoint"), base.entrypoint, words.entrypoint)),
            *_raw(raw.get("command"), base.command, words.command),
        )
        now = carried(launch.argv, before, as_written)
        kept = () if words.hidden else words.entrypoint
        if launch.argv == before:
            return Override(environment=environment)
        if launch.argv[: len(kept)] == kept:
            return Override(command=now[len(kept) :], environment=environment)
        return Override(entrypoint=now, command=(), environment=environment)


class ComposeService:
    """ports.Service of the same."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def look(self) -> Run:
        return scripts.look(self._place)

    def facts(self, completed: Completed) -> ServiceFacts:
        return reading.facts(completed)

    def log(self, cursor: str) -> Run:
        container, _, since = cursor.partition(" ")
        return scripts.log(self._place, container or "-", since or "-")

    def logged(self, completed: Completed) -> tuple[str, str]:
        return reading.logged(completed)

    def guard(self, terms: Terms) -> Guard | None:
        return guard.guard(self._place, terms)

    def unlock(self) -> Sequence[Run]:
        return guard.unlock(self._place)


def _answered(found: Sequence[reading.Section], about: str, answer: Completed) -> str:
    told = reading.section(found, about)
    if told is None or told.rest != "0":
        what = "the container engine" if about == "inspect" else "compose"
        raise InputError(f"{what} refuses: {reading.why(answer)}")
    return told.text


def _refuse_odd(rest: Mapping[str, Any], service: str) -> None:
    deploy = rest.get("deploy") or {}
    replicas = rest.get("scale", deploy.get("replicas", 1))
    if replicas != 1 or deploy.get("mode") not in (None, "replicated"):
        raise InputError(
            f"compose service {service} has {replicas} replicas or a mode of swarm: settings are tried on exactly one "
            f"container"
        )
    if rest.get("network_mode") is None and not any(_same_port(port) for port in rest.get("ports") or ()):
        raise InputError(
            f"compose service {service} publishes no port of its server under the same number, so that the server "
            f"cannot be found from its host: publish it as PORT:PORT, or use network_mode: host"
        )


def _same_port(port: Mapping[str, Any]) -> bool:
    return str(port.get("published")) == str(port.get("target"))


def _refuse_several(there: Sequence[Mapping[str, Any]], place: Place) -> None:
    if any("com.docker.swarm.service.id" in reading.labels(c) for c in there):
        raise InputError(f"service {place.service} is run by docker swarm: settings are tried on compose services only")
    if len(there) > 1:
        raise InputError(
            f"compose service {place.service} has {len(there)} containers: settings are tried on exactly one (scale it "
            f"down, remove those that are left over)"
        )


def _refuse_drift(observed: Observed, service: str) -> None:
    """What goes back by the files must be what is in force."""
    there = reading.containers(observed.texts.get(RUNS, ""))
    if not there or observed.held:
        return
    runs, meant = reading.argv_of(there[0]), observed.launch.argv
    if runs[-len(meant) :] != meant:
        raise InputError(
            f"the container of {service} was made with other words than its compose files have now, so that nothing "
            f"could give it back as it is: run `up -d` first, with all variables that the files need in .env"
        )
    now = reading.image_id(observed.texts.get(IMAGE, ""))
    if now and str(there[0].get("Image")).removeprefix("sha256:") != now:
        raise InputError(
            f"the image of {service} was pulled or built again since its container was made: run `up -d` first, or the "
            f"trials would run another image than today's service"
        )


def _compare_words(meant: Sequence[str], understood: Sequence[str]) -> None:
    if tuple(meant) == tuple(understood):
        return
    same = next((i for i, (m, u) in enumerate(zip(meant, understood, strict=False)) if m != u), None)
    where = "they differ in number" if same is None else f"first at word {same + 1}"
    shown = [str(masked(LaunchSpec(argv=tuple(side)))) for side in (understood, meant)]
    raise InputError(f"compose understands other words than were meant ({where}): {shown[0]} instead of {shown[1]}")


def _compare_env(meant: Sequence[tuple[str, str]], understood: Sequence[tuple[str, str]]) -> None:
    names = sorted({name for name, _ in set(meant) ^ set(understood)})
    if names:
        raise InputError(f"compose understands another environment than was meant: {', '.join(names)}")


def _environment(launch: LaunchSpec, base: Definition) -> dict[str, str]:
    had = dict(base.env)
    gone = sorted(set(had) - {name for name, _ in launch.env})
    if gone:
        raise InputError(f"an override file cannot take a variable away: {', '.join(gone)}")
    return {name: escaped(value) for name, value in launch.env if had.get(name) != value}


def _raw(value: object, given: Sequence[str] | None, words: Sequence[str]) -> tuple[str, ...]:
    """As written in the files; an image's own words, escaped."""
    return raw_words(value, words) if given is not None else tuple(map(escaped, words))


def _files(observed: Observed, place: Place) -> tuple[LaunchFile, ...]:
    paths = (*place.files, place.rollout, f"{place.folder}/.env")
    return tuple(LaunchFile(path, observed.texts[path]) for path in paths if path in observed.texts)


target = ComposeTarget
