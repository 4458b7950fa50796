"""The composition root: plug-ins by name, and a campaign's folder wired into objects. Nothing is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from leadline.build import Wired, found, names, plugin, resolve, wire
from leadline.clock import SystemClock
from leadline.config import Secret
from leadline.errors import ConfigError, InputError
from leadline.interrupts import Interrupts
from leadline.journal.file import Journal
from leadline.space import Setting

COMMAND = (
    '["llama-server", "-m", "m.gguf", "--port", "8123", "--spec-type", "ngram-simple", '
    '"--spec-ngram-simple-size-n", "2", "--spec-ngram-simple-size-m", "2"]'
)
TOML = """
[service]
engine = "llamacpp"
target = "command"
command = {command}
{service}
[knobs]
depth = [0, 2, 4]
[keep]
spec_method = "ngram-simple"
[workloads.coding]
builtin = "coding"
[goals.one]
weights = {{ "coding@1" = 1 }}
"""


def folder(base: Path, *, command: str = COMMAND, service: str = "", more: str = "") -> Path:
    (base / "campaign.toml").write_text(TOML.format(command=command, service=service) + more, encoding="utf-8")
    return base


def wired(base: Path, **parts: str) -> Wired:
    return wire(str(folder(base, **parts)))


# --- plug-ins


def test_every_plug_in_is_found_by_its_name_and_helpers_are_not_plug_ins() -> None:
    assert found("engines") == ("llamacpp", "sglang", "trtllm", "vllm")
    assert found("targets") == ("command", "compose", "script", "systemd")
    assert found("hosts") == ("local", "ssh", "wrapped")
    assert found("strategies") == ("grid", "random")
    assert found("workloads") == ("agent", "chat", "coding", "extract", "file", "summarize")


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InputError, match="no engines plug-in named 'tgi'; there are llamacpp"):
        plugin("engines", "tgi", "engine")


def test_a_third_party_brings_its_own_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_module.py").write_text("strategy = 'theirs'\n")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[leadline.strategies]\nclever = their_module:strategy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugin("strategies", "clever", "strategy") == "theirs"
    assert "clever" in found("strategies")
    assert "clever" in names().strategies
    sys.modules.pop("their_module")


def test_what_campaign_toml_may_name_are_the_plug_ins_and_the_engines_knobs() -> None:
    known = names()
    assert "file" not in known.workloads
    assert "depth" in known.knobs["llamacpp"]
    assert known.changes_output == ("kv_dtype",)


# --- wiring


def test_a_folder_and_its_file_name_the_same_campaign(tmp_path: Path) -> None:
    folder(tmp_path)
    assert wire(str(tmp_path)).folder == wire(str(tmp_path / "campaign.toml")).folder


def test_wiring_reads_and_writes_nothing(tmp_path: Path) -> None:
    wired(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["campaign.toml"]


def test_a_folder_without_a_campaign_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no campaign\.toml in .*leadline init"):
        wire(str(tmp_path))


def test_a_file_that_is_not_utf8_is_refused_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "campaign.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(InputError, match=r"campaign\.toml is not UTF-8 at byte 5"):
        wire(str(tmp_path))


def test_a_folder_instead_of_the_file_is_no_campaign(tmp_path: Path) -> None:
    (tmp_path / "campaign.toml").mkdir()
    with pytest.raises(InputError, match=r"no campaign\.toml"):
        wire(str(tmp_path))


def test_problems_of_the_file_come_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as wrong:
        wired(tmp_path, more='[budget]\nrounds = 0\nstrategy = "clever"\n')
    assert len(wrong.value.problems) == 2


def test_todays_setting_is_what_the_command_line_has_in_force(tmp_path: Path) -> None:
    assert wired(tmp_path).problem.incumbent == Setting.of(depth=2)


def test_a_knob_whose_value_today_is_not_known_is_refused_with_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "campaign.toml").write_text(
        TOML.format(command=COMMAND, service="").replace("[knobs]", "[knobs]\nmax_running = [4, 8]")
    )
    with pytest.raises(InputError, match=r"does not set max_running.*write it\s+into service\.command"):
        wire(str(tmp_path))


def test_a_knob_shows_the_one_flag_that_changes_here(tmp_path: Path) -> None:
    (depth,) = wired(tmp_path).problem.space.knobs
    assert depth.flag == "--spec-ngram-simple-size-m"


def test_a_private_port_is_for_trials_alone(tmp_path: Path) -> None:
    built = wired(tmp_path, more="[traffic]\nprivate_port = 18123\n")
    setting = Setting.of(depth=4)
    assert built.engine.address(built.render(setting)) == ("127.0.0.1", 18123)
    assert built.engine.address(built.permanent(setting)) == ("127.0.0.1", 8123)
    assert built.url == "http://127.0.0.1:18123"


@pytest.mark.parametrize(
    ("command", "service", "url"),
    [
        (COMMAND, "", "http://127.0.0.1:8123"),
        (COMMAND.replace("]", ', "--host", "0.0.0.0"]'), "", "http://127.0.0.1:8123"),
        (COMMAND.replace("]", ', "--host", "192.0.2.7"]'), "", "http://192.0.2.7:8123"),
        (COMMAND, 'url = "https://llm.example/"', "https://llm.example"),
    ],
)
def test_requests_go_where_the_service_answers(tmp_path: Path, command: str, service: str, url: str) -> None:
    assert wired(tmp_path, command=command, service=service).url == url


def test_paths_of_the_file_are_relative_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-hush\n")
    built = wired(tmp_path, service='cwd = "srv"\nca = "ca.pem"\napi_key = { file = "key" }')
    assert built.base.cwd == str(tmp_path / "srv")
    assert built.endpoint().ca == str(tmp_path / "ca.pem")
    assert built.endpoint().headers == {"Authorization": "Bearer sk-hush"}
    assert built.target.rollout_path() == str(tmp_path / "serve.sh")


def test_a_workload_with_too_few_prompts_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="too few for coding@1"):
        wired(tmp_path, more="[load]\nrequests = 1000\n")


@pytest.mark.parametrize("lines", [None, "", "not json\n"])
def test_a_workload_file_that_cannot_be_used_is_named(tmp_path: Path, lines: str | None) -> None:
    if lines is not None:
        (tmp_path / "mine.jsonl").write_text(lines)
    more = '[workloads.mine]\nfile = "mine.jsonl"\n[goals.two]\nweights = { mine = 1 }\n'
    with pytest.raises(InputError, match=r"mine\.jsonl"):
        wired(tmp_path, more=more)


@pytest.mark.parametrize(
    ("limits", "launched", "left"),
    [
        ("", 3, None),
        ("[budget]\nmax_launches = 5\n", 3, 2),
        ("[budget]\nmax_launches = 5\n[window]\nmax_restarts = 4\n", 3, 1),
        ("[window]\nmax_restarts = 4\n", 9, 0),
    ],
)
def test_launches_left_are_those_of_the_tightest_limit(
    tmp_path: Path, limits: str, launched: int, left: int | None
) -> None:
    assert wired(tmp_path, more=limits).launches_left(launched) == left


# --- the window by the wall clock


def minutes(text_min: int) -> str:
    return f"{text_min // 60 % 24:02}:{text_min % 60:02}"


def waiting_s(base: Path, span: tuple[int, int], needed_min: float) -> float:
    """What a campaign would wait now for a window of local time, given in minutes after now."""
    now = SystemClock().minute_of_day()
    hours = f'["{minutes(now + span[0])}-{minutes(now + span[1])}"]'
    built = wired(base, more=f"[window]\nhours = {hours}\n")
    built.folder.prepare()
    with Journal(built.folder.journal, reason="test", utc=built.clock.utc) as journal:
        return built.campaign(journal, Interrupts()).conduct.wait_s(needed_min)


def test_inside_the_window_nothing_is_waited_for(tmp_path: Path) -> None:
    assert waiting_s(tmp_path, (-10, 60), 5.0) == 0.0


def test_before_the_window_it_is_waited_for_to_the_minute(tmp_path: Path) -> None:
    assert waiting_s(tmp_path, (120, 240), 5.0) == pytest.approx(120 * 60, abs=60)


def test_a_window_in_which_a_launch_no_longer_fits_is_waited_for_until_tomorrow(tmp_path: Path) -> None:
    assert waiting_s(tmp_path, (-30, 10), 35.0) == pytest.approx((24 * 60 - 30) * 60, abs=60)


def test_a_window_that_is_shorter_than_a_launch_is_an_error_and_no_endless_wait(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"one launch takes 90 min, longer than any span of window\.hours"):
        waiting_s(tmp_path, (0, 60), 90.0)


# --- secrets

HUSH = "sk-hush-4711"


def test_a_secret_comes_from_where_it_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{HUSH}\n")
    assert resolve(Secret("env", "KEY"), {"KEY": HUSH}) == HUSH
    assert resolve(Secret("file", str(tmp_path / "key"))) == HUSH
    assert resolve(Secret("command", f"cat {tmp_path / 'key'}")) == HUSH


@pytest.mark.parametrize(
    ("secret", "told"),
    [
        (Secret("env", "NO_SUCH_KEY"), "the environment has no NO_SUCH_KEY"),
        (Secret("file", "/no/such/file"), "cannot read the secret file /no/such/file: No such file"),
        (Secret("command", "/no/such/program"), "cannot run the secret's command /no/such/program: No such file"),
        (Secret("command", f"sh -c 'echo {HUSH}; echo {HUSH} >&2; exit 3'"), "secret's command sh ended with 3"),
    ],
)
def test_a_secret_that_cannot_be_had_names_its_source_and_shows_nothing(secret: Secret, told: str) -> None:
    with pytest.raises(InputError, match=told) as raised:
        resolve(secret, {})
    assert HUSH not in str(raised.value)
