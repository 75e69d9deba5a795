"""Prostate MRI from six sites (SAML): slices of NIfTI volumes with their neighbors, and segmentations."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import assemble_by_name
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._image_listing import list_entries, list_subfolders, note_skipped
from fedjax_het.data.sources._images import decoding_options, resize_image, resize_mask
from fedjax_het.data.sources._io_errors import report_read_errors, require_dataset
from fedjax_het.errors import InputError
from fedjax_het.validation import Seed, validate_arguments

_URL = "https://liuquande.github.io/SAML/"
_SITES = ("BIDMC", "HK", "I2CVB", "ISBI", "ISBI_1.5", "UCL")
_VOLUME = re.compile(r"(?P<case>.+?)(?P<segmentation>_segmentation)?\.nii(\.gz)?", re.IGNORECASE)
_QUANTILE = 0.99
_MAX_SHIFT = 0.5  # voxels between a volume and its segmentation


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
    """Read prostate segmentation data, classes background and prostate; sites are domains.

    The files are <site>/Case<nn>.nii.gz with Case<nn>_Segmentation.nii.gz (or _segmentation); reading them requires
    nibabel, pip install "fedjax-het[medical]". A volume is clipped at its 99 % quantile and scaled from its minimum
    to 0..255, rounded down. The first and last slice, and slices without prostate, are dropped; each other slice is an
    example with three channels, the slice between its neighbors, [height, width, 3] uint8. Labels above 1 become 1.
    A segmentation whose header declares another axis order than the volume's is reordered.
    The examples of each site are shuffled and split into 64 % training, 16 % validation and 20 % test.

    Args:
        path: The folder of the sites.
        size: The side length to which slices (LANCZOS) and masks (nearest neighbor) are resized; 384 as published.
        split_by: "slice", as in HarmoFL, may put slices of a patient in different splits; "case" keeps all slices of a
            patient in one split.
        split_seed: The seed of the split.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: A volume has no segmentation or vice versa, their shapes or positions differ, a volume has fewer
            than three slices or values that are not finite or all equal, or a segmentation is not integer-valued.

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
        options={"quantile": _QUANTILE, "order": "the volume's", **decoding_options(size, channels=3)},
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
    image = _open_volume(case.volume)
    mask_image = _reorient(_open_volume(case.segmentation), image, case)
    volume, segmentation = _read_volume(case.volume, image), _read_volume(case.segmentation, mask_image)
    if volume.shape != segmentation.shape:
        raise InputError(
            f"{case.volume} is {volume.shape[::-1]} and {case.segmentation} is {segmentation.shape[::-1]}. Give every "
            "volume a segmentation of its shape."
        )
    if (segmentation != np.round(segmentation)).any():
        raise InputError(f"{case.segmentation} holds values between whole numbers. Resample it by the nearest voxel.")
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


def _open_volume(path: str) -> Any:
    """A NIfTI image with three axes, without loading its voxels."""
    import nibabel

    with report_read_errors(path):
        try:
            image: Any = nibabel.load(path)
        except nibabel.filebasedimages.ImageFileError as error:
            raise InputError(f"cannot read {path} as NIfTI: {error} Download it again.") from error
    if image.ndim != 3:
        raise InputError(f"{path} has {image.ndim} axes {image.shape}, not three. Give one volume per file.")
    return image


def _read_volume(path: str, image: Any) -> np.ndarray:
    """[slice, row, column], the reverse of the order in NIfTI."""
    with report_read_errors(path):
        return np.asanyarray(image.dataobj).transpose()


def _reorient(segmentation: Any, volume: Any, case: _Case) -> Any:
    """The segmentation with the axis order and directions of the volume, if both headers declare them."""
    from nibabel.orientations import io_orientation, ornt_transform

    if not all(image.header["sform_code"] > 0 or image.header["qform_code"] > 0 for image in (segmentation, volume)):
        return segmentation
    with report_read_errors(case.segmentation):
        change = ornt_transform(io_orientation(segmentation.affine), io_orientation(volume.affine))
        segmentation = segmentation.as_reoriented(change)
        corners = [(*corner, 1) for corner in itertools.product(*((0, num - 1) for num in volume.shape))]
        shift = (np.linalg.solve(volume.affine, segmentation.affine) - np.eye(4)) @ np.transpose(corners)
    if np.abs(shift[:3]).max() > _MAX_SHIFT:
        raise InputError(
            f"{case.volume} and {case.segmentation} are in different places according to their headers. Resample the "
            "segmentation to the volume, or correct its header."
        )
    return segmentation


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
