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
    """FedDG (ELCFS): episodes on images with other clients' low frequencies.

        x' = Re IDFT(((1 - M) A + M ((1 - l) A + l A')) exp(i P)),   A = |DFT(x)|, P its phases, l ~ U[0, 1]
        min  L(x; w) + L(x'; w') + gamma L_boundary,   w' = w - s clamp(grad L(x; w), -c, c)

    M is the centered square of frequencies up to floor(min(height, width) band), A' the amplitude of an image of
    another client, drawn among the clients that have participated. L is the task loss; the gradient does not go through
    the inner step. L_boundary contrasts the mean features at the contour of each structure with those around it, over
    both passes, see `objectives.boundary_contrast`; it is 0 if labels are per image.

    Communication: same as FedAvg, plus before training: up, the amplitudes of num_images images, restricted to M; down,
    those of all clients, [clients, num_images, row, column, channel]. They never change, so sending them once would
    suffice. Client state: the optimizer state. Server state: the amplitudes.

    Images whose means have both signs, such as standardized images, raise an error, because the sign belongs to the
    phase.
    Setting: optimizer "adam", learning rate 1e-3, task_loss "dice", batch 5, 1 epoch, 100 rounds on fundus images of
    384 pixels; for classification (PACS, by FedGA's authors) band .1.
    Deviations: the printed equation, (1 - l) A (1 - M) + l A' M, is a misprint according to its authors. The released
    code never interpolates: its window is the mean alone and its l is 1, so that images get another mean and are
    clipped to their range; preset="released" reproduces this. It keeps a random eighth of each client's amplitudes;
    here num_images are spread evenly over its examples. Weights are exact shares, not rounded to two decimals. The Dice
    loss uses a softmax with background and treats each class as a separate structure, while the code uses a sigmoid for
    discs that contain cups. An example without a structure is excluded from that structure's L_boundary, where the code
    gives NaN.

    Args:
        gamma: Weight of the boundary term, the paper's γ (default .1).
        band: Size of M, the paper's α (default .01; .003 in the demonstration). "dc", or less than 1 / min(height,
            width), is the mean alone.
        rate: l, "uniform" or a number for all images. 0 leaves images unchanged.
        clip: Range to which altered images are clipped. None: no clipping.
        num_images: Number of images whose amplitudes a client sends, the same in every round (default 8).
        inner_step: s (default 1e-3, as in the code). 0: w' = w.
        inner_clip: c (default 100, as in the code). None: no clamping.
        order: "first" (code), or "second", which differentiates through the inner step, a literal reading of the paper.
        temperature: Temperature of the boundary term (default .05, as in the code).
        reset_optimizer: Whether to reset the local optimizer in each round, as most other algorithms do.
        weighting: Client weights: "samples" or "uniform".
        server_learning_rate: Factor of the mean update (default 1).
        preset: "released" uses the public code's images: band="dc", rate=1, clip=(0, 1).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range, or inputs are not images.

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
