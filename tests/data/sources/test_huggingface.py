"""Data sets of the Hugging Face hub: files of columns, tokenizers, and instructions with answers."""

import io
import json
import sys
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from PIL import Image

from fedjax_het import engine, models
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli import train
from fedjax_het.data import by_domain, federate, iid, load
from fedjax_het.errors import InputError
from fedjax_het.types import Context
from tests.data.sources.image_files import refuse, write

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[UNK]", "<s>", "</s>", "a", "b", "c", "d", "Ask", "Reply", ":"]
TEXTS = ["a b", "c", "a b c d", "d"]
LABELS = [1, 0, 1, 0]
CLIENTS = ["ann", "bob", "ann", "bob"]
ROWS = {"text": TEXTS, "label": LABELS, "client": CLIENTS}
NAMES = ["bad", "good"]


@pytest.fixture
def tokenizer(tmp_path):
    """A word per token, with <s> in front and </s> behind; the file asks for truncation and padding."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    words.enable_truncation(3)
    words.enable_padding(length=50)
    (tmp_path / "tokenizer").mkdir()
    words.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    return str(tmp_path / "tokenizer")


def metadata(column="label"):
    features = {column: {"names": NAMES, "_type": "ClassLabel"}, "text": {"dtype": "string", "_type": "Value"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def make_table(rows, is_named=True):
    table = pyarrow.table(rows)
    return table.replace_schema_metadata(metadata()) if is_named else table


def write_stream(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyarrow.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=3)
    return path


def save(folder, rows=ROWS, selected=None, num_shards=1, is_named=True):
    """A folder as `save_to_disk` writes it; class names stand in the metadata, or in dataset_info.json alone."""
    table = make_table(rows, is_named)
    state = {"_data_files": [{"filename": f"data-{i}.arrow"} for i in reversed(range(num_shards))]}
    for shard, file in enumerate(state["_data_files"]):
        start, stop = (len(table) * k // num_shards for k in (shard, shard + 1))
        write_stream(folder / file["filename"], table.slice(start, stop - start))
    if selected is not None:
        write_stream(folder / "indices.arrow", pyarrow.table({"indices": pyarrow.array(selected, pyarrow.uint64())}))
        state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    features = json.loads(metadata()["huggingface"])["info"]["features"]
    (
        write(folder / "state.json", json.dumps(state)),
        write(folder / "dataset_info.json", json.dumps({"features": features})),
    )
    return folder


def save_splits(folder, **splits):
    write(folder / "dataset_dict.json", json.dumps({"splits": list(splits)}))
    for name, rows in splits.items():
        save(folder / name, rows)
    return folder


def read(path, tokenizer, **options):
    return load("huggingface", path=path, tokenizer=tokenizer, **options)


def words_of(dataset):
    return [" ".join(WORDS[token] for token in row if token >= 0) for row in dataset.inputs]


@pytest.mark.parametrize("options", [{}, {"num_shards": 2}, {"is_named": False}])
def test_a_saved_data_set_has_tokens_classes_and_domains(tmp_path, tokenizer, options):
    dataset = read(save(tmp_path / "reviews", **options), tokenizer)
    assert dataset.name == "reviews" and dataset.vocabulary == len(WORDS)
    assert words_of(dataset) == [f"<s> {text} </s>" for text in TEXTS]
    assert dataset.inputs.shape == (4, 8) and dataset.inputs[1].tolist() == [1, 5, 2, *[-1] * 5]
    assert (dataset.class_names, dataset.labels.tolist()) == (("bad", "good"), LABELS)
    federation = federate(dataset, by_domain(), 0)
    assert federation.client_names == ("ann", "bob") and federation.vocabulary == len(WORDS)
    assert dataset.notes == ("domains from column 'client'",)


def test_selected_rows_are_read_in_their_order(tmp_path, tokenizer):
    dataset = read(save(tmp_path, selected=[2, 0]), tokenizer)
    assert words_of(dataset) == ["<s> a b c d </s>", "<s> a b </s>"] and dataset.labels.tolist() == [1, 1]


def test_splits_of_a_saved_dictionary_are_published_splits(tmp_path, tokenizer):
    folder = save_splits(tmp_path / "x", train=ROWS, validation=ROWS, test=ROWS, unlabeled=ROWS)
    dataset = read(folder, tokenizer)
    assert [part.sum() for part in dataset.splits.values()] == [4, 4, 4]
    assert "1 splits or files are not read: unlabeled" in dataset.notes
    dataset = read(folder, tokenizer, splits="train, validation")
    assert [part.sum() for part in dataset.splits.values()] == [4, 4, 0]
    refuse(r"has no split 'dev'. Its splits: train, validation, test, unlabeled", "huggingface", folder, splits="dev")


def test_parquet_files_of_a_repository_are_splits_in_shards(tmp_path, tokenizer):
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        parquet.write_table(make_table(ROWS), tmp_path / "data" / f"{name}.parquet")
    write(tmp_path / "dataset_infos.json", "{}")
    dataset = read(tmp_path, tokenizer)
    assert (~dataset.is_test).sum() == 8 and dataset.is_test.sum() == 4 and dataset.class_names == ("bad", "good")
    single = read(tmp_path / "data" / "test-00000-of-00001.parquet", tokenizer)
    assert len(single.inputs) == 4 and not single.is_test.any()


def test_domains_have_the_names_in_the_metadata(tmp_path, tokenizer):
    rows = {"text": TEXTS, "stars": ["1", "2", "1", "2"], "label": LABELS}
    dataset = read(save(tmp_path, rows), tokenizer, label="stars", domain="label")
    assert (dataset.domain_names, dataset.class_names) == (("bad", "good"), ("1", "2"))


def test_lines_of_json_end_at_newlines_alone(tmp_path, tokenizer):
    file = write(tmp_path / "x.jsonl", '{"text": "a\u2028b", "label": "x"}\r\n{"text": "c", "label": "y"}')
    assert words_of(read(file, tokenizer)) == ["<s> a b </s>", "<s> c </s>"]


@pytest.mark.parametrize(("library", "message"), [("tokenizers", "by tokenizers"), ("pyarrow.parquet", "by pyarrow")])
def test_a_missing_library_is_named(tmp_path, tokenizer, monkeypatch, library, message):
    folder = save(tmp_path / "x")
    monkeypatch.setitem(sys.modules, library, None)
    refuse(rf'{message}. Install it: pip install "fedjax-het\[text\]"', "huggingface", folder, tokenizer=tokenizer)


@pytest.mark.parametrize("is_list", [True, False])
def test_json_rows_are_a_list_or_lines_and_files_without_splits_are_domains(tmp_path, tokenizer, is_list):
    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, ["no", "yes"] * 2, strict=True)]
    text = json.dumps(rows) if is_list else "\n".join(map(json.dumps, rows)) + "\n"
    for client in ("client_2", "client_10"):
        write(tmp_path / f"{client}.jsonl", text)
    dataset = read(tmp_path, tokenizer)
    assert (dataset.domain_names, dataset.class_names) == (("client_2", "client_10"), ("no", "yes"))


def test_columns_of_csv_without_header_are_named_and_texts_joined(tmp_path, tokenizer):
    file = write(tmp_path / "news.csv", '"1","a","b, ""c"""\n"3","d","a"\n')
    dataset = read(file, tokenizer, header=("label", "title", "body"), text="title,body")
    assert words_of(dataset) == ["<s> a b [UNK] [UNK] c [UNK] </s>", "<s> d a </s>"]
    assert dataset.class_names == ("1", "3") and dataset.notes == ("labels 1, 3 are classes 0 to 1",)


