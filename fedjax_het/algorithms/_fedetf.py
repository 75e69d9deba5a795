"""FedETF."""

from typing import Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, pop_optimizer, sgd
from fedjax_het.client.memories import optimizer_state
from fedjax_het.client.objectives import balanced_cross_entropy
from fedjax_het.models import framed
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, NonNegative, Positive, Preset, Seed, validate_arguments, with_presets


@with_presets(released={"reset_optimizer": False})
@validate_arguments
def fedetf(
    gamma: NonNegative = 1.0,
    *,
    width: Count | None = None,
    scale: Positive = 10.0,
    frame_seed: Seed = 0,
    reset_optimizer: bool = True,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedETF: align all clients' features with one fixed ETF classifier.

        g = P f + q,   z = s V^T g / |g|,   V^T V = C/(C - 1) I - 11^T/(C - 1), fixed
        min  1/B sum_b CE(z_b + gamma log max(n, 1), y_b),   n_c: the client's examples of class c
        then body, P, q and s are averaged as FedAvg does

    Communication: same as FedAvg, without a head; V follows from a seed that all clients know. Client state: none.

    Setting: 20 clients, all in every round, 200 rounds, 3 epochs, batch 128, SGD .04 (.01 for 100 classes and more),
    momentum .9, decay 5e-4, Dirichlet .05 or .1; P projects to C dimensions for ResNets, to 64 for the CNN.
    Deviations: the released code trains s with weight decay, as here, so that s decreases unless the loss prevents it;
    its local optimizers keep their momentum between rounds (preset "released"); it sends an unused linear head, and V.
    The gradient at a zero projection is 0 here, and 1e11 in the code. Its personalization after the last round, which
    trains frames and projections in turn, is not reproduced.

    Args:
        gamma: The paper's γ (default 1; fixed in the released code). 0 is plain cross-entropy.
        width: Dimension of g, at least the number C of classes. None: the larger of the feature dimension and C.
        scale: Initial value of s (default 10, as for the released CNN; 1 for its ResNets, which train slowly at first).
        frame_seed: Seed of V.
        reset_optimizer: Whether to reset the local optimizer in each round, as most other algorithms do.
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" or "uniform".
        preset: "released" keeps the local optimizers' state between rounds.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features are maps, width is below the number of classes, or a number is out of range.

    References:
        Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed
        Classifier, ICCV 2023. arXiv:2303.10058; code ZexiLee/ICCV-2023-FedETF.
    """
    optimizer = pop_optimizer(training)
    return Algorithm(
        objective=(balanced_cross_entropy(gamma),),
        local_update=sgd(**training, optimizer=optimizer, keep_optimizer=not reset_optimizer),
        memory={} if reset_optimizer else {"optimizer": optimizer_state(optimizer)},
        aggregator=mean(weighting),
        adapt=framed(width, scale, frame_seed),
        server_optimizer=optax.sgd(server_learning_rate),
    )
