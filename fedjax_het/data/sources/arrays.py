"""Examples that lie on the disk as arrays, in whichever of the usual forms."""

from pathlib import Path

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources import idx
from fedjax_het.data.sources.cifar import cifar_directory, cifar_layout
from fedjax_het.data.sources.npz import npy_directory, npz_directory, npz_file
from fedjax_het.data.sources.reading import existing
from fedjax_het.errors import InputError


def arrays(path: str | Path, title: str | None = None) -> Dataset:
    """Read arrays in the form that is found at `path`.

    - a .npz file: `images` and `labels`, or `train_images`, `train_labels`, `test_images`, `test_labels`;
    - a directory of .npz files: a domain each, called after its file;
    - a directory with images.npy, labels.npy: mapped, not read, so that they may be larger than memory;
    - a directory with MNIST's idx files, plain or .gz;
    - a directory with the python or the binary batches of CIFAR-10 or CIFAR-100.
    `title` is the name of the data set, by default that of the file or directory.
    Raises InputError where nothing of the kind is found, and as the readers of these forms do.
    """
    path = existing(path)
    if path.is_file() and path.suffix == ".npz":
        return npz_file(path, title)
    if path.is_dir():
        if any(path.glob("*.npz")):
            return npz_directory(path, title)
        if (path / "images.npy").exists():
            return npy_directory(path, title)
        if any((path / f"{idx.TRAIN_IMAGES}{suffix}").exists() for suffix in ("", ".gz")):
            return idx.idx_directory(path, title)
        if cifar_layout(path):
            return cifar_directory(path, title)
    raise InputError(
        f"{path} holds no arrays that can be read. Looked for: a .npz file; or in a directory *.npz, images.npy, "
        f"{idx.TRAIN_IMAGES}[.gz], data_batch_1[.bin] and train[.bin]. Point `path` at the directory that holds them, "
        "or use the source 'folders' for image files."
    )
