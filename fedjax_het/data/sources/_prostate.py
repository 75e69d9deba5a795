"""Prostate MRI of six sites (SAML): slices of NIfTI volumes with their neighbors, and their segmentations."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._image_listing import assemble_by_name, list_entries, list_subfolders, note_skipped
from fedjax_het.data.sources._images import decoding_options, resize_image, resize_mask
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset
from fedjax_het.errors import InputError
from fedjax_het.validation import Seed, validate_arguments

_URL = "https://liuquande.github.io/SAML/"
_SITES = ("BIDMC", "HK", "I2CVB", "ISBI", "ISBI_1.5", "UCL")
_VOLUME = re.compile(r"(?P<case>.+?)(?P<segmentation>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)
_QUANTILE = 0.99


class _Case(NamedTuple):
    volume: str
    segmentation: str
    site: str
    number: int  # among all cases


@validate_arguments
def prostate(
    path: str,
    size: int | None = None,
    split_by: Literal["slice", "case"] = "slice",
    split_seed: Seed = 0,
    cache: str | None = None,
) -> Dataset:
    """Read prostate segmentation data, classes background and prostate; a site is a domain.

    The files are <site>/Case<nn>.nii.gz with Case<nn>_Segmentation.nii.gz (or _segmentation) beside it; to read them
    takes nibabel, pip install "fedjax-het[medical]". A volume is clipped at its 99 % quantile and scaled from its
    minimum to 0..255, rounded down. Its first and last slice, and those without prostate, are dropped; every other is
    an example of three channels, the slice between its neighbors, [height, width, 3] uint8. Labels above 1 become 1.
    The examples of each site are shuffled and split into 64 % training, 16 % validation and 20 % test.

    Args:
        path: The folder of the sites.
        size: The side to which slices (LANCZOS) and masks (by the nearest pixel) are resized; 384 as published.
        split_by: "slice", as HarmoFL does, where slices of one patient may be in different splits; "case" keeps all
            slices of a patient in one split.
        split_seed: The seed of the split.
        cache: The folder of decoded images, see `folders`.

    Raises:
        InputError: A volume has no segmentation or the reverse, their shapes differ, a volume has fewer than three
            slices, or its values are not finite or all alike.

    References:
        Jiang et al., AAAI 2022. arXiv:2112.10775; Liu et al., MICCAI 2020.
    """
    root = require_dataset(path, "The prostate data", _URL)
    unnumbered = [case for site in list_subfolders(root) for case in _find_site_cases(site)]
    if not unnumbered:
        raise InputError(f"{root} holds no <site>/Case<nn>.nii.gz. The sites are published at {_URL}")
    cases = [case._replace(number=i) for i, case in enumerate(unnumbered)]
    try:
        import nibabel  # noqa: F401
    except ImportError as error:
        raise InputError('NIfTI volumes are read by nibabel. Install it: pip install "fedjax-het[medical]"') from error
    files = [file for case in cases for file in case[:2]]
    arrays = decode_once(
        "prostate",
        cases,
        lambda case: _read_case(case, size),
        files=files,
        options={"quantile": _QUANTILE, **decoding_options(size, channels=3)},
        cache=cache,
    )
    owners = np.asarray(arrays["case"])
    sites = [cases[owner].site for owner in owners]
    missing = [site for site in _SITES if site not in sites]
    return assemble_by_name(
        "prostate",
        arrays["inputs"],
        arrays["labels"],
        class_names=("background", "prostate"),
        domains=sites,
        splits=_draw_splits(sites, owners, split_by, split_seed),
        notes=[*([f"no folder for {', '.join(missing)}"] if missing else []), *note_skipped(files, ".nii", ".gz")],
    )


def _find_site_cases(site: Path) -> list[_Case]:
    volumes, segmentations = {}, {}
    for file in list_entries(site):
        if match := _VOLUME.fullmatch(file.name):
            (segmentations if match["segmentation"] else volumes)[match["case"]] = file
    for case, file in (volumes | segmentations).items():
        if case not in segmentations:
            raise InputError(f"{file} has no {case}_Segmentation.nii.gz beside it. Add it, or remove the volume.")
        if case not in volumes:
            raise InputError(f"{file} has no {case}.nii.gz beside it. Add it, or remove the segmentation.")
    return [_Case(str(volumes[case]), str(segmentations[case]), site.name, 0) for case in volumes]


def _read_case(case: _Case, size: int | None) -> Chunk:
    """All examples of one case, [slices, height, width, 3], and the number of the case."""
    volume, segmentation = _read_volume(case.volume), _read_volume(case.segmentation)
    if volume.shape != segmentation.shape:
        raise InputError(
            f"{case.volume} is {volume.shape[::-1]} and {case.segmentation} is {segmentation.shape[::-1]}. Give every "
            "volume a segmentation of its shape."
        )
    if len(volume) < 3:
        raise InputError(f"{case.volume} has {len(volume)} slices, but each example takes three. Remove the case.")
    pixels, mask = _to_bytes(case.volume, volume), (segmentation > 0).astype(np.uint8)
    kept = [i for i in range(1, len(mask) - 1) if mask[i].any()]
    if not kept:
        raise InputError(f"{case.segmentation} marks nothing between its first and last slice. Remove the case.")
    inputs = [resize_image(np.moveaxis(pixels[i - 1 : i + 2], 0, -1), size) for i in kept]
    return {
        "inputs": np.stack(inputs),
        "labels": np.stack([resize_mask(mask[i], size) for i in kept]),
        "case": np.full(len(kept), case.number, np.int32),
    }


def _read_volume(path: str) -> np.ndarray:
    """[slice, row, column], the reverse of the order in NIfTI."""
    import nibabel

    with report_read_errors(path):
        try:
            array = np.asanyarray(nibabel.load(path).dataobj)  # pyrefly: ignore[missing-attribute], NIfTI has it
        except nibabel.filebasedimages.ImageFileError as error:
            raise InputError(f"cannot read {path} as NIfTI: {error} Download it again.") from error
    if array.ndim != 3:
        raise InputError(f"{path} has {array.ndim} axes {array.shape}, not three. Give one volume per file.")
    return array.transpose()


def _to_bytes(path: str, volume: np.ndarray) -> np.ndarray:
    if not np.isfinite(volume).all():
        raise InputError(f"{path} holds NaN or infinity. Remove the case.")
    low, high = float(volume.min()), float(np.quantile(volume, _QUANTILE))
    if low == high:
        raise InputError(f"{path} is {low} nearly everywhere. Remove the case.")
    return ((np.minimum(volume, high) - low) / (high - low) * 255).astype(np.uint8)


def _draw_splits(sites: Sequence[str], owners: np.ndarray, split_by: str, split_seed: int) -> list[str]:
    units = np.arange(len(owners)) if split_by == "slice" else owners
    splits = np.full(len(owners), "train", object)
    for site in set(sites):
        inside = np.flatnonzero(np.array(sites) == site)
        order = np.random.default_rng([split_seed, *site.encode()]).permutation(np.unique(units[inside]))
        ends = 16 * len(order) // 25, 4 * len(order) // 5
        splits[np.isin(units, order[ends[0] : ends[1]])] = "valid"
        splits[np.isin(units, order[ends[1] :])] = "test"
    return splits.tolist()
