"""Tables as files, of image files, and as other libraries keep them."""

import numpy as np
import pytest
from PIL import Image

from fedjax_het.data import convert, load
from fedjax_het.errors import InputError
from tests.data.sources.image_files import draw, refuse

HOSPITALS = """age,sex,hospital,diagnosis,split
63,male,a,ill,train
,female,b,well,train
40,?,b,ill,test
41,other,b,well,train
39,alien,a,ill,test
"""


@pytest.fixture
def hospitals(tmp_path):
    (tmp_path / "hospitals.csv").write_text(HOSPITALS, encoding="utf-8-sig")
    return tmp_path / "hospitals.csv"


def test_columns_of_a_table_are_features_labels_domains_and_splits(hospitals):
    dataset = load("table", path=hospitals, label="diagnosis", domain="hospital")
    sexes = {"female": [1, 0, 0], "male": [0, 1, 0], "other": [0, 0, 1], "": [0, 0, 0]}
    known = [(63, "male"), (52, "female"), (40, ""), (41, "other"), (39, "")]
    assert dataset.inputs.tolist() == [[age, *sexes[sex]] for age, sex in known]
    assert (dataset.class_names, dataset.labels.tolist()) == (("ill", "well"), [0, 1, 0, 1, 0])
    assert (dataset.domain_names, dataset.domains.tolist()) == (("a", "b"), [0, 1, 1, 1, 0])
    assert dataset.is_test.tolist() == [False, False, True, False, True]
    assert dataset.notes == (
        "age: 1 missing values become the mean of the training rows",
        "sex: 1 missing categories have no indicator",
        "sex: 1 unknown categories have no indicator",
        "features: age, sex (3)",
    )
    assert load("table", path=hospitals, label="diagnosis", features="age, sex").inputs.shape == (5, 4)


def test_files_of_a_folder_are_splits_or_domains(tmp_path):
    for folder, names in (("splits", ("mnist_train", "mnist_test")), ("sites", ("b", "a"))):
        (tmp_path / folder).mkdir()
        for i, name in enumerate(names):
            (tmp_path / folder / f"{name}.csv").write_text(f"label,pixel\n3,{i}\n7,{i}\n")
    splits, sites = (load("table", path=tmp_path / folder) for folder in ("splits", "sites"))
    assert (splits.class_names, splits.notes[0]) == (("3", "7"), "labels 3, 7 are classes 0 to 1")
    assert splits.inputs[splits.is_test].tolist() == [[1], [1]]
    assert (sites.domain_names, sites.domains.tolist()) == (("a", "b"), [0, 0, 1, 1])


@pytest.mark.parametrize("form", ["{}/{}.png", "{1}.png", "{1}"])
def test_a_table_beside_images_names_their_labels_domains_and_splits(tmp_path, form):
    rows = ["id,target,site,subset,age"]
    for i in range(4):
        draw(tmp_path / "images" / f"scan_{i}.png", value=10 * i)
        rows.append(f"{form.format('images', f'scan_{i}')},{10 - i % 2},{'xy'[i // 2]},{['train', 'val'][i % 2]},{i}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    dataset = load("table", path=tmp_path)
    assert (dataset.inputs[:, 0, 0, 0].tolist(), dataset.is_valid.tolist()) == ([0, 10, 20, 30], [False, True] * 2)
    assert (dataset.class_names, dataset.labels.tolist()) == (("9", "10"), [1, 0, 1, 0])
    assert (dataset.domain_names, dataset.domains.tolist()) == (("x", "y"), [0, 0, 1, 1])
    assert "images from column 'id'" in dataset.notes and "labels from column 'target'" in dataset.notes


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n", {}, "no column is called label. Choose one, label='...': a, b"),
        ("label,target,b\n1,2,3\n", {}, "label, target may all be the labels. Choose one: label='label'"),
        ("label,age\n1,2\n", {"domain": "aga"}, "has no column 'aga'. Did you mean 'age'"),
        ("label,age\n1,2\n,3\n", {}, "column 'label' has no value in row 2"),
        ("label,age\n1,?\n2,\n", {}, "column 'age' has no value in any training row"),
        ("label,name\n" + "".join(f"{i % 2},name{i}\n" for i in range(30)), {}, "'name' has 30 different texts in 30"),
        ("label,age\n1,2,3\n", {}, "line 2: 3 cells for 2 columns"),
        ("label,age,age\n1,2,3\n", {}, "the column 'age' twice"),
        ("label,age,split\n1,2,left\n", {}, "no split is called 'left'"),
        ("label,age\n1,0.5\n", {"size": 8}, "size, channels and cache are for images"),
        ("label,age\n", {}, "has no rows below a header"),
        ("label;age\n1;2\n", {}, "its cells are separated by ';'. Save it with commas"),
        ("label\n1\n", {}, "has no columns for inputs"),
        ("label,file\n1,1.png\n2,2.png\n1,3.png\n", {}, "row 3: no image file is called '3.png'"),
        ("label,file\n1,1.png\n2,2.png\n1,4.png\n", {}, "row 3: '4.png' may be .*a/4.png or .*b/4.png"),
        ("label,f,g\n1,1.png,1\n2,2.png,2\n", {}, "f, g name image files. Choose one: features='f'"),
    ],
)
def test_tables_that_may_be_misread_are_refused(tmp_path, text, options, message):
    for name in ("1.png", "2.png", "a/4.png", "b/4.png"):
        draw(tmp_path / name)
    (tmp_path / "x.csv").write_text(text)
    refuse(message, "table", tmp_path / "x.csv", **options)


