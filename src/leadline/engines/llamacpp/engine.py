"""The plug-in: ports.Engine for llama-server, over the modules of this package."""

from __future__ import annotations

from collections.abc import Sequence

from leadline.engines.llamacpp import dialect, probes
from leadline.engines.llamacpp.diagnosis import diagnose
from leadline.engines.llamacpp.memory import memory_law
from leadline.evidence import Acceptance, Device, Diagnosis, Effective, Evidence, MemoryLaw, Model, Probe, Reply
from leadline.launch import LaunchSpec
from leadline.space import Knob, Setting, Value
from leadline.trial import RequestRecord


class LlamaCpp:
    """Tried on build 10434. Builds are not told apart: `version` is accepted and not used."""

    name = "llamacpp"
    programs: tuple[str, ...] = ("llama-server", "llama-server.exe")
    default_port = dialect.DEFAULT_PORT

    def knobs(self, version: str | None) -> Sequence[Knob]:
        return dialect.knobs()

    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        """Adds --metrics and --slots, which the measurements need; everything else only as the setting says."""
        return dialect.render(base, setting)

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
        return probes.acceptance(before, after, records)

    def foreign_tokens(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
        return probes.foreign_tokens(before, after, records)

    def restarted(self, before: Evidence, after: Evidence) -> bool:
        return probes.restarted(before, after)

    def memory_law(self, model: Model, device: Device, evidence: Evidence) -> MemoryLaw:
        return memory_law(model, device, evidence)
