"""Files of the Hugging Face hub: images or texts with classes, and instructions with answers, in named columns."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import assemble_by_name, check_agreement, find_large_domains
from fedjax_het.data.sources._column_files import ColumnPart, read_column, read_parts
from fedjax_het.data.sources._columns import TableKind, find_roles, read_classes, read_targets, split_names
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._images import decode_image, decoding_options
from fedjax_het.data.sources._io_errors import report_read_errors, require_path
from fedjax_het.data.sources._tokenizer import Tokenizer, fill_template, join_answers, list_columns, pad_rows
from fedjax_het.errors import InputError, shorten
from fedjax_het.validation import Count, CountOrZero, refuse_without_effect, validate_arguments

_INPUTS = {"image": ("image", "img"), "text": ("text", "sentence"), "answer": ("response", "output")}
_MAX_LENGTH = 256


class _Examples(NamedTuple):
    """Inputs and labels; or of texts, the tokens and labels of every row, without padding."""

    inputs: Any
    labels: Any
    class_names: Sequence[str]
    kind: TableKind | None = None
    vocabulary: int | None = None


@validate_arguments
def huggingface(
    path: str,
    image: str | None = None,
    text: Sequence[str] | str | None = None,
    answer: str | None = None,
    label: Sequence[str] | str | None = None,
    domain: str | None = None,
    tokenizer: str | None = None,
    max_length: Count | None = None,
    template: str | None = None,
    end: str | None = None,
    min_examples: CountOrZero = 0,
    splits: Sequence[str] | str | None = None,
    header: Sequence[str] | str | None = None,
    size: Count | None = None,
    channels: int | None = None,
    title: str | None = None,
    cache: str | None = None,
    kind: TableKind | None = None,
) -> Dataset:
    """Read columns of a data set saved by `datasets`, or of Parquet, CSV and JSON files, without that library.

    Inputs are one of these:

    - Images, with a class each: files in a column, as bytes or as {bytes, path}.
    - Texts, with a class each: tokens [n, length], padded on the right with -1.
    - Instructions with answers: tokens of prompt and answer, and labels [n, length], the next token where that belongs
      to the answer, -1 elsewhere. Prompt and answer are cut into tokens separately and joined, with the end token last.
      Classes are the tokens.

    `length` is the smallest multiple of 8 that holds the longest example, at most `max_length`. Notes count the
    examples that are cut, and those that are skipped because nothing is left: empty texts, and answers that begin after
    `max_length` tokens.

    Args:
        path: A file (.parquet, .arrow, .csv, .tsv, .jsonl, .json); a folder written by `save_to_disk`; or a folder with
            such files, in it or in its subfolder data/: of splits (train-00000-of-00002.parquet, test.csv), or one per
            domain, named after it. Arrow files are streams, and are memory-mapped. Cells of .tsv files are not quoted.
        image: The column of images (default: image or img, if it exists).
        text: The column of texts, or several, as names or comma-separated, whose texts are joined by blanks (default:
            text or sentence).
        answer: The column of answers (default: response or output).
        label: The column of labels, or several of tags or numbers, as names or comma-separated (default: a column named
            label, target, class or y). Class names come from the metadata of `datasets`, or are the values in natural
            order.
        domain: The column of domains, such as clients (default: a column named domain, client, site or user).
        tokenizer: The tokenizer.json, or a folder with it; needs `tokenizers`, pip install "fedjax-het[text]".
        max_length: The number of tokens of an example, with special tokens, after which it is cut on the right (default
            None, 256).
        template: The prompt, with {column} for the text of a column. Sections between blank lines whose columns are all
            empty are left out. Default: "### Instruction:", "### Input:" (columns instruction, and input or context)
            and "### Response:", as in Alpaca; a note shows it.
        end: The token after an answer (default: eos_token in tokenizer_config.json beside the tokenizer).
        min_examples: Domains with fewer examples than this are skipped.
        splits: The splits to read, as names or comma-separated (default: all that are called train, validation, test or
            similar).
        header: The names of the columns of .csv and .tsv files without a header, as names or comma-separated.
        size: The side length to which images are resized, see `folders`.
        channels: 1 converts images to grayscale, 3 to color, see `folders`.
        title: The name of the data set (default: the name of the file or folder).
        cache: The cache folder for decoded images, see `folders`.
        kind: The kind of labels, see `fedjax_het.data.convert`.

    Raises:
        InputError: Files, columns or splits are missing; a file is damaged, of another format or a pointer of Git LFS;
            values are missing or labels out of range; an option has no effect; or a library is not installed.
    """
    place = require_path(path)
    parts, notes = read_parts(place, split_names(header), split_names(splits))
    name, columns = title or place.resolve().stem, list(parts[0].columns)
    given = {"image": [image] if image else [], "text": split_names(text), "answer": [answer] if answer else []}
    form, taken = _find_inputs(name, columns, given)
    of_images, of_answers = {"size": size, "channels": channels, "cache": cache}, {"template": template, "end": end}
    unused = {
        "image": {"tokenizer": tokenizer, "max_length": max_length, **of_answers},
        "text": of_images | of_answers,
        "answer": {"label": label, "kind": kind, **of_images},
    }
    refuse_without_effect(huggingface, f"for the {form} column '{taken[0]}'", **unused[form])
    if form == "answer":
        template = template or _default_template(columns)
        taken = [*list_columns(template), *taken]
        notes.append(f"template: {template!r}")
    roles, targets = {"domains": domain}, split_names(label)
    if form != "answer":
        roles["labels"] = targets[0] if targets else None
    roles, found = find_roles(name, columns, roles, [*taken, *targets[1:]])
    if roles.get("labels", "") is None:
        raise InputError(f"{name}: no column is called label. Choose one, label='...': {', '.join(columns)}.")
    targets = targets or [str(roles.get("labels"))]
    _check_columns(parts, [*taken, *filter(None, roles.values()), *targets[1:]])
    notes += found
    length = max_length or _MAX_LENGTH
    if form == "image":
        inputs = _decode_images(name, parts, taken[0], size, channels, cache)
        examples = _Examples(inputs, *_read_targets(name, parts, targets, kind, notes))
    elif tokenizer is None:
        raise InputError(f"tokenizer: {name} has texts. Give the path of a tokenizer.json.")
    elif form == "text":
        rows = [" ".join(row) for row in zip(*(_read_texts(parts, column) for column in taken), strict=True)]
        cutter = Tokenizer(tokenizer)
        labels = _read_targets(name, parts, targets, kind, notes)
        examples = _Examples(cutter.encode(rows, length, notes), *labels, cutter.vocabulary)
    else:
        examples = _read_answers(parts, taken, str(template), Tokenizer(tokenizer), end, length, notes)
    domains = [part.domain for part in parts for _ in range(part.num_rows)]
    if roles["domains"]:
        values, names = _read_labels(name, parts, roles["domains"], [])
        domains = [names[value] if isinstance(value, int) else value for value in values]
    return _assemble(name, parts, examples, domains, min_examples, length, notes)


def _find_inputs(name: str, columns: Sequence[str], given: Mapping[str, list[str]]) -> tuple[str, list[str]]:
    """(the kind of inputs, their columns): those given, or else the only kind with a column of a usual name."""
    usual = {kind: [key for key in columns if key.lower() in names][:1] for kind, names in _INPUTS.items()}
    chosen = {kind: keys for kind, keys in (given if any(given.values()) else usual).items() if keys}
    if len(chosen) == 1:
        return next(iter(chosen.items()))
    options = " or ".join(f"{kind}='...'" for kind in chosen or _INPUTS)
    found = f"has columns for {' and '.join(chosen)}" if chosen else "has no column called image, text or response"
    raise InputError(f"{name} {found}. Choose one, {options}: {', '.join(columns)}.")


def _default_template(columns: Sequence[str]) -> str:
    if "instruction" not in columns:
        raise InputError(f"template: there is no column 'instruction'. Name columns: {', '.join(columns)}.")
    context = [f"### Input:\n{{{key}}}" for key in ("input", "context") if key in columns]
    return "\n\n".join(["### Instruction:\n{instruction}", *context[:1], "### Response:\n"])


def _check_columns(parts: Sequence[ColumnPart], keys: Sequence[str]) -> None:
    for part in parts:
        if missing := [key for key in keys if key not in part.columns]:
            raise InputError(f"{part.origin} has no column '{missing[0]}'. Its columns: {', '.join(part.columns)}.")


def _read_texts(parts: Sequence[ColumnPart], key: str) -> list[str]:
    texts = []
    for part in parts:
        texts += part.columns[key]
        wrong = next((row for row, text in enumerate(part.columns[key], 1) if not isinstance(text, str)), None)
        if wrong is not None:
            found = "no value" if (value := part.columns[key][wrong - 1]) is None else f"{shorten(value)}, not a text,"
            raise InputError(f"{part.origin}: column '{key}' has {found} in row {wrong}. Fill it, or delete the row.")
    return texts


def _read_targets(
    name: str, parts: Sequence[ColumnPart], keys: Sequence[str], kind: TableKind | None, notes: list[str]
) -> tuple[Sequence[Any], Sequence[str], TableKind | None]:
    """(labels, their names, their kind): classes with names in the metadata, or see `read_targets`."""
    if len(keys) == 1 and kind in (None, "classes") and parts[0].class_names.get(keys[0]):
        return *_read_labels(name, parts, keys[0], notes), None
    labels, class_names, kind = read_targets(name, keys, {key: read_column(parts, key) for key in keys}, kind, notes)
    return list(labels), class_names, kind


def _read_labels(
    name: str, parts: Sequence[ColumnPart], key: str, notes: list[str]
) -> tuple[Sequence[Any], Sequence[str]]:
    """(labels or domains, their names): numbers whose names are in the metadata, or else the values themselves."""
    names = parts[0].class_names.get(key)
    if names is None:
        return read_classes(name, key, read_column(parts, key), notes)
    labels = []
    for part in parts:
        check_agreement("class_names", parts[0].origin, names, part.origin, part.class_names.get(key))
        for row, label in enumerate(part.columns[key], start=1):
            if not isinstance(label, int) or not 0 <= label < len(names):
                raise InputError(
                    f"{part.origin}: column '{key}' has {label} in row {row}, expected 0 to {len(names) - 1} (of split "
                    f"{part.split}). Correct the row, or leave out a split without labels: splits='train'."
                )
            labels.append(label)
    return labels, names


def _decode_images(
    name: str, parts: Sequence[ColumnPart], key: str, size: int | None, channels: int | None, cache: str | None
) -> np.ndarray:
    def read(item: tuple[str, ColumnPart, int]) -> Chunk:
        origin, part, row = item
        value = part.columns[key][row]
        content = value.get("bytes") if isinstance(value, Mapping) else value
        if not isinstance(content, bytes):
            raise InputError(
                f"{origin}: column '{key}' has no image, but {shorten(value)}. Save the data set with embedded files."
            )
        with report_read_errors(part.files[0]):
            try:
                return {"inputs": decode_image(io.BytesIO(content), origin, size, channels)[None]}
            except OSError as error:
                raise ValueError(f"row {row + 1}: {error}") from error

    items = [(f"{part.origin}, row {row + 1}", part, row) for part in parts for row in range(part.num_rows)]
    files = [file for part in parts for file in part.files]
    options = {"column": key} | decoding_options(size, channels)
    return decode_once(name, items, read, files=files, options=options, cache=cache)["inputs"]


def _read_answers(
    parts: Sequence[ColumnPart],
    columns: Sequence[str],
    template: str,
    tokenizer: Tokenizer,
    end: str | None,
    max_length: int,
    notes: list[str],
) -> _Examples:
    *asked, answer = columns
    prompts = tokenizer.encode(fill_template(template, {key: _read_texts(parts, key) for key in asked}))
    answers = tokenizer.encode(_read_texts(parts, answer), is_whole=False)
    joined = join_answers(prompts, answers, tokenizer.find_end(end), max_length, notes)
    return _Examples(*joined, tokenizer.tokens, None, tokenizer.vocabulary)


def _assemble(
    name: str,
    parts: Sequence[ColumnPart],
    examples: _Examples,
    domains: Sequence[str],
    min_examples: int,
    max_length: int,
    notes: list[str],
) -> Dataset:
    """The data set of the rows that have tokens and a large domain."""
    inputs, labels, splits = examples.inputs, examples.labels, [x.split for x in parts for _ in range(x.num_rows)]
    rows = range(len(domains))
    if examples.vocabulary is not None:
        rows = [row for row in rows if len(inputs[row])]
        if not rows:
            raise InputError(
                f"{name}: no example has tokens to learn from before the cut at {max_length}. Raise max_length."
            )
        if skipped := len(domains) - len(rows):
            notes.append(f"{skipped} examples without tokens to learn from are skipped")
    counts = dict.fromkeys(domains, 0) | Counter(domains[row] for row in rows)
    large, small = find_large_domains(name, counts, min_examples)
    rows = [row for row in rows if domains[row] in large]
    if examples.vocabulary is not None:
        inputs = pad_rows([inputs[row] for row in rows], max_length)
    elif len(rows) < len(domains):
        inputs = inputs[rows]
    labels = [labels[row] for row in rows]
    return assemble_by_name(
        name,
        inputs,
        pad_rows(labels, max_length) if isinstance(labels[0], list) else labels,
        class_names=examples.class_names,
        kind=examples.kind,
        domains=[domains[row] for row in rows],
        splits=[splits[row] for row in rows],
        vocabulary=examples.vocabulary,
        notes=[*notes, *small],
    )
