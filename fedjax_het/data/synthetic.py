"""Synthetic federations for tests, with a known amount of label, feature and quantity shift."""

import numpy as np

from fedjax_het.data import rounding
from fedjax_het.data._federate import federate
from fedjax_het.data.assembly import assemble
from fedjax_het.data.assignment import LabeledExamples
from fedjax_het.data.federation import Federation
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, CountOrZero, Finite, Fraction, Seed, validate_arguments

_SIGNAL = 1.5  # standard deviation of the entries of class means; that of the noise is 1
_GREY, _CONTRAST = 128.0, 32.0  # images: the grey level of 0, and grey levels per unit


@validate_arguments
def toy(
    num_clients: CountOrZero = 6,
    num_classes: Count = 3,
    features: Count = 8,
    examples_per_client: tuple[Count, Count] = (20, 40),
    label_shift: Fraction = 0.5,
    feature_shift: Finite = 0.5,
    quantity_shift: Fraction = 1.0,
    image: bool | tuple[Count, Count, Count] = False,
    masks: bool = False,
    seed: Seed = 0,
    **options,
) -> Federation:
    """Build a nearly separable problem that a small model learns in a few rounds: Gaussian classes with client shifts.

        x = class mean + feature_shift * client mean + noise,   noise and means ~ N(0, 1), class means * 1.5

    Args:
        num_clients: The number of training clients.
        num_classes: The number of classes.
        features: The length of the inputs, float32 [n, features]; not used for images.
        examples_per_client: (minimum, maximum), before test examples are held out.
        label_shift: In 0..1, the fraction of client i's examples that belong to class i mod num_classes; the others
            are spread evenly over the classes.
        feature_shift: The standard deviation of the client means relative to the noise.
        quantity_shift: In 0..1. Client sizes increase linearly; with 1 over the whole range `examples_per_client`, with
            0 all sizes are its midpoint.
        image: (height, width, channel), or True for (8, 8, 1): inputs are uint8 images, whose means are constant in
            blocks of two by two pixels.
        masks: Whether labels are masks [n, height, width]: the class of the example in a box of half the image's height
            and width, class 0 around it. A class has the same mean in all pixels.
        seed: The seed of the examples and of `federate`.
        options: Further settings of `federate`. `client_test_fraction` is 0.2 by default here, so a toy problem has
            both a common test set and client test sets.

    Raises:
        InputError: A shift is out of range, masks are requested without images, or `federate` rejects the settings.
    """
    if masks and not image:
        raise InputError("toy: masks=True asks for pixels. Give image=True, or its (height, width, channel).")
    shape = ((8, 8, 1) if image is True else tuple(image)) if image else (features,)
    num_all = num_clients + options.get("unseen_clients", 0)
    sizes = _compute_sizes(num_all, examples_per_client, quantity_shift)
    labels = np.concatenate([_list_labels(i, size, num_classes, label_shift) for i, size in enumerate(sizes)])
    clients = np.repeat(np.arange(num_all), sizes)
    rng = np.random.default_rng(seed)
    class_means, client_means = _SIGNAL * _draw_means(rng, num_classes, shape), _draw_means(rng, num_all, shape)
    if masks:
        labels, class_means = _draw_boxes(rng, labels, shape[:2]), class_means[:, 0, 0]
    values = class_means[labels] + feature_shift * client_means[clients] + rng.normal(size=(len(clients), *shape))
    dataset = assemble(
        "toy",
        np.clip(np.rint(_GREY + _CONTRAST * values), 0, 255).astype(np.uint8) if image else values,
        labels,
        class_names=[f"class_{i}" for i in range(num_classes)],
        domains=clients,
        domain_names=[f"client_{i:03d}" for i in range(num_all)],
    )
    options.setdefault("client_test_fraction", 0.2)
    return federate(dataset, _partition_by_domain, num_clients, seed=seed, **options)


def _partition_by_domain(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Assign domain i to client i, even if all of its examples are in the test set."""
    del rng
    return [np.flatnonzero(examples.domains == client) for client in range(num_clients)]


def _compute_sizes(num_clients: int, bounds: tuple[int, int], quantity_shift: float) -> np.ndarray:
    low, high = bounds
    if num_clients < 1:
        raise InputError(f"toy: num_clients and unseen_clients come to {num_clients}. Give 1 or more.")
    if not 1 <= low <= high:
        raise InputError(f"toy: examples_per_client is {bounds}. Give (least, most), with 1 <= least <= most.")
    rise = np.linspace(-1.0, 1.0, num_clients) if num_clients > 1 else np.zeros(1)
    return np.rint((low + high) / 2 + quantity_shift * rise * (high - low) / 2).astype(int)


def _list_labels(client: int, size: int, num_classes: int, label_shift: float) -> np.ndarray:
    shares = np.full(num_classes, (1 - label_shift) / num_classes)
    shares[client % num_classes] += label_shift
    return np.repeat(np.arange(num_classes), rounding.round_preserving_sum(shares, size))


def _draw_boxes(rng: np.random.Generator, labels: np.ndarray, size: tuple[int, ...]) -> np.ndarray:
    """[n, height, width]: a box with the label of each example at a random position, zeros elsewhere."""
    masks = np.zeros((len(labels), *size), np.uint8)
    extent = [max(1, length // 2) for length in size]
    for mask, label in zip(masks, labels, strict=True):
        top, left = (rng.integers(length - part + 1) for length, part in zip(size, extent, strict=True))
        mask[top : top + extent[0], left : left + extent[1]] = label
    return masks


def _draw_means(rng: np.random.Generator, num: int, shape: tuple[int, ...]) -> np.ndarray:
    """[num, *shape] standard normal; images are constant in blocks of two by two pixels."""
    if len(shape) == 1:
        return rng.normal(size=(num, *shape))
    height, width, channels = shape
    blocks = rng.normal(size=(num, -(-height // 2), -(-width // 2), channels))
    return blocks.repeat(2, axis=1).repeat(2, axis=2)[:, :height, :width]
