"""Directories with published weights, by their place on this machine or their name on the Hugging Face hub."""

import functools
from pathlib import Path

from fedjax_het.errors import InputError

_SCHEME = "hf:"
_PATTERNS = ["config.json", "model.safetensors", "model-*.safetensors", "model.safetensors.index.json"]
_PATTERNS += ["adapter_config.json", "adapter_model.safetensors"]


def locate(path: str | Path) -> Path:
    """The place of weights on this machine.

    Args:
        path: A file or directory; or "hf:<owner>/<name>" or "hf:<owner>/<name>@<revision>", of which config.json and
            the weights are downloaded once by huggingface_hub into its cache. A revision is a branch, a tag or a
            commit.

    Raises:
        InputError: huggingface_hub or the repository cannot be reached; the message says what to download instead.
    """
    return _download(*split_name(str(path))) if str(path).startswith(_SCHEME) else Path(path)


def split_name(name: str) -> tuple[str, str | None]:
    """(repository, revision) of a name on the hub; other names have no revision."""
    if not name.startswith(_SCHEME):
        return name, None
    repository, _, revision = name.removeprefix(_SCHEME).partition("@")
    return repository, revision or None


@functools.cache
def _download(repository: str, revision: str | None) -> Path:
    name = repository if revision is None else f"{repository}@{revision}"
    instead = (
        f"Download its .json and .safetensors files from https://huggingface.co/{repository} into a directory, and "
        "give that directory instead."
    )
    try:
        import huggingface_hub  # slow to import
    except ImportError as error:
        raise InputError(
            f"pretrained: '{_SCHEME}{name}' needs huggingface_hub (pip install 'fedjax_het[hub]'). {instead}"
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=_PATTERNS)
    except Exception as error:  # of its own, of its HTTP library, or of the system
        reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise InputError(f"pretrained: '{_SCHEME}{name}' cannot be downloaded ({reason}). {instead}") from error
    return Path(folder)
