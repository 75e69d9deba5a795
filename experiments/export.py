"""Give a run's model to PyTorch: python -m experiments.export --workdir=runs/small --to=model.safetensors

Written is the server's model after the last checkpoint, as a state dict of torchvision's names (of HarmoFL's for
its U-Net); personal leaves are their mean over the clients that have trained, as in evaluation.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_het import engine, tree
from fedjax_het.engine.evaluation.scoring import mean_personal_variables
from fedjax_het.errors import InputError, nearest
from fedjax_het.models import TORCH_NAMES, Naming, save_state_dict, unnamed_leaves
from fedjax_het.types import State, Variables

from . import PROGRAM
from .configuration import build, settings
from .runs.run_directory import RunDirectory, run_identity
from .runs.run_files import RESOLVED


def trained(workdir: Path, seed: int | None = None) -> tuple[Variables, Naming, int]:
    """(the model's variables, its layers' names in PyTorch, the rounds they had) of a run directory.

    seed: one of the run's, its first unless given.
    Raises InputError where there is no run or no checkpoint, and for a model that has no names there.
    """
    directory = RunDirectory(workdir)
    written = directory.read("config.json")
    if written is None:
        raise InputError(f"--workdir: '{workdir}' holds no run. Name the directory that training printed.")
    chosen, _ = settings.complete_settings(written)
    name = chosen["model"]["name"]
    if name not in TORCH_NAMES:
        raise InputError(f"--workdir: the run's model '{name}' has no counterpart. {nearest(name, TORCH_NAMES)}")
    seeds = range(chosen["seed"], chosen["seed"] + chosen["num_seeds"])
    if seed is not None and seed not in seeds:
        raise InputError(f"--seed: the run has the seeds {', '.join(map(str, seeds))}, not {seed}.")
    state, rounds = _last(directory, chosen)
    one = jax.tree.map(lambda x: x[0 if seed is None else seeds.index(seed)], state)
    mean = mean_personal_variables(one.clients, len(one.clients.rounds))
    return tree.merge(one.server.shared, mean), TORCH_NAMES[name], rounds


def _last(directory: RunDirectory, chosen: dict[str, Any]) -> tuple[State, int]:
    """The newest checkpoint, leaves [num_seeds, ...], and its number of rounds; no round is compiled."""
    if not (directory / "checkpoints").is_dir():
        raise InputError(f"--workdir: '{directory.path}' holds no checkpoint yet. Let the run come to its first.")
    choices = directory.read(RESOLVED) or {}
    parts = build.build_parts(chosen, choices)
    federation = parts.federation
    directory.check_partition(federation.fingerprint)
    about = {"config": run_identity(chosen), "partition": federation.fingerprint}
    checkpoints = engine.Checkpoints(directory / "checkpoints", about, num_clients=federation.num_clients)
    round = engine.make_round(
        parts.algorithm,
        parts.model,
        federation.num_clients,
        participation=parts.participation,
        prepare=federation.prepare,
    )
    keys = jax.vmap(jax.random.key)(chosen["seed"] + jax.numpy.arange(chosen["num_seeds"]))
    if choices.get("client_states", "device") == "device":
        shapes = jax.eval_shape(jax.vmap(round.init, (0, None)), keys, federation.data)
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), shapes)
        return checkpoints.restore(like), checkpoints.latest() or 0
    like = jax.vmap(round.begin, (0, None))(keys, federation.examples.inputs[:1])
    state = checkpoints.restore(like._replace(clients=engine.ClientStore(like.clients, federation.num_clients, None)))
    return state._replace(clients=state.clients.everyone()), checkpoints.latest() or 0


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 = written, 2 = something to mend, said on stderr."""
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} export", description="A run's model for PyTorch.")
    parser.add_argument("--workdir", type=Path, required=True, help="the run directory")
    parser.add_argument("--to", type=Path, required=True, help="the file to write, .safetensors or .npz")
    parser.add_argument("--seed", type=int, help="which of the run's seeds; its first unless given")
    known = parser.parse_args(argv)
    try:
        variables, naming, rounds = trained(known.workdir, known.seed)
        save_state_dict(known.to, variables, naming)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{known.to}: the model after {rounds} rounds")
    if rest := unnamed_leaves(variables, naming):
        print(f"left out, for want of a name in PyTorch: {', '.join(rest)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
