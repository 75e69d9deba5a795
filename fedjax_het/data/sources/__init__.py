"""Where examples come from: one format a file."""

import inspect

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources.arrays import arrays
from fedjax_het.data.sources.embedded import digits
from fedjax_het.data.sources.folders import folders
from fedjax_het.errors import InputError, nearest

SOURCES = {"arrays": arrays, "digits": digits, "folders": folders}


def load(name: str, **options) -> Dataset:
    """Read the data set that SOURCES knows by this name: load("folders", path="data/pacs", size=64).

    Raises InputError for an unknown name or option, and as the source does.
    """
    if name not in SOURCES:
        raise InputError(f"no source of data is called '{name}'. {nearest(name, SOURCES)}")
    signature = inspect.signature(SOURCES[name])
    try:
        signature.bind(**options)
    except TypeError as error:
        raise InputError(f"source '{name}': {error}. It takes {name}{signature}.") from error
    return SOURCES[name](**options)
