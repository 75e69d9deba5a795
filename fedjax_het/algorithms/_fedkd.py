"""FedKD."""

from typing import Annotated, Literal, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import Gradients, OverClasses, adaptive_distillation
from fedjax_het.models import common_network, own_network, paired
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import share_only
from fedjax_het.types import Model
from fedjax_het.uplink import singular_values
from fedjax_het.validation import Count, Fraction, validate_arguments


@validate_arguments
def fedkd(
    energy: Annotated[Fraction, Uniform(0.8, 0.99)] = 0.95,
    last_energy: Fraction = 0.98,
    energy_rounds: Count = 100,
    *,
    student: Model | None = None,
    gradients: Gradients = "own",
    over_classes: OverClasses = "sum",
    compressed: Literal["change", "model"] = "change",
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """FedKD: a personal teacher and a common student with compressed updates.

        teacher: CE_t + (KL(q || p) + D) / (CE_t + CE_s),   student: CE_s + (KL(p || q) + D) / (CE_t + CE_s)
        D = mean (f_t - f_s W)^2;   p, q: the predictions of teacher and student, f_t, f_s: their features
        up and down: the largest k singular values of the student's change, by matrix, sum_{i <= k} s_i^2 > e_t |s|^2
        e_t = energy + (last_energy - energy) min(t / energy_rounds, 1)

    Communication: down the student, up its update, both with matrices of low rank; the numbers of bytes that a run
    reports are those of whole matrices, an upper bound. Client state: the teacher and W.

    The personal model is the teacher, and the server's model is the student.
    Setting: BERT as the teacher, its first 4 layers as the student, Adam 3e-6, MIND and others; T_start .95, T_end .98.
    Differences from the authors' code, which runs no longer: if all singular values are needed, it sends none, and the
    matrix is 0; here all are sent. It takes any list of three entries for the factors of a matrix, such as a bias of
    three classes. gradients="both", over_classes="mean" and compressed="model" is the code of a third party, HtFLlib;
    its clipping of each network's gradient to norm 10 is not reproduced. The teachers of all clients start from the
    same weights.

    Args:
        energy: The paper's T_start (default .95). 1 sends whole matrices.
        last_energy: The paper's T_end (default .98).
        energy_rounds: The round from which last_energy applies (default 100).
        student: The common network, in Python; None: the same network as the teacher, with other random weights.
        gradients: "own" (default): each network minimizes its own loss; "both": they minimize the sum.
        over_classes: Whether KL is a "sum" (default) or a "mean" over classes.
        compressed: The "change" of the student (default) or the "model" itself.
        weighting: Client weights: "uniform" (default) or "samples".
        training: Settings of local training of both networks, see `local_updates.sgd`.

    References:
        Wu et al., Communication-Efficient Federated Learning via Knowledge Distillation, Nature Communications 2022.
        arXiv:2108.13323; code wuch15/FedKD, TsingZ0/HtFLlib (a third party).
    """
    return Algorithm(
        objective=(adaptive_distillation(gradients, over_classes),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        adapt=paired(student, match_features=True),
        sharing=share_only("*/common/*"),
        uplink=(singular_values(energy, last_energy, energy_rounds, compressed),),
        evaluated=common_network,
        personalize=own_network,
    )
