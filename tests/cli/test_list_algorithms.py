"""The list of algorithms: the overview, and one algorithm at any width."""

import inspect
import re
import subprocess
import sys

import pytest

from fedjax_het import data, sharing
from fedjax_het._internal.docstrings import ParsedDocstring, parse_docstring
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli import list_algorithms
from fedjax_het.cli.configuration import calls
from fedjax_het.client.local_updates import Training
from tests.shared import ROOT


@pytest.fixture
def list_output(capsys, monkeypatch):
    def list_output(*arguments, columns=80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert list_algorithms.main(arguments) == 0
        return capsys.readouterr().out

    return list_output


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_title_formula_and_reference(name):
    text = parse_docstring(ALGORITHMS[name])
    assert text.title.endswith(".") and len(text.title) > 20
    assert len(text.references) > 40 and text.communication and text.formula


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_client_state_is_none_exactly_where_nothing_is_stored(name):
    algorithm = ALGORITHMS[name]()
    is_stateless = not (algorithm.memory or algorithm.mixing) and algorithm.sharing is sharing.share_all
    assert ("Client state: none" in parse_docstring(ALGORITHMS[name]).communication) == is_stateless


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_of_an_algorithm_is_explained(name):
    meanings = parse_docstring(ALGORITHMS[name]).arguments
    assert meanings.keys() == inspect.signature(ALGORITHMS[name]).parameters.keys()
    assert all(re.search(r"[a-z]", meaning, re.IGNORECASE) for meaning in meanings.values()), meanings


@pytest.mark.extended
def test_traffic_is_the_size_of_the_messages():
    federation = data.toy(num_clients=2, image=(12, 12, 1))
    plain, double = (list_algorithms.measure_traffic(ALGORITHMS[name], federation) for name in ("fedavg", "scaffold"))
    assert 1.9 < double / plain < 2.0  # batch statistics have no control variate


def test_the_overview_has_one_line_per_algorithm_within_eighty_columns(list_output):
    lines = list_output().splitlines()
    assert [line.split()[0] for line in lines[: len(ALGORITHMS)]] == list(ALGORITHMS)
    assert all(len(line) <= 80 and line.endswith(".") for line in lines[: len(ALGORITHMS)])
    rest = " ".join(lines[len(ALGORITHMS) + 1 :])
    assert "list NAME` shows the formula" in rest and "quickstart" in rest and "pacs:fedrd" in rest


@pytest.mark.extended
@pytest.mark.parametrize(("name", "columns"), [("fedld", 40), ("depthfl", 80), ("fedl2r", 200), ("scaffold", 80)])
def test_one_algorithm_is_shown_completely_at_any_width(list_output, name, columns):
    out = list_output(name, columns=columns)
    words = out.split()
    assert all(len(line) <= columns or " " not in line.strip() for line in out.splitlines())
    text = " ".join(words)
    parts = parse_docstring(ALGORITHMS[name])
    assert parts.title in text and parts.references in text and parts.communication[1:] in text
    for key, option in calls.read_signature(ALGORITHMS[name]).items():
        default = f"as in the run (config.{option.run_setting})" if option.run_setting else repr(option.default)
        assert f"{key} = {default}" in text or key in Training.__annotations__ or option.table
        assert all(f"{key}.{inner} = " in text for inner in option.table or ())
    for option in Training.__annotations__:
        assert f" {option} = " in text
    doc = re.sub(r"(Args|Raises|References):\n|    (training|InputError): .*\n", "", inspect.getdoc(ALGORITHMS[name]))
    every, shown = (
        {word.rstrip(".") for word in re.findall(r"[\w|^{}<>+*/()=.-]+", part.replace("Communication: same", "Same"))}
        for part in (doc, text)
    )
    assert every <= shown


@pytest.mark.slow
def test_one_algorithm_is_shown_with_its_messages_and_traffic(list_output):
    out = " ".join(list_output("scaffold").split())
    assert "Down w and c, up y_i - w and c_i+ - c_i" in out
    assert "Client state: c_i, the size of the shared parameters." in out
    assert re.search(r"1\.9\d times FedAvg's traffic", out)
    assert "FedAvg: down w, up w_i - w and n_i." in " ".join(list_output("fedprox").split())


@pytest.mark.slow
def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m fedjax_het.cli list fedld | head -1"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("fedld\n", "")


def test_an_unknown_name_is_refused_with_the_nearest(capsys):
    assert list_algorithms.main(["fedlt"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no algorithm 'fedlt'. Did you mean 'fed")


def test_a_docstring_is_parsed_into_its_parts():
    def factory(a, b):
        """Title.

            w <- w + eta d

        Communication: as usual,
        and more.

        First. Still the first.
        Second.

        Args:
            a: One of
                two lines: here.
            b: The other.

        Raises:
            InputError: Never.

        References:
            Somebody,
            2020.
        """

    assert parse_docstring(factory) == ParsedDocstring(
        title="Title.",
        formula=["    w <- w + eta d"],
        communication="as usual, and more.",
        prose=["First. Still the first.", "Second."],
        arguments={"a": "One of two lines: here.", "b": "The other."},
        references="Somebody, 2020.",
    )
