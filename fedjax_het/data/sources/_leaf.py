"""LEAF's JSON files, {users, num_samples, user_data: {user: {x, y}}}: Shakespeare by role and FEMNIST by writer."""

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedjax_het._internal.regular_files import read_text
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.encoding import note_names
from fedjax_het.data.sources._assembly import Part, assemble_by_name, assemble_parts, find_large_domains
from fedjax_het.data.sources._characters import encode_characters, find_alphabet
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._image_listing import list_entries
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, CountOrZero, validate_arguments

_URL = "https://github.com/TalwalkarLab/leaf"
_ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_SIDE, _NAME_BYTES = 28, 48
_NO_IMAGES = np.empty((0, _SIDE, _SIDE, 1), np.uint8)  # content of a file without users, which LEAF's -k can produce
_NO_CLASSES, _NO_NAMES = np.empty(0, np.int32), np.empty(0, f"S{_NAME_BYTES}")
_CLASSES = (*"0123456789", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"abcdefghijklmnopqrstuvwxyz")


class _File(NamedTuple):
    path: str
    split: str  # "train", "test"


class _User(NamedTuple):
    name: str
    split: str
    x: Sequence
    y: Sequence


@validate_arguments
def shakespeare(path: str, stride: Count = 1, min_examples: CountOrZero = 0) -> Dataset:
    """Read LEAF's Shakespeare: windows of 80 characters, the next character as the label, a speaking role per domain.

    Tokens are the indices of the characters in LEAF's alphabet of 80; other characters are appended in order. The files
    are the output of LEAF's preprocess.sh: train/*.json and test/*.json in `path` or its subfolder data/, or
    all_data/*.json, without a split. Windows of a speech overlap, so with a split by sample (-t sample) the test text
    also occurs in training windows.

    Args:
        path: The folder of train and test, or its parent.
        stride: Only every stride-th window of a role is read, starting with the first.
        min_examples: Roles with fewer windows than this are skipped; LEAF's -k.

    Raises:
        InputError: There are no such files, a file is damaged, or windows differ in length.

    References:
        Caldas et al., LEAF: A Benchmark for Federated Settings, 2018. arXiv:1812.01097
    """
    users = [user for file in _find_files(path, "Shakespeare") for user in _read_users(file)]
    counts = Counter({user.name: 0 for user in users})
    for user in users:
        counts[user.name] += len(user.y)
    large, notes = find_large_domains("Shakespeare", counts, min_examples)
    users = [user for user in users if user.name in large and len(user.y)]
    length = len(users[0].x[0]) if isinstance(users[0].x[0], str) else 0
    for user in users:
        if wrong := next((y for y in user.y if not isinstance(y, str) or len(y) != 1), None):
            raise InputError(
                f"Shakespeare: {user.name} has the label {wrong!r}, not one character. Make the files anew."
            )
        lengths = {len(x) if isinstance(x, str) else 0 for x in user.x}
        if lengths != {length} or not length:
            found = ", ".join(map(str, sorted(lengths)))
            raise InputError(
                f"Shakespeare: the windows of {user.name} are {found} characters long, and those of {users[0].name} "
                f"{length}. Make the files anew, with one length."
            )
    kept = [user._replace(x=user.x[::stride], y=user.y[::stride]) for user in users]
    alphabet = find_alphabet((text for user in kept for text in (*user.x, *user.y)), _ALPHABET)
    parts = [
        Part(
            user.name,
            encode_characters(user.x, alphabet),
            encode_characters(user.y, alphabet)[:, 0].astype(np.int32),
            user.split,
            user.name,
        )
        for user in kept
    ]
    notes += note_names(alphabet[len(_ALPHABET) :], "characters that LEAF's alphabet lacks")
    return assemble_parts("shakespeare", parts, class_names=list(alphabet), notes=notes)


