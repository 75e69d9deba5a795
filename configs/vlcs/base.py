"""VLCS, a domain a client, and SUN as the domain that no client has. Give the data with --config.data.path=...

The path is the folder with the domains, or the one that holds VLCS/. Images are 64 x 64 for this small network,
224 x 224 in most papers.
"""

from ml_collections import ConfigDict

from ..pacs import base as pacs


def base(**algorithm: object) -> ConfigDict:
    """The setting of PACS, on other domains; `algorithm` is the table that each file beside this one fills in."""
    config = pacs.base(**algorithm)
    config.data.name = "vlcs"
    config.data.unseen = "sun"
    config.data.valid_fraction = 0.1
    config.data.client_test_fraction = 0.0  # the published test split is the common test set
    return config
