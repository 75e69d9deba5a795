"""FedDBE."""

from dataclasses import replace
from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.memories import has_trained
from fedjax_het.client.objectives import cross_entropy, mean_consensus
from fedjax_het.client.starts import Consensus, first_mean, restart_mean
from fedjax_het.models import with_feature_shape, with_feature_shift
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import total_of_features
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import personal
from fedjax_het.validation import (
    NonNegative,
    PositiveFraction,
    may_be_nonzero,
    refuse_without_effect,
    validate_arguments,
)


@validate_arguments
def feddbe(
    kappa: Annotated[NonNegative, LogUniform(0.1, 100.0)] = 1.0,
    mean_momentum: PositiveFraction = 1.0,
    *,
    consensus: Consensus = "trained",
    survey_first: bool = False,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedDBE: a personal shift of features, and a common mean without it.

        min  CE(head(z + c_i)) + kappa/(2 d) |mu_i - mu|^2
        mu_i <- (1 - m) mu_i + m mean_batch(z) before each step, from 0 in each round
        w <- w + eta_g sum_i p_i (w_i - w),   p_i = n_i / sum_j n_j;   c_i in R^d stays with its client

    Communication: down w and mu; up w_i - w and, once, a mean of features. Client state: c_i, which is 0 at first.

    mu is the mean, weighted by n_i, over all clients that have taken part, of mu_i after one local training with CE
    alone, from the model that a client receives first; the weights of that training are discarded. With `survey_first`,
    all clients do so before the first round, from the initial model.
    Setting: SGD .005, batch 10, 20 clients; Fashion-MNIST: kappa 50, m 1.
    Differences from the authors' code: `survey_first` is its rule, and not the default, which spends no rounds and is
    the same with full participation. That training visits examples in their order here.

    Args:
        kappa: The paper's κ (default 1). 0 leaves the mean out.
        mean_momentum: The paper's μ, m above (default 1, the mean of the last batch; .1 in the code).
        consensus: "trained" as above, or "exact", the mean features of all training examples without training.
        survey_first: Whether mu is the mean over all clients, as in the code: the run begins with as many rounds as
            are needed for each client to be in one cohort, and nobody trains the model in them.
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features are maps, or a number is out of range.

    References:
        Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS 2023.
        arXiv:2311.14975; code TsingZ0/DBE.
    """
    algorithm = Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        adapt=with_feature_shift(mean_momentum),
        sharing=personal("params/shift/*", "running/*"),
        start=restart_mean,
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
    if not may_be_nonzero(kappa):
        options = {"mean_momentum": mean_momentum, "consensus": consensus, "survey_first": survey_first}
        refuse_without_effect(feddbe, "with kappa=0", **options)
        return algorithm
    first: Training = {**training, "shuffle": False, "only": training.get("only") or "!params/shift/*"}
    return replace(
        algorithm,
        objective=(cross_entropy(), mean_consensus(kappa)),
        adapt=lambda model: with_feature_shift(mean_momentum)(with_feature_shape(model)),
        survey={"consensus": first_mean(sgd(**first), consensus, is_repeated=not survey_first)},
        survey_first=survey_first,
        memory={} if survey_first else {"counted": has_trained()},
        published={"consensus": total_of_features()},
    )
