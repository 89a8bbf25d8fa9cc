"""Argument types for argparse (`type=`): numbers and paths; other values are refused with one line."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Final

_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def from_1(text: str) -> int:
    """1, 2, …"""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {text!r}")
    return int(text)


def duration(text: str) -> float:
    """A time above 0, with or without a fraction."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a time above 0, got {text!r}")
    return seconds


def is_uri(text: str) -> bool:
    """Whether the text is a URI such as s3://bucket/name, which as a path would be a directory of that name."""
    return _URI.match(text) is not None


def local_path(text: str) -> str:
    """A path of this machine."""
    if is_uri(text):
        raise argparse.ArgumentTypeError(f"{text} is a URI: only paths of this machine can be written here")
    return text


def directory(text: str) -> Path:
    """A directory that exists or can be created; checked before the work whose results it gets."""
    path = Path(local_path(text))
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is not a directory")
    return path
