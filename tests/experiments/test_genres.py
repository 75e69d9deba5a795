"""Speeches with the genre of their play."""

import gzip
import json

import pytest

from experiments import genres
from fedjax_het.errors import InputError
from tests.shared import shared_path

SPEECHES = {role: ["a", "b"] for role in genres.PLAYS} | {"ARIEL": ["c"] * 5, "Mariners": ["d", "e"]}


def test_a_roles_speeches_have_the_genre_of_its_play_and_the_last_are_for_testing(tmp_path, capsys):
    file = tmp_path / "roles.json.gz"
    file.write_bytes(gzip.compress(json.dumps(SPEECHES).encode()))
    genres.main([str(file), str(tmp_path / "genres")])
    assert capsys.readouterr().out == "train: 18 speeches of 8 roles\ntest: 1 speeches of 1 roles\n"
    rows = [json.loads(line) for line in (tmp_path / "genres" / "train.jsonl").read_text().splitlines()]
    assert rows[-1] == {"text": "c", "genre": "comedy", "play": "The Tempest", "role": "ARIEL"}
    assert {row["genre"] for row in rows} == {"comedy", "history", "tragedy"}


def test_roles_in_another_order_are_refused():
    with pytest.raises(InputError, match=r"roles that begin a play are missing, expected First Citizen, GLOUCESTER"):
        genres.label_speeches({"ARIEL": ["c"]})


def test_real_roles_are_of_their_plays():
    speeches = json.loads(gzip.decompress(shared_path("data/shakespeare/roles.json.gz").read_bytes()))
    rows = genres.label_speeches(speeches)
    assert (len(rows["train"]), len(rows["test"])) == (4796, 1205)
    plays = {row["role"]: row["play"] for row in rows["train"]}
    chosen = {"CORIOLANUS": "Coriolanus", "JULIET": "Romeo and Juliet", "PROSPERO": "The Tempest"}
    assert chosen.items() <= plays.items() and "Messenger" not in plays
