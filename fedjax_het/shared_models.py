"""Several models of the same network on the server."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Float, Int

from fedjax_het.problem import Problem
from fedjax_het.types import Array, ClientView, Named


class SharedModels(NamedTuple):
    """Several models of the same network on the server; a client trains one of them per round.

    The shared variables of the server have a leading axis [models]. The aggregator and the server optimizer are applied
    to each model separately, with the clients that trained it; a model that no client trained does not change.

    Args:
        number: The number of models.
        choose: The model that a client receives and trains. It sees all models, `view.received.shared` with leaves
            [models, ...].
        regroup: (the values published after the round, client ids [cohort]) -> (the model that takes the update of each
            client [cohort], the old model that each new one continues [models]); None: the updates go to the models
            that the clients trained.
        combine: (the values published after the survey) -> weights [models, models] of the old models in each of those
            with which the round begins; a changed model takes the state of the optimizer and the aggregator from the
            old one with the largest weight. None: they do not change before clients train.
        are_equal: Whether all models start from the same random weights.
        are_all_sent: Whether clients receive all models and choose; otherwise the server sends each its own.
        weigh: Published values -> weights [models] of the models' logits in evaluations that are not of one client;
            None: equal weights.
        measure: Published values -> named scalars on how the server chooses the models, which evaluations show as
            `models/...`. None: nothing.
    """

    number: int
    choose: Callable[[Problem, ClientView], Int[Array, ""]]
    regroup: Callable[[Named, Int[Array, "cohort"]], tuple[Int[Array, "cohort"], Int[Array, "models"]]] | None = None
    combine: Callable[[Named], Float[Array, "models models"]] | None = None
    are_equal: bool = False
    are_all_sent: bool = True
    weigh: Callable[[Named], Float[Array, "models"]] | None = None
    measure: Callable[[Named], Named] | None = None
