"""Export of a run's model in published form: fedjax-het export --workdir=runs/small --to=model.safetensors

The file is a PyTorch state dict of the server's model after the last checkpoint, with low-rank adapters added to the
weights. A directory also has the config.json of the network; with --adapters, it has the adapters alone, as the library
peft loads them. Personal leaves are the mean over the clients that have trained, as in evaluation.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.runs.trained_model import TrainedModel, load_model
from fedjax_het.errors import InputError
from fedjax_het.models import (
    merge_adapters,
    remove_adapters,
    save_adapters,
    save_published,
    save_state_dict,
    unnamed_leaves,
)
from fedjax_het.types import Variables

_BASE = "base"


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0, or 2 for an input error, which is printed on stderr."""
    parser = argparse.ArgumentParser(prog="fedjax-het export", description="Write a run's model for PyTorch.")
    parser.add_argument("--workdir", type=Path, required=True, help="the run directory")
    parser.add_argument(
        "--to", type=Path, required=True, help="a file to write, .safetensors or .npz, or a directory of weights"
    )
    parser.add_argument("--adapters", action="store_true", help="write low-rank adapters alone, to a directory")
    parser.add_argument("--seed", type=int, help="one of the run's seeds (default: the first)")
    flags = parser.parse_args(argv)
    model = load_model(flags.workdir, flags.seed)
    if flags.adapters:
        write_adapters(flags.to, model)
    else:
        write_model(flags.to, model)
    return 0


def write_model(to: Path, model: TrainedModel) -> None:
    """Write a model that has names in PyTorch to a file or directory, and say so."""
    network = model.problem.model
    variables = merge_adapters(network, model.variables)
    naming = network.published.find_naming(variables)
    if _is_folder(to):
        _save_published(to, model, variables)
    else:
        save_state_dict(to, variables, naming)
    print(f"{to}: the model after {model.rounds} rounds")
    _print_unnamed(unnamed_leaves(variables, naming))


def write_adapters(folder: Path, model: TrainedModel) -> None:
    """Write the low-rank adapters of a model, and the weights that they are for, unless these are a published file."""
    if not _is_folder(folder):
        raise InputError(f"--to: adapters are two files in a directory, and '{folder}' is the name of a file.")
    network = model.problem.model
    has_own_base = model.has_changed_base or model.pretrained is None
    base = str(folder / _BASE) if has_own_base else model.pretrained
    unnamed = save_adapters(folder, model.variables, network, model.trained, base)
    print(f"{folder}: the low-rank adapters after {model.rounds} rounds")
    if has_own_base:
        _save_published(folder / _BASE, model, remove_adapters(model.variables))
        print(f"{base}: the weights that they are for")
    _print_unnamed(unnamed)


def _save_published(folder: Path, model: TrainedModel, variables: Variables) -> None:
    federation = model.federation
    shape = jax.eval_shape(model.problem.prepare, federation.examples.inputs[:1]).shape
    save_published(
        folder, variables, model.problem.model, federation.class_names, shape[1:-1] if len(shape) == 4 else ()
    )


def _is_folder(path: Path) -> bool:
    return path.is_dir() or not path.suffix


def _print_unnamed(paths: Sequence[str]) -> None:
    if paths:
        print(f"left out, because they have no name in PyTorch: {', '.join(paths)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
