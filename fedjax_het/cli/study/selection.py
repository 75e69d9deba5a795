"""Selection of a trial by its figures on validation examples. Only what is called so is shown to the rules."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from fedjax_het.cli.runs.results import CLIENT_SCORE, TEST_SCORE, RunResults, read_seeds
from fedjax_het.engine import main_score
from fedjax_het.errors import InputError

_SHOWN = {"server": ("valid",), "clients": ("personal_valid", "valid")}
SCORES = {"server": TEST_SCORE, "clients": CLIENT_SCORE}
"""{what is compared: the first of these figures that a run has}."""
DESCRIPTIONS = {
    "server": "score on the common test set, of the server's model or the mean of clients' own",
    "clients": "mean over clients of the score on their own test examples",
}
ORACLE = "oracle"
"""The selection on the test examples themselves, an upper bound."""

Selector = Callable[[Mapping[str, float], str], float]
"""(validation figures without their group, the name of the score) -> the larger the better."""

SELECTORS: Mapping[str, Selector] = {
    "mean_client": lambda figures, score: figures[f"{score}_mean"],
    "worst_client": lambda figures, score: figures[f"{score}_min"],
    "training_domains": lambda figures, score: figures[f"{score}_weighted"],
}
"""Rules by name: the mean over clients, the worst client, and the validation examples of all clients together."""


def read_score(run: RunResults, scope: str) -> list[float]:
    """The score of a finished run on test examples after its last round, one per seed.

    Args:
        run: the run.
        scope: "server", on the common test set, where clients' own models count by their mean; or "clients", the mean
            over clients on their own test examples.

    Raises:
        InputError: The run has no such score.
    """
    return read_seeds(run, *(name.format(main_score(run.final)) for name in SCORES[scope]))


def rate_trial(run: RunResults, select: str, scope: str) -> float:
    """Rate a finished trial by a rule; NaN, the worst, for one that diverged.

    Args:
        run: the trial.
        select: the name of the rule, or `ORACLE`.
        scope: as in `read_score`; personal models are validated separately where clients are compared.
    """
    if select == ORACLE:
        return float(np.mean(read_score(run, scope)))
    shown = validation_figures(run, scope)
    return SELECTORS[select](shown, main_score(shown))


def validation_figures(run: RunResults, scope: str) -> dict[str, float]:
    """The figures on validation examples after the last round, means over seeds, without the name of their group.

    Raises:
        InputError: There are none.
    """
    prefix = f"{_find_group(run, scope)}/"
    shown = {n.removeprefix(prefix): f["mean"] for n, f in run.final.items() if n.startswith(prefix)}
    return {name: math.nan if mean is None else mean for name, mean in shown.items()}


def _find_group(run: RunResults, scope: str) -> str:
    for group in _SHOWN[scope]:
        if any(name.startswith(f"{group}/") for name in run.final):
            return group
    raise InputError(f"{run.directory}: no client has validation examples. Set data.valid_fraction and start again.")


def is_constant(run: RunResults, scope: str) -> bool:
    """Whether a finished trial predicts validation examples no better than a constant class would.

    The accuracy of the constant class, the most frequent one (of each client, for own models), is estimated from the
    classes of the clients' training examples, and counts as not exceeded within two standard errors. False where the
    score is not an accuracy of classes.
    """
    clients = [client for client in run.partition_clients if client["valid"] and sum(client["classes"].values())]
    shown = validation_figures(run, scope)
    if not clients or main_score(shown) != "accuracy":
        return False
    counts = np.array([list(client["classes"].values()) for client in clients], float)
    expected = counts / counts.sum(axis=1, keepdims=True) * [[client["valid"]] for client in clients]  # by class
    total = expected.sum()
    is_own = _find_group(run, scope) != "valid"
    frequent = (expected.max(axis=1).sum() if is_own else expected.sum(axis=0).max()) / total
    return not shown["accuracy_weighted"] > frequent + 2 * math.sqrt(frequent * (1 - frequent) / total)