def test_a_folder_with_tables_of_several_kinds_is_refused(tmp_path):
    for name in ("train", "sample_submission"):
        (tmp_path / f"{name}.csv").write_text("label,age\n1,2\n")
    refuse(r"sample_submission.csv, train.csv. Give the path of one", "table", tmp_path)


class Pairs:
    """Four examples as a PyTorch data set holds them."""

    classes = ("cat", "dog")

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return np.full((3, 6, 7), i, np.float32), i % 2


def test_pairs_become_a_data_set_with_the_channel_axis_last_and_the_names_of_classes():
    dataset = convert({"train": Pairs(), "test": Pairs()})
    assert (dataset.inputs.shape, dataset.inputs[:, 0, 0, 0].tolist()) == ((8, 6, 7, 3), [0, 1, 2, 3] * 2)
    assert (dataset.class_names, dataset.labels.tolist()) == (("cat", "dog"), [0, 1] * 4)
    assert dataset.is_test.tolist() == [False] * 4 + [True] * 4
    assert dataset.notes == ("images of shape (3, 6, 7) have the channel axis first: it becomes the last",)


@pytest.mark.parametrize("as_rows", [False, True])
def test_columns_with_images_and_rows_of_dicts_become_a_data_set(as_rows):
    images = [Image.new("RGB", (5, 4), (i, 0, 0)) for i in range(3)]
    columns = {"img": images, "label": ["b", "a", "b"], "client": [10, 9, 10], "id": [1, 2, 3]}
    rows = [{key: values[i] for key, values in columns.items()} for i in range(3)]
    dataset = convert(rows if as_rows else columns)
    assert (dataset.inputs.shape, dataset.inputs[:, 0, 0, 0].tolist()) == ((3, 4, 5, 3), [0, 1, 2])
    assert (dataset.class_names, dataset.labels.tolist()) == (("a", "b"), [1, 0, 1])
    assert (dataset.domain_names, dataset.domains.tolist()) == (("9", "10"), [1, 0, 1])
    assert "inputs from column 'img'; not read: id" in dataset.notes


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (iter([]), "has no length and examples"),
        ([1, 2], r"expected examples\[i\] to be \(input, label\), got 1"),
        ({"train": Pairs(), "left": Pairs()}, "no split is called 'left'"),
        ({"a": [[1.0]], "b": [[2.0]], "label": [0]}, "a, b hold arrays. Choose one, features="),
        ([(np.zeros(2), 0), (np.zeros(3), 1)], "inputs cannot become one array"),
    ],
)
def test_examples_that_cannot_be_converted_are_refused(examples, message):
    with pytest.raises(InputError, match=message):
        convert(examples)


def test_lists_of_integers_are_tokens():
    dataset = convert([([1, 2], 0), ([3, 0], 1)])
    assert dataset.has_tokens and dataset.inputs.dtype == np.int32


def test_a_data_frame_becomes_a_data_set():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [1.0, None, 5.0], "sex": ["m", "f", "m"], "ill": [True, False, True], "site": "a"})
    dataset = convert(frame.astype({"sex": "category"}), label="ill")
    assert dataset.inputs.tolist() == [[1, 0, 1], [3, 1, 0], [5, 0, 1]]
    assert (dataset.class_names, dataset.labels.tolist()) == (("False", "True"), [1, 0, 1])


def test_a_data_set_of_hugging_face_becomes_a_data_set():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    rows = {"image": [Image.new("L", (5, 4), i) for i in range(3)], "label": [1, 0, 1]}
    part = datasets.Dataset.from_dict(rows, features=features)
    dataset = convert(datasets.DatasetDict({"train": part, "test": part}))
    assert (dataset.inputs.shape, dataset.class_names) == ((6, 4, 5, 1), ("cat", "dog"))
    assert (dataset.labels.tolist(), dataset.is_test.sum()) == ([1, 0, 1] * 2, 3)


def test_a_data_set_of_pytorch_becomes_a_data_set():
    torch = pytest.importorskip("torch")
    pairs = torch.utils.data.TensorDataset(torch.ones(4, 1, 6, 6), torch.tensor([0, 1, 0, 1]))
    assert convert(pairs).inputs.shape == (4, 6, 6, 1)
