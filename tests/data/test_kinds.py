"""Numbers, tags and ranks in data sets: standardised targets, windows of time series, quantiles, files."""

from itertools import pairwise

import numpy as np
import pytest

from fedjax_het import data
from fedjax_het.errors import InputError

RNG = np.random.default_rng(0)
INPUTS = RNG.normal(size=(40, 3)).astype(np.float32)


def numbers(labels=None, **options):
    labels = 1e6 + RNG.normal(size=(40, 2)) if labels is None else labels
    return data.assemble("x", INPUTS, labels, kind="numbers", **options)


# ---- arrays ----------------------------------------------------------------------------------------------------------
def test_kinds_are_read_from_arrays_and_named():
    assert numbers().class_names == ("target_0", "target_1") and numbers().labels.dtype == np.float64
    assert data.assemble("x", INPUTS, RNG.normal(size=40)).labels.shape == (40, 1)
    ranks = data.assemble("x", INPUTS[:3], ["low", "high", "low"], kind="ranks", class_names=["low", "high"])
    assert (ranks.kind.name, ranks.labels.tolist(), ranks.classes.dtype) == ("ranks", [0, 1, 0], np.int32)
    tags = data.assemble("x", INPUTS[:2], [[1, 0], [np.nan, 1]], kind="tags", class_names="ab")
    assert tags.labels.tolist() == [[1, 0], [-1, 1]] and tags.class_counts.tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (np.arange(40.0), {}, "labels are float64, not integers or texts.*kind='numbers'"),
        (["low"] * 40, {"kind": "ranks"}, "ranks are texts without an order. Give class_names"),
        (np.full(40, 200), {"kind": "ranks"}, "ranks are int64 .* from 0 to 126"),
        (np.full((40, 2), 3), {"kind": "tags"}, r"labels\[0, 0\] is 3. Give tags 0 or 1, and -1"),
        (np.full((40, 2), -1), {"kind": "tags"}, "all tags are unknown"),
        (np.full((40, 2), np.inf), {"kind": "numbers"}, r"labels\[0, 0\] is inf. Give finite numbers"),
        (np.ones((40, 2)), {"kind": "numbers", "class_names": "abc"}, r"labels of shape \(40, 2\), not \(40, 3\)"),
    ],
)
def test_impossible_labels_are_named_in_the_error(labels, options, message):
    with pytest.raises(InputError, match=message):
        data.assemble("x", INPUTS, labels, **options)


# ---- standardised targets --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["common", "client"])
def test_targets_are_standardised_by_training_examples_alone_and_restored_exactly(form):
    dataset = numbers()
    options = {"standardise_targets": form, "client_test_fraction": 0.25, "test_fraction": 0.0}
    federation = data.federate(dataset, data.iid(), 4, **options)
    labels, train = federation.examples.labels, federation.data.train
    owned = [index[:count] for index, count in zip(train.index, train.count, strict=True)]
    for group in owned if form == "client" else [np.concatenate(owned)]:
        np.testing.assert_allclose(labels[group].mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(labels[group].std(axis=0), 1, rtol=1e-6)
    assert labels.dtype == np.float32 and federation.units.origin == form
    restored = federation.units.restore(labels, np.arange(40))
    np.testing.assert_allclose(restored - 1e6, dataset.labels - 1e6, atol=1e-6)
    again = data.federate(dataset, data.iid(), 4, **options)
    assert again.fingerprint == federation.fingerprint
    assert data.federate(dataset, data.iid(), 4).units is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"standardise_targets": "client"}, "8 examples belong to no client. Use 'common', or hold none"),
        (
            {"standardise_targets": "client", "test_fraction": 0, "unseen_clients": 1, "client_test_fraction": 0},
            "client",
        ),
    ],
)
def test_moments_of_clients_need_training_examples_of_their_own(options, message):
    with pytest.raises(InputError, match=f"standardise_targets: .*{message}"):
        data.federate(numbers(), data.iid(), 3, **options)


def test_labels_that_are_no_numbers_are_not_standardised():
    with pytest.raises(InputError, match="standardise_targets: the labels of digits are classes"):
        data.federate(data.load("digits"), data.iid(), 3, standardise_targets="common")


