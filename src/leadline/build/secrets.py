"""Fetches the secrets that campaign.toml only names."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from leadline.config import Secret
from leadline.errors import InputError


def resolve(secret: Secret, environ: Mapping[str, str] = os.environ) -> str:
    """The secret itself. Raises InputError that names the source, never the secret."""
    if secret.kind == "env":
        if secret.value not in environ:
            raise InputError(f"the environment has no {secret.value}, which campaign.toml takes a secret from")
        return environ[secret.value]
    if secret.kind == "file":
        try:
            return Path(secret.value).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise InputError(f"cannot read the secret file {secret.value}: {error.strerror}") from error
    return _output_of(secret.argv)


def _output_of(argv: Sequence[str]) -> str:
    """What a secret's command prints. No message holds any of its output."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise InputError(f"cannot run the secret's command {argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired:
        raise InputError(f"the secret's command {argv[0]} did not end within 60 s; run it by hand") from None
    if done.returncode != 0:
        raise InputError(f"the secret's command {argv[0]} ended with {done.returncode}; run it by hand to see why")
    return done.stdout.strip()
