"""Clinical tables as in FLamby: heart disease in four hospitals, breast cancer survival in six regions."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._image_listing import assemble_by_name, read_csv, read_csv_columns
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset
from fedjax_het.errors import InputError
from fedjax_het.validation import validate_arguments

_HEART_URL = "https://archive.ics.uci.edu/dataset/45/heart+disease"
_CENTERS = ("cleveland", "hungarian", "switzerland", "va")
_NUM_COLUMNS = 14
_NUMBERS = (0, 1, 3, 4, 5, 7, 8, 9)  # age, sex, pressure, cholesterol, sugar, heart rate, angina, depression
_PAIN, _ECG, _DIAGNOSIS = 2, 6, 13
_CATEGORIES = {_PAIN: (1, 2, 3, 4), _ECG: (0, 1, 2)}
_TEST_FRACTION, _SPLIT_SEED = 1 - 0.66, 43  # FLamby's
_LEAST = 1e-9  # FLamby adds it to deviations
_BRCA_URL = "https://github.com/owkin/FLamby/tree/main/flamby/datasets/fed_tcga_brca"
_REGIONS = ("northeast", "south", "west", "midwest", "europe", "canada")  # in numeric order
_BRCA_SPLIT = ("train_test_split.csv", "dataset_creation_scripts/train_test_split.csv")


@validate_arguments
def heart_disease(path: str, scaled: bool = True) -> Dataset:
    """Read Fed-Heart-Disease as in FLamby: 740 patients, 13 features, two classes; four hospitals as domains.

    The files are processed.<center>.data of the UCI repository, 14 numbers per line, "?" for missing values. The three
    columns with mostly missing values (slope, ca, thal) are dropped, then patients with other missing values. The types
    of chest pain and electrocardiogram become indicators of all but their first value, after the other features. The
    class is whether the diagnosis is above 0. The split, 66 % for training, is exactly FLamby's.

    Args:
        path: The folder of the four files.
        scaled: Whether features are standardized, (x - mean) / deviation, with the training patients of each center,
            as in FLamby.

    Raises:
        InputError: A file is missing or damaged.

    References:
        Ogier du Terrail et al., FLamby, NeurIPS Datasets and Benchmarks 2022. arXiv:2210.04620. Detrano et al., 1989.
    """
    place = require_dataset(path, "Heart Disease", _HEART_URL)
    inputs, labels, is_test = [], [], []
    for center in _CENTERS:
        table = _read_patients(place / f"processed.{center}.data")
        features, label = _encode_features(table), (table[:, _DIAGNOSIS] > 0).astype(np.int32)
        held = _draw_test(label)
        if scaled:
            train = features[~held]
            features = (features - train.mean(axis=0)) / (train.std(axis=0, ddof=1) + _LEAST)
        inputs.append(features)
        labels.append(label)
        is_test.append(held)
    return assemble_by_name(
        "heart_disease",
        np.concatenate(inputs),
        np.concatenate(labels),
        class_names=("healthy", "disease"),
        domains=[center for center, label in zip(_CENTERS, labels, strict=True) for _ in label],
        splits=np.where(np.concatenate(is_test), "test", "train").tolist(),
    )


def _read_patients(file: Path) -> np.ndarray:
    """[patient, column]: NaN in dropped columns; patients with other missing values are left out."""
    used = [*_NUMBERS, _PAIN, _ECG, _DIAGNOSIS]
    rows = []
    for line, cells in read_csv(file):
        if len(cells) != _NUM_COLUMNS:
            raise InputError(f"{file}, line {line}: {len(cells)} values, not {_NUM_COLUMNS}. Download the file again.")
        row = np.full(_NUM_COLUMNS, np.nan)
        for column in used:
            try:
                row[column] = np.nan if cells[column] == "?" else float(cells[column])
            except ValueError:
                raise InputError(f"{file}, line {line}: '{cells[column]}' is no number. Download it again.") from None
        for column, known in _CATEGORIES.items():
            if not np.isnan(row[column]) and row[column] not in known:
                raise InputError(f"{file}, line {line}: value {column + 1} is {row[column]:g}, not one of {known}.")
        if not np.isnan(row[used]).any():
            rows.append(row)
    if len(rows) < 3:
        raise InputError(f"{file} holds {len(rows)} patients without missing values. Download it again.")
    return np.array(rows)


def _encode_features(table: np.ndarray) -> np.ndarray:
    indicators = [table[:, [column]] == known[1:] for column, known in _CATEGORIES.items()]
    return np.concatenate([table[:, _NUMBERS], *indicators], axis=1).astype(np.float32)


def _draw_test(labels: np.ndarray) -> np.ndarray:
    """[patient] bool: FLamby's test split, stratified by class if every class has at least three patients."""
    from sklearn.model_selection import train_test_split  # slow to import

    counts = np.bincount(labels, minlength=2)
    _, test = train_test_split(
        np.arange(len(labels)),
        test_size=_TEST_FRACTION,
        train_size=1 - _TEST_FRACTION,
        random_state=_SPLIT_SEED,
        stratify=labels if counts.min() > 2 else None,
    )
    return np.isin(np.arange(len(labels)), test)


