"""The size of the code. A limit is raised only by a commit that says why, and lowered when code is deleted."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("folders", "max_lines", "max_files"),
    [(("fedjax_het", "experiments"), 71_128, 543), (("tests",), 48_130, 360)],
)
def test_code_stays_within_its_budget(folders, max_lines, max_files):
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    num_lines = sum(path.read_bytes().count(b"\n") for path in files)
    assert num_lines <= max_lines and len(files) <= max_files, (
        f"{' and '.join(folders)} have {num_lines} lines in {len(files)} files, allowed are {max_lines} in {max_files}"
    )
