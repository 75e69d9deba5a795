"""Models in the form of published files: networks that begin with their weights, and files that other code loads."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fedjax_het import tree
from fedjax_het.models._pretrained import Names, Naming, choose_naming, from_torch, to_torch
from fedjax_het.models._weight_files import (
    CONFIG,
    WEIGHTS,
    StateDict,
    make_folder,
    read_config_beside,
    read_state_dict,
    write_json,
    write_state_dict,
)
from fedjax_het.types import Array, Key, Model, Variables

_DTYPES = ("torch_dtype", "dtype")


@dataclass(frozen=True, eq=False)
class Published:
    """The form of a network in published files.

    names: The names of its layers, or those of several implementations.
    config: The content of config.json; {} if there is none.
    keys: The keys of the file with its weights; none if they are random.
    """

    names: Names
    config: Mapping[str, Any] = field(default_factory=dict)
    keys: Collection[str] = ()

    def find_naming(self, variables: Variables) -> Naming:
        """The names of the file with the weights, or else those that have the most leaves."""
        return choose_naming(tree.leaves_by_path(variables), self.names, self.keys)


def starting_from(
    path: str | Path | None,
    names: Names,
    prepare: Callable[[StateDict, Naming, Array], StateDict] | None = None,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[Model], Model]:
    """Give a model its names in published files, and initialize it with the weights of a file instead of random ones.

    A head for another number of classes is ignored: the model keeps its random head, as it does if the file has none.

    Args:
        path: See `read_state_dict`; None leaves random weights.
        names: The names of the network's layers in the file. Of several implementations, those of the file are taken.
        prepare: (state dict, its names, inputs) -> state dict, such as one with positions for images of another size.
        config: The content of config.json for exported weights, if there is no such file beside the weights.

    Raises:
        InputError: The file cannot be read; or, when the model is initialized, the weights do not match (with the
            first keys that are missing, unexpected or of another shape).
    """
    if path is None:
        return lambda model: model._replace(published=Published(names, config))
    state = read_state_dict(path)
    published = Published(names, read_config_beside(path) or config, tuple(state))

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            fit = None if prepare is None else lambda state, naming: prepare(state, naming, inputs)
            return from_torch(state, model.init(key, inputs), names, fit)

        return model._replace(init=init, published=published)

    return adapt


def save_state_dict(path: str | Path, variables: Variables, names: Names) -> None:
    """Write variables atomically as a state dict that the PyTorch network of these names can load.

    Raises:
        InputError: The extension is not .safetensors or .npz, or the file cannot be written.
    """
    write_state_dict(path, to_torch(variables, names))


def save_published(
    folder: Path, variables: Variables, model: Model, class_names: Sequence[str] = (), image_size: Sequence[int] = ()
) -> None:
    """Write model.safetensors and, where the network has one, config.json to a folder, which is made.

    config.json is that of the weights that training started from, or else describes the sizes of the network. Classes
    and image size are those of the variables, and all weights are float32.

    Args:
        folder: The folder.
        variables: The variables of the network itself; see `merge_adapters`.
        model: Their model.
        class_names: The names of the classes (default LABEL_0, ...).
        image_size: (height, width) of the images.

    Raises:
        InputError: A file cannot be written.
    """
    naming = model.published.find_naming(variables)
    make_folder(folder)
    save_state_dict(folder / WEIGHTS, variables, naming)
    if config := {key: value for key, value in model.published.config.items() if key not in _DTYPES}:
        head = variables["params"].get("classifier", {}).get("kernel")
        if head is not None and "classifier" in naming.layers and not naming.needs_head:
            config |= _describe_classes(config, head.shape[-1], class_names)
        write_json(folder / CONFIG, _with_image_size(config, image_size))


def _describe_classes(config: Mapping[str, Any], num_classes: int, names: Sequence[str]) -> Mapping[str, Any]:
    if "model_type" not in config:
        return {"num_classes": num_classes}
    labels = [str(name) for name in names] or [f"LABEL_{index}" for index in range(num_classes)]
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def _with_image_size(config: Mapping[str, Any], image_size: Sequence[int]) -> Mapping[str, Any]:
    if "vision_config" in config:
        images = config["vision_config"] | {key: config[key] for key in ("projection_dim",) if key in config}
        return {**config, "vision_config": _with_image_size(images, image_size)}
    size = image_size[0] if len(set(image_size)) == 1 else list(image_size)
    return {**config, "image_size": size} if image_size and "image_size" in config else config
