"""Files of columns: data sets saved by the library `datasets`, Parquet, comma-separated values and JSON."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het._internal.regular_files import read_text
from fedjax_het.data.encoding import note_names
from fedjax_het.data.sources._assembly import SPLITS
from fedjax_het.data.sources._columns import read_columns
from fedjax_het.data.sources._image_listing import list_entries
from fedjax_het.data.sources._io_errors import report_read_errors
from fedjax_het.errors import InputError, shorten

_SUFFIXES = (".parquet", ".arrow", ".csv", ".tsv", ".jsonl", ".json")
_SAVED, _SPLITS = "state.json", "dataset_dict.json"
_NOT_DATA = {_SAVED, "dataset_info.json", "dataset_infos.json", "config.json", "special_tokens_map.json"}
_SHARD = re.compile(r"-\d+-of-\d+$")
_LFS = b"version https://git-lfs"
_MAGIC = {".arrow": b"\xff\xff\xff\xff", ".parquet": b"PAR1"}


class ColumnPart(NamedTuple):
    """The rows of one file, or of one saved split.

    Args:
        origin: The file or folder, for messages.
        split: The name of the split.
        domain: The name of the file if files are domains, otherwise "all".
        files: All files that were read.
        columns: The values of every column as a sequence, None for missing ones; memory-mapped for Arrow files.
        class_names: The names of the classes of columns that have them.
    """

    origin: Path
    split: str
    domain: str
    files: Sequence[Path]
    columns: Mapping[str, Any]
    class_names: Mapping[str, Sequence[str]]

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.columns.values())))


class _ArrowColumn:
    """A column of an Arrow table as Python values, optionally of selected rows."""

    def __init__(self, values: Any, rows: Any):
        self._values, self._rows = values, rows

    def __len__(self) -> int:
        return len(self._values if self._rows is None else self._rows)

    def __getitem__(self, index: int) -> Any:
        return self._values[index if self._rows is None else self._rows[index].as_py()].as_py()

    def __iter__(self) -> Iterator[Any]:
        if self._rows is not None:
            return (self[index] for index in range(len(self)))
        return (value for chunk in self._values.chunks for value in chunk.to_pylist())


def read_column(parts: Iterable[ColumnPart], key: str) -> list[Any]:
    """The values of a column in all parts."""
    return [value for part in parts for value in part.columns[key]]


def read_parts(
    place: Path, header: Sequence[str] = (), splits: Sequence[str] = ()
) -> tuple[list[ColumnPart], list[str]]:
    """Read a file, a folder that `datasets` saved, or the data files in a folder or in its subfolder data/.

    Args:
        place: The file or folder.
        header: The names of the columns of .csv and .tsv files without a header.
        splits: The splits to read; without any, all that have the name of a split.

    Returns:
        The parts, all with columns and rows, and a note on files and splits that are not read.
    """
    if place.is_file():
        candidates = {place: "train"}
    elif (place / _SPLITS).is_file():
        names = _read_json(place / _SPLITS).get("splits", [])
        candidates = {place / name: name for name in names}
        if missing := next((folder for folder in candidates if not (folder / _SAVED).is_file()), None):
            raise InputError(f"{place / _SPLITS} lists the split '{missing.name}', and {missing} holds no {_SAVED}.")
    elif (place / _SAVED).is_file():
        candidates = {place: "train"}
    else:
        candidates = _list_files(place)
    chosen, domains = _choose(place, candidates, splits)
    read = [
        _read_saved(path) if path.is_dir() else _read_file(path, header if _is_delimited(path) else ())
        for path in chosen
    ]
    if header and not any(map(_is_delimited, chosen)):
        raise InputError(f"header: {place} has no .csv or .tsv files, whose columns could be named. Leave it out.")
    parts = [
        part._replace(split=split, domain=domain)
        for part, split, domain in zip(read, chosen.values(), domains, strict=True)
    ]
    if empty := next((part for part in parts if not part.columns or not part.num_rows), None):
        raise InputError(f"{empty.origin} has no rows. Give the path of files with rows.")
    skipped = [path.name for path in candidates if path not in chosen]
    return parts, note_names(skipped, "splits or files are not read")


def _is_delimited(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv")


def _list_files(place: Path) -> dict[Path, str]:
    """{file: the split in its name, or ""} of all files with the first suffix that is found."""
    for suffix in _SUFFIXES:
        for folder in (place, place / "data"):
            files = [file for file in list_entries(folder, suffix) if _is_data(file)]
            if files:
                return {file: _find_split(file) for file in files}
    raise InputError(
        f"{place} holds no data files ({', '.join(_SUFFIXES)}), nor does data/ in it, and it was not saved by "
        "save_to_disk. Give the path of the files."
    )


def _is_data(file: Path) -> bool:
    return file.name not in _NOT_DATA and not file.name.startswith("tokenizer")


def _find_split(file: Path) -> str:
    """The split in a file's name: train-00000-of-00002.parquet, ag_news-test.arrow, dev.tsv."""
    words = re.split(r"[-_. ]", _stem(file).lower())
    return next((word for word in (words[0], words[-1]) if word in SPLITS), "")


def _stem(file: Path) -> str:
    return _SHARD.sub("", file.stem)


