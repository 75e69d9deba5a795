"""Data sources: readers for file formats and published data sets, one format or family of layouts per module."""

import functools
import inspect
from collections.abc import Callable

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources._arrays import arrays
from fedjax_het.data.sources._characters import texts
from fedjax_het.data.sources._class_folders import cinic10, digits_dg, office_caltech10, office_home, pacs, vlcs
from fedjax_het.data.sources._clinical import heart_disease, tcga_brca
from fedjax_het.data.sources._diabetes import diabetes
from fedjax_het.data.sources._digits import digits, digits5, svhn
from fedjax_het.data.sources._file_lists import camelyon17, covid_fl, mini_domainnet, retina, tiny_imagenet
from fedjax_het.data.sources._folders import folders
from fedjax_het.data.sources._huggingface import huggingface
from fedjax_het.data.sources._leaf import femnist, shakespeare
from fedjax_het.data.sources._nuclei import nuclei
from fedjax_het.data.sources._points import points
from fedjax_het.data.sources._prostate import prostate
from fedjax_het.data.sources._series import series
from fedjax_het.data.sources._tables import convert, table
from fedjax_het.data.sources._tfds import tfds
from fedjax_het.errors import InputError, nearest

__all__ = ["SOURCES", "convert", "load"]


def _report_os_errors(source: Callable[..., Dataset]) -> Callable[..., Dataset]:
    """Convert file system errors of the source (such as missing permissions) to InputError."""

    @functools.wraps(source)
    def read(*args: object, **options: object) -> Dataset:
        try:
            return source(*args, **options)
        except OSError as error:
            place = error.filename or options.get("path", "the data")
            raise InputError(
                f"cannot read {place}: {error.strerror or error}. Change its permissions, or give another path."
            ) from error

    return read


SOURCES = {
    source.__name__: _report_os_errors(source)
    for source in (
        *(arrays, digits, diabetes, series, tfds, camelyon17, covid_fl, digits_dg, folders),
        *(mini_domainnet, nuclei, office_home, pacs, prostate, retina, vlcs),
        *(cinic10, digits5, femnist, heart_disease, huggingface, office_caltech10),
        *(points, shakespeare, svhn, table, tcga_brca, texts, tiny_imagenet),
    )
}


def load(name: str, **options) -> Dataset:
    """Read a data set by the name of its source: load("folders", path="data/pacs", size=64).

    Args:
        name: The name of a source in `SOURCES`.
        options: The arguments of the source.

    Raises:
        InputError: The source or an option is unknown, or the source raises InputError.
    """
    if name not in SOURCES:
        raise InputError(f"no source of data is called '{name}'. {nearest(name, SOURCES)}")
    signature = inspect.signature(SOURCES[name])
    try:
        signature.bind(**options)
    except TypeError as error:
        raise InputError(f"source '{name}': {error}. It takes {name}{signature}.") from error
    return SOURCES[name](**options)
