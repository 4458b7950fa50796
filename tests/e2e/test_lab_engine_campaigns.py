"""One whole campaign through the command line for each engine, over a lab server that passes for it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from support_lab import FAST, TOML, LabCampaign
from support_lab_engines import words

from leadline.testing.labserver import install
from leadline.trial import TrialState

METHODS = {"sglang": "EAGLE3", "vllm": "eagle3", "trtllm": "Eagle3"}
DEPTHS = [0, 2, 4]


@pytest.mark.parametrize("name", METHODS)
def test_a_campaign_measures_every_depth_and_gives_the_port_back(tmp_path: Path, name: str) -> None:
    campaign = LabCampaign(tmp_path / "campaign")
    folder = campaign.folder
    program = install(folder, msgspec.structs.replace(FAST, dialect=name))
    argv, files = words(name, 2, port=campaign.port, folder=str(folder))
    for path, content in files.items():
        Path(path).write_text(content, encoding="utf-8")
    text = TOML.replace('"llamacpp"', f'"{name}"').replace(
        'spec_method = "ngram-simple"', f'spec_method = "{METHODS[name]}"'
    )
    command = json.dumps([str(program), *argv])
    filled = text.format(command=command, depths=DEPTHS, rounds=1, requests=4, start_stall_s=30, request_stall_s=30)
    (folder / "campaign.toml").write_text(filled, encoding="utf-8")
    done = campaign.run()
    assert done.returncode == 0, done.stderr
    assert not campaign.listening()
    trials = campaign.ledger().history().trials
    assert {t.setting.depth: t.state for t in trials} == dict.fromkeys(DEPTHS, TrialState.COMPLETE)
    for trial in trials:
        for measured in trial.measurements:
            counted = measured.acceptance
            assert counted is not None
            assert (counted.drafted > 0) == (trial.setting.depth > 0)
            assert counted.decode_tokens == counted.rounds + counted.accepted
    for path, content in files.items():
        assert Path(path).read_text(encoding="utf-8") == content