def _choose(place: Path, candidates: Mapping[Path, str], splits: Sequence[str]) -> tuple[dict[Path, str], list[str]]:
    """({path: split} of the parts that are read, the domain of each)."""
    found = [split for split in dict.fromkeys(candidates.values()) if split]
    if missing := [split for split in splits if split not in found]:
        raise InputError(f"{place} has no split '{missing[0]}'. Its splits: {', '.join(found) or 'none'}.")
    if unknown := [split for split in splits if split.lower() not in SPLITS]:
        raise InputError(f"splits: '{unknown[0]}' is no name of a split. Use {', '.join(SPLITS)}.")
    known = [split for split in found if split.lower() in SPLITS and split in (splits or found)]
    if known:
        chosen = {path: split for path, split in candidates.items() if split in known}
        return chosen, ["all"] * len(chosen)
    if found:
        raise InputError(f"{place} has the splits {', '.join(found)}, and none of {', '.join(SPLITS)}. Rename one.")
    names = [_stem(path) for path in candidates]
    return dict.fromkeys(candidates, "train"), names if len(set(names)) > 1 else ["all"] * len(names)


def _read_saved(folder: Path) -> ColumnPart:
    """Read the Arrow files that the state lists, in its order, and the rows that it selects."""
    state, info = _read_json(folder / _SAVED), folder / "dataset_info.json"
    data, selected = (
        [folder / entry["filename"] for entry in state.get(key) or []] for key in ("_data_files", "_indices_data_files")
    )
    if not data:
        raise InputError(f"{folder / _SAVED} lists no _data_files. Save the data set again by save_to_disk.")
    rows = _read_arrow(selected).column(0) if selected else None
    features = _read_json(info).get("features") if info.is_file() else None
    return _wrap(folder, [*data, *selected], _read_arrow(data), rows, features)


def _read_file(file: Path, header: Sequence[str]) -> ColumnPart:
    suffix = file.suffix.lower()
    if suffix not in _SUFFIXES:
        raise InputError(f"{file} has the suffix '{suffix}'. Supported: {', '.join(_SUFFIXES)}.")
    if suffix in (".arrow", ".parquet"):
        return _wrap(file, [file], _read_arrow([file]))
    _check_start(file)
    columns = read_columns(file, "\t" if suffix == ".tsv" else ",", header) if _is_delimited(file) else _read_rows(file)
    return ColumnPart(file, "", "", [file], columns, {})


def _check_start(file: Path) -> None:
    """Raise InputError unless the first bytes are those of the format."""
    with report_read_errors(file), file.open("rb") as content:
        start = content.read(len(_LFS))
    if start == _LFS:
        raise InputError(f"{file} is a Git LFS pointer without the data. Run 'git lfs pull' in its repository.")
    if file.suffix.lower() == ".arrow" and start.startswith(b"ARROW1"):
        raise InputError(
            f"{file} is an Arrow file for random access (ARROW1), expected an Arrow stream. Save the data by "
            "save_to_disk of `datasets`, or as Parquet."
        )
    if not start.startswith(magic := _MAGIC.get(file.suffix.lower(), b"")):
        raise InputError(f"{file} begins with {start[:8]}, expected {magic}. Download it again.")


def _read_arrow(files: Sequence[Path]) -> Any:
    """The table of Arrow streams, memory-mapped, or of Parquet files."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            'Arrow and Parquet files are read by pyarrow. Install it: pip install "fedjax-het[text]"'
        ) from error
    tables = []
    for file in files:
        _check_start(file)
        with report_read_errors(file):
            if file.suffix.lower() == ".parquet":
                tables.append(pyarrow.parquet.ParquetFile(file, memory_map=True).read())
            else:
                tables.append(pyarrow.ipc.open_stream(pyarrow.memory_map(str(file))).read_all())
    with report_read_errors(files[-1]):
        return pyarrow.concat_tables(tables)


def _wrap(
    origin: Path, files: Sequence[Path], table: Any, rows: Any = None, features: Mapping[str, Any] | None = None
) -> ColumnPart:
    """The part of an Arrow table, whose metadata, or else `features`, hold the names of classes."""
    metadata = table.schema.metadata or {}
    if b"huggingface" in metadata:
        with report_read_errors(origin):
            features = json.loads(metadata[b"huggingface"])["info"]["features"]
    names = {
        column: feature["names"]
        for column, feature in (features or {}).items()
        if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }
    columns = {name: _ArrowColumn(table.column(name), rows) for name in table.column_names}
    return ColumnPart(origin, "", "", files, columns, names)


def _read_json(file: Path) -> dict[str, Any]:
    with report_read_errors(file):
        content = json.loads(read_text(file))
    if not isinstance(content, dict):
        raise InputError(f"{file} holds {shorten(content)}, expected a table. Save the data set again.")
    return content


def _read_rows(file: Path) -> dict[str, list]:
    """The columns of a list of objects, or of an object per line; None for missing values."""
    with report_read_errors(file):
        text = read_text(file)
        if text.lstrip().startswith("["):
            rows = list(enumerate(json.loads(text), start=1))
        else:
            rows = [
                (number, _parse_line(file, number, line))
                for number, line in enumerate(text.split("\n"), 1)  # `splitlines` would also split inside of strings
                if line.strip()
            ]
    if wrong := next((number for number, row in rows if not isinstance(row, dict)), None):
        raise InputError(f"{file}: row {wrong} is not an object. Give a list of {{column: value}}, or one per line.")
    names = dict.fromkeys(name for _, row in rows for name in row)
    return {name: [row.get(name) for _, row in rows] for name in names}


def _parse_line(file: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InputError(
            f"{file}, line {number} is not JSON: {error}. Give a list of objects, or one per line."
        ) from error
