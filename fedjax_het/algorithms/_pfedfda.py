"""pFedFDA."""

from typing import Literal, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.gaussian_head import (
    Ridge,
    adapted_gaussian,
    discriminant_model,
    discriminant_start,
    sending_gaussian,
)
from fedjax_het.client.local_updates import Training, refuse_only, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.models import with_gaussian
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import HEAD, personal
from fedjax_het.validation import validate_arguments


@validate_arguments
def pfedfda(
    num_betas: Literal[1, 2] = 1,
    *,
    ridge: Ridge = "diagonal",
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """pFedFDA: a head from Gaussian features, adapted to each client.

        h_i: kernel_c = S^-1 mu_c,   bias_c = -mu_c' S^-1 mu_c / 2 + log pi_ic,   with the received mu, S
        b_i = SGD on the extractor, head h_i fixed;   (mu_i, S_i): class means and covariance of the features under b_i
        (b, mu, S) <- sum_i p_i (b_i, beta_i (mu_i, S_i) + (1 - beta_i) (mu, S)),   p_i = n_i / sum_j n_j

    Communication: down and up the extractor, mu [class, feature] and S [feature, feature]. Client state: the head
    h_i, made anew in each round. The personal model is the server's current extractor with the head of the client's
    adapted statistics.

    beta_i has the lowest loss of the head in two-fold cross-validation on the client's training examples.
    Setting: SGD .01, momentum .5, decay 5e-4, batch 50, 5 epochs, 200 rounds, 30 of 100 clients.
    Differences from the authors' code: its statistics are of the features of all epochs, while the extractor moves; it
    adds the identity to S (ridge="released"); and it finds beta_i by ten steps of L-BFGS.

    Args:
        num_betas: One beta_i (default), or one for means and one for the covariance (2, as in the code), which takes
            eleven times as long.
        ridge: What is added to S: "diagonal", 1e-4 I; or "released", I, and 1e-4 in all entries.
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: `only` is given, features are maps, or the head is not a dense layer.

    References:
        McLaughlin and Su, Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024; code
        cj-mclaughlin/pFedFDA.
    """
    refuse_only("pFedFDA trains the extractor", training)
    local_update = sgd(**training, only=f"!{HEAD}")
    adapt = adapted_gaussian(num_betas, ridge, local_update.batch_size)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sending_gaussian(local_update, adapt),
        adapt=with_gaussian,
        sharing=personal(HEAD),
        start=discriminant_start,
        aggregator=mean(weighting),
        personalize=discriminant_model(adapt),
    )