def test_cells_of_tsv_files_are_not_quoted(tmp_path, tokenizer):
    for name in ("train", "dev"):
        write(tmp_path / f"{name}.tsv", 'sentence\tlabel\na "b \t0\nc\t1\n')
    dataset = read(tmp_path, tokenizer)
    assert words_of(dataset)[0] == "<s> a [UNK] b </s>" and dataset.is_valid.sum() == 2


def test_texts_are_cut_with_their_special_tokens(tmp_path, tokenizer):
    folder = save(tmp_path)
    dataset = read(folder, tokenizer, max_length=4)
    assert words_of(dataset)[2] == "<s> a b </s>" and dataset.inputs.shape == (4, 4)
    assert "1 of 4 texts are cut at 4 tokens" in dataset.notes
    refuse("max_length: 2 leaves no room", "huggingface", folder, tokenizer=tokenizer, max_length=2)


def test_small_domains_are_skipped(tmp_path, tokenizer):
    rows = {"text": TEXTS, "label": LABELS, "site": ["x", "x", "x", "y"]}
    dataset = read(save(tmp_path, rows), tokenizer, min_examples=2)
    assert len(dataset.inputs) == 3 and dataset.domain_names == ("x",)


# ---- images ----------------------------------------------------------------------------------------------------------
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3)).astype(np.uint8)


