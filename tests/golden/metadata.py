"""The `meta` of a golden file, with a note of what a check has read of it."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

# Keys that need not be read: where a file comes from, and sizes, which the shapes of its arrays settle. `dtype` is read
# by `Case.compare`.
DESCRIPTIVE = (
    *("provenance", "kind", "dtype", "note", "notes", "model", "check*", "max_abs_diff_*", "rel_diff_*", "witness_*"),
    *("transcription_error", "independent_diff", "agrees_with_*", "epsilon_factor", "form", "clipped_steps", "final"),
    *("optimizer_state", "tolerance", "case"),
)
SIZES = (
    *("rounds", "clients", "cohort", "steps", "local_steps", "personal_steps", "local_epochs", "batches_per_epoch"),
    *("batch", "width", "classes", "num_classes", "clusters_per_class", "n_batches", "n_prev", "num_samples", "z_dim"),
    *("half_width", "B", "K", "N", "c", "d", "f", "h", "k", "m", "nb"),
)


class Metadata(Mapping[str, Any]):
    """A file's hyper-parameters. A key counts as read once its value was accessed; `in` does not count."""

    def __init__(self, values: Mapping[str, Any], prefix: str = ""):
        self._prefix, self._read = prefix, set()
        self._values = {
            key: Metadata(value, f"{prefix}{key}.") if isinstance(value, dict) else value
            for key, value in values.items()
        }

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise KeyError(f"meta has no key '{self._prefix}{key}'")
        self._read.add(key)
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def confirm(self, **settled: Any) -> None:
        """Read keys whose values are determined by the arrays or our code; they may be missing.

        Raises:
            ValueError: If a key has another value.
        """
        for key, value in settled.items():
            if key in self and self[key] != value:
                name = f"{self._prefix}{key}"
                raise ValueError(f"meta key '{name}' is {self[key]!r}, and this check can hold {value!r} alone")

    @property
    def unread(self) -> list[str]:
        """The keys, and those of tables that were read, that no check has read and that are not descriptive."""
        names = []
        for key, value in self._values.items():
            if key in self._read:
                names += value.unread if isinstance(value, Metadata) else []
            elif self._prefix or not any(fnmatchcase(key, pattern) for pattern in (*DESCRIPTIVE, *SIZES)):
                names.append(f"{self._prefix}{key}")
        return names
