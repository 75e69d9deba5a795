"""Office-Home: one client per domain, and photographs as the unseen domain.

--config.data.path is the folder with Art, Clipart, Product and Real World. Images are 64 x 64 for this small network,
224 x 224 in most papers. The setting fedrd has the paper's five local epochs.
"""

from typing import Any, Literal

from .pacs import get_config as pacs


def get_config(setting: Literal["fedavg", "fedrd"] = "fedavg") -> dict[str, Any]:
    config = pacs()
    config["algorithm"].update(name=setting, epochs={"fedavg": 1, "fedrd": 5}[setting])
    config["data"].update(name="office_home", unseen="real_world", valid_fraction=0.1)
    return config
