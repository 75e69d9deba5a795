"""VLCS: one client per domain, and SUN as the unseen domain.

--config.data.path is the folder with the domains, or the folder that contains VLCS/. Images are 64 x 64 for this small
network, 224 x 224 in most papers. The setting fedrd has the paper's five local epochs.
"""

from typing import Any, Literal

from .pacs import get_config as pacs


def get_config(setting: Literal["fedavg", "fedrd"] = "fedavg") -> dict[str, Any]:
    config = pacs()
    config["algorithm"].update(name=setting, epochs={"fedavg": 1, "fedrd": 5}[setting])
    # The published test split is the common test set.
    config["data"].update(name="vlcs", unseen="sun", valid_fraction=0.1, client_test_fraction=0.0)
    return config
