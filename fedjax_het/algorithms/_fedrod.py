"""Fed-RoD."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import balanced_cross_entropy, personal_head
from fedjax_het.client.personalization import summed_heads
from fedjax_het.models import HeadStart, with_personal_head
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import personal
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def fedrod(
    gamma: Annotated[NonNegative, Uniform(0.0, 1.5)] = 1.0,
    head_start: HeadStart = "copy",
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """Fed-RoD: a global model against label skew, and second heads of clients.

        each step, at the same weights:
            body and generic head:  CE(z + gamma log n_i, y),   n_ic: the client's training examples of class c
            personal head h_i:      CE(z + h_i(f), y),          features f and generic logits z are constants
        body and generic head <- FedAvg's mean,   p_i = n_i / sum_j n_j

    Communication: same as FedAvg. Client state: h_i. The server's model predicts by z, a personal model by z + h_i(f).

    Classes without examples are left out of the first softmax. The personal head does not affect the server's model.
    Setting: SGD .005, batch 10 (PFLlib).
    The authors' repository has no code; PFLlib's counts the examples of complete batches alone. FL-bench's variant, in
    which the loss of the personal head also reaches the body, and the paper's hypernetwork are not reproduced.

    Args:
        gamma: The paper's γ (default 1). 0 is cross-entropy, and the server's model that of `fedavg`.
        head_start: Whether h_i begins as a "copy" of the generic head (default), or with "zero".
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: The head of the network is not a dense layer, or a number is out of range.

    References:
        Chen and Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022.
        arXiv:2107.00778; code TsingZ0/PFLlib (a third party).
    """
    return Algorithm(
        objective=(balanced_cross_entropy(gamma, "excluded"), personal_head()),
        local_update=sgd(**training),
        adapt=with_personal_head(head_start),
        sharing=personal("params/personal_head/*"),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=summed_heads,
    )
