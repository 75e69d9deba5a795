"""PACS, VLCS, Office-Home and Digits-DG: a folder a domain, in the forms in which they are handed around."""

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources import split_lists
from fedjax_het.data.sources.known import Found, Known, find_domains, in_folders, known_dataset
from fedjax_het.data.sources.listing import Entry
from fedjax_het.errors import InputError

_PACS = Known(
    name="pacs",
    title="PACS",
    url="https://dali-dl.github.io/project_iccv2017.html",
    domains={"art_painting": ("art",), "cartoon": (), "photo": (), "sketch": ()},
    classes=dict.fromkeys(("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"), ()),
    num_examples=9_991,
    inside=("images", "raw_images", "PACS", "pacs/images", "kfold"),
)
_LISTS = ("splits", "Train val splits and h5py files pre-read")
_VLCS = Known(
    name="vlcs",
    title="VLCS",
    url="http://www.mediafire.com/file/7yv132lgn1v267r/vlcs.tar.gz/file (with train, crossval and test), and in class "
    "folders through https://github.com/facebookresearch/DomainBed",
    domains={"caltech": ("Caltech101",), "labelme": (), "pascal": ("VOC2007", "VOC"), "sun": ("SUN09",)},
    classes={name: (str(i),) for i, name in enumerate(("bird", "car", "chair", "dog", "person"))},
    num_examples=10_729,
    inside=("VLCS",),
    ignored="full",
)
_OFFICE_HOME = Known(
    name="office_home",
    title="Office-Home",
    url="https://www.hemanthdv.org/officeHomeDataset.html",
    domains={"art": (), "clipart": (), "product": (), "real_world": ("Real",)},
    classes={},
    num_examples=15_588,
    inside=("office_home", "office_home_dg", "OfficeHomeDataset_10072016"),
)
_DIGITS_DG = Known(
    name="digits_dg",
    title="Digits-DG",
    url="https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md",
    domains={"mnist": (), "mnist_m": (), "svhn": (), "syn": ()},
    classes={str(digit): () for digit in range(10)},
    num_examples=24_000,
    inside=("digits_dg",),
)


def pacs(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """PACS, 4 domains, 7 classes: <domain>/<class>/<image> in `path`, or below images/, raw_images/ or PACS/.

    Where the usual split lists lie beside the images (splits/<domain>_train_kfold.txt, ..._crossval_kfold.txt; or in
    "Train val splits and h5py files pre-read"), the former is for training and the latter is the own validation split;
    the test list, which is the whole domain, is what `unseen_domains` holds out and is not read.
    size: the side to resize to; the published images are 227 x 227. cache: see `folders`.
    Raises InputError for a class that PACS does not have, and for lists that do not fit the images.
    Li et al., ICCV 2017. arXiv:1710.03077
    """
    found = find_domains(path, _PACS)
    entries = in_folders(_PACS, found)
    entries, notes = _as_listed(found, entries)
    return known_dataset(_PACS, entries, [*found.notes, *notes], size, cache)


def vlcs(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """VLCS, 4 domains, 5 classes: <domain>/{train,crossval,test}/<0..4>/<image> or <domain>/<class>/<image>.

    The former's folders are the data set's own split; a domain's folder `full` repeats them and is passed over. Sizes
    differ from image to image: give `size`. cache: see `folders`.
    Raises InputError for a class that VLCS does not have.
    Fang et al., Unbiased Metric Learning, ICCV 2013.
    """
    return _in_folders(_VLCS, path, size, cache)


def office_home(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Office-Home, 4 domains, 65 classes: <domain>/<class>/<image>, or with {train,val} between as in Dassl.

    Names of domains and classes may differ in case and separators from domain to domain; a class is called as the
    first domain that has it spells it. Sizes differ from image to image: give `size`. cache: see `folders`.
    Raises InputError for a class that one domain alone has.
    Venkateswara et al., CVPR 2017. arXiv:1706.07522
    """
    return _in_folders(_OFFICE_HOME, path, size, cache)


def digits_dg(path: str, size: int | None = None, cache: str | None = None) -> Dataset:
    """Digits-DG, 4 domains of 32 x 32 digits: <domain>/{train,val}/<0..9>/<image>; val is the own validation split.

    cache: see `folders`.
    Raises InputError for a class that is no digit.
    Zhou et al., AAAI 2020. arXiv:2003.06054
    """
    return _in_folders(_DIGITS_DG, path, size, cache)


def _in_folders(known: Known, path: str, size: int | None, cache: str | None) -> Dataset:
    found = find_domains(path, known)
    return known_dataset(known, in_folders(known, found), found.notes, size, cache)


def _as_listed(found: Found, entries: list[Entry]) -> tuple[list[Entry], list[str]]:
    """(the entries that PACS' lists name, with their split; notes). Without lists, as they are."""
    places = [folder / each for folder in (found.root, found.root.parent) for each in _LISTS]
    lists = next((place for place in places if place.is_dir()), None)
    if lists is None:
        return entries, []
    by_path = {entry.path: entry for entry in entries}
    labels = list(_PACS.classes)
    listed = []
    for domain, folder in found.folders.items():
        for word, split in (("train", "train"), ("crossval", "valid")):
            file = lists / f"{domain}_{word}_kfold.txt"
            for row in split_lists.read(file, found.root):
                entry = by_path.get(str(folder.parent / row.path))
                if entry is None or labels.index(entry.label) + 1 != row.label:
                    raise InputError(f"{file}, line {row.line}: label {row.label} is not that of {row.path}'s folder.")
                if entry.domain != domain:
                    raise InputError(f"{file}, line {row.line}: {row.path} is of another domain than its list.")
                listed.append(entry._replace(split=split))
    left_out = len(entries) - len({entry.path for entry in listed})
    notes = [f"split by the lists in {lists}"] + ([f"{left_out} images are in no list: left out"] if left_out else [])
    return listed, notes
