"""PromptFL, FedOTP and FedPGP: learned context in the class texts of CLIP."""

from collections.abc import Sequence
from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd, split_training
from fedjax_het.client.objectives import cross_entropy, text_contrastive
from fedjax_het.models import ContextSettings, Position, context, low_rank_context, transported_context
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import personal
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, PositiveFraction, validate_arguments


class ContextTraining(Training, ContextSettings, total=False):
    """The settings of local training, see `local_updates.sgd`, and of the context, see `models.context`."""


@validate_arguments
def promptfl(weighting: WeightingOrName = "samples", **options: Unpack[ContextTraining]) -> Algorithm:
    """PromptFL: train and average learned context in the class texts of CLIP.

        text of class c:   [start] v_1 ... v_n [name of c] [.] [end],   z_c = exp(logit_scale) cos(image, text_c)
        v_i = SGD(F_i, start at v),   v <- sum_i p_i v_i

    Communication: the n vectors of v, down and up; 32 kB for 16 vectors of 512 numbers. Client state: none. Equals
    `fedavg` on `fh.models.context(...)(model)`. Requires the model `clip` with prompts and texts="tower".

    Setting: n = 16, CLIP with a ResNet-50 or ViT-B/16, SGD, learning rate .001, batch 32, 5 epochs, 10 rounds.
    Deviations: the released code collects references to the vectors of one model, so that its mean is the v_i of the
    last client; here it is the mean, weighted by numbers of examples as in the working copy of FedOTP's authors
    (uniform in PromptFL's code). That code also averages the embeddings of the other tokens, which are frozen here.

    Args:
        weighting: Client weights p_i: "samples" (n_i / n) or "uniform".
        options: Settings of local training, see `local_updates.sgd`, and of the context, see `models.context`.

    References:
        Guo, Guo, Wang, Tang and Xu, PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models
        - Federated Learning in Age of Foundation Model, IEEE Transactions on Mobile Computing 2023. arXiv:2208.11625;
        code PEILab-Federated-Learning/PromptFL.
    """
    own, training = split_training(options)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        adapt=context(**own),
    )


@validate_arguments
def fedotp(
    num_tokens: Count = 16,
    num_own: Count = 1,
    *,
    epsilon: Positive = 0.1,
    mass: PositiveFraction | None = 1.0,
    iterations: Count = 100,
    position: Position = "end",
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedOTP: compare image patches with a shared and a personal text per class.

        z_c = exp(logit_scale) sum_mn T_mn cos(patch m, text n of class c),   T: unbalanced transport plan
        v_i = SGD(F_i, start at (v, u_i)),   v <- sum_i p_i v_i;   the vectors u_i of the other texts stay on the client

    Communication: the vectors of the shared text, down and up, as for PromptFL. Client state: the vectors of its own
    texts. Requires the model `clip` with prompts and texts="tower".

    Setting: 16 vectors, one shared and one own text, CLIP with a ViT-B/16, epsilon .1 (.01 in the scripts), SGD,
    learning rate .001, batch 32, one epoch.
    Deviation from the code: the plan has a fixed number of iterations; the code stops when the mean change over the
    batch is below .001, so that its results depend on the other images of the batch.

    Args:
        num_tokens: The number of vectors of a text (default 16).
        num_own: The number of a client's own texts per class (default 1).
        epsilon: Weight of the entropy of the plan (default .1).
        mass: Mass of the plan, at most 1 (default 1), the paper's γ. None: balanced transport.
        iterations: Number of iterations of the plan (default 100, the code's maximum).
        position: The place of the name in the text, see `models.context`.
        weighting: As in `promptfl`.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Li, Huang, Wang and Shi, Global and Local Prompts Cooperation via Optimal Transport for Federated Learning, CVPR
        2024. arXiv:2403.00041; code HongxiaLee/FedOTP.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        adapt=transported_context(
            num_tokens, position=position, num_own=num_own, epsilon=epsilon, mass=mass, iterations=iterations
        ),
        sharing=personal("params/context/own"),
    )


@validate_arguments
def fedpgp(
    mu: NonNegative = 1.0,
    temperature: Positive = 0.5,
    *,
    num_tokens: Count = 16,
    rank: Count = 4,
    reference: Sequence[CountOrZero] = (),
    position: Position = "end",
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedPGP: share the context, adapt it with a low-rank term per client.

        V_i = sigma + u_i v_i,   min CE + mu 1/C sum_c -log(e^{s_c} / (e^{s_c} + e^{r_c}))
        s_c = cos(t_c(sigma), t_c) / tau,   r_c = cos(t_c(sigma), t_c(V_i)) / tau,   t_c(V): text of class c with V
        (sigma_i, u_i, v_i) = SGD(F_i, start at (sigma, u_i, v_i)),   sigma <- sum_i p_i sigma_i

    t_c is the text without vectors, or with those of `reference`. The shared context stays near it, and personal
    contexts move away from the shared one.

    Communication: sigma, down and up, as for PromptFL. Client state: u_i and v_i. Requires the model `clip` with
    prompts and texts="tower".

    Setting: 16 vectors, rank 4, CLIP with a ViT-B/16, mu 1, tau .5, SGD, learning rate .001, batch 32.
    As in the code, u_i and v_i begin as N(0, .02^2), so that their product is not zero at the start.

    Args:
        mu: Weight of the contrastive term, the paper's μ (default 1). 0: cross-entropy alone.
        temperature: The paper's τ (default .5).
        num_tokens: The number of vectors (default 16).
        rank: Rank of the personal term, the paper's bottleneck (default 4).
        reference: Tokens in the place of the vectors in t_c, such as those of "a photo of a"; in the code those of
            "X X ... X" (default none).
        position: The place of the name in the text, see `models.context`.
        weighting: As in `promptfl`.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Cui, Li, Wang and Shi, Harmonizing Generalization and Personalization in Federated Prompt Learning, ICML 2024.
        arXiv:2405.09771; code TianyuCuiOvO/FedPGP.
    """
    return Algorithm(
        objective=(cross_entropy(), text_contrastive(mu, temperature)),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        adapt=low_rank_context(num_tokens, rank, position=position, reference=reference),
        sharing=personal("params/context/u", "params/context/v"),
    )
