"""Low-rank adapters in the two files of the library peft."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het import tree
from fedjax_het.errors import InputError
from fedjax_het.models._adapter_terms import Term, is_of_term, read_terms
from fedjax_het.models._hub import split_name
from fedjax_het.models._lora import lora_scale
from fedjax_het.models._pretrained import COUNTER, is_any, list_entries, name_in_memory, to_torch, torch_axes
from fedjax_het.models._weight_files import make_folder, read_json, read_state_dict, write_json, write_state_dict
from fedjax_het.types import Model, Variables

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_ROOT, _FACTOR = "base_model.model.", re.compile(r"(.+)\.lora_([AB])\.weight")
_READ = {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "lora_dropout"}
_WITHOUT_EFFECT = {  # on adapters that are given, or as the names of the file's keys say
    *("base_model_name_or_path", "revision", "task_type", "auto_mapping", "peft_version", "inference_mode"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save"),
    *("fan_in_fan_out", "init_lora_weights", "megatron_core", "qalora_group_size", "runtime_config"),
}
_REQUIRED = {"peft_type": "LORA", "bias": "none"}


File = Mapping[str, Term | np.ndarray]
"""{key of a layer's weight: its term, or a whole leaf}."""


# ---- reading ---------------------------------------------------------------------------------------------------------
def read_config(path: Path) -> Mapping[str, Any]:
    config = {"lora_dropout": 0.0, "use_rslora": False} | dict(read_json(path))
    for key, value in config.items():
        required = _REQUIRED.get(key)
        if value != required if required else value and key not in _READ | _WITHOUT_EFFECT:
            raise InputError(
                f"pretrained_lora: {key} is {json.dumps(value)} in '{path}', and low-rank adapters here have "
                f"{json.dumps(required) if required else 'no such option'}. Make the adapters without it."
            )
    if missing := sorted({"r", "lora_alpha"} - config.keys()):
        raise InputError(f"pretrained_lora: '{path}' lacks {missing[0]}. Download it again.")
    return config


def read_file(path: Path, config: Mapping[str, Any]) -> dict[str, Term | np.ndarray]:
    """{key of a layer's weight: its term, or the whole weight}, without the beginning that all keys have."""
    factors: dict[str, dict[str, np.ndarray]] = {}
    file: dict[str, Term | np.ndarray] = {}
    for key, value in read_state_dict(path).items():
        name = key.removeprefix(_ROOT)
        if match := _FACTOR.fullmatch(name):
            factors.setdefault(match[1], {})[match[2]] = value.transpose(np.argsort(torch_axes(value.ndim)))
        elif name == key or "lora_" in name:
            raise InputError(
                f"pretrained_lora: '{path}' has the key {key}, which is not of a low-rank adapter. Make the adapters "
                "without it."
            )
        elif not name.endswith(COUNTER):
            file[name] = value
    for module, pair in factors.items():
        rank, alpha = (
            _find_value(config, *keys, module) for keys in (("r", "rank_pattern"), ("lora_alpha", "alpha_pattern"))
        )
        if pair.keys() != {"A", "B"} or not pair["A"].shape[-1] == pair["B"].shape[-2] == rank:
            shapes = " and ".join(f"lora_{name} {list(value.shape)}" for name, value in sorted(pair.items()))
            raise InputError(
                f"pretrained_lora: '{path}' has {shapes} (transposed) of {module}, whose rank is {rank} in {CONFIG}. "
                "Download both files again, from the same place."
            )
        scale = lora_scale(rank, alpha, config["use_rslora"])
        file[f"{module}.weight"] = Term(pair["A"], pair["B"], scale)
    if not factors:
        raise InputError(f"pretrained_lora: '{path}' holds no low-rank adapters. Choose another file.")
    return file


def _find_value(config: Mapping[str, Any], name: str, patterns: str, module: str) -> Any:
    """The value of a module, by the first pattern of its path or of an ending of its path."""
    found = (value for key, value in (config.get(patterns) or {}).items() if re.match(rf"(.*\.)?({key})$", module))
    return next(found, config[name])


def stack(terms: Mapping[int, Term], count: int) -> Term:
    """One term for the outputs of `count` layers of equal size that follow each other, some of which have terms."""
    if count == 1:
        return terms[0]
    first = next(iter(terms.values()))
    rows = []
    for index, term in terms.items():
        row = np.zeros((*term.b.shape[:-1], count, term.b.shape[-1]), term.b.dtype)
        row[..., index, :] = term.b * np.asarray(term.scale / first.scale, term.b.dtype)
        rows.append(row.reshape(*term.b.shape[:-1], -1))
    a = np.concatenate([term.a for term in terms.values()], axis=-1)
    return Term(a, np.concatenate(rows, axis=-2), first.scale)


# ---- writing ---------------------------------------------------------------------------------------------------------
def save_adapters(
    folder: Path, variables: Variables, model: Model, trained: Collection[str], base: str | None = None
) -> list[str]:
    """Write low-rank adapters, and the other trained layers as a whole, as adapter_model.safetensors and _config.json.

    A layer of the files that is several layers here, such as query, key and value, has one adapter whose rank is the
    sum of theirs. Scales are written as lora_alpha = s r.

    Args:
        folder: The folder, which is made.
        variables: All variables of the model.
        model: The model.
        trained: The paths of the trained leaves.
        base: The name or place of the weights that the adapters are for.

    Returns:
        The trained leaves that have no name in published files, and are not written.

    Raises:
        InputError: The model has no low-rank adapters, or has trained leaves outside of layers, or a file cannot be
            written.
    """
    naming, given = model.published.find_naming(variables), read_terms(model, variables)
    if not given:
        raise InputError("--adapters: the run's model has no low-rank adapters. Export its weights.")
    entries = list_entries(tree.leaves_by_path(variables), naming)
    others = {path: entries.get(path) for path in sorted(trained) if not is_of_term(path)}
    named = {layer: entries[path] for layer in given if (path := f"params/{layer}/kernel") in entries}
    outside = [path for path, entry in others.items() if entry and not entry.layer]
    outside += [layer for layer in given if layer not in named or not named[layer].keys[0].endswith(".weight")]
    if outside:
        raise InputError(f"--adapters: {outside[0]} is no layer in the files of this network. Export the weights.")
    parts: dict[str, dict[tuple[int, int], Term]] = {}
    for layer, (a, b, scale) in given.items():
        entry = named[layer]
        if len(entry.shape) > a.ndim:
            a, b = a[None, None], b[None, None]
        for key, piece in zip(entry.keys, np.split(b, len(entry.keys), axis=-1), strict=True):
            module = name_in_memory(key.removesuffix(".weight"), naming)
            parts.setdefault(module, {})[entry.part] = Term(a, piece, scale)
    terms = {}
    for module, found in sorted(parts.items()):
        terms[module] = stack({index: term for (index, _), term in sorted(found.items())}, next(iter(found))[1])
    saved = {entry.layer for entry in others.values() if entry}
    keys = [key for entry in entries.values() if entry.layer in saved for key in entry.keys]
    ends = tuple(sorted({_module_of(name_in_memory(key, naming)) for key in keys}))  # by which peft tells whole layers
    state = {name_in_memory(key, naming): leaf for key, leaf in to_torch(variables, naming).items()}
    state = {key: leaf for key, leaf in state.items() if _module_of(key).endswith(ends)}
    modules = sorted(set(map(_module_of, state)))
    if both := [module for module in terms if module in modules]:
        raise InputError(
            f"--adapters: for peft, {both[0]} is one of the whole layers {', '.join(ends)}, because of the end of its "
            "name. Leave it out of the targets, or export the weights."
        )
    for module, term in terms.items():
        for name, leaf in (("A", term.a), ("B", term.b)):
            state[f"{module}.lora_{name}.weight"] = np.ascontiguousarray(leaf.transpose(torch_axes(leaf.ndim)))
    is_transposed = any(is_any(layer, naming.untransposed) for layer in given)
    make_folder(folder)
    write_state_dict(folder / WEIGHTS, {_ROOT + key: leaf for key, leaf in state.items()})
    write_json(folder / CONFIG, _describe(terms, modules, is_transposed, base))
    return [path for path, entry in others.items() if entry is None]


def _module_of(key: str) -> str:
    return key.rpartition(".")[0]


def _describe(
    terms: Mapping[str, Term], modules: Sequence[str], is_transposed: bool, base: str | None
) -> Mapping[str, Any]:
    """The content of adapter_config.json."""
    ranks = {module: term.a.shape[-1] for module, term in terms.items()}
    alphas = {module: _to_number(term.scale * ranks[module]) for module, term in terms.items()}
    (rank, _), *_ = Counter(ranks.values()).most_common(1)
    (alpha, _), *_ = Counter(alphas.values()).most_common(1)
    repository, revision = (None, None) if base is None else split_name(base)
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": repository,
        "revision": revision,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        "use_rslora": False,
        "rank_pattern": {re.escape(module): value for module, value in ranks.items() if value != rank},
        "alpha_pattern": {re.escape(module): value for module, value in alphas.items() if value != alpha},
        "target_modules": list(terms),
        "modules_to_save": list(modules) or None,
        "fan_in_fan_out": is_transposed,
        "lora_dropout": 0.0,
        "bias": "none",
        "use_dora": False,
        "lora_bias": False,
        "init_lora_weights": True,
    }


def _to_number(value: float) -> float:
    """A whole number as an integer."""
    return round(value) if abs(value - round(value)) < 1e-9 * abs(value) else value
