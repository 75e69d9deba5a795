"""Tables of a data set, and the command that checks one."""

import numpy as np
import pytest

from fedjax_het.cli import check_data, train
from fedjax_het.cli.runs import dataset_table
from fedjax_het.data import assemble, by_domain, federate, iid
from tests.data.sources.image_files import draw

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=4),
        model=dict(name="mlp", hidden=(4,)),
        data=dict(
            name="pacs", num_clients=2, client_test_fraction=0.2, partition=dict(name="by_domain"), unseen="sketch"
        ),
        rounds=1, layout="vmapped",
    )
"""


def cells_of(table) -> list[list[str]]:
    """The cells, row by row."""
    columns = [[str(column.header), *column.cells] for column in table.columns]
    return list(map(list, zip(*columns, strict=True)))


def dataset(num_classes=3, num_domains=2, masks=False, names=None):
    """Example i has class i and domain i, up to the last class and domain; the last example is a test example."""
    num = 12
    labels = np.arange(num) % num_classes
    return assemble(
        "x",
        np.zeros((num, 2, 2, 3), np.uint8),
        np.repeat(labels, 4).reshape(num, 2, 2) if masks else labels,
        class_names=names or [f"class_{i}" for i in range(num_classes)],
        domains=np.arange(num) % num_domains,
        domain_names=[f"domain_{i}" for i in range(num_domains)],
        is_valid=np.arange(num) == 0,
        is_test=np.arange(num) == num - 1,
        notes=["this is [odd]"],
    )


def test_the_table_counts_domains_splits_and_classes_of_equal_names_apart():
    shown = cells_of(dataset_table.dataset_table(dataset(names=["train", "[b]", "c"])))
    assert shown == [
        ["", "domain_0", "domain_1"],
        ["train", "5", "5"],
        ["valid", "1", "0"],
        ["test", "0", "1"],
        ["train", "2", "2"],
        ["[b]", "2", "2"],
        ["c", "2", "2"],
    ]


def test_names_with_markup_are_shown_literally(capsys):
    dataset_table.print_dataset(dataset(names=["train", "[b]", "c"]))
    shown = capsys.readouterr().out
    assert "[b]" in shown and "note: this is [odd]" in shown


def test_with_many_domains_the_table_is_transposed():
    assert cells_of(dataset_table.dataset_table(dataset(num_domains=12)))[0] == [
        "",
        "train",
        "valid",
        "test",
        "class_0",
        "class_1",
        "class_2",
    ]


def test_many_classes_are_summarized_unless_all_are_requested():
    many = dataset(num_classes=40)
    assert cells_of(dataset_table.dataset_table(many))[-3:] == [
        ["classes", "6", "6"],
        ["smallest class", "class_0: 1", "class_1: 1"],
        ["largest class", "class_10: 1", "class_11: 1"],
    ]
    assert len(cells_of(dataset_table.dataset_table(many, is_whole=True))) == 4 + 40


def test_many_domains_are_combined_in_one_column():
    assert cells_of(dataset_table.dataset_table(dataset(num_domains=40)))[:3] == [
        ["", "40 domains"],
        ["train", "10"],
        ["valid", "1"],
    ]


def test_classes_of_masks_are_shown_as_shares_of_pixels():
    assert cells_of(dataset_table.dataset_table(dataset(num_classes=2, num_domains=1, masks=True)))[-2:] == [
        ["class_0", "50.0 %"],
        ["class_1", "50.0 %"],
    ]


def test_the_client_table_has_rows_for_held_out_examples():
    federation = federate(dataset(), by_domain(), 1, unseen_domains="domain_1", test_fraction=0.4, unseen_clients=0)
    shown = cells_of(dataset_table.client_table(federation))
    assert [row[0] for row in shown] == ["client", "domain_0", "common test", "unseen: domain_1"]
    assert shown[0][4:] == ["class_0", "class_1", "class_2"] and shown[1][1] == str(sum(map(int, shown[1][4:])))
    assert shown[-1] == ["unseen: domain_1", "", "", "6", "", "", ""]


def test_the_client_table_counts_training_examples_by_class():
    def rows_of(**options):
        whole = dataset(num_domains=3, **options)
        return cells_of(dataset_table.client_table(federate(whole, by_domain(), 3)))[:2]

    assert rows_of()[0] == ["client", "train", "valid", "test", "class_0", "class_1", "class_2"]
    assert rows_of()[1] == ["domain_0", "3", "1", "0", "3", "0", "0"]
    assert rows_of(num_classes=40)[0][4:] == ["classes", "smallest class", "largest class"]
    assert rows_of(num_classes=40)[1][4:] == ["3", "class_3: 1", "class_9: 1"]
    assert rows_of(num_classes=2, masks=True)[1][4:] == ["33.3 %", "66.7 %"]


def test_of_many_clients_the_table_shows_the_first():
    whole = assemble("x", np.zeros((100, 2)), np.arange(100) % 2)
    shown = cells_of(dataset_table.client_table(federate(whole, iid(), 50, test_fraction=0, client_test_fraction=0)))
    assert len(shown) == 42 and shown[-1][0] == "10 more clients"


@pytest.fixture
def command(tmp_path):
    for domain in ("art_painting", "photo", "sketch"):
        for name in ("dog", "person"):
            for i in range(4):
                draw(tmp_path / "pacs" / domain / name / f"{i}.png", value=30 * i)
    (tmp_path / "config.py").write_text(CONFIG)
    return [f"--config={tmp_path / 'config.py'}", f"--config.data.path={tmp_path / 'pacs'}"]


def test_check_data_shows_the_data_set_and_its_partition(command, capsys):
    assert check_data.main(command) == 0
    shown = capsys.readouterr().out
    for expected in (
        "pacs: 24 examples 4 x 6 x 3 uint8, in 7 classes",
        "mapped from",
        "art_painting",
        "unseen: sketch",
        "the server's model on sketch, a domain that no client has: 8",
        "20 % of each client's, held",
    ):
        assert expected in shown
    assert "note: 24 of the 9,991 examples that were published" in shown


def test_check_data_refuses_what_training_refuses(command, capsys, tmp_path):
    draw(tmp_path / "pacs" / "photo" / "dogs" / "1.png")
    assert check_data.main(command) == 2
    assert "photo/dogs is not a class of PACS" in capsys.readouterr().err
    assert check_data.main([*command, "--config.data.sise=3"]) == 2
    assert "--config.data.sise is unknown" in capsys.readouterr().err


@pytest.mark.extended
def test_training_prints_the_table_before_compiling(command, capsys, tmp_path):
    assert train.main([*command, f"--workdir={tmp_path / 'run'}"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("pacs: 24 examples") < shown.index("compiling")
    assert (tmp_path / "run" / "summary.json").exists()
