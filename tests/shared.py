"""Paths of the real data and the golden numbers: FEDJAX_HET_SHARED, else ../shared beside the checkout."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_BESIDE = ROOT.parent / "shared"


def shared_root() -> Path:
    return Path(os.environ.get("FEDJAX_HET_SHARED", _BESIDE))


def shared_path(inside: str) -> Path:
    """A path below the shared folder; skips the running test, saying so, where it is missing."""
    path = shared_root() / inside
    if not path.exists():
        pytest.skip(f"no {inside} in the shared folder; set FEDJAX_HET_SHARED")
    return path


def read_jpegpack(inside: str) -> dict:
    """The arrays of a *_jpegpack.npz of the shared folder, by the reader that lies beside it."""
    path = shared_path(inside)
    spec = importlib.util.spec_from_file_location("jpegpack", shared_path("data/jpegpack.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(path)
