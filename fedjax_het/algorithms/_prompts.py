"""PromptFL: learned context of CLIP's texts."""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd, split_training
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.models import ContextSettings, context
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import validate_arguments


class ContextTraining(Training, ContextSettings, total=False):
    """The settings of local training, see `local_updates.sgd`, and of the context, see `models.context`."""


@validate_arguments
def promptfl(weighting: WeightingOrName = "samples", **options: Unpack[ContextTraining]) -> Algorithm:
    """PromptFL: train and average context in the texts of CLIP's classes.

        text of class c:   [start] v_1 ... v_n [name of c] [.] [end],   z_c = exp(logit_scale) cos(image, text_c)
        v_i = SGD(F_i, start at v),   v <- sum_i p_i v_i

    Communication: the n vectors of v, down and up; 32 kB for 16 vectors of 512 numbers. Client state: none. Equals
    `fedavg` on `fh.models.context(...)(model)`. Needs the model `clip` with prompts and texts="tower".

    Setting: n = 16, CLIP with a ResNet-50 or ViT-B/16, SGD, learning rate .001, batch 32, 5 epochs, 10 rounds.
    Deviations: the released code collects references to the vectors of one model, so that its mean is the last client's
    v_i; here it is the mean, weighted by numbers of examples as in the working copy of FedOTP's authors (uniform in
    PromptFL's code). That code also averages the embeddings of the other tokens, which are frozen here.

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
