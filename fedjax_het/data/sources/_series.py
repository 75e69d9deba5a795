"""Files of time series, which are cut into windows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het.data._windows import Form, Scale, windows
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.encoding import note_names, parse_column
from fedjax_het.data.sources._column_files import read_parts
from fedjax_het.data.sources._columns import split_names
from fedjax_het.data.sources._io_errors import report_read_errors, require_path
from fedjax_het.errors import InputError, nearest
from fedjax_het.validation import Count, FractionBelowOne, refuse_without_effect, validate_arguments


@validate_arguments
def series(
    path: str,
    window: Count,
    horizon: Count,
    value: Sequence[str] | str | None = None,
    domain: str | None = None,
    stride: Count = 1,
    cuts: tuple[FractionBelowOne, FractionBelowOne] = (0.6, 0.8),
    form: Form = "context",
    scale: Scale = "series",
    season: Count = 1,
    title: str | None = None,
) -> Dataset:
    """Read time series and cut them into windows, see `fedjax_het.data.windows`; each series is a domain.

    The file is one of these, with the steps in the order of time:

    - A table (.csv, .tsv, .parquet, .arrow, .json, .jsonl) with a column per series: those in `value`, or all columns
      of numbers.
    - Such a table with a column `domain` of the names of the series, and a column `value` of their numbers. Several
      columns in `value` are the channels of the inputs, of which the first is forecast.
    - A .npz file with an array [steps] or [steps, channel] for each series, or one array `series` [series, steps] or
      [series, steps, channel] and optionally their `names`.

    Missing values are allowed at the beginning and at the end of a series, which has fewer steps then.

    Args:
        path: The file.
        window: The number of steps of the inputs.
        horizon: The number of steps that are forecast.
        value: The columns of numbers, as names or comma-separated.
        domain: The column of the names of the series.
        stride: See `fedjax_het.data.windows`, also for the next four.
        cuts: The fractions of the steps of a series before the validation part and before the test part.
        form: "context" or "strict".
        scale: "series", "common" or "none".
        season: The number of steps after which the naive forecast repeats a value, for the metric `mase`.
        title: The name of the data set (default: the name of the file).

    Raises:
        InputError: Columns are missing, a value within a series is missing, or as in `fedjax_het.data.windows`.
    """
    place, keys, notes = require_path(path), split_names(value), []
    if place.suffix == ".npz":
        refuse_without_effect(series, "for .npz files", value=value, domain=domain)
        found = _read_arrays(place)
    else:
        found = _read_table(place, keys, domain, notes)
    cut = {key: _cut_missing(place, key, array) for key, array in found.items()}
    name = title or place.stem
    options = {"stride": stride, "cuts": cuts, "form": form, "scale": scale, "season": season, "name": name}
    dataset = windows(cut, window, horizon, **options)
    return replace(dataset, notes=(*notes, *note_names(list(cut), "series"), *dataset.notes))


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    with report_read_errors(path), np.load(path) as file:
        arrays = {key: file[key] for key in file.files}
    if "series" not in arrays:
        return arrays
    names = arrays.get("names", range(len(arrays["series"])))
    if len(names) != len(arrays["series"]):
        raise InputError(f"{path}: {len(names)} names for {len(arrays['series'])} series. Give each its name.")
    return {str(key): array for key, array in zip(names, arrays["series"], strict=True)}


def _read_table(path: Path, keys: Sequence[str], domain: str | None, notes: list[str]) -> dict[str, np.ndarray]:
    parts, _ = read_parts(path)
    columns: Mapping[str, Any] = parts[0].columns
    for key in [*keys, *([domain] if domain else [])]:
        if key not in columns:
            raise InputError(f"{path} has no column '{key}'. {nearest(key, columns)}")
    if domain and not keys:
        raise InputError(f"value: name the column of the numbers of a series: {', '.join(columns)}.")
    read = {key: parse_column(list(columns[key])) for key in keys or columns}
    texts = [key for key, values in read.items() if values.dtype.kind != "f"]
    if keys and texts:
        raise InputError(f"{path}: column '{texts[0]}' holds texts, not numbers. Name other columns in value.")
    notes += note_names(texts, "columns of texts are not read")
    numbers = {key: values for key, values in read.items() if key not in texts}
    if not numbers:
        raise InputError(f"{path} has no columns of numbers: {', '.join(columns)}.")
    if domain is None:
        return numbers
    owners, stacked = np.array([str(owner) for owner in columns[domain]]), np.stack(list(numbers.values()), axis=1)
    return {owner: stacked[owners == owner] for owner in dict.fromkeys(owners.tolist())}


def _cut_missing(path: Path, key: str, values: np.ndarray) -> np.ndarray:
    """The series without missing values at its ends; those inside raise an error."""
    if values.dtype.kind != "f" or values.ndim not in (1, 2):
        return values
    is_missing: np.ndarray = np.isnan(values).reshape(len(values), -1).max(axis=1)
    present = np.flatnonzero(~is_missing).tolist()
    if not len(present):
        raise InputError(f"{path}: series '{key}' has no values. Leave it out.")
    first, end = present[0], present[-1] + 1
    if len(present) < end - first:
        step = first + int(np.argmax(is_missing[first:end]))
        raise InputError(f"{path}: series '{key}' has no value at step {step}. Fill it.")
    return values[first:end]
