"""GPFL."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import class_angles, class_distance, cross_entropy, decay
from fedjax_het.client.starts import class_conditions
from fedjax_het.models import with_valve
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import HEAD, personal
from fedjax_het.validation import NonNegative, may_be_nonzero, validate_arguments


@validate_arguments
def gpfl(
    lam: Annotated[NonNegative, LogUniform(1e-4, 0.1)] = 0.01,
    mu: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.1,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """GPFL: features conditioned on the client, guided by class embeddings.

        V(z, c) = relu(z (gamma(c) + 1) + beta(c)),   gamma(c), beta(c) = norm(relu(W c + b))
        min  CE(h_i(V(z, c_i))) + CE(cos(V(z, c_0), E)) + lam |V(z, c_0) - E_y|_F + mu/2 |E, V|^2
        c_i = sum_k n_ik / n_i E_k,   c_0 = mean_k E_k;   E here and in lam's term as received
        extractor, E, V <- FedAvg's mean,   p_i = n_i / sum_j n_j

    Communication: same as FedAvg without the head, with E [class, feature] and two layers [feature, feature]. Client
    state: the head h_i. The personal model uses the server's current extractor, E and V.

    lam's term is a norm over the batch, neither squared nor divided, so its weight depends on the batch size.
    Setting: SGD .005, batch 10, 1 epoch, 20 clients, all in every round; lam .01, mu .1 (CNN); 1e-4, 0 (ResNet-18).
    Differences from the authors' code: there, c_i and c_0 are 0 in the first round, and follow from the client's own
    trained E afterwards; shares of classes are those of complete batches.

    Args:
        lam: The paper's λ (default .01).
        mu: The paper's μ, the weight decay of E and V (default .1).
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features are maps, or a number is out of range.

    References:
        Zhang et al., GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized
        Federated Learning, ICCV 2023. arXiv:2308.10279; code TsingZ0/GPFL.
    """
    regularizers = (lam, class_distance(lam)), (mu, decay(mu, ("embedding", "valve")))
    return Algorithm(
        objective=(cross_entropy(), class_angles(), *(term for weight, term in regularizers if may_be_nonzero(weight))),
        local_update=sgd(**training),
        adapt=with_valve,
        sharing=personal(HEAD, "condition/*"),
        start=class_conditions,
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=class_conditions,
    )
