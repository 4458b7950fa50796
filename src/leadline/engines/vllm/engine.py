"""The plug-in: ports.Engine for vLLM's OpenAI server, over the modules of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leadline.engines.vllm import counters, dialect, probes, programs, reading, versions
from leadline.engines.vllm.diagnosis import diagnose
from leadline.engines.vllm.memory import footprint
from leadline.evidence import Acceptance, Busy, Diagnosis, Effective, Evidence, Footprint, Ground, Probe, Reply
from leadline.launch import LaunchSpec
from leadline.space import Knob, Setting, Value
from leadline.trial import RequestRecord

_PROGRAMS: tuple[str, ...] = ("vllm",)


@dataclass(frozen=True)
class VLLM:
    """`vllm serve`, and `python -m vllm.entrypoints.openai.api_server`.

    Options were read in the releases named in `versions`; of these 0.22.1 was run. `version` None = not known: the
    words of the newest release are used, and nothing is refused for a release's sake.
    """

    version: str | None = None

    name = "vllm"
    programs = _PROGRAMS
    default_port = dialect.DEFAULT_PORT
    drafts_alone = "ngram"

    def at(self, version: str | None) -> VLLM:
        return VLLM(version)

    def version_argv(self, launch: LaunchSpec) -> tuple[str, ...] | None:
        return programs.version_argv(launch)

    def files(self, launch: LaunchSpec) -> tuple[str, ...]:
        """The file of `--config`, as the launch names it."""
        return reading.files(launch)

    def model(self, launch: LaunchSpec) -> str | None:
        return reading.model(reading.read(launch))

    def knobs(self) -> Sequence[Knob]:
        return dialect.knobs()

    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        """Takes --disable-log-stats away, since the counters go with it; from 0.32 on, has each answer tell its
        acceptance. Everything else only as the setting says."""
        return dialect.render(base, setting, versions.release(self.version))

    def parse(self, launch: LaunchSpec) -> Setting:
        """The knobs of `knobs`; of `flag:` and `env:` see `value`. Raises InputError when a command cannot be read."""
        return dialect.parse(launch)

    def value(self, launch: LaunchSpec, name: str) -> Value | None:
        """Numbers of a flag as numbers, a bare flag as true or false; a variable is always text."""
        return dialect.value_of(launch, name)

    def address(self, launch: LaunchSpec) -> tuple[str, int]:
        return dialect.address(launch)

    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        return dialect.move(launch, port)

    def probes(self) -> Sequence[Probe]:
        return probes.PROBES

    def effective(self, evidence: Evidence) -> Effective:
        return probes.effective(evidence)

    def loading(self, reply: Reply) -> bool:
        return probes.loading(reply)

    def diagnose(self, evidence: Evidence) -> Diagnosis:
        return diagnose(evidence)

    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        return counters.acceptance(before, after, records)

    def foreign_tokens(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
        longest = probes.context(after) or probes.context(before)
        return counters.foreign_tokens(before, after, records, longest)

    def restarted(self, before: Evidence, after: Evidence) -> bool:
        return counters.restarted(before, after)

    def busy(self, reply: Reply) -> Busy | None:
        return counters.busy(reply)

    def body_fields(self) -> dict[str, object]:
        """None: the launch makes every answer tell, with the usage that the load client asks for anyway."""
        return {}

    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        return footprint(launch, ground, self.version)
