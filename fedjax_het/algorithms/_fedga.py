"""FedGA."""

from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import RunSetting, Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import Examples, Metric, generalization_gap, mean_loss
from fedjax_het.client.memories import last
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import StepSchedule, generalization_adjustment
from fedjax_het.validation import Count, NonNegative, Positive, Preset, validate_arguments, with_presets


@with_presets(
    released={"metric": "accuracy", "centre": False, "schedule": "released", "scale": 1 / 3, "ceiling": 1.0},
)
@validate_arguments
def fedga(
    step: Annotated[NonNegative, Uniform(0.05, 0.5)] = 0.2,
    rounds: Annotated[Count, RunSetting("rounds")] = 40,
    *,
    metric: Metric = "loss",
    centre: bool = True,
    schedule: StepSchedule = "linear",
    scale: NonNegative | Literal["1/n"] = 1.0,
    ceiling: Positive | None = None,
    examples: Examples = "valid_or_train",
    server_learning_rate: NonNegative = 1.0,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedGA: upweight clients with a large generalization gap (FedDG-GA).

        w^{r+1} = sum_i a_i w_i,   a_i = 1/N at first
        G_i = F_i(w^{r+1}) - F_i(w_i)                                      on client i's validation examples
        a_i <- max(0, a_i + d_r (G_i - mean G) / max_j |G_j - mean G|),   a <- a / sum a,   d_r = d (1 - r/R)

    Communication: same as FedAvg, plus one number up. Client state: the loss of its last trained model. Server
    state: a.

    The gap of round r is measured when the model of round r + 1 arrives, and reported with the update, in time for its
    aggregation. This gives the paper's values with one exchange per round. The first report has no gap.
    Setting: SGD .001, momentum .9, weight decay 5e-4, batch 16, 5 epochs.
    Deviations: equal gaps leave the weights unchanged, where the code divides 0 by 0 and keeps NaN; the learning rate
    is constant, while the code divides it by ten for the last fifth of the rounds (learning_rate_schedule=steps((32,))
    of 40); a client that was absent compares with its own last round, and only participants' weights are adjusted.

    Args:
        step: The authors' d (default .2), set for the three clients of PACS. With many clients, scale="1/n" keeps steps
            below the weights.
        rounds: R, the number of rounds of the run (authors: 40). The weights are constant afterwards.
        metric: "loss", or "accuracy" (code), measured as the error rate.
        centre: Whether to subtract mean G. False: as in the code.
        schedule: "linear": d_r = d (1 - r/R); "released": d (1 - (r - 1)/R); "constant": d.
        scale: Factor of the steps, or "1/n" over all clients (released: 1/3, the 1/N of PACS).
        ceiling: Maximum weight before normalization (released: 1; paper: none).
        examples: Examples on which losses are measured: "valid_or_train", "valid" or "train".
        server_learning_rate: Factor of the mean update (default 1).
        preset: "released" sets the public code's options: accuracy, no centering, steps times 1/3, a first step larger
            than d.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Zhang et al., Federated Domain Generalization with Generalization Adjustment, CVPR 2023; code
        MediaBrain-SJTU/FedDG-GA.
    """
    local_update = sgd(**training)
    options = {"metric": metric, "examples": examples, "batch_size": local_update.batch_size}
    weighting = generalization_adjustment(step, rounds, centre=centre, schedule=schedule, scale=scale, ceiling=ceiling)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=local_update,
        memory={"validation_loss": last(mean_loss("local", **options))},
        reports={"gap": generalization_gap(**options)},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
