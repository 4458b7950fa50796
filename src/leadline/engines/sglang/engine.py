"""The plug-in: ports.Engine for SGLang, over the modules of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leadline.engines.sglang import counters, dialect, memory, probes, programs, server
from leadline.engines.sglang.diagnosis import diagnose
from leadline.engines.sglang.versions import patch_of
from leadline.evidence import (
    Acceptance,
    Busy,
    Diagnosis,
    Effective,
    Evidence,
    Footprint,
    Ground,
    Probe,
    Reply,
)
from leadline.launch import LaunchSpec
from leadline.space import Knob, Setting, Value
from leadline.trial import RequestRecord


@dataclass(frozen=True)
class SGLang:
    """SGLang 0.5.9 to 0.5.23. `version` as the server or its package tells it; None = not known."""

    version: str | None = None

    name = "sglang"
    programs = programs.PROGRAMS
    default_port = dialect.DEFAULT_PORT
    drafts_alone = "NGRAM"

    def at(self, version: str | None) -> SGLang:
        return replace(self, version=version)

    def version_argv(self, launch: LaunchSpec) -> tuple[str, ...] | None:
        return programs.version_argv(launch)

    def files(self, launch: LaunchSpec) -> tuple[str, ...]:
        """The file of `--config`, if there is one."""
        return dialect.files(launch)

    def model(self, launch: LaunchSpec) -> str | None:
        return dialect.model(launch, self._patch)

    def knobs(self) -> Sequence[Knob]:
        return dialect.knobs(self._patch)

    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        """Adds --enable-metrics, which the measurements need, and --max-running-requests where its default would
        depend on the depth; everything else only as the setting says."""
        return dialect.render(base, setting, self._patch)

    def parse(self, launch: LaunchSpec) -> Setting:
        """The knobs of `knobs`; of `flag:` and `env:` see `value`. Raises InputError when a command cannot be read."""
        return dialect.parse(launch, self._patch)

    def unpinned(self, launch: LaunchSpec) -> tuple[str, ...]:
        """Knobs that the launch does not give, and whose default would not be the same in every arm."""
        return dialect.unpinned(launch, self._patch)

    def value(self, launch: LaunchSpec, name: str) -> Value | None:
        """Numbers of a flag as numbers, a bare flag as true or false; a variable is always text."""
        return dialect.value_of(launch, name, self._patch)

    def address(self, launch: LaunchSpec) -> tuple[str, int]:
        return dialect.address(launch, self._patch)

    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        return dialect.move(launch, port, self._patch)

    def probes(self) -> Sequence[Probe]:
        return probes.PROBES

    def effective(self, evidence: Evidence) -> Effective:
        return server.effective(evidence)

    def loading(self, reply: Reply) -> bool:
        return probes.loading(reply)

    def diagnose(self, evidence: Evidence) -> Diagnosis:
        return diagnose(evidence)

    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        return counters.acceptance(before, after, records)

    def foreign_tokens(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
        return counters.foreign_tokens(before, after, records)

    def restarted(self, before: Evidence, after: Evidence) -> bool:
        return counters.restarted(before, after)

    def busy(self, reply: Reply) -> Busy | None:
        return counters.busy(reply)

    def body_fields(self) -> dict[str, object]:
        return probes.body_fields(self.version)

    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        return memory.footprint(launch, ground, self.version)

    @property
    def _patch(self) -> int | None:
        return patch_of(self.version)
