"""FML."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import mutual_learning
from fedjax_het.models import common_network, own_network, paired
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import share_only
from fedjax_het.types import Model
from fedjax_het.validation import Fraction, validate_arguments


@validate_arguments
def fml(
    alpha: Annotated[Fraction, Uniform(0.0, 1.0)] = 0.5,
    beta: Annotated[Fraction, Uniform(0.0, 1.0)] = 0.5,
    *,
    meme: Model | None = None,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """FML: a personal and a common network learn from each other.

        own:    alpha CE(z) + (1 - alpha) KL(q || p),   p = softmax(z)
        meme:   beta CE(v) + (1 - beta) KL(p || q),     q = softmax(v);   w <- w + sum_i p_i (w_i - w)

    The first argument of each KL is constant; both networks take a step on the same batch.

    Communication: down the meme, up its update. Client state: its own network. Cost: two networks per step.

    The personal model is the client's own network, and the server's model is the meme.
    Setting: CIFAR-10, 5 nodes, 50 rounds of 5 epochs, SGD .01, momentum .9, decay 5e-4, batch 128; alpha = beta = .5.
    Differences from the authors' code: in its main program, the two calls that send and average the meme are commented
    out. Its own networks keep their optimizers between rounds; here both are reset. HtFLlib, a third party,
    divides KL by the number of classes, and lets gradients pass into the teacher: not reproduced. The own networks
    of all clients start from the same weights.

    Args:
        alpha: The paper's α (default .5). With alpha = beta = 1 the own networks are trained alone, beside FedAvg.
        beta: The paper's β (default .5).
        meme: The common network, in Python; None: the same network as the clients' own, with other random weights.
        weighting: Client weights p_i: "uniform" (default) or "samples".
        training: Settings of local training of both networks, see `local_updates.sgd`.

    References:
        Shen et al., Federated Mutual Learning, 2020. arXiv:2006.16765; code ZJU-DAI/Federated-Mutual-Learning.
    """
    return Algorithm(
        objective=(mutual_learning(alpha, beta),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        adapt=paired(meme),
        sharing=share_only("*/common/*"),
        evaluated=common_network,
        personalize=own_network,
    )
