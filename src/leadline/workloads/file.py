"""A workload of the operator's own: a JSONL file of OpenAI-style requests.

Each line is the body of a request, with "messages" (chat) or "prompt" (completion) and any other field, which is kept.
Two optional fields are ours and are not sent: "id" names the request, "session" joins requests that one user sends in
the order of the file. "stream" is not sent either, since answers are always streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from leadline.errors import InputError
from leadline.ports import PlannedRequest
from leadline.workloads._pool import Body, Pool, check_overrides, request

_SHOWN_PROBLEMS = 50
_NOT_SENT = ("id", "session", "stream")


class FileWorkload(Pool):
    """The requests of a file, already read; `lines` must have been split at line feeds only, blank ones are skipped.

    Ids are NAME:ID, else NAME:SESSION.TURN, else NAME:lineNUMBER. A session with a prompt that an earlier one of the
    file had too is left out, since a cache would answer it faster; `repeated` counts them. Raises InputError with all
    bad lines: the file, the line, what was found and what is allowed.
    """

    def __init__(self, name: str, lines: Sequence[str], source: str, body: dict[str, object]) -> None:
        check_overrides(name, body)
        parsed, problems = _parse(lines)
        sessions, clashes = _sessions(name, parsed, body)
        problems += clashes
        if not parsed and not problems:
            problems = [(0, 'found no request; allowed: one JSON object a line, with "messages" or "prompt"')]
        if problems:
            raise InputError(_message(source, sorted(problems)))
        distinct = _distinct(sessions)
        self.repeated = len(sessions) - len(distinct)
        remark = f" ({self.repeated} more repeat a prompt and are left out)" if self.repeated else ""
        super().__init__(name=name, origin=source, sessions=distinct, remark=remark)


Problem = tuple[int, str]
Line = tuple[int, dict[str, object]]


def _parse(lines: Sequence[str]) -> tuple[list[Line], list[Problem]]:
    good: list[Line] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            problems.append((number, f"found {_shown(line.strip())}, which is not JSON ({error}); {_ALLOWED_LINE}"))
            continue
        found = _problem(value)
        if found:
            problems.append((number, found))
        else:
            good.append((number, value))
    return good, problems


_ALLOWED_LINE = 'allowed: a JSON object with "messages" or "prompt"'
_ALLOWED_MESSAGES = 'allowed: a list of objects, each with "role" and "content" or "tool_calls"'


def _problem(value: object) -> str | None:
    """What is wrong with one line, and what is allowed."""
    if not isinstance(value, dict):
        return f"found {_kind(value)}; {_ALLOWED_LINE}"
    present = [key for key in ("messages", "prompt") if key in value]
    if len(present) != 1:
        found = "both" if present else f"the keys {', '.join(value) or '(none)'}"
        return f"found {found}; {_ALLOWED_LINE}, one of the two"
    for key in ("id", "session"):
        if key in value and (isinstance(value[key], bool) or not isinstance(value[key], str | int)):
            return f'found {_kind(value[key])} as "{key}"; allowed: a text or a whole number'
    return _bad_messages(value["messages"]) if "messages" in value else _bad_prompt(value["prompt"])


def _bad_messages(messages: object) -> str | None:
    if not isinstance(messages, list) or not messages:
        return f'found {_kind(messages)} as "messages"; {_ALLOWED_MESSAGES}'
    for position, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            return f"found {_kind(message)} as message {position}; {_ALLOWED_MESSAGES}"
        if not isinstance(message.get("role"), str) or not ("content" in message or "tool_calls" in message):
            return f"found message {position} with the keys {', '.join(message) or '(none)'}; {_ALLOWED_MESSAGES}"
    return None


def _bad_prompt(prompt: object) -> str | None:
    tokens = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if prompt and (isinstance(prompt, str) or tokens):
        return None
    return f'found {_kind(prompt)} as "prompt"; allowed: one text, or one list of token numbers'


def _sessions(name: str, lines: Iterable[Line], body: Body) -> tuple[list[list[PlannedRequest]], list[Problem]]:
    """Requests by session, in order of first appearance; and the lines whose id another line has already."""
    sessions: dict[object, list[PlannedRequest]] = {}
    first: dict[str, int] = {}
    clashes = []
    for number, fields in lines:
        # A line without a session is one of its own; a tuple can never equal the text of a named one.
        session = sessions.setdefault(str(fields["session"]) if "session" in fields else (number,), [])
        prompt_id = f"{name}:{_own_id(number, fields, turn=len(session))}"
        if prompt_id in first:
            clashes.append((number, f'found the id "{prompt_id}" of line {first[prompt_id]}; allowed: each id once'))
        first.setdefault(prompt_id, number)
        own = {key: value for key, value in fields.items() if key not in _NOT_SENT}
        session.append(request(prompt_id=prompt_id, turn=len(session), own=own, body=body))
    return list(sessions.values()), clashes


def _own_id(number: int, fields: Mapping[str, object], *, turn: int) -> str:
    if "id" in fields:
        return str(fields["id"])
    return f"{fields['session']}.{turn}" if "session" in fields else f"line{number}"


def _distinct(sessions: Iterable[Sequence[PlannedRequest]]) -> list[Sequence[PlannedRequest]]:
    seen: set[bytes] = set()
    kept = []
    for session in sessions:
        prompts = [msgspec.json.encode([r.body.get("messages"), r.body.get("prompt")], order="sorted") for r in session]
        if len(set(prompts)) == len(prompts) and seen.isdisjoint(prompts):
            kept.append(session)
            seen.update(prompts)
    return kept


def _message(source: str, problems: Sequence[Problem]) -> str:
    shown = [f"{source}, line {number}: {text}" if number else f"{source}: {text}" for number, text in problems]
    if len(shown) > _SHOWN_PROBLEMS:
        shown[_SHOWN_PROBLEMS:] = [f"{source}: and {len(shown) - _SHOWN_PROBLEMS} more bad lines"]
    return "\n".join(shown)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, str):
        return _shown(value)
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "an object"
