"""Texts as tokens, by the tokenizer.json of the library `tokenizers`."""

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het._internal.regular_files import read_text
from fedjax_het.data.sources._io_errors import report_read_errors, require_path
from fedjax_het.errors import InputError, nearest
from fedjax_het.labels import PADDING

_FILE, _SENTENCEPIECE = "tokenizer.json", "tokenizer.model"
_MULTIPLE = 8  # lengths are rounded up to a multiple
_CHUNK = 4096  # texts tokenized at a time


class Tokenizer:
    """A tokenizer.json, without the truncation and padding that it may define.

    Args:
        path: The file, or a folder with it.

    Raises:
        InputError: The file does not exist or is damaged, or `tokenizers` is not installed.
    """

    def __init__(self, path: str | Path):
        try:
            import tokenizers
        except ImportError as error:
            raise InputError(
                'Texts are cut into tokens by tokenizers. Install it: pip install "fedjax-het[text]"'
            ) from error
        self._file = _find_file(require_path(path))
        with report_read_errors(self._file):
            content = read_text(self._file)
            try:
                self._tokenizer = tokenizers.Tokenizer.from_str(content)
            except Exception as error:  # the library raises no narrower class
                raise ValueError(error) from error
        self._tokenizer.no_padding()

    @cached_property
    def tokens(self) -> list[str]:
        """The name of every token; a number that has no token is its own name, in brackets."""
        names = {number: name for name, number in self._tokenizer.get_vocab(with_added_tokens=True).items()}
        return [names.get(number, f"[{number}]") for number in range(max(names) + 1)]

    @property
    def vocabulary(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def encode(
        self, texts: Sequence[str], max_length: int | None = None, notes: list[str] | None = None, is_whole: bool = True
    ) -> list[list[int]]:
        """The tokens of texts.

        Args:
            texts: The texts.
            max_length: Longer sequences are cut on the right, keeping the special tokens at both ends; None: no cut.
            notes: Receives the number of texts that are cut.
            is_whole: Whether special tokens are added.
        """
        num_special = self._tokenizer.num_special_tokens_to_add(False) if is_whole else 0
        if max_length is None:
            self._tokenizer.no_truncation()
        elif max_length <= num_special:
            raise InputError(
                f"max_length: {max_length} leaves no room for texts: {self._file} adds {num_special} special tokens. "
                "Give a larger one."
            )
        else:
            self._tokenizer.enable_truncation(max_length, direction="right")
        chunks = [texts[start : start + _CHUNK] for start in range(0, len(texts), _CHUNK)]
        rows, num_cut = [], 0
        for chunk in chunks:
            batch = self._tokenizer.encode_batch(list(chunk), add_special_tokens=is_whole)
            rows += [encoding.ids for encoding in batch]
            num_cut += sum(bool(encoding.overflowing) for encoding in batch)
        if num_cut and notes is not None:
            notes.append(f"{num_cut} of {len(texts)} texts are cut at {max_length} tokens")
        return rows

    def find_end(self, name: str | None) -> int:
        """The token that ends an answer: that of this name, or else the eos_token in the files beside tokenizer.json.

        Raises:
            InputError: There is none.
        """
        name = name or next(_read_end_tokens(self._file.parent), None)
        if name is None:
            raise InputError(
                f"end: no file beside {self._file} has an eos_token. Give the token that ends answers, such as '</s>'."
            )
        if (number := self._tokenizer.token_to_id(name)) is None:
            raise InputError(f"end: {self._file} has no token '{name}'. {nearest(name, self.tokens)}")
        return number


def _find_file(place: Path) -> Path:
    if place.name != _SENTENCEPIECE and not place.is_dir():
        return place
    folder = place if place.is_dir() else place.parent
    if place.is_dir() and (folder / _FILE).is_file():
        return folder / _FILE
    if (folder / _SENTENCEPIECE).is_file():
        raise InputError(
            f"tokenizer: {folder} has a {_SENTENCEPIECE} of SentencePiece, which is not supported. Convert it, where "
            f"transformers is installed: AutoTokenizer.from_pretrained('{folder}').save_pretrained(...) writes {_FILE}."
        )
    raise InputError(f"tokenizer: {folder} holds no {_FILE}. Give the path of one.")


def _read_end_tokens(folder: Path) -> Iterator[str]:
    for file in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"):
        if file.is_file():
            with report_read_errors(file):
                token = json.loads(read_text(file)).get("eos_token")
                if token:
                    yield token["content"] if isinstance(token, Mapping) else str(token)


def pad_rows(rows: Sequence[Sequence[int]], max_length: int) -> np.ndarray:
    """[n, length] int32, padded on the right with `PADDING`; length is the smallest multiple of 8 that holds the
    longest row, at most `max_length`."""
    longest = max(map(len, rows))
    length = min(-(-longest // _MULTIPLE) * _MULTIPLE, max_length)
    padded = np.full((len(rows), length), PADDING, np.int32)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded


def join_answers(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], end: int, max_length: int, notes: list[str]
) -> tuple[list[list[int]], list[list[int]]]:
    """(inputs, labels) of prompts with answers, both without their padding.

    A sequence is s = (prompt, answer, end), cut to `max_length` on the right. Inputs are s without its last token, and
    the label at a position is the next token of s if it belongs to the answer or is the end, otherwise `PADDING`. A
    sequence without a label, whose prompt fills `max_length`, has empty rows.
    """
    inputs, labels, num_cut = [], [], 0
    for prompt, answer in zip(prompts, answers, strict=True):
        prompt = prompt[:-1] if prompt[-1:] == [end] else prompt  # some tokenizers end every text
        row = [*prompt, *answer, end][:max_length]
        is_answered = len(row) > len(prompt) > 0
        inputs.append(row[:-1] if is_answered else [])
        labels.append([PADDING] * (len(prompt) - 1) + row[len(prompt) :] if is_answered else [])
        num_cut += len(prompt) + len(answer) >= max_length
    if num_cut:
        notes.append(f"{num_cut} of {len(inputs)} answers are cut at {max_length} tokens, and lose their end")
    return inputs, labels


def fill_template(template: str, columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The prompt of every row: the template with {column} replaced by the row's text.

    Sections are separated by blank lines. A section whose columns are all empty in a row is left out of its prompt.
    """
    sections = [(section, list_columns(section)) for section in template.split("\n\n")]
    names = list_columns(template)
    prompts = []
    if not names:
        raise InputError("template: it names no column. Write {column} for the text of a column.")
    for values in zip(*(columns[name] for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        kept = [section for section, inside in sections if not inside or any(row[name] for name in inside)]
        prompts.append("\n\n".join(kept).format_map(row))
    return prompts


def list_columns(template: str) -> list[str]:
    """The columns of a template, in order.

    Raises:
        InputError: Braces are not those of a column's name.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(
            f"template: {error}. Write {{column}} for the text of a column, and {{{{ for a brace."
        ) from error
    fields: list[tuple[Any, ...]] = [field for field in parsed if field[1] is not None]
    for _, name, specification, conversion in fields:
        if not name.isidentifier() or specification or conversion:
            raise InputError(f"template: '{{{name}}}' is no column. Write {{column}} for the text of a column.")
    return list(dict.fromkeys(name for _, name, _, _ in fields))
