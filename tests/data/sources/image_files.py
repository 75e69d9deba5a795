"""Image files for tests."""

from pathlib import Path

import numpy as np
from PIL import Image


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