def encode(pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["arrow", "parquet", "bytes"])
def test_images_are_decoded(tmp_path, kind):
    content = [encode(pixels) for pixels in PIXELS]
    images = content if kind == "bytes" else [{"bytes": file, "path": "x.png"} for file in content]
    rows = {"img": images, "label": LABELS, "site": CLIENTS}
    if kind == "parquet":
        parquet.write_table(make_table(rows), path := tmp_path / "images.parquet")
    else:
        path = save(tmp_path / "images", rows, selected=[3, 1] if kind == "arrow" else None)
    dataset = load("huggingface", path=path)
    chosen = [3, 1] if kind == "arrow" else range(4)
    np.testing.assert_array_equal(dataset.inputs, PIXELS[list(chosen)])
    assert isinstance(dataset.inputs, np.memmap) and dataset.labels.tolist() == [LABELS[i] for i in chosen]
    assert load("huggingface", path=path, size=4, channels=1).inputs.shape == (len(chosen), 4, 4, 1)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (None, "row 1: column 'image' has no image, but None"),
        ({"bytes": None, "path": "cat.png"}, "has no image, but .*cat.png.* embedded files"),
        ({"bytes": b"GIF", "path": None}, "cannot read .*row 1: cannot identify image file"),
    ],
)
def test_rows_without_an_image_are_refused(tmp_path, image, message):
    rows = {"image": [image, {"bytes": encode(PIXELS[0]), "path": None}], "label": [0, 1]}
    refuse(message, "huggingface", save(tmp_path, rows))


# ---- instructions ----------------------------------------------------------------------------------------------------
ASKED = [
    {"instruction": "a", "context": "b c", "response": "d", "category": "x"},
    {"instruction": "a", "context": "", "response": "c d", "category": "y"},
]
TEMPLATE = "Ask: {instruction}\n\n: {context}\n\nReply:"


def ask(path, tokenizer, rows=ASKED, **options):
    write(path / "dolly.jsonl", "\n".join(map(json.dumps, rows)))
    return read(path, tokenizer, **{"end": "</s>", "template": TEMPLATE, "domain": "category"} | options)


def test_labels_are_the_next_tokens_of_the_answer_alone(tmp_path, tokenizer):
    dataset = ask(tmp_path, tokenizer)
    assert words_of(dataset) == ["<s> Ask : a : b c Reply : d", "<s> Ask : a Reply : c d"]
    labels = [[WORDS[token] if token >= 0 else "." for token in row] for row in dataset.labels]
    assert labels[0] == [*"........", "d", "</s>", *"......"] and dataset.labels.shape == (2, 16)
    assert labels[1] == [*".....", "c", "d", "</s>", *"........"]
    assert dataset.class_names == tuple(WORDS) and dataset.domain_names == ("x", "y")
    assert dataset.notes == (f"template: {TEMPLATE!r}",)


def test_the_end_token_is_that_of_the_tokenizers_config(tmp_path, tokenizer):
    refuse("end: no file beside .* has an eos_token", "huggingface", write_rows(tmp_path), tokenizer=tokenizer)
    write(tmp_path / "tokenizer" / "tokenizer_config.json", json.dumps({"eos_token": {"content": "</s>"}}))
    dataset = ask(tmp_path, tokenizer, end=None, template=None)
    assert WORDS[dataset.labels[0][dataset.labels[0] >= 0][-1]] == "</s>"
    assert "### Input:\\n{context}" in dataset.notes[0]
    refuse("no token 'eos'", "huggingface", tmp_path / "dolly.jsonl", tokenizer=tokenizer, end="eos")


