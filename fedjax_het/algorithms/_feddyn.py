"""FedDyn."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.gradients import dynamic_gradient
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.memories import total_displacement
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import displaced_mean
from fedjax_het.validation import Positive, validate_arguments


@validate_arguments
def feddyn(
    alpha: Annotated[Positive, LogUniform(1e-3, 1.0)] = 0.1,
    *,
    mean_examples: Positive | None = None,
    clip: Positive | None = None,
    **training: Unpack[Training],
) -> Algorithm:
    """FedDyn: regularize clients dynamically towards the global optimum.

        w <- w - lr (g(w) + alpha h_i + alpha (w - x)),    K_i steps from w = x, the received model
        h_i <- h_i + (w_i - x)                             (the paper's gradient g_i is -alpha h_i)
        hbar <- hbar + 1/N sum_S (w_i - x)                 (the paper's h is -alpha hbar)
        x <- 1/|S| sum_S w_i + hbar

    Communication: same as FedAvg; the server can update hbar from the updates alone. Client state: h_i, the size of
    the shared parameters, zero before its first round. Server state: hbar.

    N counts all clients, S is the cohort. The server always adds hbar, so a single client does not train as in plain
    SGD, and a small alpha does not give FedAvg. alpha times the learning rate must stay below 2.
    Setting: alpha .01 (.1 in FL-Simulator), CIFAR-10, 100 clients, SGD .1, decay 1e-3, batch 50, 5 epochs, 1000 rounds.
    Deviations: displacements are stored instead of the paper's gradients, which gives the same numbers without a
    division by alpha. The released code clips gradients at norm 10 and scales alpha by the clients' numbers of
    examples; both are options here. It evaluates the mean of the participants' models, or of all clients' last models;
    here the server's model x is evaluated. The printed server rule lacks parentheses, as its author confirms. Local
    momentum is allowed.

    Args:
        alpha: The paper's α > 0 (default .1; .1, .01 or .001 in the paper).
        mean_examples: nbar, the mean number of training examples over all clients: client i uses alpha nbar / n_i, as
            in the released code. None: alpha for all clients (the paper, where clients have equally many examples).
        clip: Maximum norm of g + alpha (h_i - x), without alpha w (10 in the released code). None: no clipping (paper).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021. arXiv:2111.04263; code
        alpemreacar/FedDyn.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, gradient=dynamic_gradient(alpha, mean_examples, clip)),
        memory={"displacement": total_displacement()},
        aggregator=displaced_mean(),
    )
