"""The cache of decoded arrays: reuse, repair, and writing by several processes at a time."""

import os
import resource
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from fedjax_het.data.sources._decode_cache import MANIFEST, decode_once, map_in_order
from fedjax_het.errors import InputError


class Reader:
    """Reads text files with numbers; counts how often it is asked."""

    def __init__(self):
        self.read = []

    def __call__(self, path):
        self.read.append(path.name)
        rows = np.array([int(number) for number in path.read_text().split()], np.uint8)
        return {"inputs": np.repeat(rows[:, None], 3, axis=1), "case": np.full(len(rows), len(path.name), np.int32)}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "data").mkdir()
    for name, text in (("a.txt", "1 2"), ("bb.txt", "3"), ("ccc.txt", "4 5 6")):
        (tmp_path / "data" / name).write_text(text)
    return sorted((tmp_path / "data").iterdir())


@pytest.fixture
def open_cache(tmp_path, files):
    def run(reader=None, files=files, **options):
        reader = reader or Reader()
        arrays = decode_once("numbers", files, reader, files=files, options=options, cache=str(tmp_path / "cache"))
        return arrays, len(getattr(reader, "read", ()))

    return run


def only_folder(tmp_path):
    (folder,) = [folder for folder in (tmp_path / "cache").iterdir() if folder.is_dir()]
    return folder


def test_rows_come_in_order_memory_mapped_and_are_read_once(tmp_path, open_cache):
    (first, num_read), (again, num_again) = open_cache(), open_cache()
    assert (num_read, num_again) == (3, 0)
    for arrays in (first, again):
        assert arrays["inputs"][:, 0].tolist() == [1, 2, 3, 4, 5, 6]
        assert arrays["case"].tolist() == [5, 5, 6, 7, 7, 7]
        assert isinstance(arrays["inputs"], np.memmap) and not arrays["inputs"].flags.writeable
    np.testing.assert_array_equal(np.load(only_folder(tmp_path) / "inputs.npy"), first["inputs"])


def test_the_cache_moves_with_the_data(tmp_path, open_cache, files):
    open_cache()
    (tmp_path / "data").rename(tmp_path / "moved")
    assert open_cache(files=sorted((tmp_path / "moved").iterdir()))[1] == 0


@pytest.mark.parametrize("change", ["option", "content", "time", "name", "order"])
def test_changed_inputs_are_decoded_into_another_cache(open_cache, files, change):
    open_cache(size=3)
    if change == "content":
        files[1].write_text("33")
    if change == "time":
        os.utime(files[1], ns=(0, 5))
    if change == "name":
        files[1] = files[1].rename(files[1].with_name("bbb.txt"))
    if change == "order":
        files = files[::-1]
    assert open_cache(files=files, size=4 if change == "option" else 3)[1] == 3


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("inputs.npy", lambda path: path.write_bytes(path.read_bytes()[:-1]), "damaged"),
        ("inputs.npy", lambda path: path.write_bytes(b""), "damaged"),
        ("case.npy", lambda path: path.unlink(), "case.npy"),
        (MANIFEST, lambda path: path.unlink(), "manifest.json"),
        (MANIFEST, lambda path: path.write_text(path.read_text()[:20]), "damaged"),
        (MANIFEST, lambda path: path.write_text("[1]"), "damaged"),
    ],
)
def test_a_damaged_cache_is_written_again_with_a_warning(tmp_path, open_cache, caplog, name, spoil, message):
    open_cache()
    spoil(only_folder(tmp_path) / name)
    arrays, num_read = open_cache()
    assert num_read == 3 and arrays["inputs"][:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert message in caplog.text and "written again" in caplog.text
    assert open_cache()[1] == 0


def test_only_the_files_of_a_killed_process_are_removed(tmp_path, open_cache):
    open_cache()
    folder = only_folder(tmp_path)
    killed, running = (folder.with_name(f"{folder.name}.{name}.partial") for name in ("killed", "running"))
    shutil.copytree(folder, running), folder.rename(killed)
    for path in (*killed.iterdir(), killed):
        os.utime(path, (0, 0))
    assert open_cache()[1] == 3 and running.is_dir() and not killed.exists()


def test_many_threads_at_once_leave_one_complete_cache(tmp_path, open_cache):
    results = []
    threads = [threading.Thread(target=lambda: results.append(open_cache()[0]["inputs"].sum())) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [63] * 12
    assert only_folder(tmp_path).suffix != ".partial"


def test_a_file_in_place_of_the_folder_is_named(tmp_path, open_cache):
    open_cache()
    folder = only_folder(tmp_path)
    shutil.rmtree(folder)
    folder.write_text("")
    with pytest.raises(InputError, match=r"cache: cannot write decoded data to .*: Not a directory"):
        open_cache()


def test_a_file_that_cannot_be_read_leaves_nothing_behind(tmp_path, open_cache, files):
    def refuse(path):
        raise InputError(f"{path} is bad")

    with pytest.raises(InputError, match="is bad"):
        open_cache(refuse)
    assert list((tmp_path / "cache").iterdir()) == []
    files[2].unlink()
    with pytest.raises(InputError, match=r"cannot read .*ccc\.txt: No such file"):
        open_cache()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((1, 4, 6, 3), np.uint8), "a.txt is 5 x 4 and .*bb.txt is 6 x 4 pixels. Give `size`"),
        (np.zeros((1, 4, 5, 1), np.uint8), "bb.txt is grey and .*a.txt is in color. Give `channels`"),
        (np.zeros((1, 4, 5, 3), np.int32), "a.txt holds uint8 and .*bb.txt int32"),
    ],
)
def test_rows_of_different_forms_are_refused(open_cache, rows, message):
    with pytest.raises(InputError, match=message):
        open_cache(lambda path: {"inputs": rows if path.name == "bb.txt" else np.zeros((1, 4, 5, 3), np.uint8)})


def test_a_folder_that_cannot_be_written_is_named(tmp_path, files):
    (tmp_path / "taken").write_text("")
    with pytest.raises(InputError, match=r"cache: cannot write decoded data to .*taken.*Give another folder"):
        decode_once("x", files, Reader(), files=files, options={}, cache=str(tmp_path / "taken"))


def test_a_full_disk_is_named_and_leaves_nothing_behind(tmp_path, files):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(InputError, match=r"cache: cannot write decoded data to .*Give another folder"):
            decode_once(
                "x",
                files,
                lambda path: {"inputs": np.zeros((9, 9_000), np.uint8)},
                files=files,
                options={},
                cache=str(tmp_path / "cache"),
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / "cache").iterdir()) == []


def test_few_items_are_read_ahead_of_the_consumer():
    started = []

    def slowly(i):
        started.append(i)
        return i

    line = map_in_order(slowly, range(1000))
    assert next(line) == 0
    time.sleep(0.05)
    assert len(started) < 100
    assert list(line) == list(range(1, 1000))