def write_rows(folder, rows=ASKED):
    return write(folder / "rows.json", json.dumps(rows))


def test_answers_that_are_cut_are_counted_and_those_cut_away_skipped(tmp_path, tokenizer):
    dataset = ask(tmp_path, tokenizer, max_length=8)
    assert words_of(dataset) == ["<s> Ask : a Reply : c"] and dataset.domain_names == ("y",)
    assert "2 of 2 answers are cut at 8 tokens, and lose their end" in dataset.notes
    assert "1 examples without tokens to learn from are skipped" in dataset.notes
    with pytest.raises(InputError, match=r"no example has tokens to learn from .* Raise max_length"):
        ask(tmp_path, tokenizer, max_length=3)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{instruction", r"template: .* Write \{column\}"),
        ("{0}", r"template: '\{0\}' is no column"),
        ("{instruction.x}", "is no column"),
        ("Reply:", "template: it names no column"),
        ("{question}", "has no column 'question'.*Known: category, context, instruction, response"),
    ],
)
def test_templates_name_columns(tmp_path, tokenizer, template, message):
    refuse(message, "huggingface", write_rows(tmp_path), tokenizer=tokenizer, template=template, end="</s>")


# ---- refusals --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"text": TEXTS, "score": LABELS}, {}, r"no column is called label. Choose one, label='...': text, score"),
        ({"body": TEXTS, "label": LABELS}, {}, r"no column called image, text or response.*text='...'.*: body, label"),
        ({"text": TEXTS, "img": TEXTS, "label": LABELS}, {}, "has columns for image and text. Choose one"),
        (ROWS, {"label": "stars"}, "has no column 'stars'.*Known: client, label, text"),
        ({**ROWS, "label": [0, 1, -1, 0]}, {}, r"column 'label' has -1 in row 3, expected 0 to 1 .*splits='train'"),
        ({**ROWS, "label": [0, None, 1, 0]}, {}, "column 'label' has None in row 2, expected 0 to 1"),
        ({**ROWS, "text": ["a", "b", None, "c"]}, {}, "column 'text' has no value in row 3"),
        ({**ROWS, "text": [1, 2, 3, 4]}, {}, "column 'text' has 1, not a text, in row 1"),
        ({**ROWS, "client": ["x", None, "y", "x"]}, {}, "column 'client' has no value in row 2"),
        (ROWS, {"tokenizer": None}, "has texts. Give the path of a tokenizer.json"),
        (ROWS, {"size": 8}, "size: has no effect for the text column 'text'"),
        (ROWS, {"end": "</s>"}, "end: has no effect for the text column"),
        (ROWS, {"header": ("a", "b")}, "header: .* has no .csv or .tsv files"),
        ({name: [] for name in ROWS}, {}, "has no rows"),
    ],
)
def test_columns_that_do_not_fit_are_refused(tmp_path, tokenizer, rows, options, message):
    refuse(message, "huggingface", save(tmp_path / "x", rows), **{"tokenizer": tokenizer} | options)


