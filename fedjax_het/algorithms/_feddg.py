"""FedDG (ELCFS)."""

from functools import partial
from typing import Literal, Unpack

import jax.numpy as jnp
import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.episodes import episodic_gradient, interpolated_amplitudes
from fedjax_het.client.local_updates import Training, pop_optimizer, sgd
from fedjax_het.client.measures import low_frequency_amplitudes
from fedjax_het.client.memories import optimizer_state
from fedjax_het.client.objectives import boundary_contrast, cross_entropy
from fedjax_het.models import with_image_shape
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import latest_of_clients
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.spectra import SquareBand, low_frequencies
from fedjax_het.types import Named, Variables
from fedjax_het.validation import (
    Count,
    Finite,
    Fraction,
    NonNegative,
    Positive,
    Preset,
    may_be_nonzero,
    validate_arguments,
    with_presets,
)


@with_presets(released={"band": "dc", "rate": 1.0, "clip": (0.0, 1.0)})
@validate_arguments
def feddg(
    gamma: NonNegative = 0.1,
    band: SquareBand = 0.01,
    *,
    rate: Literal["uniform"] | Fraction = "uniform",
    clip: tuple[Finite, Finite] | None = None,
    num_images: Count = 8,
    inner_step: NonNegative = 1e-3,
    inner_clip: Positive | None = 100.0,
    order: Literal["first", "second"] = "first",
    temperature: Positive = 0.05,
    reset_optimizer: bool = False,
    weighting: WeightingOrName = "samples",
    server_learning_rate: NonNegative = 1.0,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedDG (ELCFS): images also with low frequencies of other clients, in episodes.

        x' = Re IDFT(((1 - M) A + M ((1 - l) A + l A')) exp(i P)),   A = |DFT(x)|, P its phases, l ~ U[0, 1]
        min  L(x; w) + L(x'; w') + gamma L_boundary,   w' = w - s clamp(grad L(x; w), -c, c)

    M is the centred square of frequencies up to floor(min(height, width) band), A' the amplitude of an image of another
    client, drawn among those that have taken part. L is the task's loss, and the gradient does not go through the inner
    step. L_boundary holds the mean features at the contour of each structure apart from those around it, over both
    passes, see `objectives.boundary_contrast`; with labels of whole images it is 0.

    Communication: same as FedAvg, plus before training: up, the amplitudes of num_images images, restricted to M;
    down, those of all clients, [clients, num_images, row, column, channel]. They never change, so sending them once
    would suffice. Client state: the optimizer state. Server state: the amplitudes.

    Images whose means have both signs, as standardised ones have, are refused: the sign is phase.
    Setting: optimizer "adam", rate 1e-3, task_loss "dice", batch 5, 1 epoch, 100 rounds on fundus images of 384 pixels;
    for classification (PACS, by FedGA's authors) band .1.
    Deviations: the equation as printed, (1 - l) A (1 - M) + l A' M, is a misprint by its authors' word. The released
    training never interpolates: its window is the mean alone and its rate 1, so that images get another mean and are
    cut to their range; preset="released" has that. It cuts each client's amplitudes to a random eighth; here num_images
    are spread evenly over its examples. Weights are exact shares, and not rounded to two decimals. The Dice loss is of
    a softmax with the background, and each class is a structure of its own, where the code has a sigmoid for discs that
    contain cups. An example where a structure is absent is left out of that structure's L_boundary, where the code has
    NaN.

    Args:
        gamma: The paper's γ, .1 (boundary term).
        band: The paper's α of M, .01 (.003 in the demonstration); "dc", or a number below 1 / min(height, width), is
            the mean alone.
        rate: l, "uniform" or a number for all; 0 leaves images as they are.
        clip: The range to which altered images are cut; None is none.
        num_images: Images whose amplitudes a client sends, the same in every round.
        inner_step: s, the code's 1e-3; 0 has w' = w.
        inner_clip: c, the code's 100; None is no clamp.
        order: "first" (code), or "second", which differentiates through the inner step, the paper read literally.
        temperature: Of the boundary term, the code's .05.
        reset_optimizer: Whether the local optimizer starts afresh each round, as in most other algorithms.
        weighting: "samples" or "uniform".
        server_learning_rate: By which the mean of the updates is multiplied, 1.
        preset: "released" has the public code's images: band="dc", rate=1, clip=(0, 1).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number out of range; inputs that are no images.

    References:
        Liu, Chen, Qin, Dou and Heng, FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic
        Learning in Continuous Frequency Space, CVPR 2021. arXiv:2103.06030; code liuquande/FedDG-ELCFS.
    """
    optimizer = pop_optimizer(training)
    gradient = episodic_gradient(
        interpolated_amplitudes(band, rate, clip),
        boundary_contrast(gamma, temperature) if may_be_nonzero(gamma) else None,
        inner_step=inner_step,
        inner_clip=inner_clip,
        order=order,
        only=training.get("only"),
    )
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, optimizer=optimizer, gradient=gradient, keep_optimizer=not reset_optimizer),
        memory={} if reset_optimizer else {"optimizer": optimizer_state(optimizer)},
        survey={"amplitudes": low_frequency_amplitudes(band, num_images)},
        published={"amplitudes": latest_of_clients(partial(_answer_shapes, band, num_images))},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        adapt=with_image_shape,
    )


def _answer_shapes(band: SquareBand, num_images: int, shared: Variables) -> Named:
    _, height, width, channels = (outline := shared["outline"]["images"]).shape
    rows, columns = low_frequencies((height, width), band)
    amplitudes = jnp.zeros((num_images, len(rows), len(columns), channels), outline.dtype)
    return {"amplitudes": amplitudes, "count": jnp.zeros((), float)}
