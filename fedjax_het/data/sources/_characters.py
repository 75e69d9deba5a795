"""Texts as character sequences: alphabet, tokens, and the source of texts by author."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from fedjax_het._internal.regular_files import read_text
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import Part, assemble_parts, find_large_domains
from fedjax_het.data.sources._image_listing import list_entries
from fedjax_het.data.sources._io_errors import report_read_errors, require_path
from fedjax_het.errors import InputError
from fedjax_het.labels import PADDING
from fedjax_het.validation import Count, CountOrZero, FractionBelowOne, validate_arguments

Targets = Literal["next", "every"]
_SPACE = " "


@validate_arguments
def texts(
    path: str,
    targets: Targets = "every",
    length: Count = 80,
    stride: Count | None = None,
    held_out: FractionBelowOne = 0.2,
    min_examples: CountOrZero = 0,
) -> Dataset:
    """Read texts by author, a JSON file {author: [text, ...]}, as character sequences; authors are domains.

    The last texts of each author are the test split, so no text is in both splits. Classes and tokens are the
    characters that occur, in order.

    Args:
        path: The file, .json or .json.gz, or a folder with a single such file.
        targets: "every": inputs are segments of `length` characters, labels [n, length] the next character at each
            position; the last segment of a text is padded, with label -1. "next": inputs are windows of `length`
            characters, labels [n] the character after the window; texts are prefixed with `length` spaces, as in
            LEAF's Shakespeare.
        length: The number of characters per input.
        stride: The number of characters between inputs (default None, `length` for "every", 1 for "next").
        held_out: The fraction of each author's texts in the test split, rounded; at least one text is for training.
        min_examples: Authors with fewer inputs than this are skipped.

    Raises:
        InputError: The file does not exist, is damaged or has another format, or no text is long enough.
    """
    file = _find_file(path)
    works = _read_texts(file)
    alphabet = find_alphabet(text for author_works in works.values() for text in author_works)
    step = stride or (length if targets == "every" else 1)
    cut = {author: [_cut_text(text, alphabet, targets, length, step) for text in own] for author, own in works.items()}
    counts = {author: sum(len(inputs) for inputs, _ in own) for author, own in cut.items()}
    kept, notes = find_large_domains(str(file), counts, min_examples)
    parts = [
        Part(author, inputs, labels, "test" if i >= len(own) - _count_test(held_out, len(own)) else "train", author)
        for author, own in cut.items()
        for i, (inputs, labels) in enumerate(own)
        if author in kept
    ]
    return assemble_parts(file.name.split(".")[0], parts, class_names=list(alphabet), notes=notes)


def _count_test(held_out: float, num_texts: int) -> int:
    return min(int(held_out * num_texts + 0.5), num_texts - 1)


def _find_file(path: str) -> Path:
    place = require_path(path)
    if place.is_file():
        return place
    files = list_entries(place, ".json", ".json.gz")
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise InputError(f"{place} must hold one .json or .json.gz file of texts, and holds {found}. Give its path.")
    return files[0]


def _read_texts(file: Path) -> dict[str, list[str]]:
    with report_read_errors(file):
        content = json.loads(read_text(file))
    is_valid = isinstance(content, Mapping) and all(
        isinstance(own, list) and own and all(isinstance(text, str) for text in own) for own in content.values()
    )
    if not (is_valid and content):
        raise InputError(f"{file} is not of the form {{author: [text, ...]}}, each with a text. Bring it to that form.")
    return dict(content)


def _cut_text(text: str, alphabet: str, targets: Targets, length: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """(inputs [n, length], labels [n, length] or [n]) of one text."""
    if targets == "next":
        if not text:
            return np.zeros((0, length), token_type(alphabet)), np.zeros(0, np.int32)
        tokens = encode_characters([_SPACE * length + text], alphabet)[0]
        windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::step]
        return windows[:, :-1], windows[:, -1].astype(np.int32)
    starts = range(0, max(0, len(text) - 1), step)
    inputs = np.zeros((len(starts), length), token_type(alphabet))
    labels = np.full((len(starts), length), PADDING, np.int32)
    tokens = encode_characters([text], alphabet)[0] if text else np.zeros(0, token_type(alphabet))
    for row, start in enumerate(starts):
        piece = tokens[start : start + length + 1]
        inputs[row, : len(piece) - 1], labels[row, : len(piece) - 1] = piece[:-1], piece[1:]
    return inputs, labels


def find_alphabet(parts: Iterable[str], first: str = _SPACE) -> str:
    """The characters of texts: those of `first` in its order, then all others by code point."""
    present = set().union(*map(set, parts))
    return first + "".join(sorted(present - set(first)))


def token_type(alphabet: str) -> np.dtype:
    """The smallest signed integer type for the indices of all characters."""
    return np.min_scalar_type(-len(alphabet))


def encode_characters(parts: Sequence[str], alphabet: str) -> np.ndarray:
    """[n, length]: the index of each character in the alphabet, for texts of equal length."""
    codes = np.frombuffer("".join(parts).encode("utf-32-le"), np.uint32)
    known = np.frombuffer(alphabet.encode("utf-32-le"), np.uint32)
    order = np.argsort(known)
    return order[np.searchsorted(known[order], codes)].astype(token_type(alphabet)).reshape(len(parts), -1)