# ---- quantiles -------------------------------------------------------------------------------------------------------
def test_clients_have_consecutive_ranges_of_a_target():
    dataset = numbers()
    federation = data.federate(dataset, data.by_quantile(target=1), 5, test_fraction=0, client_test_fraction=0)
    values = [np.sort(dataset.labels[index, 1]) for index in federation.data.train.index]
    assert federation.data.train.count.tolist() == [8] * 5
    assert all(low[-1] <= high[0] for low, high in pairwise(values))
    skewed = data.federate(dataset, data.quantile_dirichlet(0.1, num_quantiles=4), 5)
    assert np.ptp(skewed.data.train.count) > 5
    for partition, message in ((data.by_quantile(target=2), "no target 2"), (data.dirichlet(1.0), "by_quantile")):
        with pytest.raises(InputError, match=message):
            data.federate(dataset, partition, 5)
    with pytest.raises(InputError, match="no numbers as labels"):
        data.federate(data.load("digits"), data.by_quantile(), 5)


# ---- windows ---------------------------------------------------------------------------------------------------------
def walks(**changes):
    rng = np.random.default_rng(1)
    return {
        "a": 5 + rng.normal(size=60).cumsum(),
        "b": 100 * rng.normal(size=(45,)).cumsum(),
        "c": np.ones(4),
    } | changes


@pytest.mark.parametrize("scale", ["series", "common", "none"])
def test_windows_hold_consecutive_steps_of_one_series_and_forget_its_future(scale):
    series = walks()
    dataset = data.windows(series, 6, 2, scale=scale)
    assert dataset.domain_names == ("a", "b") and "1 series are too short for a window: c" in dataset.notes
    units, position = dataset.units, np.arange(len(dataset.labels))
    steps = np.concatenate([dataset.inputs[..., 0], dataset.labels], axis=1)
    whole = units.restore(steps[..., None], position[:, None] * np.ones(8, int))[..., 0]
    for domain, key in enumerate(dataset.domain_names):
        allowed = np.lib.stride_tricks.sliding_window_view(series[key], 8)
        own = whole[dataset.domains == domain]
        assert np.abs(own[:, None] - allowed).max(axis=2).min(axis=1).max() < 1e-4 * np.ptp(series[key])
    first_test = units.restore(dataset.labels[dataset.is_test & (dataset.domains == 0)], position[dataset.is_test][:1])
    np.testing.assert_allclose(first_test[0], series["a"][48:50], rtol=1e-5)
    future = walks(a=np.concatenate([series["a"][:36], np.full(24, 1e3)]))
    assert np.array_equal(data.windows(future, 6, 2, scale=scale).units.mean, units.mean)
    federation = data.federate(dataset, data.by_domain(), 0, local_test=True)
    assert federation.client_names == ("a", "b") and (federation.data.test.count > 0).all()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"a": np.full(60, np.nan)}, {}, "series 'a' has no number at step 0"),
        ({"a": np.ones((60, 2))}, {}, "the same number of channels"),
        ({}, {"window": 50}, "no training part has 52 steps"),
        ({}, {"cuts": (0.8, 0.6)}, "cuts: 0.8 and 0.6 must be above 0 and not fall"),
    ],
)
def test_impossible_windows_are_refused(changes, options, message):
    with pytest.raises(InputError, match=message):
        data.windows(walks(**changes), **{"window": 6, "horizon": 2} | options)


# ---- files -----------------------------------------------------------------------------------------------------------
def write(path, **columns):
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows))
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_hold_tags_numbers_and_ranks(tmp_path, suffix):
    columns = {"x": INPUTS[:, 0].tolist(), "a": [0, 1] * 20, "b": [1, 0, "", 1] * 10, "y": INPUTS[:, 1].tolist()}
    columns |= {"grade": [3, 1, 2, 2] * 10}
    path = tmp_path / f"table{suffix}"
    if suffix == ".csv":
        write(path, **columns)
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns["b"] = [None if value == "" else value for value in columns["b"]]
        parquet.write_table(pa.table(columns), path)
    tags = data.load("table", path=str(path), label="a, b", features="x")
    assert (tags.kind.name, tags.class_names, tags.labels[2].tolist()) == ("tags", ("a", "b"), [0, -1])
    measured = data.load("table", path=str(path), label="y", features="x")
    assert measured.kind.name == "numbers" and "labels are numbers, because column 'y' has many" in measured.notes[0]
    np.testing.assert_allclose(measured.labels[:, 0], INPUTS[:, 1], rtol=1e-6)
    assert data.load("table", path=str(path), label=["y", "x"], features=["a"]).class_names == ("y", "x")
    ranks = data.load("table", path=str(path), label="grade", features="x", kind="ranks")
    assert (ranks.kind.name, ranks.class_names, ranks.labels[:3].tolist()) == ("ranks", ("1", "2", "3"), [2, 0, 1])
    assert data.load("table", path=str(path), label="grade", features="x").kind.name == "classes"
    with pytest.raises(InputError, match="column 'b' has no number in row 3"):
        data.load("table", path=str(path), label="a,b", features="x", kind="numbers")


