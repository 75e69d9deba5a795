"""Examples that lie on the disk as arrays, in whichever of the usual forms."""

from dataclasses import replace

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources import idx
from fedjax_het.data.sources.cifar import cifar_directory, cifar_layout
from fedjax_het.data.sources.images import conformed, image_options
from fedjax_het.data.sources.npz import npz_directory, npz_file
from fedjax_het.data.sources.reading import existing
from fedjax_het.errors import InputError


def arrays(path: str, title: str | None = None, size: int | None = None, channels: int | None = None) -> Dataset:
    """Read arrays in the form that is found at `path`.

    - a .npz file: `images` with `labels` or `masks`; or the same for parts, `train_images`, `train_labels`, ..., where
      parts called train, valid and test are splits, and others domains;
    - a directory of .npz files: a domain each, called after its file;
    - a directory with MNIST's idx files, plain or .gz;
    - a directory with the python or the binary batches of CIFAR-10 or CIFAR-100.
    `title` is the name of the data set, by default that of the file or directory. size: uint8 images are resized to
    size x size (LANCZOS; masks by the nearest pixel); channels: 1 makes them grey, 3 colour. Both bring domains that
    differ to one form.
    Raises InputError where nothing of the kind is found, and as the readers of these forms do.
    """
    path = existing(path)
    image_options(size, channels)
    if path.is_file() and path.suffix == ".npz":
        return npz_file(path, title, size, channels)
    if path.is_dir():
        if any(path.glob("*.npz")):
            return npz_directory(path, title, size, channels)
        if any((path / f"{idx.TRAIN_IMAGES}{suffix}").exists() for suffix in ("", ".gz")):
            return _conformed(idx.idx_directory(path, title), size, channels)
        if cifar_layout(path):
            return _conformed(cifar_directory(path, title), size, channels)
    raise InputError(
        f"{path} holds no arrays that can be read. Looked for: a .npz file; or in a directory *.npz, "
        f"{idx.TRAIN_IMAGES}[.gz], data_batch_1[.bin] and train[.bin]. Point `path` at the directory that holds them, "
        "or use the source 'folders' for image files."
    )


def _conformed(dataset: Dataset, size: int | None, channels: int | None) -> Dataset:
    return replace(dataset, inputs=conformed(dataset.inputs, size, channels))
