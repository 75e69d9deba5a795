"""Image classification data sets that TensorFlow Datasets has prepared, read without TensorFlow."""

import difflib
import importlib.util
import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._decode_cache import Chunk, decode_once
from fedjax_het.data.sources._image_listing import SPLITS, assemble_by_name
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
    """A data set of TensorFlow Datasets by its name: "cifar10", "cifar100", "fashion_mnist", "svhn_cropped:3.1.0".

    It must lie prepared as ArrayRecord in `data_dir` (None: TFDS_DATA_DIR, else ~/tensorflow_datasets); to prepare it
    takes TensorFlow once, to read it none. Its train, validation and test splits are the data set's own split; others
    are passed over. The features are those that it names for supervised learning: one image, one class.
    size, channels, cache: see `folders`.
    Raises InputError for a name that is unknown, data that are not prepared or in another format, and a data set that
    is not of images with a class each.
    """
    found = _open_prepared(builder, data_dir)
    image, label = _find_features(builder, found)
    classes = found.info.features[label]
    kept = {name: SPLITS[name] for name in found.info.splits if name in SPLITS}
    if not kept:
        raise InputError(f"tfds {builder} has splits {', '.join(found.info.splits)}, and none of {', '.join(SPLITS)}.")
    sources = {name: _open_split(found, name, image) for name in kept}
    items = [(name, i) for name, source in sources.items() for i in range(len(source))]
    read = partial(_read_example, found.data_path, sources, image=image, label=label, size=size, channels=channels)
    files = [path for name in kept for path in found.info.splits[name].filepaths]
    options = {"builder": found.info.full_name, "splits": list(kept), "features": [image, label]}
    arrays = decode_once(
        found.info.name, items, read, files=files, options=options | decoding_options(size, channels), cache=cache
    )
    passed_over = [name for name in found.info.splits if name not in kept]
    return assemble_by_name(
        found.info.name,
        arrays["inputs"],
        arrays["labels"],
        class_names=[classes.int2str(i) for i in range(classes.num_classes)],
        domains=["all"] * len(items),
        splits=[kept[name] for name, _ in items],
        notes=[f"{found.info.full_name} in {found.data_path}"]
        + ([f"passed over: {', '.join(passed_over)}"] if passed_over else []),
    )


def _open_prepared(builder: str, data_dir: str | None) -> Any:
    import tensorflow_datasets as library  # seconds to import, and only here

    folder = None if data_dir is None else str(Path(data_dir).expanduser())
    try:
        found = library.builder(builder, data_dir=folder)
    except library.core.DatasetNotFoundError as error:
        close = difflib.get_close_matches(builder, library.list_builders(with_community_datasets=False), n=1)
        raise InputError(
            f"tfds knows no data set '{builder}', and {data_dir or 'its data_dir'} holds none."
            f"{''.join(f' Did you mean {name!r}?' for name in close)} All are listed at {_CATALOGUE}"
        ) from error
    if not found.is_prepared() or not found.info.splits:
        raise InputError(
            f"{builder} is not prepared: nothing in {found.data_path}. {_describe_preparation(builder, data_dir)}"
        )
    if found.info.file_format is not library.core.FileFormat.ARRAY_RECORD:
        raise InputError(
            f"{builder} in {found.data_path} is prepared as {found.info.file_format.value}, which cannot be read "
            f"without TensorFlow. Give another data_dir. {_describe_preparation(builder, data_dir)}"
        )
    return found


def _describe_preparation(builder: str, data_dir: str | None) -> str:
    place = "" if data_dir is None else f', data_dir="{data_dir}"'
    install = "" if importlib.util.find_spec("tensorflow") else "pip install tensorflow (it is missing here), then "
    return (
        f"Prepare it once, where TensorFlow is installed, which downloads it: {install}python -c 'import "
        f'tensorflow_datasets as tfds; tfds.builder("{builder}", file_format="array_record"{place})'
        ".download_and_prepare()'"
    )


def _find_features(builder: str, found: Any) -> tuple[str, str]:
    """(the name of its image, the name of its class)."""
    import tensorflow_datasets as library

    names = found.info.supervised_keys or ("image", "label")
    kinds = (library.features.Image, library.features.ClassLabel)
    known = dict(found.info.features.items())
    features = [known.get(name) if isinstance(name, str) else None for name in names]
    if len(names) != 2 or not all(map(isinstance, features, kinds)):
        raise InputError(f"tfds {builder} is not a data set of images with a class each: {found.info.features}")
    return names


def _open_split(found: Any, split: str, image: str) -> Any:
    """A sequence of examples whose images are the bytes of a file: they are decoded as all other files are."""
    import tensorflow_datasets as library

    with report_read_errors(found.data_path):
        source = found.as_data_source(split=split, decoders={image: library.decode.SkipDecoding()})
        len(source)  # which opens the files
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
