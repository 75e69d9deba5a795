"""Clinical tables in FLamby's form, in small files of the published format."""

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from fedjax_het.data import by_domain, federate, load
from tests.data.sources.image_files import refuse

CENTERS = ("cleveland", "hungarian", "switzerland", "va")
RNG = np.random.default_rng(0)


def write_patient(row: np.ndarray, missing=(10, 11, 12)) -> str:
    return ",".join("?" if i in missing else f"{x:g}" for i, x in enumerate(row))


@pytest.fixture
def patients():
    """{center: [patient, 14]}, of which the first of every center lacks its blood pressure."""
    tables = {}
    for i, center in enumerate(CENTERS):
        table = RNG.integers(0, 200, (12 + i, 14)).astype(float)
        table[:, 2], table[:, 6] = np.arange(len(table)) % 4 + 1, np.arange(len(table)) % 3
        table[:, 9], table[:, 13] = table[:, 9] / 10, np.arange(len(table)) % 5
        tables[center] = table
    return tables


@pytest.fixture
def folder(tmp_path, patients):
    for center, table in patients.items():
        lines = [write_patient(row, missing=(3, 11) if i == 0 else (10, 12)) for i, row in enumerate(table)]
        (tmp_path / f"processed.{center}.data").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_heart_disease_has_four_hospitals(folder, patients):
    dataset = load("heart_disease", path=folder, scaled=False)
    kept = np.concatenate([table[1:] for table in patients.values()])
    assert dataset.inputs.shape == (len(kept), 13) and dataset.domain_names == CENTERS
    np.testing.assert_array_equal(dataset.inputs[:, :8], kept[:, [0, 1, 3, 4, 5, 7, 8, 9]].astype(np.float32))
    for column, feature, value in ((2, 8, 2), (2, 9, 3), (2, 10, 4), (6, 11, 1), (6, 12, 2)):
        np.testing.assert_array_equal(dataset.inputs[:, feature], kept[:, column] == value)
    np.testing.assert_array_equal(dataset.labels, kept[:, 13] > 0)
    federation = federate(dataset, by_domain(), 0, local_test=True)
    assert federation.client_names == CENTERS
    np.testing.assert_array_equal(federation.data.train.count + federation.data.test.count, [11, 12, 13, 14])


def test_heart_disease_is_scaled_by_the_training_patients_of_a_hospital(folder, patients):
    raw, dataset = (load("heart_disease", path=folder, scaled=scaled) for scaled in (False, True))
    for i, table in enumerate(patients.values()):
        inside = np.flatnonzero(raw.domains == i)
        labels = table[1:, 13] > 0
        stratify = labels if min(labels.sum(), (~labels).sum()) > 2 else None
        train, test = train_test_split(
            inside, test_size=1 - 0.66, train_size=0.66, random_state=43, shuffle=True, stratify=stratify
        )
        assert set(np.flatnonzero(dataset.is_test)) & set(inside) == set(test)
        mean, deviation = raw.inputs[train].mean(axis=0), raw.inputs[train].std(axis=0, ddof=1)
        expected = (raw.inputs[inside] - mean) / (deviation + 1e-9)
        np.testing.assert_allclose(dataset.inputs[inside], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: f.unlink(), r"processed.va.data does not exist"),
        (lambda f: f.write_text("1,2,3\n"), "line 1: 3 values, not 14"),
        (lambda f: f.write_text("x" + f.read_text()), "line 1: 'x.* is not a finite number"),
        (lambda f: f.write_text(write_patient(np.full(14, 9)) + "\n"), r"chest pain is 9, not one of \(1, 2, 3, 4\)"),
        (lambda f: f.write_text(""), "holds 0 patients"),
    ],
)
def test_damaged_tables_of_patients_are_refused(folder, spoil, message):
    spoil(folder / "processed.va.data")
    refuse(message, "heart_disease", folder)


FEATURES = ["age_at_index", "race_white", "primary_diagnosis_Infiltrating duct carcinoma, NOS"]


@pytest.fixture
def survival(tmp_path):
    """Twelve patients, two of each region, and one that is in no fold; the quoted header has a comma."""
    header = ",".join(["pid", *FEATURES[:2], f'"{FEATURES[2]}"', "E", "T"])
    lines = [f"TCGA-{i},{40 + i},{i % 2},1,{i % 3 == 0:.1f},{10.0 * i}" for i in range(13)]
    (tmp_path / "brca.csv").write_text("\n".join([header, *lines]) + "\n")
    folds = [f"TCGA-{i},{split},{split}_{i // 2}" for i in range(12) for split in [("train", "test")[i % 2]]]
    (tmp_path / "train_test_split.csv").write_text("\n".join(["pid,fold,fold2", *folds]) + "\n")
    return tmp_path


def test_survival_has_six_regions_and_signed_times(survival):
    dataset = load("tcga_brca", path=survival)
    assert dataset.domain_names == ("canada", "europe", "midwest", "northeast", "south", "west")
    assert dataset.inputs.tolist() == [[40 + i, i % 2, 1] for i in range(12)]
    assert dataset.labels.tolist() == [(1 + 10 * i) * (1 if i % 3 == 0 else -1) for i in range(12)]
    assert dataset.classes.tolist() == [i % 3 == 0 for i in range(12)] and dataset.class_counts.sum() == 12
    assert dataset.is_test.tolist() == [False, True] * 6
    assert dataset.notes == ("1 patients are in no fold: left out",)
    (survival / "dataset_creation_scripts").mkdir()  # where FLamby has the split
    (survival / "train_test_split.csv").rename(survival / "dataset_creation_scripts" / "train_test_split.csv")
    assert len(load("tcga_brca", path=survival).labels) == 12
    federation = federate(dataset, by_domain(), 0, local_test=True)
    assert federation.data.train.count.tolist() == [1] * 6 and federation.class_counts.sum() == 6
    assert federate(dataset, by_domain(), 0, test_fraction=0.5).test is not None


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("brca.csv", lambda text: text.replace("E,T", "T,E"), "has no columns pid, ..., E, T, in this order"),
        ("brca.csv", lambda text: text.replace("TCGA-0,40", "TCGA-0,forty"), "line 2: 'forty' is not a finite number"),
        ("brca.csv", lambda text: text.replace("1.0,0.0", "2.0,0.0"), r"line 2: E, T are \[2.0, 0.0\]"),
        ("brca.csv", None, r"brca.csv does not exist"),
        ("train_test_split.csv", lambda text: text.replace("test_0", "test_9"), "line 3: the fold 'test_9'"),
        ("train_test_split.csv", lambda text: text.replace("TCGA-0", "TCGA-X"), "TCGA-X is not in brca.csv"),
        ("train_test_split.csv", None, r"holds no train_test_split.csv and no"),
    ],
)
def test_damaged_tables_of_survival_are_refused(survival, file, change, message):
    path = survival / file
    path.unlink() if change is None else path.write_text(change(path.read_text()))
    refuse(message, "tcga_brca", survival)
