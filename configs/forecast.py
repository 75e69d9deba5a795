"""Forecast of time series, one client per series: the next 8 steps from the last 24, on the last fifth of each series.

--config.data.path is a table with a column of numbers per series, or a .npz file, see docs/tasks.md.
"""

from typing import Any


def get_config() -> dict[str, Any]:
    return {
        "algorithm": {"name": "fedavg", "learning_rate": 0.02, "batch_size": 16, "epochs": 2},
        "model": {"name": "mlp", "hidden": ()},
        "data": {
            "name": "series",
            "window": 24,
            "horizon": 8,
            "num_clients": 0,
            "partition": {"name": "by_domain"},
            "local_test": True,
        },
        "metrics": "rmse, mae, mase",
        "rounds": 50,
        "evaluate_every": 5,
    }
