"""campaign.toml: what it may say (`reference`), what it does say (`parse_campaign`), and a first one (`template`)."""

from leadline.config.reader import config_digest, parse_campaign
from leadline.config.reference import reference
from leadline.config.spec import (
    BudgetSpec,
    CampaignSpec,
    CanarySpec,
    Hours,
    KnobSpec,
    LoadSpec,
    Names,
    SafetySpec,
    ScriptsSpec,
    Secret,
    ServiceSpec,
    TrafficSpec,
    WindowSpec,
    WorkloadSpec,
    window_allows,
)
from leadline.config.template import template

__all__ = [
    "BudgetSpec",
    "CampaignSpec",
    "CanarySpec",
    "Hours",
    "KnobSpec",
    "LoadSpec",
    "Names",
    "SafetySpec",
    "ScriptsSpec",
    "Secret",
    "ServiceSpec",
    "TrafficSpec",
    "WindowSpec",
    "WorkloadSpec",
    "config_digest",
    "parse_campaign",
    "reference",
    "template",
    "window_allows",
]
