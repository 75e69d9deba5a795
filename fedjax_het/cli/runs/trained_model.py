"""Models of runs, restored from their last checkpoints."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import engine, tree
from fedjax_het.cli.configuration import build, settings
from fedjax_het.cli.runs.run_directory import RunDirectory, run_identity
from fedjax_het.cli.runs.run_files import RESOLVED
from fedjax_het.data import Federation
from fedjax_het.engine.evaluation.evaluate import BATCH
from fedjax_het.engine.evaluation.norm_statistics import add_common_statistics
from fedjax_het.engine.evaluation.personal_means import mean_personal_variables
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.round.program import Round
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.types import State, Variables


class TrainedModel(NamedTuple):
    """The server's model of a run, after its last checkpoint."""

    variables: Variables  # as they are tested; personal leaves are the mean over the clients that have trained
    rounds: int
    trained: frozenset[str]  # the paths of the trained leaves
    has_changed_base: bool  # whether the server has changed leaves that clients do not train
    pretrained: str | None  # the weights that training started from
    problem: Problem
    federation: Federation


def load_model(workdir: Path, seed: int | None = None, *, for_pytorch: bool = True) -> TrainedModel:
    """Load the model of a run directory from its last checkpoint.

    Args:
        workdir: the run directory.
        seed: one of the run's seeds; the first if None.
        for_pytorch: whether the model has to have names in PyTorch.

    Returns:
        The model.

    Raises:
        InputError: There is no run, no checkpoint or no such seed, or the model has no names in PyTorch.
    """
    directory = RunDirectory(workdir)
    config = directory.read("config.json")
    if config is None:
        raise InputError(f"--workdir: '{workdir}' holds no run. Name the directory that training printed.")
    run_settings, _ = settings.complete_settings(config)
    seeds = range(run_settings["seed"], run_settings["seed"] + run_settings["num_seeds"])
    if seed is not None and seed not in seeds:
        raise InputError(f"--seed: the run has the seeds {', '.join(map(str, seeds))}, not {seed}.")
    state, rounds, round, parts = restore_last(directory, run_settings)
    problem = round.problem
    seed_state = jax.tree.map(lambda x: x[0 if seed is None else seeds.index(seed)], state)
    if round.algorithm.models or problem.model.groups:
        raise InputError(
            "--workdir: the run has several models, and this command works with one. In Python, read "
            "`history.state.server.shared` with leaves [runs, models, ...], or `history.state.clients.personal`."
        )
    mean = mean_personal_variables(seed_state.clients, len(seed_state.clients.rounds))
    variables = tree.merge(problem.whole_model(seed_state.server), mean)
    if for_pytorch and problem.model.published is None:
        name = run_settings["model"]["name"]
        raise InputError(
            f"--workdir: the run's model '{name}' has no names in published files. Train "
            "a model that has, such as resnet18, vit or bert."
        )
    federation = parts.federation.in_round(max(rounds - 1, 0))
    variables = add_common_statistics(problem, variables, jnp.int32(rounds), federation.data, BATCH)
    return TrainedModel(
        variables,
        rounds,
        frozenset(tree.paths(tree.merge(problem.evaluated(seed_state.server), mean))),
        bool(tree.paths(seed_state.server.base)),
        run_settings["model"].get("pretrained"),
        problem,
        federation,
    )


def restore_last(directory: RunDirectory, run_settings: dict[str, Any]) -> tuple[State, int, Round, build.RunParts]:
    """Restore the last checkpoint, leaves [num_seeds, ...], without compiling.

    Returns:
        The state, its number of rounds, the round, and the parts of the run.
    """
    if not (directory / "checkpoints").is_dir():
        raise InputError(f"--workdir: '{directory.path}' holds no checkpoint yet. Train until there is one.")
    resolved = directory.read(RESOLVED) or {}
    parts = build.build_parts(run_settings, resolved)
    federation = parts.federation
    directory.check_partition(federation.fingerprint)
    about = {"config": run_identity(run_settings), "partition": federation.fingerprint}
    checkpoints = engine.Checkpoints(directory / "checkpoints", about, num_clients=federation.num_clients)
    spec = RunSpec(
        engine.Sweep(partial(build.build_algorithm, run_settings)),
        parts.model,
        federation,
        parts.participation,
        run_settings["rounds"],
        block=1,
        seeds=(run_settings["seed"],),
        num_seeds=run_settings["num_seeds"],
        timing=parts.timing,
    ).with_events(parts.asynchronous)
    is_on_device = resolved.get("client_states", "device") == "device"
    state = spec.restore(checkpoints, is_on_device=is_on_device)
    return state, checkpoints.latest() or 0, spec.round(engine.vmapped), parts
