"""Disks that are full: one line, and the status of an input error."""

import errno
import os
from pathlib import Path

import pytest

from fedjax_het._internal import atomic
from fedjax_het.cli.configuration.command_line import report_full_disk, with_exit_status
from fedjax_het.errors import InputError


def run(fail, capsys) -> tuple[int, str]:
    return with_exit_status()(fail)(), capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_gives_one_line_that_names_the_folder(tmp_path, monkeypatch, capsys, number):
    def write_nothing(path, content):
        path.touch()
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", write_nothing)
    status, message = run(lambda: atomic.write(tmp_path / "page.html", "text"), capsys)
    assert status == 2
    assert message == (
        f"error: the disk of '{tmp_path}' is full ({os.strerror(number)}). Make room there; the same command then "
        "resumes.\n"
    )
    assert not list(tmp_path.iterdir())


def test_errors_of_other_libraries_that_a_full_disk_has_caused_are_understood(tmp_path):
    def fail_in_text():
        raise ValueError("RESOURCE_EXHAUSTED: Error writing 'd/0': [OS error 28: ENOSPC No space left on device]")

    def fail_by_cause():
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "run" / "checkpoints" / "5"))
        except OSError as error:
            raise RuntimeError("the checkpoint was not saved") from error

    for fail in (fail_in_text, fail_by_cause):
        with (
            pytest.raises(InputError, match=f"the disk of '{tmp_path / 'run'}' is full"),
            report_full_disk(tmp_path / "run"),
        ):
            fail()


def test_a_folder_beside_the_run_is_named_where_that_one_is_full(tmp_path):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "cache" / "file"))
    with pytest.raises(InputError, match=r"the disk of '.*/cache' is full"), report_full_disk(tmp_path / "run"):
        raise full


def test_other_errors_keep_their_traceback_and_input_errors_their_text(tmp_path):
    for error in (OSError(errno.EIO, os.strerror(errno.EIO)), ValueError("no"), InputError("No space left on device")):
        with pytest.raises(type(error)) as raised, report_full_disk(tmp_path):
            raise error
        assert raised.value is error
