"""Telling log lines: patterns that say why a server ended or does not serve, and the order in which they count.

Facts of the supervisor come first (`by_supervisor`), then the first telling line since the start (`first_of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leadline.evidence import Diagnosis, ExitFacts, Failure
from leadline.masking import BARE, PREFIX, WORDS

SIGKILL = 9
LONGEST = 300
"""Characters of a line that are kept."""
LOOKED_AT = 4000
"""Characters of a line that are searched: a line without an end must not cost minutes."""

_MARGIN = 1000
"""Characters beyond those kept that are masked too: hiding shortens a line."""

_AFTER = rf"(?:{WORDS}(?<!bos.token)(?<!eos.token)(?<!pad.token)(?<!unk.token))['\"]?\s{{0,9}}"
_SECRETS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<head>){BARE}",
        r"(?P<head>\bauthorization['\"]?\s{0,9}[=:]\s{0,9}['\"]?(?:(?:bearer|basic)\s{1,9})?)(?!<secret|bearer\s|basic\s)[^\s'\",)}]+",
        rf"(?P<head>(?<![\w-])--?{PREFIX}(?:{WORDS}|authorization)(?:=|\s{{1,9}}|['\"],\s{{0,9}}))"
        r"(?!-|['\"]?<secret|\s)(?:\"[^\"]*\"|'[^']*'|\S+)",
        rf"(?P<head>{_AFTER}[=:]\s{{0,9}})(?!['\"]<secret)(?:'[^']+'|\"[^\"]+\"|\[[^\]]+\])",
        rf"(?P<head>(?:{_AFTER}(?<!token)(?<!token[\s'\"]))\s)(?!['\"]<secret)['\"][^'\"]{{6,}}['\"]",
        rf"(?P<head>{_AFTER}=\s{{0,9}})(?!none\b|true\b|false\b|\d+\b|<secret|[\s'\"\[,)}}])[^\s'\",)}}]+",
        r"(?P<head>\b[a-z]{2,9}://[^\s/@:]{0,200}:)(?!<secret)[^\s/@]{1,400}(?=@)",
    )
)


@dataclass(frozen=True, slots=True)
class Sign:
    """A telling line. `reason` and `remedy` may use the pattern's named groups. `early` = the class while the server is
    still starting, when that differs."""

    pattern: re.Pattern[str]
    failure: Failure
    reason: str
    remedy: str
    implies: str = ""
    fails_too: tuple[str, ...] = ()
    early: Failure | None = None


def sign(
    pattern: str,
    failure: Failure,
    reason: str,
    remedy: str,
    implies: str = "",
    fails_too: tuple[str, ...] = (),
    early: Failure | None = None,
) -> Sign:
    return Sign(re.compile(pattern), failure, reason, remedy, implies, fails_too, early)


DEVICE_LOST = sign(
    r"NVRM: Xid \([^)]*\): (?P<xid>48|61|62|63|64|74|79|92|94|95|109|119|120|136|140|143|154)\b"
    r"|(?P<other>GPU has fallen off the bus)",
    Failure.DEVICE_LOST,
    "the driver lost the GPU or found it broken (Xid {xid})",
    "stop here: look at dmesg and nvidia-smi; the GPU, or the machine, must be reset before anything is measured",
    "says nothing of any setting",
)
"""Xid numbers that NVIDIA's catalogue attributes to hardware or driver, not to the program (13, 31, 43, 45, 69)."""


START_LIMIT = sign(
    r"Start request repeated too quickly",
    Failure.START_LIMIT,
    "systemd does not start it any more: it had been started too often, before this setting came",
    "`systemctl reset-failed` the unit before the next start, and read why the earlier ones ended",
    "says nothing of the setting",
)
"""systemd's start limit (StartLimitBurst): it would put the blame on whatever is started next."""


def telling(line: str, signs: Sequence[Sign], *, started: bool) -> Diagnosis | None:
    """What a line says, by the first sign that it shows."""
    line = line[:LOOKED_AT]
    for one in signs:
        if found := one.pattern.search(line):
            words = {name: masked_line(text or "?") for name, text in found.groupdict().items()}
            return Diagnosis(
                failure=one.failure if started or one.early is None else one.early,
                reason=one.reason.format(**words),
                line=masked_line(line),
                remedy=one.remedy.format(**words),
                implies=one.implies,
                fails_too=one.fails_too,
            )
    return None


def first_of(
    log: str, signs: Sequence[Sign], began: Callable[[str], bool], *, forgives_start: bool = False
) -> Diagnosis | None:
    """The first telling line. `began(line)` = the server is up from here on; `forgives_start` = what it survived until
    then is forgotten, since it tried again with less."""
    first: Diagnosis | None = None
    started = False
    for line in log.splitlines():
        if not started and began(line):
            started, first = True, None if forgives_start else first
        elif first is None:
            first = telling(line, signs, started=started)
    return first


def by_supervisor(exit: ExitFacts, more_memory: str, remedy: str) -> Diagnosis | None:
    """Exit code 137 without a reported kill is no signal 9: a wrapper may have made it, or the program itself."""
    if exit.asked:
        return Diagnosis(failure=Failure.STOPPED_BY_US, reason="we told it to stop")
    if exit.host_oom_kills and (exit.signal == SIGKILL or exit.code == 128 + SIGKILL):
        return Diagnosis(
            failure=Failure.HOST_OOM,
            reason=f"the kernel killed it for want of host memory ({exit})",
            remedy=remedy,
            implies=more_memory,
        )
    if exit.signal == SIGKILL:
        return Diagnosis(
            failure=Failure.KILLED,
            reason="somebody killed it (signal 9), and the kernel reported no lack of memory",
            remedy="look for a supervisor, a time limit or a person that killed it",
        )
    return None


def masked_line(line: str) -> str:
    """A log line cut to length, with what looks like a secret put out of sight."""
    shown = line[:LOOKED_AT].strip()[: LONGEST + _MARGIN]
    for pattern in _SECRETS:
        shown = pattern.sub(r"\g<head><secret>", shown)
    return shown[:LONGEST]


def last_line(log: str) -> str:
    """The last line that says anything, as evidence when no line is telling."""
    return next((masked_line(line) for line in reversed(log.splitlines()) if line.strip()), "")
