"""The plug-in: ports.Engine for trtllm-serve, over the modules of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from leadline.engines.trtllm import counters, dialect, probes
from leadline.engines.trtllm.diagnosis import diagnose
from leadline.engines.trtllm.knobs import KNOBS
from leadline.engines.trtllm.memory import footprint
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

_PROGRAMS: tuple[str, ...] = ("trtllm-serve",)


@dataclass(frozen=True)
class TensorRTLLM:
    """TensorRT-LLM 1.2 and later, PyTorch and AutoDeploy backends, one host.

    Read from the source of 1.1 to 1.3rc, and not yet tried on a GPU: check a new release with `trtllm-serve --help`.
    Speculation stands in the YAML file only; each setting gets a changed copy of that file.
    """

    version: str | None = None

    name = "trtllm"
    programs = _PROGRAMS
    default_port = dialect.DEFAULT_PORT
    drafts_alone = "NGram"

    def at(self, version: str | None) -> TensorRTLLM:
        return replace(self, version=version)

    def version_argv(self, launch: LaunchSpec) -> tuple[str, ...] | None:
        return dialect.version_argv(launch)

    def files(self, launch: LaunchSpec) -> tuple[str, ...]:
        """The YAML file of --config or --extra_llm_api_options."""
        return dialect.files(launch)

    def model(self, launch: LaunchSpec) -> str | None:
        return dialect.model(launch)

    def knobs(self) -> Sequence[Knob]:
        return KNOBS

    def render(self, base: LaunchSpec, setting: Setting) -> LaunchSpec:
        """Adds `return_perf_metrics: true`, which the measurements need; everything else only as the setting says."""
        return dialect.render(base, setting, self.version)

    def parse(self, launch: LaunchSpec) -> Setting:
        """The knobs of `knobs`; of `flag:` and `env:` see `value`. Raises InputError when a launch cannot be read."""
        return dialect.parse(launch, self.version)

    def value(self, launch: LaunchSpec, name: str) -> Value | None:
        return dialect.value_of(launch, name, self.version)

    def address(self, launch: LaunchSpec) -> tuple[str, int]:
        return dialect.address(launch)

    def move(self, launch: LaunchSpec, port: int) -> LaunchSpec:
        return dialect.move(launch, port)

    def probes(self) -> Sequence[Probe]:
        return probes.PROBES

    def effective(self, evidence: Evidence) -> Effective:
        return probes.effective(evidence)

    def loading(self, reply: Reply) -> bool:
        """Never: `launch_server` of `commands/serve.py` listens once the model is loaded, and refuses until then."""
        return False

    def diagnose(self, evidence: Evidence) -> Diagnosis:
        return diagnose(evidence)

    def acceptance(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> Acceptance | None:
        return counters.acceptance(before, after, records)

    def foreign_tokens(self, before: Evidence, after: Evidence, records: Sequence[RequestRecord]) -> int:
        return counters.foreign_tokens(before, after, records)

    def restarted(self, before: Evidence, after: Evidence) -> bool:
        return counters.restarted(before, after)

    def busy(self, reply: Reply) -> Busy | None:
        return probes.busy(reply)

    def body_fields(self) -> dict[str, object]:
        """None: what it tells about a request stands under /perf_metrics, which is emptied by reading."""
        return {}

    def memory(self, launch: LaunchSpec, ground: Ground) -> Footprint:
        return footprint(launch, ground, self.version)
