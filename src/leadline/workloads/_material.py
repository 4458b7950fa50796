"""Reads the texts of the built-in workloads: package data, so that prose and code to be edited stay out of modules."""

from __future__ import annotations

from importlib.resources import files
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text or piece of code, and the tasks that fit it."""

    text: str
    tasks: tuple[str, ...]
    language: str = ""


class Sources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: tuple[Source, ...]


def read(file_name: str, kind: type[T]) -> T:
    """One file of the data folder."""
    return msgspec.toml.decode(files(__package__).joinpath("data", file_name).read_bytes(), type=kind)
