"""Python exceptions in SGLang's log: the line that names one, out of the traceback around it, and what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from leadline.dialect.signs import LONGEST, masked_line
from leadline.evidence import Diagnosis, Failure

_FATAL = re.compile(r"\b(\w+) hit an exception: ")
_FOLLOWS_UP = re.compile(r"Initialization failed\. warmup error: ")
_TRACEBACK = "Traceback (most recent call last):"
_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d ")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:: .*)?$")
_BETWEEN = ("During handling of the above", "The above exception was")
_ARGUMENTS = re.compile(r"/(?:server_args\.py|arg_groups/)")
_DRAFT = re.compile(r"in _?draft\w*|_draft_\w+\(|draft_runner|models/\w*(?:eagle|nextn|mtp)\w*\.py")
_SHAPES = re.compile(
    r"shapes cannot be multiplied|size mismatch|must match the size of tensor|shape '\[|AssertionError(?:: .*shape.*)?$"
    r"|KeyError|expected .* to have size"
)
_THREE_FLAGS = re.compile(r"'[<>]=?' not supported between instances of 'NoneType' and 'int'")


@dataclass(slots=True)
class Raised:
    """One traceback. `announced` = the line that it begins on; `fatal` = it ends the process that logs it; `text` = the
    exception that came out of it last, "" when the log ends before."""

    announced: str
    fatal: bool
    follows_up: bool = False
    text: str = ""
    frames: list[str] = field(default_factory=list)
    _in_frames: bool = True

    @staticmethod
    def begins(line: str) -> Raised | None:
        if _TRACEBACK not in line:
            return None
        return Raised(line, fatal=bool(_FATAL.search(line)), follows_up=bool(_FOLLOWS_UP.search(line)))

    def take(self, line: str) -> bool:
        """Whether the line still belongs to it."""
        if _STAMP.match(line):
            return False
        if line.startswith((" ", "\t")):
            self.frames.append(line)
            self._in_frames = True
        elif self._in_frames and _EXCEPTION.match(line):
            self.text, self._in_frames = line, False
        elif line.strip() and not line.startswith((_TRACEBACK, *_BETWEEN)) and not self.text:
            return False
        return True

    def diagnosis(self) -> Diagnosis:
        """By where it was raised: among the arguments, in the draft model, or anywhere else."""
        frames = "\n".join(self.frames)
        if _SHAPES.search(self.text) and _DRAFT.search(frames):
            return self._said(
                Failure.DRAFT_BAD,
                "the draft model does not fit the target",
                "use a draft model that was made for this target, of the algorithm that is named",
                "every depth above 0 fails with this draft model",
                ("depth+", "draft_model="),
            )
        if _ARGUMENTS.search(frames):
            return self._arguments(frames)
        return self._said(
            Failure.CRASHED,
            "one of SGLang's processes stopped",
            "read the traceback in its log, and look for the message among SGLang's issues",
        )

    def _arguments(self, frames: str) -> Diagnosis:
        if _THREE_FLAGS.search(self.text) and "speculative" in frames:
            return self._said(
                Failure.BAD_COMBINATION,
                "SGLang compares a speculative flag that was not given",
                "give --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens together",
                "every setting that leaves one of the three out fails",
            )
        return self._said(
            Failure.BAD_COMBINATION,
            "SGLang refuses this combination of flags",
            "change the flags that the message names",
            "every setting with this combination fails",
        )

    def _said(
        self, failure: Failure, what: str, remedy: str, implies: str = "", fails_too: tuple[str, ...] = ()
    ) -> Diagnosis:
        line = masked_line(self.text or self.announced)
        return Diagnosis(
            failure=failure,
            reason=f"{what}: {line[:LONGEST]}" if line else what,
            line=line,
            remedy=remedy,
            implies=implies,
            fails_too=fails_too,
        )