@validate_arguments
def tcga_brca(path: str) -> Dataset:
    """Read Fed-TCGA-BRCA as published by FLamby: survival of 1,088 patients, 39 features; six regions as domains.

    The files are brca.csv, a line per patient with the columns pid, the features, E (1: death observed) and T (days),
    and train_test_split.csv with the columns pid, fold and fold2 (train_0 to test_5), in the same folder or in
    dataset_creation_scripts/. Labels are survival times, see `fedjax_het.labels`: train with task_loss="cox".
    Features are used as in the file, age in years and indicators, as in FLamby.

    Args:
        path: The folder of brca.csv.

    Raises:
        InputError: A file is missing or damaged, or a patient in a fold is not in the table.

    References:
        Ogier du Terrail et al., FLamby, NeurIPS Datasets and Benchmarks 2022. arXiv:2210.04620
    """
    place = require_dataset(path, "Fed-TCGA-BRCA", _BRCA_URL)
    listing = next((place / each for each in _BRCA_SPLIT if (place / each).is_file()), None)
    if listing is None:
        raise InputError(f"{place} holds no {' and no '.join(_BRCA_SPLIT)}. They are published at {_BRCA_URL}")
    by_patient = dict(_read_survival(place / "brca.csv"))
    rows, regions, splits = [], [], []
    for line, (patient, fold) in read_csv_columns(listing, ("pid", "fold2")):
        split, _, region = fold.partition("_")
        if split not in ("train", "test") or region not in map(str, range(len(_REGIONS))):
            raise InputError(f"{listing}, line {line}: the fold '{fold}' is none of train_0 to test_5. Correct it.")
        if patient not in by_patient:
            raise InputError(f"{listing}, line {line}: the patient {patient} is not in brca.csv. Download both again.")
        rows.append(by_patient[patient])
        regions.append(_REGIONS[int(region)])
        splits.append(split)
    if not rows:
        raise InputError(f"{listing} lists no patients. Download it again.")
    table, left_out = np.array(rows), len(by_patient) - len(rows)
    has_event, days = table[:, -2] == 1, table[:, -1]
    return assemble_by_name(
        "tcga_brca",
        table[:, :-2].astype(np.float32),
        np.where(has_event, 1 + days, -1 - days).astype(np.float32),
        class_names=("alive", "dead"),
        domains=regions,
        splits=splits,
        notes=[f"{left_out} patients are in no fold: left out"] if left_out else [],
    )


def _read_survival(file: Path) -> Iterator[tuple[str, list[float]]]:
    """(patient, features, E and T) of each line."""
    with report_read_errors(file):
        lines = read_csv(file)
        _, header = next(lines)
    if header[:1] != ["pid"] or header[-2:] != ["E", "T"]:
        raise InputError(f"{file} has no columns pid, ..., E, T, in this order. It is published at {_BRCA_URL}")
    for line, cells in lines:
        try:
            numbers = [float(cell) for cell in cells[1:]]
        except ValueError:
            numbers = []
        if len(cells) != len(header) or len(numbers) + 1 != len(cells) or not np.isfinite(numbers).all():
            raise InputError(f"{file}, line {line} has other than {len(header) - 1} numbers. Download it again.")
        if numbers[-2] not in (0, 1) or numbers[-1] < 0:
            raise InputError(f"{file}, line {line}: E, T are {numbers[-2:]}, not 0 or 1 and 0 or more. Download it.")
        yield cells[0], numbers
