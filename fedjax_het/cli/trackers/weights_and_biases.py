"""Tracking with Weights & Biases: one run per seed, all of them in one group, their files in RUN/wandb.

WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE are W&B's own settings; the project is fedjax_het unless given. Ids are kept
in RUN/wandb_ids.json, so that a resumed run continues the same curves. The server keeps the rounds since the
checkpoint, because they give the same results again. With WANDB_MODE=offline the files are written again whenever the
run starts, and hold the whole run. W&B's service writes its logs to its own cache, WANDB_CACHE_DIR.
"""

import json
import os
import shutil
import uuid
from collections.abc import Mapping

import wandb

from fedjax_het._internal.regular_files import read_regular
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.trackers import TrackedRun
from fedjax_het.errors import InputError

_GROUP_LENGTH = 128  # W&B's limit


class WeightsAndBiases:
    def __init__(self, run: TrackedRun):
        ids = _read_ids(run)
        self._runs: dict[int, wandb.Run] = {}
        for seed in run.seeds:
            self._runs[seed] = _start_run(run, seed, ids[str(seed)])

    def write(self, round: int, seed: int, figures: Mapping[str, float]) -> None:
        if round >= self._runs[seed].starting_step:
            self._runs[seed].log(dict(figures), step=round, commit=True)

    def close(self, is_complete: bool) -> None:
        """Wait until everything is uploaded."""
        for run in self._runs.values():
            run.finish(exit_code=0 if is_complete else 1)


def _start_run(run: TrackedRun, seed: int, id: str) -> wandb.Run:
    for offline in (run.directory / "wandb").glob(f"offline-run-*-{id}"):
        shutil.rmtree(offline)
    group = "/".join(run.directory.absolute().parts[-2:])[-_GROUP_LENGTH:]
    try:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedjax_het"),
            group=group,
            name=f"{run.directory.name}/seed_{seed}",
            id=id,
            resume="allow",
            reinit="create_new",
            dir=run.directory,
            config=json.loads(json_files.to_json(run.hyperparameters(seed))),
            settings=wandb.Settings(console="off"),  # each seed's run would get the output of all
        )
    except wandb.Error as error:
        raise InputError(f"{error} WANDB_MODE=offline needs neither key nor network.") from error


def _read_ids(run: TrackedRun) -> dict[str, str]:
    """Read {seed: id} from the run directory, or make and write it once."""
    path = run.directory / "wandb_ids.json"
    if not path.exists():
        json_files.write(path, json_files.to_json({seed: uuid.uuid4().hex[:16] for seed in run.seeds}, indent=2) + "\n")
    return json.loads(read_regular(path))


open = WeightsAndBiases
