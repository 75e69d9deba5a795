"""AFL."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import training_loss
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.problem import shared_variables
from fedjax_het.server.aggregators import averaged_model, mean, with_model_average
from fedjax_het.server.weightings import LambdaOrder, LambdaStart, agnostic
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def afl(
    lambda_learning_rate: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.1,
    *,
    order: LambdaOrder = "after",
    start: LambdaStart = "uniform",
    averaged: bool = False,
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """AFL: minimize the loss of the worst mixture of clients.

        min_w max_{lambda in simplex} sum_i lambda_i F_i(w)
        w <- w + sum_i lambda_i (w_i - w)
        lambda <- the projection of lambda + gamma F on the simplex,   F at the received w

    Communication: same as FedAvg, plus the number F_i up. Client state: none. Server state: lambda, and the last F_i of
    every client. A client computes F_i on all its training examples before it trains, one pass forward. With
    gamma = 0 this is FedAvg with equal weights (full participation).

    The method is for full participation. With a cohort, absent clients keep their last F_i, the weights are lambda
    divided by its sum over the cohort, and clients that have never reported keep lambda_i = 1/N.
    Setting: Fashion-MNIST with 3 classes, Adult; both rates .1, 600 to 6000 rounds of one gradient per client.
    Deviations: the paper takes one gradient per round (steps=1 with a batch of all examples) and evaluates the mean of
    the iterates (averaged=True). Two third parties' codes share a wrong projection, whose result can sum to 1.4;
    here it is exact.

    Args:
        lambda_learning_rate: Step size gamma of lambda.
        order: lambda moves "after" the average, as in the algorithm for one gradient, or "before" it, as in Huawei's
            code.
        start: Initial lambda: "uniform", or "samples", the shares of the examples.
        averaged: Whether the mean of the server's models is evaluated instead of the last one.
        server_learning_rate: Factor of the mean update (default 1).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range.

    References:
        Mohri, Sivek and Suresh, Agnostic Federated Learning, ICML 2019. arXiv:1902.00146; code litian96/fair_flearn and
        huawei-noah/Federated-Learning (third parties).
    """
    aggregator = mean(agnostic(lambda_learning_rate, order=order, start=start))
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        reports={"loss": training_loss("pre_eval")},
        aggregator=with_model_average(aggregator, start=-1, cycle=1) if averaged else aggregator,
        server_optimizer=optax.sgd(server_learning_rate),
        evaluated=averaged_model if averaged else shared_variables,
    )
