"""Genres of plays from speeches: python -m experiments.genres ROLES FOLDER writes train.jsonl and test.jsonl.

ROLES is {role: [speech, ...]}, .json or .json.gz, of the nine plays of tiny Shakespeare (char-rnn), in their order.
Rows are {"text": speech, "genre": of the role's play in the First Folio, "play": its title, "role": the speaker}, for
`--config=genres`, where each role is a client. The last fifth of a role's speeches is the test split.

Roles do not name their play there. A role is of the play that it first appears in, which begins with a known role.
Roles that are not in capitals (Messenger, First Citizen) occur in several plays and are left out, as are roles of one
speech.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedjax_het._internal.regular_files import read_text
from fedjax_het.errors import InputError

PLAYS = {  # the first speaker of each play: (title, genre)
    "First Citizen": ("Coriolanus", "tragedy"),
    "GLOUCESTER": ("Richard III", "history"),
    "KING RICHARD II": ("Richard II", "history"),
    "GREGORY": ("Romeo and Juliet", "tragedy"),
    "WARWICK": ("Henry VI, Part 3", "history"),
    "ARCHIDAMUS": ("The Winter's Tale", "comedy"),
    "DUKE VINCENTIO": ("Measure for Measure", "comedy"),
    "SLY": ("The Taming of the Shrew", "comedy"),
    "Master": ("The Tempest", "comedy"),
}
HELD_OUT = 0.2


def label_speeches(speeches: Mapping[str, Sequence[str]]) -> dict[str, list[dict[str, str]]]:
    """{"train": rows, "test": rows} of the roles in capitals with several speeches.

    Args:
        speeches: {role: [speech, ...]}, in order of first appearance.

    Raises:
        InputError: The first speaker of a play is missing or not in the order of the plays.
    """
    if [role for role in speeches if role in PLAYS] != list(PLAYS):
        raise InputError(
            f"the roles that begin a play are {', '.join(role for role in speeches if role in PLAYS) or 'missing'}, "
            f"expected {', '.join(PLAYS)}. Give the roles of tiny Shakespeare in order of appearance."
        )
    rows, play, genre = {"train": [], "test": []}, "", ""
    for role, texts in speeches.items():
        play, genre = PLAYS.get(role, (play, genre))
        num_train = len(texts) - round(HELD_OUT * len(texts))
        if role.isupper() and len(texts) > 1:
            for i, text in enumerate(texts):
                row = {"text": text, "genre": genre, "play": play, "role": role}
                rows["train" if i < num_train else "test"].append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files; see the top of this module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roles", type=Path, help="the speeches of each role")
    parser.add_argument("folder", type=Path, help="where train.jsonl and test.jsonl are written")
    given = parser.parse_args(arguments)
    rows = label_speeches(json.loads(read_text(given.roles)))
    given.folder.mkdir(parents=True, exist_ok=True)
    for split, of_split in rows.items():
        (given.folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in of_split))
        print(f"{split}: {len(of_split)} speeches of {len({row['role'] for row in of_split})} roles")


if __name__ == "__main__":
    main()
