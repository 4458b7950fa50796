"""SIGKILL of `leadline run` at each event of its journal, and of its parts: what is left, and how it goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support_crash import Crash, assert_nothing_lost, assert_whole, set_lab, wait_until
from support_lab import FAST, LabCampaign

import crash_driver
from leadline.journal.events import tag
from leadline.trial import TrialState

SETTINGS = ("depth=0", "depth=2", "depth=4")
TRIAL = (
    "trial_planned", "deploy_started", "deploy_finished", "measure_started", "measured", "measure_started", "measured",
    "returning", "returned", "trial_ended",
)  # fmt: skip
EVENTS = ("campaign_started", "session_opened", *TRIAL * len(SETTINGS), "decided", "session_closed")
"""Of a campaign that nothing disturbs. A test below holds this list to what really happens."""
