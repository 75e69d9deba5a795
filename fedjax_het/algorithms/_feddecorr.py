"""FedDecorr."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import DecorrelationForm, cross_entropy, decorrelation
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, may_be_nonzero, validate_arguments


@validate_arguments
def feddecorr(
    beta: Annotated[NonNegative, LogUniform(0.01, 1.0)] = 0.1,
    form: DecorrelationForm = "released",
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedDecorr: decorrelate the features of each batch.

        min  CE + beta R,   R = 1/(d (d - 1)) sum_{i != j} (X^T X)_ij^2 / N
        X [N, d]: the features of the batch, each standardized over it
        then average as FedAvg does

    Communication: same as FedAvg. Client state: none. The term can be added to any other method: `replace(a,
    objective=(*a.objective, objectives.decorrelation()))`.

    Setting: 10 clients, all in every round, SGD .01, momentum .9, decay 1e-5, batch 64, 10 epochs, 100 rounds,
    Dirichlet .05, .1 or .5, MobileNetV2.
    Deviations: the printed term is |K|_F^2 / d^2 with the correlation matrix K. The released one is about N times as
    large, and was used with beta .1. The term is 0 for a batch of one example, and for a single feature, where the
    released code gives NaN.

    Args:
        beta: The paper's β (default .1). 0 is FedAvg.
        form: Form of the term: "released" or "printed".
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features are maps, or a number is out of range.

    References:
        Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning, ICLR
        2023. arXiv:2210.00226; code bytedance/FedDecorr.
    """
    return Algorithm(
        objective=(cross_entropy(), decorrelation(beta, form)) if may_be_nonzero(beta) else (cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
