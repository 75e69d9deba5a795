"""Files that would make a command wait, or fill the memory."""

import gzip
import os

import pytest

from fedjax_het._internal.number_table import read_number_table
from fedjax_het._internal.regular_files import open_regular, read_regular
from fedjax_het.cli.configuration import config_files
from fedjax_het.cli.runs.run_files import DamagedFileError, read_json, read_lines
from fedjax_het.cli.sweep import training, worker
from fedjax_het.engine.storage import checksums
from fedjax_het.errors import InputError
from fedjax_het.models import read_state_dict


@pytest.fixture(params=["fifo", "device"])
def irregular(request, tmp_path):
    def make(name):
        path = tmp_path / name
        if request.param == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        return path

    return make


def test_fifos_and_devices_are_not_opened(irregular):
    path = irregular("file")
    for read in (open_regular, read_regular):
        with pytest.raises(OSError, match="not a regular file"):
            read(path)


def test_traces_speeds_and_records_are_regular_files(irregular):
    with pytest.raises(InputError, match=r"trace: cannot read .*not a regular file"):
        read_number_table(irregular("trace.csv"), {"client": int}, "trace")
    for read, name in ((read_json, "summary.json"), (read_lines, "metrics.jsonl")):
        with pytest.raises(DamagedFileError, match="not a regular file"):
            read(irregular(name))


def test_logs_and_lists_of_a_grid_are_regular_files(irregular):
    with pytest.raises(DamagedFileError, match="not a regular file"):
        worker.read_runs(irregular("together.json"))
    with pytest.raises(OSError, match="not a regular file"):
        training._read_progress(irregular("train.log"), 0, "run")


def test_pretrained_weights_and_configs_are_regular_files(irregular):
    with pytest.raises(InputError, match="there is no file"):
        read_state_dict(irregular("weights.npz"))
    with pytest.raises(InputError, match="there is no Python file"):
        config_files.load_config(irregular("config.py"))


def test_checksums_and_the_files_that_they_name_are_regular_files(irregular, tmp_path):
    folder = tmp_path / "5"
    folder.mkdir()
    (folder / "state").write_text("x")
    checksums.write_checksums(folder)
    (folder / "state").unlink()
    irregular("5/state")
    assert "not a regular file" in checksums.find_damage(folder)
    (folder / "checksums.json").unlink()
    irregular("5/checksums.json")
    assert "not a regular file" in checksums.find_damage(folder)


def test_links_to_regular_files_are_followed_and_folders_are_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


@pytest.mark.parametrize("name", ["file", "file.gz"])
def test_no_more_than_the_limit_is_read_of_a_file_or_decompressed(tmp_path, name):
    content, path = bytes(10_000), tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_regular(path, limit=10_000) == content
    with pytest.raises(OSError, match="more than 9,999 bytes"):
        read_regular(path, limit=9_999)
