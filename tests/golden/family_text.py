"""Tokenizers, instructions with answers, and files of the Hugging Face hub."""

from collections.abc import Iterator

import numpy as np

from fedjax_het.data import load
from fedjax_het.data.sources._column_files import read_column, read_parts
from fedjax_het.data.sources._tokenizer import Tokenizer, fill_template, join_answers, pad_rows
from fedjax_het.labels import PADDING
from tests.golden.cases import Case, Comparison, covers

Comparisons = Iterator[Comparison]
_TEMPLATE = "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n"


def to_codes(texts) -> np.ndarray:
    """Code points of every text, so that texts are compared as numbers."""
    return np.array(texts, "U99").view(np.uint32).reshape(len(texts), -1)


def tokenizer_of(case: Case) -> Tokenizer:
    return Tokenizer(case.path.parent.parent / case.meta["tokenizer"])


def trim(rows: np.ndarray, length: int) -> np.ndarray:
    """Cut padding that is there because lengths are multiples of 8."""
    assert (rows[:, length:] == PADDING).all()
    return np.pad(rows[:, :length], ((0, 0), (0, max(0, length - rows.shape[1]))), constant_values=PADDING)


@covers("text", "encode_*")
def tokens(case: Case) -> Comparisons:
    tokenizer, texts = tokenizer_of(case), case["texts"].tolist()
    rows = tokenizer.encode(texts)
    yield case.compare("lengths", list(map(len, rows)))
    length = max(map(len, rows))
    ours = trim(pad_rows(rows, 99), length)
    yield case.compare("ids_right", np.where(ours < 0, case.meta["pad_id"], ours))
    yield case.compare("mask_right", ours >= 0)
    cut = pad_rows(tokenizer.encode(texts, 6), 6)
    yield case.compare("ids_truncated_6", np.where(cut < 0, case.meta["pad_id"], cut))
    yield case.compare("ids_no_special", trim(pad_rows(tokenizer.encode(texts, is_whole=False), 99), length))
    assert tokenizer.find_end(tokenizer.tokens[case.meta["eos_id"]]) == case.meta["eos_id"]
    case.excuse("*_left", "padding is on the right")
    case.excuse("pair_*", "pairs of texts are not read")
    case.excuse("decoded", "tokens are not decoded")


@covers("text", "instruct_*")
def answers(case: Case) -> Comparisons:
    tokenizer, notes = tokenizer_of(case), []
    columns = {"instruction": case["instructions"].tolist(), "input": case["inputs"].tolist()}
    prompts = fill_template(_TEMPLATE, columns)
    yield case.compare("prompts", to_codes(prompts), part=to_codes)
    encoded = tokenizer.encode(prompts)
    yield case.compare("prompt_lengths", list(map(len, encoded)))
    end, max_length = case.meta["eos_id"], case.meta["max_length"]
    answered = tokenizer.encode(case["outputs"].tolist(), is_whole=False)
    inputs, labels = (pad_rows(rows, 99) for rows in join_answers(encoded, answered, end, max_length, notes))
    assert not notes
    length = case["ids"].shape[1] - 1  # ours are shifted: no input is the last token, no label the first

    def inputs_of(ids: np.ndarray) -> np.ndarray:
        """Their inputs of a position with a next token."""
        return np.where(case["mask"][:, 1:] == 1, ids[:, :-1], PADDING)

    yield case.compare("ids", trim(inputs, length), part=inputs_of)
    yield case.compare("mask", trim(inputs, length) >= 0, part=lambda mask: mask[:, 1:])
    yield case.compare("labels", trim(labels, length), part=lambda x: np.where(x == -100, PADDING, x)[:, 1:])
    joint = tokenizer.encode([prompt + text for prompt, text in zip(prompts, case["outputs"].tolist(), strict=True)])
    joint = trim(pad_rows(joint, 99), case["joint_ids"].shape[1])
    yield case.compare("joint_ids", np.where(joint < 0, case.meta["pad_id"], joint))
    yield case.compare("joint_mask", joint >= 0)
    yield case.refute("joint_ids", trim(inputs, joint.shape[1]))


@covers("text", "files_*")
def files(case: Case) -> Comparisons:
    root = case.path.parent.parent / case.meta["files"]
    given = {name: case[name] for name in ("text", "label", "source")}

    def columns_of(path: str, header=()) -> dict[str, np.ndarray]:
        parts, notes = read_parts(root / path, header)
        assert not notes
        for part in parts:
            assert all(list(case["label_names"]) == names for names in part.class_names.values())
        parts = sorted(parts, key=lambda part: part.split != "train")
        return {key: np.array(read_column(parts, key)) for key in parts[0].columns}

    rows = {
        **{path: np.arange(12) for path in ("saved_dataset", "saved_shards")},
        "saved_selection": case["selection"],
        **dict.fromkeys(("saved_dict", "parquet"), np.concatenate([case["dict_train_rows"], case["dict_test_rows"]])),
    }
    for path, chosen in rows.items():
        ours = columns_of(path)
        for name in ("text", "source"):
            theirs = to_codes(given[name][chosen])
            yield case.compare(name, to_codes(ours[name]), part=lambda _, theirs=theirs: theirs)
        yield case.compare("label", ours["label"], part=lambda label, chosen=chosen: label[chosen])
    for split, name in (("train", "dict_train_rows"), ("test", "dict_test_rows")):
        part = next(part for part in read_parts(root / "saved_dict", splits=[split])[0])
        places = {text: row for row, text in enumerate(given["text"].tolist())}
        yield case.compare(name, [places[text] for text in part.columns["text"]])
    selected = columns_of("saved_selection")["text"].tolist()
    yield case.compare("selection", [given["text"].tolist().index(text) for text in selected])
    news = columns_of("ag_news.csv", ["label", "title", "text"])
    yield case.compare("label", news["label"].astype(int) - 1)
    theirs = to_codes([f'{text} "quoted", \\ back' for text in given["text"]])
    yield case.compare("text", to_codes(news["text"]), part=lambda _: theirs)
    theirs = to_codes([f"Title {name}" for name in given["source"]])
    yield case.compare("source", to_codes(news["title"]), part=lambda _: theirs)
    reviews = columns_of("sst2.tsv")
    yield case.compare("text", to_codes(reviews["sentence"]), part=to_codes)
    yield case.compare("label", reviews["label"].astype(int), part=lambda label: label % 2)
    dataset = load("huggingface", path=root / "saved_dict", tokenizer=case.path.parent / "tokenizer_bpe.json")
    yield case.compare("label_names", to_codes(dataset.class_names), part=to_codes)
