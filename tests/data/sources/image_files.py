"""Image files for tests of sources, and refusals of data."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedjax_het.data import load
from fedjax_het.errors import InputError


def draw(path: Path, size=(6, 4), mode="RGB", value=0) -> Path:
    """An image of one value, size as (width, height)."""
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    return save(path, np.full(shape, value).astype(np.uint16 if mode == "I;16" else np.uint8))


def litter(folder: Path) -> None:
    """What a Mac and Windows leave in a folder: hidden copies of its files, an archive's folder, and thumbnails."""
    for path in list(folder.iterdir()):
        path.with_name(f"._{path.name}").write_bytes(b"litter")
    (folder / "__MACOSX" / "train").mkdir(parents=True)
    (folder / "__MACOSX" / "train" / f"._{folder.name}").touch(), (folder / "Thumbs.db").touch()


def save(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refuse(message: str, source: str, path: Path, **options) -> None:
    with pytest.raises(InputError, match=message):
        load(source, path=path, **options)
