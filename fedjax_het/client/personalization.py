"""Models of a client's own: how they are made for the evaluation, from what the client is sent, keeps and has."""

from fedjax_het.algorithm import LocalUpdate, Personalization, Problem
from fedjax_het.types import ClientView, Key, Variables


def fine_tuned(local_update: LocalUpdate) -> Personalization:
    """The client's model after further local training, which neither the client nor the server keeps.

        replace(fedavg(), personalize=fine_tuned(sgd(0.01, epochs=10, only="params/classifier/*")))

    Training starts from the server's present model with the client's own personal leaves.

    Args:
        local_update: The training. It minimizes the algorithm's objective on the client's training examples.
    """

    def personalize(problem: Problem, view: ClientView, key: Key) -> Variables:
        return local_update.train(problem, view, key).variables

    return personalize
