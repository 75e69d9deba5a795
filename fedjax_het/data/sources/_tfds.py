"""Image classification data sets prepared by TensorFlow Datasets, read without TensorFlow."""

import difflib
import importlib.util
import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._assembly import SPLITS, assemble_by_name
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._images import decode_image, decoding_options
from fedjax_het.data.sources._io_errors import report_read_errors
from fedjax_het.errors import InputError

_CATALOGUE = "https://www.tensorflow.org/datasets/catalog/overview"


def tfds(
    builder: str,
    data_dir: str | None = None,
    size: int | None = None,
    channels: int | None = None,
    cache: str | None = None,
) -> Dataset:
    """Read a TensorFlow Datasets data set that was prepared as ArrayRecord.

    Preparation requires TensorFlow once, reading does not. The features are the declared supervised keys: one image,
    one class. The train, validation and test splits are the published splits; other splits are skipped.

    Args:
        builder: The name of the data set: "cifar10", "cifar100", "fashion_mnist", "svhn_cropped:3.1.0".
        data_dir: The folder of prepared data sets (default None, TFDS_DATA_DIR or ~/tensorflow_datasets).
        size: The side length to which images are resized, see `folders`.
        channels: 1 converts images to grayscale, 3 to color, see `folders`.
        cache: The cache folder for decoded images, see `folders`.

    Raises:
        InputError: The name is unknown, the data are not prepared or have another format, or they are not images with
            one class each.
    """
    prepared = _open_prepared(builder, data_dir)
    image, label = _find_features(builder, prepared)
    classes = prepared.info.features[label]
    splits = {name: SPLITS[name] for name in prepared.info.splits if name in SPLITS}
    if not splits:
        present = ", ".join(prepared.info.splits)
        raise InputError(f"tfds {builder} has splits {present}, and none of {', '.join(SPLITS)}. Give another builder.")
    sources = {name: _open_split(prepared, name, image) for name in splits}
    items = [(name, i) for name, source in sources.items() for i in range(len(source))]
    read = partial(_read_example, prepared.data_path, sources, image=image, label=label, size=size, channels=channels)
    files = [path for name in splits for path in prepared.info.splits[name].filepaths]
    options = {"builder": prepared.info.full_name, "splits": list(splits), "features": [image, label]}
    arrays = decode_once(
        prepared.info.name, items, read, files=files, options=options | decoding_options(size, channels), cache=cache
    )
    skipped = [name for name in prepared.info.splits if name not in splits]
    return assemble_by_name(
        prepared.info.name,
        arrays["inputs"],
        arrays["labels"],
        class_names=[classes.int2str(i) for i in range(classes.num_classes)],
        domains=["all"] * len(items),
        splits=[splits[name] for name, _ in items],
        notes=[f"{prepared.info.full_name} in {prepared.data_path}"]
        + ([f"skipped: {', '.join(skipped)}"] if skipped else []),
    )


def _open_prepared(builder: str, data_dir: str | None) -> Any:
    import tensorflow_datasets as library  # takes seconds to import

    folder = None if data_dir is None else str(Path(data_dir).expanduser())
    try:
        prepared: Any = library.builder(builder, data_dir=folder)
    except library.core.DatasetNotFoundError as error:
        close = difflib.get_close_matches(builder, library.list_builders(with_community_datasets=False), n=1)
        raise InputError(
            f"tfds knows no data set '{builder}', and {data_dir or 'its data_dir'} holds none."
            f"{''.join(f' Did you mean {name!r}?' for name in close)} All are listed at {_CATALOGUE}"
        ) from error
    if not prepared.is_prepared() or not prepared.info.splits:
        raise InputError(
            f"{builder} is not prepared: nothing in {prepared.data_path}. {_describe_preparation(builder, data_dir)}"
        )
    if prepared.info.file_format is not library.core.FileFormat.ARRAY_RECORD:
        raise InputError(
            f"{builder} in {prepared.data_path} is prepared as {prepared.info.file_format.value}, which cannot be read "
            f"without TensorFlow. Give another data_dir. {_describe_preparation(builder, data_dir)}"
        )
    return prepared


def _describe_preparation(builder: str, data_dir: str | None) -> str:
    place = "" if data_dir is None else f', data_dir="{data_dir}"'
    install = "" if importlib.util.find_spec("tensorflow") else "pip install tensorflow (it is missing here), then "
    return (
        f"Prepare it once, where TensorFlow is installed, which downloads it: {install}python -c 'import "
        f'tensorflow_datasets as tfds; tfds.builder("{builder}", file_format="array_record"{place})'
        ".download_and_prepare()'"
    )


def _find_features(builder: str, prepared: Any) -> tuple[str, str]:
    """(the name of the image feature, the name of the class feature)."""
    import tensorflow_datasets as library

    names = prepared.info.supervised_keys or ("image", "label")
    kinds = (library.features.Image, library.features.ClassLabel)
    by_name = dict(prepared.info.features.items())
    features = [by_name.get(name) if isinstance(name, str) else None for name in names]
    if len(names) != 2 or not all(map(isinstance, features, kinds)):
        raise InputError(f"tfds {builder} is not a data set of images with a class each: {prepared.info.features}")
    return names


def _open_split(prepared: Any, split: str, image: str) -> Any:
    """Open a split without decoding its images, which are decoded here like all other files."""
    import tensorflow_datasets as library

    with report_read_errors(prepared.data_path):
        source = prepared.as_data_source(split=split, decoders={image: library.decode.SkipDecoding()})
        len(source)  # opens the files
    return source


def _read_example(
    folder: Path,
    sources: Mapping[str, Any],
    item: tuple[str, int],
    *,
    image: str,
    label: str,
    size: int | None,
    channels: int | None,
) -> Chunk:
    split, i = item
    with report_read_errors(folder):
        example = sources[split][i]
        pixels = decode_image(io.BytesIO(example[image]), f"example {i} of {split}", size, channels)
    return {"inputs": pixels[None], "labels": np.array([example[label]], np.int32)}
