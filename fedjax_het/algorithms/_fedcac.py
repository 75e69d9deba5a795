"""FedCAC."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.peers import critical_entries, critical_start
from fedjax_het.server.aggregators import mean
from fedjax_het.server.client_models import critical_collaboration
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Fraction, Positive, validate_arguments


@validate_arguments
def fedcac(
    tau: Annotated[Fraction, Uniform(0.1, 0.9)] = 0.5,
    beta: Positive = 100.0,
    *,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedCAC: average critical entries with similar clients alone.

        m_i: the largest entries of |(v_i - start_i) v_i|, a share tau of each leaf
        o_ij = 1 - |m_i - m_j|_1 / (2 |m_i|_1)
        C_i: i, and all j with o_ij >= mean(o) + (r + 1)/beta (max(o) - mean(o)) in round r
        start_i = m_i mean_{C_i} v_j + (1 - m_i) w,   w = sum_i p_i v_i,   p_i = n_i / sum_j n_j

    Communication: down start_i; up v_i and m_i, one byte per entry. The server keeps the latest models and m_i of all
    clients. Client state: none beside start_i, the personal model, which is w for a client that has not trained.

    Setting: 40 clients, all in every round, tau .5, beta 100, SGD .1, momentum .9, batch 100, 5 epochs, 300 rounds. Of
    clients that do not take part the latest models are used. From round beta on, clients collaborate with nobody in
    critical entries.

    Args:
        tau: The paper's τ (default .5).
        beta: The paper's β, in rounds (default 100).
        weighting: Client weights in w: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Wu et al., Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through Cautiously
        Aggressive Collaboration, ICCV 2023. arXiv:2309.11103; code kxzxvbk/Fling.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        start=critical_start,
        reports={"critical": critical_entries(tau)},
        published={"critical": critical_collaboration(beta)},
        aggregator=mean(weighting),
        personalize=critical_start,
    )
