"""The one exception tree.

LeadlineError                    exit code
|- InputError                    2    what the operator gave us is wrong
|  |- ConfigError                2    campaign.toml: all problems at once
|  `- RefusedError               2    we will not do it, and say why (port in use, file changed by others, ...)
|- JournalError                  2    the journal cannot be opened or trusted
|- NothingFeasibleError          3    no setting ran
|- NoAnswerError                 4    stopped before an answer: budget spent, window closed, paused
|- NotGivenBackError             5    the service is not as it was: act now
|- HostError                     1    a command, file or connection of the host failed
|  `- HostLost                   1    the host cannot be reached just now; what was asked may or may not have happened
`- InterruptedRun                128+n  a signal ended us, in order

A message says what happened, on what, and what to do next.
"""

from __future__ import annotations


class LeadlineError(Exception):
    """Base of every error that Leadline raises on purpose."""

    exit_code = 1


class InputError(LeadlineError):
    exit_code = 2


class ConfigError(InputError):
    """All problems of one configuration file; each line names the file, the key, what was found and what is allowed."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class RefusedError(InputError):
    """Doing it could harm something that is not ours; nothing was changed."""


class JournalError(LeadlineError):
    exit_code = 2


class NothingFeasibleError(LeadlineError):
    exit_code = 3


class NoAnswerError(LeadlineError):
    exit_code = 4


class NotGivenBackError(LeadlineError):
    exit_code = 5


class HostError(LeadlineError):
    """Our side failed: a command, a file or a connection of the host. Says nothing about the setting."""


class HostLost(HostError):
    """The connection to the host is gone. It may come back: whoever only looks may look again."""


class InterruptedRun(LeadlineError):
    """A signal asked us to stop; whatever holds the service gives it back while this propagates."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        self.exit_code = 128 + signum
        super().__init__(f"stopped by signal {signum}")
