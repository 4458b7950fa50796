"""Why an SGLang server ended or does not serve.

Facts of the supervisor come first, then the first telling line of its log, then its exit code, then its answers. When
a process of SGLang ends, the rest kills itself with SIGKILL whatever the cause was (`utils/common.py`,
kill_process_tree): a signal 9 or an exit code 137 then says nothing, and the log is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from leadline.dialect.signs import Sign, by_supervisor, last_line, masked_line, telling
from leadline.engines.sglang.alive import silent
from leadline.engines.sglang.exceptions import Raised
from leadline.engines.sglang.signs import AFTERMATH, ENDING, HOST_REMEDY, LIVING, MORE_HOST_MEMORY, SUPERVISOR
from leadline.engines.sglang.stages import Stage, out_of_memory, stage_after
from leadline.evidence import Diagnosis, Evidence, ExitFacts, Failure

_END = "[0000-00-00 end of the log"
"""A line that ends every traceback."""
_USAGE_ERROR = 2
_JOURNAL = re.compile(r"^(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\dT\S+) \S+ [^\s\[\]:]+\[\d+\]: ")
_SELF_KILL = re.compile(r"kill_process_tree called:|SIGQUIT received\.|Received sigquit from a child process")
_SPEAKS = re.compile(r"^(?:\[\d{4}-\d\d-\d\d |INFO|WARNING|ERROR|DEBUG)|\bHTTP/\d")
"""A line of the log's own, and no further line of an exception's message."""
_CHILD_KILLED = re.compile(r"scheduler died during initialization \(exit code: -9\)|crashed with exit code -9\b")


def diagnose(evidence: Evidence) -> Diagnosis:
    if evidence.exit is None:
        return _running(evidence)
    return _by_kernel(evidence.exit, evidence.log) or cause(evidence) or _by_exit(evidence.exit, evidence.log)


def cause(evidence: Evidence) -> Diagnosis | None:
    """By the log alone: what the kernel and systemd say, then the first telling line or exception, then what followed.

    An exception that no line calls fatal counts once the server has ended, or when nothing but it follows in the log of
    a server that is not known to run: before the weights it comes first, since nothing of the server runs yet that
    could survive it.
    """
    lines = [_JOURNAL.sub("", line) for line in evidence.log.splitlines()]
    walk = _walk(lines)
    found = _first(lines, SUPERVISOR) or walk.told
    loose = walk.loose.diagnosis() if walk.loose is not None and _ended_with(evidence, lines, walk.loose) else None
    if loose is not None and walk.stage is Stage.BEGUN:
        found = found or loose
    found = found or _first(lines, AFTERMATH) or loose
    return None if found is None else _of_draft(found, evidence.argv)


def _ended_with(evidence: Evidence, lines: Sequence[str], raised: Raised) -> bool:
    """Whether the server ended after that exception; when nobody saw it, whether its log ends with the traceback."""
    health = evidence.replies.get("health")
    if evidence.exit is not None:
        return True
    if evidence.process is not None or (health is not None and health.status) or not raised.text:
        return False
    at = max(n for n, line in enumerate(lines) if line == raised.text)
    return not any(_SPEAKS.search(line) for line in lines[at + 1 :])


def _by_kernel(exit: ExitFacts, text: str) -> Diagnosis | None:
    if exit.host_oom_kills and not exit.asked and _CHILD_KILLED.search(text):
        return Diagnosis(
            failure=Failure.HOST_OOM,
            reason=f"the kernel killed one of its processes for want of host memory, and the rest ended ({exit})",
            line=next((masked_line(line) for line in text.splitlines() if _CHILD_KILLED.search(line)), ""),
            remedy=HOST_REMEDY,
            implies=MORE_HOST_MEMORY,
        )
    said = by_supervisor(exit, MORE_HOST_MEMORY, HOST_REMEDY)
    if said is not None and said.failure is Failure.KILLED and _SELF_KILL.search(text):
        return None
    return said


@dataclass(frozen=True, slots=True)
class _Walk:
    """`told` = the first telling line or fatal exception; `loose` = the last exception that nothing calls fatal."""

    told: Diagnosis | None
    loose: Raised | None
    stage: Stage


def _walk(lines: Sequence[str]) -> _Walk:
    stage, raised, loose = Stage.BEGUN, None, None
    for line in (*lines, _END):
        if raised is not None and not raised.take(line):
            if raised.fatal:
                return _Walk(raised.diagnosis(), None, stage)
            loose, raised = (loose if raised.follows_up else raised), None
        if raised is None:
            raised = Raised.begins(line)
        elif line.startswith((" ", "\t")):
            continue  # the source of a frame may quote a message
        stage = stage_after(line, stage)
        if found := out_of_memory(line, stage) or telling(line, ENDING, started=stage is Stage.SERVING):
            return _Walk(found, None, stage)
    return _Walk(None, loose, stage)


def _of_draft(found: Diagnosis, argv: Sequence[str]) -> Diagnosis:
    """A model that is missing may be the draft: then depth 0 starts."""
    flags = ("--speculative-draft-model-path", "--speculative-draft-model", "--speculative-draft")
    drafts = [value for flag, value in pairwise(argv) if flag in flags]
    drafts += [word.partition("=")[2] for word in argv if word.partition("=")[0] in flags]
    if found.failure is not Failure.MODEL_MISSING or not any(draft and draft in found.line for draft in drafts):
        return found
    return msgspec.structs.replace(
        found,
        failure=Failure.DRAFT_BAD,
        reason="the draft model is not where the launch says",
        remedy="correct --speculative-draft-model-path, or give access to it",
        implies="every depth above 0 fails with this draft model",
        fails_too=("depth+", "draft_model="),
    )


def _by_exit(exit: ExitFacts, text: str) -> Diagnosis:
    if exit.code == _USAGE_ERROR:
        return Diagnosis(
            failure=Failure.BAD_FLAG,
            reason="SGLang did not accept its command line (exit code 2)",
            line=last_line(text),
            remedy="start it by hand and read what it says of its flags",
        )
    return Diagnosis(
        failure=Failure.CRASHED,
        reason=f"it ended by itself ({exit}), and no line of its log says why",
        line=last_line(text),
        remedy="read the end of its log; dmesg tells of kills and of the GPU",
    )


def _running(evidence: Evidence) -> Diagnosis:
    """Alive as a process, which says little: `/health` went on to answer for an hour after the scheduler had died
    (sgl-project/sglang issue 6624)."""
    fatal = cause(evidence)
    health = evidence.replies.get("health")
    if fatal is not None:
        if health is None or not health.ok:
            return fatal
        return msgspec.structs.replace(
            fatal,
            failure=Failure.ENGINE_DEAD,
            reason=f"/health still answers, but the engine behind it is dead: {fatal.reason}",
        )
    return silent(evidence) or _first(evidence.log.splitlines(), LIVING) or _nothing()


def _nothing() -> Diagnosis:
    return Diagnosis(
        failure=Failure.UNKNOWN,
        reason="it runs, and nothing in its log or its answers says what is wrong",
        remedy="read its log",
    )


def _first(lines: Sequence[str], signs: Sequence[Sign]) -> Diagnosis | None:
    return next((said for line in lines if (said := telling(line, signs, started=True))), None)
