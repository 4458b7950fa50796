"""The plug-in: ports.Engine for llama-server, over the modules of this package."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.engines.llamacpp import dialect, probes, reading
from leadline.engines.llamacpp.diagnosis import diagnose
from leadline.engines.llamacpp.memory import footprint
from leadline.evidence import Acceptance, Busy, Diagnosis, Effective, Evidence, Footprint, Ground, Probe, Reply
from leadline.launch import LaunchSpec
from leadline.space import Knob, Setting, Value
from leadline.trial import RequestRecord


class LlamaCpp:
    """Tried on build 10434, and read in the source of build 11434; `build` None = not known which."""

    name = "llamacpp"
    programs: tuple[str, ...] = ("llama-server", "llama-server.exe")
    default_port = reading.DEFAULT_PORT
    drafts_alone = "ngram-simple"

    def __init__(self, build: int | None = None) -> None:
        self.build = build

    def at(self, version: str | None) -> LlamaCpp:
        """`version`: all that --version prints, or `build_info` of /props. A build without a number is not known."""
        return type(self)(reading.build_of(version))

    def version_argv(self, launch: LaunchSpec) -> tuple[str, ...] | None:
        """Prints to stderr, and the version first: give all of it to `at`."""
        return reading.version_argv(launch)

    def files(self, launch: LaunchSpec) -> tuple[str, ...]:
        """None: all of llama-server's options stand on its command line or in its environment."""
        return ()

    def model(self, launch: LaunchSpec) -> str | None:
        return reading.model(launch, self.build)

    def knobs(self) -> Sequence[Knob]:
        return dialect.knobs()

    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        """Adds --metrics and --slots, which the measurements need; everything else only as the setting says."""
        return dialect.render(base, setting, self.build)

    def parse(self, launch: LaunchSpec) -> Setting:
        """The knobs of `knobs`; of `flag:` and `env:` see `value`. Raises InputError when a command cannot be read."""
        return dialect.parse(launch, self.build)

    def value(self, launch: LaunchSpec, name: str) -> Value | None:
        """Numbers of a flag as numbers, a bare flag as true or false; a variable is always text."""
        return dialect.value_of(launch, name, self.build)

    def address(self, launch: LaunchSpec) -> tuple[str, int]:
        return reading.address(launch, self.build)

    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        return reading.move(launch, port, self.build)

    def probes(self) -> Sequence[Probe]:
        return probes.PROBES

    def effective(self, evidence: Evidence) -> Effective:
        return probes.effective(evidence)

    def loading(self, reply: Reply) -> bool:
        return probes.loading(reply)

    def diagnose(self, evidence: Evidence) -> Diagnosis:
        return diagnose(evidence)

    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        return probes.acceptance(before, after, records)

    def foreign_tokens(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
        return probes.foreign_tokens(before, after, records)

    def restarted(self, before: Evidence, after: Evidence) -> bool:
        return probes.restarted(before, after)

    def busy(self, reply: Reply) -> Busy | None:
        return probes.busy(reply)

    def body_fields(self) -> dict[str, object]:
        """None: each answer tells `draft_n` and `draft_n_accepted` under `timings` anyway."""
        return {}

    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        return footprint(launch, ground, self.build)