def test_files_of_another_format_are_refused(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for suffix in ("parquet", "arrow", "csv", "json"):
        refuse("Git LFS pointer without the data", "huggingface", write(tmp_path / f"a.{suffix}", pointer))
    with pyarrow.ipc.new_file(str(tmp_path / "b.arrow"), make_table(ROWS).schema) as file:
        file.write_table(make_table(ROWS))
    refuse(r"for random access \(ARROW1\), expected an Arrow stream", "huggingface", tmp_path / "b.arrow")
    refuse("begins with b'nothing.'", "huggingface", write(tmp_path / "c.parquet", b"nothing."))
    refuse("cannot read .*damaged", "huggingface", write(tmp_path / "d.parquet", b"PAR1 and no more"))
    refuse("has the suffix '.txt'", "huggingface", write(tmp_path / "e.txt", b"x"))
    refuse("line 2 is not JSON", "huggingface", write(tmp_path / "f.jsonl", b'{"a": 1}\n{'))
    refuse("row 1 is not an object", "huggingface", write(tmp_path / "g.json", b"[1]"))
    (tmp_path / "empty").mkdir()
    refuse("holds no data files", "huggingface", tmp_path / "empty")
    save_splits(tmp_path / "h", train=ROWS, test=ROWS)
    (tmp_path / "h" / "test" / "state.json").unlink()
    refuse("lists the split 'test', and .* holds no state.json", "huggingface", tmp_path / "h")


def test_a_sentencepiece_model_alone_is_refused_with_advice(tmp_path, tokenizer):
    folder = save(tmp_path / "x")
    model = write(tmp_path / "llama" / "tokenizer.model", b"x")
    for place in (model, model.parent):
        refuse("SentencePiece, which is not supported. Convert it", "huggingface", folder, tokenizer=str(place))
    refuse("holds no tokenizer.json", "huggingface", folder, tokenizer=str(folder))
    damaged = write(tmp_path / "tokenizer.json", "{}")
    refuse("cannot read .*tokenizer.json", "huggingface", folder, tokenizer=str(damaged))


# ---- training --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_prompts_and_padding_count_neither_in_losses_nor_in_scores(tmp_path, tokenizer):
    for split in ("train", "test"):
        write(tmp_path / "x" / f"{split}.json", json.dumps(ASKED))
    dataset = read(tmp_path / "x", tokenizer, end="</s>", template=TEMPLATE)
    model = models.lstm(dataset.num_classes, hidden=(8,), outputs="every")
    figures, updates = [], []
    for more in (0, 5):
        longer = replace(
            dataset,
            **{
                name: np.pad(getattr(dataset, name), ((0, 0), (0, more)), constant_values=-1)
                for name in ("inputs", "labels")
            },
        )
        run = engine.Simulation(ALGORITHMS["fedavg"](batch_size=2), model, federate(longer, iid(), 1), rounds=1)
        state, metrics = run.advance(run.start(), 1)
        figures.append([metrics.loss, *engine.flatten_evaluation(run.evaluate(run.start())).values()])
        updates.append(state.server.shared)
    variables = jax.tree.map(lambda x: x[0], run.start().server.shared)
    context = Context(np.ones(4, np.float32), np.int32(0), make_key(0), False)
    features = model.encode(variables, dataset.inputs, context)[0][0]
    losses = -jax.nn.log_softmax(model.classify(variables["params"], features))
    answers = [losses[i, j, dataset.labels[i, j]] for i, j in zip(*np.nonzero(dataset.labels >= 0), strict=True)]
    assert len(answers) == 10  # d, c d, and the end of both, in two splits
    np.testing.assert_allclose(figures[0][0], np.mean(answers), rtol=1e-5)
    scores = engine.flatten_evaluation(run.evaluate(run.start()))
    np.testing.assert_allclose(scores["test/loss"], np.mean(answers), rtol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), *figures)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), *updates)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [{"name": "lstm", "hidden": "8"}, {"name": "transformer", "features": "8", "outputs": "last"}]
)
def test_the_command_trains_on_the_clients_of_a_column(tmp_path, tokenizer, model):
    rows = {name: values * 6 for name, values in ROWS.items()}
    folder = save_splits(tmp_path / "reviews", train=rows, test=rows)
    options = {
        "data.path": folder,
        "data.tokenizer": tokenizer,
        "data.domain": "client",
        "data.num_clients": 0,
        "data.partition.name": "by_domain",
        **{f"model.{key}": value for key, value in model.items()},
        **{"rounds": 80, "evaluate_every": 80, "algorithm.learning_rate": 1.0},
    }
    workdir = tmp_path / "run"
    arguments = [f"--config.{key}={value}" for key, value in options.items()]
    assert train.main(["--config=huggingface", f"--workdir={workdir}", *arguments]) == 0
    assert json.loads((workdir / "metrics.jsonl").read_text())["test/accuracy"] == 1.0
    partition = json.loads((workdir / "partition.json").read_text())
    assert "ann" in json.dumps(partition)