@validate_arguments
def femnist(path: str, min_examples: CountOrZero = 0, cache: str | None = None) -> Dataset:
    """Read LEAF's FEMNIST, 62 classes of 28 x 28 grayscale characters, a writer per domain; paper is 255, ink 0.

    The files are the output of LEAF's preprocess.sh, as for `shakespeare`: 784 numbers in 0..1 per image.

    Args:
        path: The folder of train and test, or its parent.
        min_examples: Writers with fewer images than this in both splits together are skipped; LEAF's -k.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: There are no such files, a file is damaged, or an image does not consist of 784 numbers in 0..1.

    References:
        Caldas et al., LEAF: A Benchmark for Federated Settings, 2018. arXiv:1812.01097
    """
    files, lock = _find_files(path, "FEMNIST"), threading.Lock()

    def read(file: _File) -> Chunk:
        with lock:  # a parsed file takes ten times the memory of its images
            users = [user for user in _read_users(file) if len(user.y)]
            return {
                "inputs": np.concatenate([_NO_IMAGES, *(_to_images(file, user) for user in users)]),
                "labels": np.concatenate([_NO_CLASSES, *(_to_classes(file, user) for user in users)]),
                "writers": np.concatenate([_NO_NAMES, *(_to_names(file, user) for user in users)]),
                "is_test": np.full(sum(len(user.y) for user in users), file.split == "test"),
            }

    arrays = decode_once(
        "femnist", files, read, files=[x.path for x in files], options={"leaf": "femnist"}, cache=cache
    )
    names, writers, counts = np.unique(arrays["writers"], return_inverse=True, return_counts=True)
    names = [name.decode() for name in names]
    large, notes = find_large_domains("FEMNIST", dict(zip(names, counts.tolist(), strict=True)), min_examples)
    is_kept = np.array([name in large for name in names], bool)[writers]
    inputs, labels = (arrays[name] if is_kept.all() else arrays[name][is_kept] for name in ("inputs", "labels"))
    return assemble_by_name(
        "femnist",
        inputs,
        labels,
        class_names=_CLASSES,
        domains=[names[writer] for writer in writers[is_kept]],
        splits=np.where(arrays["is_test"][is_kept], "test", "train").tolist(),
        notes=notes,
    )


def _to_images(file: _File, user: _User) -> np.ndarray:
    with report_read_errors(file.path):
        pixels = np.asarray(user.x, np.float64)
    if pixels.shape != (len(user.y), _SIDE**2) or not ((pixels >= 0) & (pixels <= 1)).all():
        raise InputError(
            f"{file.path}: the images of {user.name} are {pixels.shape}, from {pixels.min(initial=0):g} to "
            f"{pixels.max(initial=0):g}, not [{len(user.y)}, {_SIDE**2}] in 0..1. Make the files anew."
        )
    return np.round(255 * pixels).astype(np.uint8).reshape(-1, _SIDE, _SIDE, 1)


def _to_classes(file: _File, user: _User) -> np.ndarray:
    labels = np.asarray(user.y)
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(_CLASSES):
        raise InputError(f"{file.path}: {user.name} has labels outside of 0..{len(_CLASSES) - 1}. Make the files anew.")
    return labels.astype(np.int32)


def _to_names(file: _File, user: _User) -> np.ndarray:
    name = user.name.encode()
    if len(name) > _NAME_BYTES:
        raise InputError(
            f"{file.path}: the user '{user.name}' has a name of more than {_NAME_BYTES} bytes. Shorten it."
        )
    return np.full(len(user.y), name, f"S{_NAME_BYTES}")


def _find_files(path: str, title: str) -> list[_File]:
    """The JSON files of train and test, or of all_data."""
    place = require_dataset(path, f"LEAF's {title}", _URL)
    for root in (place, place / "data"):
        found = {split: list_entries(root / split, ".json") for split in ("train", "test")}
        if all(found.values()):
            return [_File(str(file), split) for split, files in found.items() for file in files]
        if any(found.values()):
            have, lack = sorted(found, key=lambda split: not found[split])
            raise InputError(f"{root} has {have}/*.json and no {lack}/*.json. Run LEAF's preprocess.sh to its end.")
        if files := list_entries(root / "all_data", ".json"):
            return [_File(str(file), "train") for file in files]
    raise InputError(
        f"{place} holds no JSON files of LEAF. Looked for train/*.json with test/*.json, and all_data/*.json, in it "
        f"and in data/. LEAF's preprocess.sh ({_URL}) writes them."
    )


def _read_users(file: _File) -> Iterator[_User]:
    with report_read_errors(file.path):
        content = json.loads(read_text(file.path))
    if not isinstance(content, Mapping) or not {"users", "num_samples", "user_data"} <= set(content):
        raise InputError(f"{file.path} is no file of LEAF: it needs users, num_samples and user_data. Make it anew.")
    if len(content["users"]) != len(content["num_samples"]):
        raise InputError(f"{file.path}: users and num_samples differ in length. Make the file anew.")
    for name, num in zip(content["users"], content["num_samples"], strict=True):
        user = content["user_data"].get(name)
        if not isinstance(user, Mapping) or not {"x", "y"} <= set(user) or not len(user["x"]) == len(user["y"]) == num:
            raise InputError(f"{file.path}: {name} lacks the {num} x and y that num_samples announces. Make it anew.")
        yield _User(str(name), file.split, user["x"], user["y"])
