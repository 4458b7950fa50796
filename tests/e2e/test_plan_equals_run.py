"""`plan` changes nothing on disk and starts nothing, and what it shows is what `run` executes: to the word."""

from __future__ import annotations

import socket
import tomllib
from collections import Counter
from pathlib import Path

import psutil
from support_cli import add_to, answer, ask, launches, tree
from support_lab import LabCampaign

from leadline.codec import from_json
from leadline.journal.events import DeployStarted
from leadline.journal.file import replay
from leadline.outlook import Difference, Outlook
from leadline.trial import TrialState


def planned(campaign: LabCampaign) -> Outlook:
    """What plan says, after it is proved that it only says it."""
    before, children = tree(campaign.folder), psutil.Process().children(recursive=True)
    people = ask(campaign, "plan")
    called = ask(campaign, "plan", "--json")
    assert (people.returncode, called.returncode) == (0, 0), called.stderr
    assert tree(campaign.folder) == before
    assert psutil.Process().children(recursive=True) == children
    assert not campaign.listening()
    outlook = from_json(called.stdout, Outlook)
    assert_both_say_the_same(people.stdout, outlook)
    return outlook


def assert_both_say_the_same(text: str, outlook: Outlook) -> None:
    table = text[text.index("difference to today's command") :] if outlook.settings else ""
    shown = [line.strip() for line in table.splitlines()[1:]]
    expected = [
        line
        for row in outlook.settings
        for line in (
            f"{row.setting!s:<24} {row.launches}x{' (today)' if row.incumbent else ''}",
            *(f"- {unit}" for unit in row.removed),
            *(f"+ {unit}" for unit in row.added),
        )
    ]
    assert shown == expected


def executed(campaign: LabCampaign, after: int = 0) -> Counter[str]:
    """Command lines that were put in force, from the journal."""
    entries = replay(campaign.folder / "journal.jsonl").entries
    return Counter(e.launch for e in entries[after:] if isinstance(e, DeployStarted))


def as_planned(outlook: Outlook) -> Counter[str]:
    return Counter({row.launch: row.launches for row in outlook.settings})


def words_of(row: Difference, today: list[str]) -> Counter[str]:
    """Today's words without those that are removed, with those that are added."""
    removed, added = (Counter(word for unit in units for word in unit.split()) for units in (row.removed, row.added))
    assert not removed - Counter(today), "nothing is removed that is not there"
    return Counter(today) - removed + added


def test_run_executes_what_plan_shows_also_with_a_queued_setting_and_a_limit(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house", depths=(0, 2, 4))
    add_to(campaign, "budget", "max_launches = 3\n")
    ask(campaign, "try", "depth=7")
    first = planned(campaign)
    assert launches(campaign) == 0
    assert first.launches == 3
    today = tomllib.loads((campaign.folder / "campaign.toml").read_text())["service"]["command"]
    assert first.today.split() == today
    for row in first.settings:
        assert words_of(row, today) == Counter(row.launch.split())

    assert campaign.run().returncode == 0
    assert executed(campaign) == as_planned(first)
    assert launches(campaign) == 3

    text = (campaign.folder / "campaign.toml").read_text()
    (campaign.folder / "campaign.toml").write_text(text.replace("max_launches = 3\n", ""))
    rest = planned(campaign)
    events = len(replay(campaign.folder / "journal.jsonl").entries)
    assert campaign.run().returncode == 0
    assert executed(campaign, events) == as_planned(rest)
    trials = campaign.ledger().history().trials
    assert {t.state for t in trials} == {TrialState.COMPLETE}
    assert {t.setting.depth for t in trials} == {0, 2, 4, 7}
    assert all(t.effective is not None and t.effective.speculating == (t.setting.depth > 0) for t in trials)
    assert planned(campaign).launches == 0


def test_plan_of_a_service_whose_port_is_taken_says_that_run_will_refuse(tmp_path: Path) -> None:
    campaign = LabCampaign(tmp_path / "house", depths=(0, 2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", campaign.port))
        taken.listen()
        called = ask(campaign, "plan", "--json")
    assert called.returncode == 0
    assert f"port {campaign.port} is in use by " in answer(called)["in_the_way"]
    assert f"(pid {psutil.Process().pid})" in answer(called)["in_the_way"]
