"""kNN-Per."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.stored_features import nearest_features
from fedjax_het.models import with_neighbours
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, Fraction, NonNegative, Positive, PositiveFraction, validate_arguments


@validate_arguments
def knnper(
    num_neighbours: Count = 10,
    scale: Annotated[Positive, LogUniform(0.1, 10.0)] = 1.0,
    mix: Fraction | None = None,
    share: PositiveFraction = 1.0,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """kNN-Per: FedAvg mixed with votes of the nearest training examples.

        p(x) = lambda vote(x) + (1 - lambda) softmax(z(x)),   features f and logits z of the server's current model
        vote: the labels of the k nearest of the client's training examples, with weights exp(-|f - f_j|^2 / (d scale))

    Communication: same as FedAvg. Client state: none; the features are computed anew for every evaluation of personal
    models.

    Setting: k 10, scale 1, 100 rounds or more of FedAvg with a pretrained network.
    Differences from the authors' code: it reports all lambda on test examples; approximate neighbours (faiss) are exact
    here.

    Args:
        num_neighbours: The paper's k (default 10).
        scale: Scale of the weights (default 1).
        mix: The paper's λ. None (default): that of 0, .1, ..., 1 with the highest accuracy on the client's validation
            examples; a client without any takes .5.
        share: The share of the training examples that a client stores (default 1).
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features are maps, or a number is out of range.

    References:
        Marfoq et al., Personalized Federated Learning through Local Memorization, ICML 2022. arXiv:2111.09360; code
        omarfoq/knn-per.
    """
    local_update = sgd(**training)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=local_update,
        adapt=with_neighbours(num_neighbours, scale),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=nearest_features(mix, share, batch_size=local_update.batch_size),
    )
