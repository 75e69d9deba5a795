"""Every table and figure at the papers' own scale, compared with the papers' statements: facts/<paper>.toml.

A fact names the tables and figures it is about (`of`, as for --what), `rows` and `columns` where it is not about all of
theirs, and its `place`. Kinds of facts:

[[stated]]    `settings` that the paper, or else the released code, states, {"algorithm.batch_size" = 50}; and
              `starts_from`, words that are in what the scale says of initial weights.
[[unstated]]  `settings` that neither states: the values here, and `caveat`, words of the line of the output on them.
[[clients]]   how many examples each client has when a data set of `train` training and `test` test examples, of that
              many `classes` and `domains`, is distributed: `each_train`, `each_valid` and `each_test`.

Every number of an algorithm, and every key of ALWAYS, has to be stated or unstated for every run.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.papers import fedld, fedmgc, fedrd, harmofl
from experiments.spec import Experiment
from fedjax_het.cli.configuration.build_data import build_federation
from fedjax_het.data import Dataset
from tests.shared import shared_path

PAPERS = {
    "fedld": fedld.EXPERIMENTS,
    "fedmgc": fedmgc.EXPERIMENTS,
    "fedrd": fedrd.EXPERIMENTS,
    "harmofl": harmofl.EXPERIMENTS,
}
FACTS = {paper: tomllib.loads((Path(__file__).parent / "facts" / f"{paper}.toml").read_text()) for paper in PAPERS}
EVERY = [pytest.param(paper, what, id=f"{paper}-{what}") for paper in PAPERS for what in PAPERS[paper]]
ALWAYS = (
    "rounds",
    "cohort_size",
    "num_seeds",
    "algorithm.name",
    "model.name",
    "data.num_clients",
    "data.partition.name",
    "data.valid_fraction",
    "data.client_test_fraction",
)
NEUTRAL = {
    "server_learning_rate": 1.0,
    "warmup_mean_rounds": 0,
    "official_n_extra": 0,
    "min_norm_ratio": 0.0,
    "gmf": 0.0,
    "seed": 0,
}
"""Numbers of algorithms that have no effect at these values."""
NUMBER = r"[0-9]*[.][0-9]+|[0-9]+"
KINDS = {
    "stated": {"of", "rows", "columns", "place", "settings", "starts_from"},
    "unstated": {"of", "rows", "columns", "settings", "caveat"},
    "clients": {"of", "place", "classes", "domains", "train", "test", "each_train", "each_valid", "each_test"},
}


def facts_of(paper: str, kind: str, what: str) -> list[dict]:
    return [fact for fact in FACTS[paper].get(kind, []) if what in fact["of"]]


def runs(experiment: Experiment) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(row, column, settings by dotted key) of every run at the paper's scale; no data are read."""
    paths = dict.fromkeys(experiment.scales["paper"].data, "somewhere")
    for (row, column), cell in experiment.make_runs("paper", {}, paths).items():
        yield row, column, dict(flat(cell.settings()))


