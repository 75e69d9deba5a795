"""Clinical tables as in FLamby: heart disease in four hospitals, breast cancer survival in six regions."""

from pathlib import Path

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import Part, assemble_by_name, assemble_parts
from fedjax_het.data.sources._image_listing import parse_numbers, read_csv, read_csv_columns, read_table
from fedjax_het.data.sources._io_errors import require_dataset
from fedjax_het.errors import InputError
from fedjax_het.validation import validate_arguments

_HEART_URL = "https://archive.ics.uci.edu/dataset/45/heart+disease"
_CENTERS = ("cleveland", "hungarian", "switzerland", "va")
_NUM_COLUMNS = 14
# Age, sex, pressure, cholesterol, sugar, heart rate, angina and depression; chest pain, electrocardiogram, diagnosis.
_USED = (0, 1, 3, 4, 5, 7, 8, 9, 2, 6, 13)
_PAINS, _ECGS = (1, 2, 3, 4), (0, 1, 2)
_TEST_FRACTION, _SPLIT_SEED = 1 - 0.66, 43  # FLamby's
_MIN_DEVIATION = 1e-9  # FLamby adds it to deviations
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
    parts = []
    for center in _CENTERS:
        file = place / f"processed.{center}.data"
        table = _read_patients(file)
        numbers, pain, ecg, diagnosis = np.split(table, [-3, -2, -1], axis=1)
        features = np.concatenate([numbers, pain == _PAINS[1:], ecg == _ECGS[1:]], axis=1).astype(np.float32)
        labels = (diagnosis[:, 0] > 0).astype(np.int32)
        is_test = _draw_test(labels)
        if scaled:
            train = features[~is_test]
            features = (features - train.mean(axis=0)) / (train.std(axis=0, ddof=1) + _MIN_DEVIATION)
        parts.append(Part(file, features, labels, np.where(is_test, "test", "train").tolist(), center))
    return assemble_parts("heart_disease", parts, class_names=("healthy", "disease"))


def _read_patients(file: Path) -> np.ndarray:
    """[patient, used column]; patients with missing values in these columns are left out."""
    rows = []
    for line, cells in read_csv(file):
        if len(cells) != _NUM_COLUMNS:
            raise InputError(f"{file}, line {line}: {len(cells)} values, not {_NUM_COLUMNS}. Download the file again.")
        row = parse_numbers(file, line, [cells[column] for column in _USED], missing="?")
        for field, value, known in (("chest pain", row[-3], _PAINS), ("electrocardiogram", row[-2], _ECGS)):
            if not np.isnan(value) and value not in known:
                raise InputError(f"{file}, line {line}: {field} is {value:g}, not one of {known}. Download it again.")
        rows += [] if np.isnan(row).any() else [row]
    if len(rows) < 3:
        raise InputError(f"{file} holds {len(rows)} patients without missing values. Download it again.")
    return np.array(rows)


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
    listing = next((place / file for file in _BRCA_SPLIT if (place / file).is_file()), None)
    if listing is None:
        raise InputError(f"{place} holds no {' and no '.join(_BRCA_SPLIT)}. They are published at {_BRCA_URL}")
    by_patient = _read_survival(place / "brca.csv")
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


def _read_survival(file: Path) -> dict[str, np.ndarray]:
    """{patient: features, E and T}."""
    header, lines = read_table(file)
    if header[:1] != ["pid"] or header[-2:] != ["E", "T"]:
        raise InputError(f"{file} has no columns pid, ..., E, T, in this order. It is published at {_BRCA_URL}")
    patients = {}
    for line, cells in lines:
        numbers = parse_numbers(file, line, cells[1:])
        if numbers[-2] not in (0, 1) or numbers[-1] < 0:
            raise InputError(
                f"{file}, line {line}: E, T are {numbers[-2:].tolist()}, not 0 or 1 and 0 or more. Download it."
            )
        patients[cells[0]] = numbers
    return patients
