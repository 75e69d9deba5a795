"""Scikit-learn's diabetes data: the progression of the disease as a number or as a rank."""

from importlib.metadata import distribution
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fedjax_het.data.assembly import assemble
from fedjax_het.data.dataset import Dataset
from fedjax_het.errors import InputError
from fedjax_het.validation import Range, validate_arguments

_FOLDER = "sklearn/datasets/data"
_FILES = ("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz")
_AGE, _SEX = 0, 1
Grades = Annotated[int, Range(2, 100, is_whole=True)]


@validate_arguments
def diabetes(grades: Grades | None = None, domain: Literal["none", "sex", "decade"] = "none") -> Dataset:
    """Load 442 patients with ten features, and the progression of their diabetes after a year, from 25 to 346.

    These are scikit-learn's `load_diabetes`, unscaled: age, sex, body mass index, blood pressure and six blood values.
    The source has no test split. Use `federate(standardise=True)`, which scales the features.

    Args:
        grades: None: labels are numbers. Otherwise labels are this number of ranks, ranges of the progression that
            have about the same number of patients each.
        domain: The domains: "sex" (1 and 2), "decade" of the age ("10s" to "70s"), or "none".

    Raises:
        InputError: The files of scikit-learn are missing.

    References:
        Efron, Hastie, Johnstone and Tibshirani, Least Angle Regression, Annals of Statistics 2004.
    """
    features, progression = (_read(file) for file in _FILES)
    domains = None
    if domain == "sex":
        domains = [f"sex_{value:.0f}" for value in features[:, _SEX]]
    elif domain == "decade":
        domains = [f"{value // 10 * 10:.0f}s" for value in features[:, _AGE]]
    if grades is None:
        names = ("progression",)
        return assemble("diabetes", features, progression, kind="numbers", class_names=names, domains=domains)
    bounds = np.quantile(progression, np.arange(1, grades) / grades)
    ranks = np.searchsorted(bounds, progression, side="right")
    names = [f"grade_{grade}" for grade in range(1, grades + 1)]
    return assemble("diabetes", features, ranks, kind="ranks", class_names=names, domains=domains)


def _read(name: str) -> np.ndarray:
    file = Path(str(distribution("scikit-learn").locate_file(f"{_FOLDER}/{name}")))
    if not file.is_file():  # it is read without scikit-learn, which takes seconds to import
        raise InputError(f"diabetes: {file} does not exist. Reinstall: pip install --force-reinstall scikit-learn")
    return np.loadtxt(file)