def flat(settings: Mapping, within: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{within}{key}.")
        else:
            yield f"{within}{key}", list(value) if isinstance(value, tuple) else value


def is_of(fact: Mapping, row: str, column: str) -> bool:
    return row in fact.get("rows", [row]) and column in fact.get("columns", [column])


@pytest.mark.parametrize("paper", PAPERS)
def test_facts_have_known_kinds_keys_and_places(paper):
    assert FACTS[paper].keys() <= KINDS.keys()
    for kind, facts in FACTS[paper].items():
        for fact in facts:
            assert fact.keys() <= KINDS[kind], fact
            assert kind == "unstated" or fact["place"], fact
            assert set(fact["of"]) <= PAPERS[paper].keys(), fact
            for what in fact["of"]:
                experiment = PAPERS[paper][what]
                assert set(fact.get("rows", [])) <= experiment.rows.keys(), (what, fact)
                assert set(fact.get("columns", [])) <= {*experiment.scales["paper"].columns, experiment.average}


@pytest.mark.extended
@pytest.mark.parametrize(("paper", "what"), EVERY)
def test_every_run_has_the_settings_of_its_paper(paper, what):
    experiment = PAPERS[paper][what]
    facts = facts_of(paper, "stated", what) + facts_of(paper, "unstated", what)
    wrong = []
    for row, column, settings in runs(experiment):
        expected = {}
        for fact in facts:
            if is_of(fact, row, column):
                assert not expected.keys() & fact.get("settings", {}).keys(), f"{row}, {column}: stated twice: {fact}"
                expected |= fact.get("settings", {})
        numbers = {
            key
            for key, value in settings.items()
            if key.startswith("algorithm.")
            and isinstance(value, int | float)
            and not isinstance(value, bool)
            and NEUTRAL.get(key.rpartition(".")[2]) != value
        }
        wrong += [f"{row}, {column}: nothing is said of {key}" for key in {*ALWAYS, *numbers} - expected.keys()]
        wrong += [
            f"{row}, {column}: {key} is {settings.get(key, 'missing')}, not {value}"
            for key, value in expected.items()
            if key not in settings or settings[key] != value
        ]
    assert not wrong, "\n".join(sorted(set(wrong)))


@pytest.mark.parametrize(("paper", "what"), EVERY)
def test_every_unstated_setting_is_a_caveat_of_the_output(paper, what):
    experiment = PAPERS[paper][what]
    for fact in facts_of(paper, "unstated", what):
        assert any(fact["caveat"] in caveat and "Not in the paper" in caveat for caveat in experiment.caveats), fact[
            "caveat"
        ]


@pytest.mark.parametrize(("paper", "what"), EVERY)
def test_initial_weights_are_required_where_the_paper_states_them(paper, what):
    stated = [fact["starts_from"] for fact in facts_of(paper, "stated", what) if "starts_from" in fact]
    words = PAPERS[paper][what].scales["paper"].pretrained
    assert bool(words) == bool(stated)
    assert all(word in words for word in stated)


@pytest.mark.parametrize(("paper", "what"), EVERY)
def test_clients_have_as_many_examples_as_in_the_paper(paper, what):
    for fact in facts_of(paper, "clients", what):
        names = [f"domain {i}" for i in range(fact["domains"])]
        total = fact["train"] + fact["test"]
        dataset = Dataset(
            name="counted",
            inputs=np.zeros((total, 1, 1, 1), np.uint8),
            labels=(np.arange(total) // fact["domains"] % fact["classes"]).astype(np.int32),
            class_names=tuple(map(str, range(fact["classes"]))),
            domains=(np.arange(total) % fact["domains"]).astype(np.int32),
            domain_names=tuple(names),
            is_valid=np.zeros(total, bool),
            is_test=np.arange(total) >= fact["train"],
        )
        for cell in list(PAPERS[paper][what].make_runs("paper", {}, {}).values())[:1]:
            table = cell.settings()["data"]
            _, federation = build_federation(table | {"unseen": names[0] if table["unseen"] else ""}, dataset)
            for part in ("train", "valid", "test"):
                counts = getattr(federation.data, part).count
                assert set(counts.tolist()) == {fact[f"each_{part}"]}, part


@pytest.mark.parametrize(("paper", "what"), EVERY)
def test_printed_values_are_in_the_text_of_the_paper(paper, what):
    """Each row's numbers, deviations between, follow each other there; or stand in order in the row's two lines, values
    bare and deviations in parentheses."""
    experiment, text = PAPERS[paper][what], (shared_path("papers") / f"{paper}.txt").read_text()
    numbers = f" {' '.join(str(float(number)) for number in re.findall(NUMBER, text))} "
    for measure, rows in experiment.printed.items():
        for row, values in rows.items():
            deviations = experiment.deviations.get(measure, {}).get(row, ())
            pairs = zip(values, deviations, strict=True) if deviations else zip(values)
            known = " ".join(str(float(x)) for pair in pairs for x in pair if x is not None)
            assert f" {known} " in numbers or is_in_lines(text, row, values, deviations), row


def is_in_lines(text: str, row: str, values: Sequence[float | None], deviations: Sequence[float | None]) -> bool:
    lines = text.splitlines()
    for number in [i for i, line in enumerate(lines) if line.startswith(row)]:
        pair = " ".join(lines[number : number + 2])
        bare, bracketed = re.findall(NUMBER, re.sub(r"[(].*?[)]", " ", pair)), re.findall(rf"[(]({NUMBER})[)]", pair)
        if is_in_order(values, bare) and is_in_order(deviations, bracketed):
            return True
    return False


def is_in_order(wanted: Sequence[float | None], found: list[str]) -> bool:
    remaining = iter(map(float, found))
    return all(x in remaining for x in wanted if x is not None)