def test_npz_files_hold_numbers_and_tags(tmp_path):
    np.savez(tmp_path / "r.npz", data=INPUTS, target=INPUTS[:, 0].astype(np.float64))
    assert data.load("arrays", path=str(tmp_path / "r.npz")).kind.name == "numbers"
    np.savez(tmp_path / "t.npz", data=INPUTS, target=np.eye(3)[np.arange(40) % 3])
    assert data.load("arrays", path=str(tmp_path / "t.npz")).kind.name == "classes"  # one-hot
    assert data.load("arrays", path=str(tmp_path / "t.npz"), kind="tags").kind.name == "tags"


def test_images_and_texts_of_hub_files_hold_tags_and_numbers(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "good": 1, "slow": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    path = write(
        tmp_path / "r.csv", text=["good", "slow good", "slow"], food=[1, 1, 0], staff=[0, "", 1], stars=[4.5, 3, 1]
    )
    options = {"path": path, "tokenizer": str(tmp_path / "tokenizer.json")}
    tags = data.load("huggingface", label="food,staff", **options)
    assert (tags.kind.name, tags.labels.tolist()) == ("tags", [[1, 0], [1, -1], [0, 1]])
    stars = data.load("huggingface", label="stars", kind="numbers", **options)
    assert stars.labels.tolist() == [[4.5], [3.0], [1.0]] and stars.has_tokens


def test_series_are_columns_or_rows_with_a_name(tmp_path):
    a, b = np.arange(30.0), np.arange(30.0) ** 2
    wide = write(tmp_path / "wide.csv", day=[f"d{i}" for i in range(30)], a=a, b=["", *b[1:-1], ""])
    first = data.load("series", path=wide, window=4, horizon=2, scale="none")
    assert first.domain_names == ("a", "b") and first.notes[0] == "1 columns of texts are not read: day"
    assert first.inputs[first.domains == 1][0, 0] == 1  # after the missing step
    names, values = ["a"] * 30 + ["b"] * 28, [*a, *b[1:-1]]
    long = write(tmp_path / "long.csv", site=names, load=values)
    second = data.load("series", path=long, window=4, horizon=2, scale="none", domain="site", value="load")
    np.savez(tmp_path / "s.npz", series=np.stack([a, np.where((b > 0) & (b < 841), b, np.nan)]), names=["a", "b"])
    third = data.load("series", path=str(tmp_path / "s.npz"), window=4, horizon=2, scale="none")
    for other in (second, third):
        assert np.array_equal(first.labels, other.labels) and np.array_equal(first.inputs, other.inputs)
    gap = write(tmp_path / "gap.csv", a=[*a[:9], "", *a[10:]], b=b)
    with pytest.raises(InputError, match="series 'a' has no value at step 9"):
        data.load("series", path=gap, window=4, horizon=2)


def test_real_data_of_scikit_learn_are_read_as_it_does():
    from sklearn.datasets import load_diabetes

    expected = load_diabetes(scaled=False)
    dataset = data.load("diabetes", domain="sex")
    np.testing.assert_allclose(dataset.inputs, expected.data.astype(np.float32))
    assert np.array_equal(dataset.labels[:, 0], expected.target) and dataset.domain_names == ("sex_1", "sex_2")
    grades = data.load("diabetes", grades=4, domain="decade")
    assert grades.kind.name == "ranks" and np.ptp(grades.class_counts.sum(axis=0)) <= 6
    assert np.corrcoef(grades.labels, expected.target)[0, 1] > 0.9
    tags = data.load("digits", tags=True)
    assert tags.labels[0].tolist() == [1, 0, 0, 1]  # a zero is even and has a loop
