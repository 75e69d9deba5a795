"""Windows of time series: inputs of some steps, and the steps that follow as targets."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_het.data.assembly import assemble
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.encoding import note_names, to_array
from fedjax_het.data.units import Units
from fedjax_het.errors import InputError
from fedjax_het.validation import Count, FractionBelowOne, validate_arguments

Form = Literal["context", "strict"]
Scale = Literal["series", "common", "none"]
_PARTS = ("train", "valid", "test")


class _Moments(NamedTuple):
    """The moments of training parts, of each series or the same for all: [series, channel]."""

    mean: np.ndarray
    deviation: np.ndarray


def find_windows(
    length: int, cuts: Sequence[int], window: int, horizon: int, stride: int = 1, form: Form = "context"
) -> dict[str, np.ndarray]:
    """The first steps of the windows of a series, by part.

    Args:
        length: The number of steps of the series.
        cuts: The first steps of the validation part and of the test part; the training part begins at 0.
        window: The number of steps of the inputs.
        horizon: The number of steps of the targets.
        stride: The number of steps between windows, counted from the first of each part.
        form: "context": targets lie in the part, inputs may begin earlier. "strict": inputs also lie in the part.
    """
    bounds = (0, *cuts, length)
    starts = {}
    for part, first, end in zip(_PARTS, bounds, bounds[1:], strict=False):
        if form == "context" and first > 0:
            first -= window
        positions = np.arange(first, end - window - horizon + 1, stride)
        starts[part] = positions[positions >= 0]
    return starts


@validate_arguments
def windows(
    series: Mapping[str, Any],
    window: Count,
    horizon: Count,
    *,
    stride: Count = 1,
    cuts: tuple[FractionBelowOne, FractionBelowOne] = (0.6, 0.8),
    form: Form = "context",
    scale: Scale = "series",
    season: Count = 1,
    name: str = "series",
) -> Dataset:
    """Cut time series into windows, whose labels are the next steps; each series is a domain.

    A series is divided in time into a training, a validation and a test part, which are published splits. No window
    belongs to two series. Labels are numbers, the first channel at each of the next steps ("step_1", "step_2", ...).

        z = (x - mean) / deviation of each channel, over the steps of training parts;   metrics are those of x

    Args:
        series: The steps of each series, [steps] or [steps, channel], in the order of time; lengths may differ.
        window: The number of steps of the inputs.
        horizon: The number of steps that are forecast.
        stride: The number of steps between windows, counted from the first of each part.
        cuts: The fractions of the steps of a series before the validation part and before the test part. Equal: there
            is no validation part.
        form: "context": the targets of a window lie in its part, and its inputs may begin before it. "strict": inputs
            also lie in the part.
        scale: "series": each series is standardised by its own training part; "common": by the training parts of all;
            "none": values stay as they are.
        season: The number of steps after which the naive forecast repeats a value, for the metric `mase`.
        name: The name of the data set.

    Returns:
        The data set, with inputs [n, window, channel]. Series that are too short for a window are left out with a note.

    Raises:
        InputError: A series is not finite or has another number of channels, cuts fall, or there is no window to train
            on.
    """
    arrays = {str(key): _read_series(name, key, values) for key, values in series.items()}
    if not arrays or len({array.shape[1] for array in arrays.values()}) > 1:
        raise InputError(f"{name}: series need the same number of channels. Give one or more such series.")
    if not 0 < cuts[0] <= cuts[1]:
        raise InputError(f"cuts: {cuts[0]} and {cuts[1]} must be above 0 and not fall.")
    ends = [tuple(int(fraction * len(array)) for fraction in cuts) for array in arrays.values()]
    starts = [
        find_windows(len(array), end, window, horizon, stride, form)
        for array, end in zip(arrays.values(), ends, strict=True)
    ]
    is_long = [any(map(len, parts.values())) for parts in starts]
    if not any(len(parts["train"]) for parts in starts):
        raise InputError(
            f"{name}: no training part has {window + horizon} steps, a window and its horizon. Lower window or horizon."
        )
    training = [array[: max(end[0], 1)] for array, end in zip(arrays.values(), ends, strict=True)]
    moments = _measure_moments(training, is_long, scale)
    inputs, labels, group, splits = [], [], [], []
    for number, (array, parts) in enumerate(zip(arrays.values(), starts, strict=True)):
        scaled = (array - moments.mean[number]) / moments.deviation[number]
        for part, first in parts.items():
            steps = scaled[first[:, None] + np.arange(window + horizon)]
            inputs.append(steps[:, :window])
            labels.append(steps[:, window:, 0])
            group += [number] * len(first)
            splits += [part] * len(first)
    keys = np.array(list(arrays))
    origin, naive = "constant" if scale == "none" else "common", _measure_naive(training, season)
    units = Units(moments.mean[:, :1], moments.deviation[:, :1], np.array(group, np.int32), origin, naive)
    return assemble(
        name,
        np.concatenate(inputs).astype(np.float32),
        np.concatenate(labels).astype(np.float32),
        class_names=[f"step_{step}" for step in range(1, horizon + 1)],
        domains=keys[group],
        domain_names=keys[is_long].tolist(),
        is_valid=np.array(splits) == "valid",
        is_test=np.array(splits) == "test",
        notes=note_names(keys[~np.array(is_long)].tolist(), "series are too short for a window"),
        kind="numbers",
        units=units,
    )


def _read_series(name: str, key: object, values: Any) -> Float[np.ndarray, "steps channel"]:
    array = to_array(f"{name}: series '{key}'", values)
    if array.ndim not in (1, 2) or array.dtype.kind not in "iuf" or not len(array):
        raise InputError(
            f"{name}: series '{key}' is {array.dtype} {array.shape}. Give numbers, [steps] or [steps, channel]."
        )
    array = array.reshape(len(array), -1).astype(np.float64)
    if not (is_finite := np.isfinite(array).all(axis=1)).all():
        raise InputError(f"{name}: series '{key}' has no number at step {int(np.argmin(is_finite))}. Fill or cut it.")
    return array


def _measure_moments(training: Sequence[np.ndarray], is_long: Sequence[bool], scale: Scale) -> _Moments:
    """The moments of the training parts; common ones are of all steps of the series that have windows."""
    num_channels = training[0].shape[1]
    if scale == "none":
        return _Moments(np.zeros((len(training), num_channels)), np.ones((len(training), num_channels)))
    if scale == "common":
        whole = np.concatenate([part for part, is_used in zip(training, is_long, strict=True) if is_used])
        training = [whole] * len(training)
    mean, deviation = (np.stack([measure(part, axis=0) for part in training]) for measure in (np.mean, np.std))
    return _Moments(mean, np.where(deviation > 0, deviation, 1))


def _measure_naive(training: Sequence[np.ndarray], season: int) -> np.ndarray:
    """The mean error of the naive forecast of the first channel in each training part; NaN if it is too short."""
    errors = [np.abs(part[season:, 0] - part[:-season, 0]) for part in training]
    return np.array([error.mean() if len(error) else np.nan for error in errors])
