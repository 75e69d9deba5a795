"""Checksums of the files in a folder, to detect damaged files before they are used."""

import json
import zlib
from pathlib import Path

from fedjax_het._internal.atomic import write
from fedjax_het._internal.regular_files import open_regular, read_regular

NAME = "checksums.json"
_BLOCK = 1 << 24  # bytes read at a time


def write_checksums(folder: Path) -> None:
    """Write the checksums of all files below a folder, for `find_damage`."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file != folder / NAME]
    write(folder / NAME, json.dumps({file.relative_to(folder).as_posix(): crc32_of(file) for file in files}))


def find_damage(folder: Path) -> str | None:
    """Compare the files below a folder with their checksums.

    Returns:
        A description of the first missing or modified file; None if all are intact, or if the folder has no checksums
        (written by an earlier version, or by a process that was killed before writing them).
    """
    try:
        expected = json.loads(read_regular(folder / NAME))
        for name, crc in expected.items():
            if crc32_of(folder / name) != crc:
                return f"the checksum of {name} does not match"
    except FileNotFoundError as error:
        missing = Path(error.filename).relative_to(folder).as_posix()
        return None if missing == NAME else f"{missing} is missing"
    except (OSError, ValueError, AttributeError) as error:
        return f"it cannot be read ({error})"
    return None


def crc32_of(file: Path) -> int:
    """The CRC-32 of a file."""
    crc = 0
    with open_regular(file) as opened:
        while block := opened.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc
