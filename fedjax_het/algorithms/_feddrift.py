"""FedDrift."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import assigned_model, losses_of_models
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.clustering import Merging
from fedjax_het.server.drifting_groups import GroupStart, follow_drift
from fedjax_het.server.model_groups import shares_of_groups
from fedjax_het.server.weightings import WeightingName
from fedjax_het.shared_models import SharedModels
from fedjax_het.validation import Count, NonNegative, validate_arguments


@validate_arguments
def feddrift(
    num_models: Count = 20,
    rounds_per_step: Count = 20,
    delta: Annotated[NonNegative, LogUniform(0.02, 0.5)] = 0.1,
    delta_merge: NonNegative | None = None,
    isolation: Count = 1,
    *,
    start: GroupStart = "separate",
    linkage: Merging = "complete",
    weighting: WeightingName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedDrift: clients leave models that fit badly; similar models merge.

        at the beginning of a step, e_mi: the error of model m on the new data of client i, m_i = argmin_m e_mi
        e_{m_i i} > e_i + delta:  client i takes a copy of model m_i, alone for `isolation` steps;   e_i <- e_{m_i i}
        models i, j merge while max(e_ij - e_ii, e_ji - e_jj, 0) <= delta',   e_ij: model i on the data of group j
        theta_m <- theta_m + sum_i p_i (w_i - theta_m) over the clients with m_i = m

    Communication: all models to every client, one model back, and the errors of all models. Client state: none. Server
    state: the models, and for each client its model and error.

    A step has rounds_per_step rounds, as a phase of the data. Models merge by agglomerative clustering, as means
    weighted by the numbers of clients and steps that trained them. A client that leaves takes a model that nobody uses:
    a new one, or else the one used least recently, whose parameters are lost; it stays if all are in use. Clients that
    do not take part in the first round of a step keep their model; in the paper all take part. `personal/...` scores
    each client with its model; other scores are of the models' logits weighted by the numbers of their clients.
    Setting: 10 clients, 10 steps of 200 rounds of 5 epochs, learning rate .01; delta = delta' .1 for MNIST and CIRCLE,
    .2 for SINE, .04 for SEA.
    Differences from the authors' code: a client trains its model on its present data alone, where theirs trains models
    on all data that clients have assigned to them, of earlier steps, too; e_ij likewise, of all examples, where they
    take some twenty batches. Groups without present data do not merge. With start="separate" their first drifts
    overwrite models in use, and among models used least recently they choose at random.

    Args:
        num_models: The maximum number of models (default 20), with start="separate" at least the number of clients.
        rounds_per_step: The number of rounds of each step (default 20; 200 in the paper).
        delta: The rise of the error that counts as drift (default .1).
        delta_merge: The largest distance of models that merge, delta'. None (default): delta.
        isolation: The number of steps for which a client that left is alone (default 1).
        start: "separate" (default): every client starts with its own model, equal at first. "common": with one model.
        linkage: The distance of two clusters: "complete" (default), or "average".
        weighting: The weights p_i among the clients of a model: "samples" (default) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: When traced: start="separate" with fewer models than clients.

    References:
        Jothimurugesan et al., Federated Learning under Distributed Concept Drift, AISTATS 2023; code
        microsoft/FedDrift.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        survey={"groups": losses_of_models("accuracy", every=rounds_per_step)},
        published={"groups": follow_drift(num_models, rounds_per_step, delta, delta_merge, isolation, start, linkage)},
        models=SharedModels(
            num_models,
            assigned_model("groups"),
            combine=lambda published: published["groups"]["weights"],
            are_equal=True,
            weigh=shares_of_groups("groups", num_models),
        ),
    )
