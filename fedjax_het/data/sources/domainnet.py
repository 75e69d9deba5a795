"""DomainNet and Mini-DomainNet: <domain>/<class>/<image>, and lists of what is for training and what for testing."""

from pathlib import Path

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources import split_lists
from fedjax_het.data.sources.listing import Entry, check_shared_classes, image_dataset
from fedjax_het.data.sources.reading import existing, located
from fedjax_het.errors import InputError

_URL = (
    "http://ai.bu.edu/M3SDA/ (the cleaned version; the lists of Mini-DomainNet: "
    "https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md)"
)


def mini_domainnet(path: str, lists: str = "splits_mini", size: int | None = None, cache: str | None = None) -> Dataset:
    """Mini-DomainNet; with lists="splits", the whole of DomainNet.

    Lists are <lists>/<domain>_train.txt and <domain>_test.txt, with lines "<domain>/<class>/<file> <label>", labels
    from 0; both lie in `path` or in its folder domainnet/. The domains are those for which there are lists (Dassl's
    Mini-DomainNet has four, and 126 classes). The test lists are the data set's own test split.
    Sizes differ from image to image: give `size`. cache: see `folders`.
    Raises InputError for a list without its partner, a line without its file, labels that contradict the folders, and
    a class that one domain alone has.
    Peng et al., ICCV 2019. arXiv:1812.01754; Zhou et al., TIP 2021. arXiv:2003.07325
    """
    place = located(path, "DomainNet", _URL)
    root = next((each for each in (place, place / "domainnet") if (each / lists).is_dir()), None)
    if root is None:
        raise InputError(f"{place} holds no folder {lists}, nor does its domainnet/. The lists are published at {_URL}")
    domains = sorted(file.name.removesuffix("_train.txt") for file in existing(root / lists).glob("*_train.txt"))
    if not domains:
        raise InputError(f"{root / lists} holds no <domain>_train.txt. The lists are published at {_URL}")
    names: dict[int, str] = {}
    entries = [entry for domain in domains for entry in _find_domain(root, lists, domain, names)]
    check_shared_classes("DomainNet", entries)
    labels = range(max(names) + 1)
    without = [label for label in labels if label not in names]
    return image_dataset(
        "mini_domainnet" if lists == "splits_mini" else "domainnet",
        entries,
        size=size,
        channels=3,
        cache=cache,
        class_names=[names.get(label, f"class_{label}") for label in labels],
        notes=[f"split by the lists in {root / lists}", *([f"no list has labels {without}"] if without else [])],
    )


def _find_domain(root: Path, lists: str, domain: str, names: dict[int, str]) -> list[Entry]:
    """The entries of a domain; `names` learns what the labels are called."""
    entries, labels = [], {name: label for label, name in names.items()}
    for split in ("train", "test"):
        file = root / lists / f"{domain}_{split}.txt"
        for row in split_lists.read(file, root):
            name = Path(row.path).parent.name
            if not row.path.startswith(f"{domain}/"):
                raise InputError(f"{file}, line {row.line}: {row.path} is of another domain than its list.")
            if (names.setdefault(row.label, name), labels.setdefault(name, row.label)) != (name, row.label):
                raise InputError(
                    f"{file}, line {row.line}: label {row.label} for {name}, but elsewhere {row.label} is "
                    f"{names[row.label]} and {name} is {labels[name]}. Mend the lists."
                )
            entries.append(Entry(str(root / row.path), name, domain, split))
    return entries
