"""The page of the report and the files beside it; the page sends no request."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest

from fedjax_het.cli.report import __main__ as command
from fedjax_het.cli.report import page
from fedjax_het.cli.report.contents import make_contents
from fedjax_het.cli.runs.results import read_runs
from tests.cli.report import sample_runs

FETCHING = {"src", "href", "srcset", "data", "action", "poster", "background", "formaction", "ping", "manifest"}


class Reader(HTMLParser):
    """Attributes with addresses, and the content of style and script elements."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.inside, self.texts, self.metas = [], None, [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.addresses += [value for name, value in attributes if name in FETCHING]
        self.metas += [dict(attributes)] if tag == "meta" else []
        self.inside = tag if tag in ("style", "script") else None

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.texts.append((self.inside, data))


@pytest.fixture
def report_contents(tmp_path):
    sample_runs.write_snapshots(sample_runs.write_run(tmp_path / "runs" / "fedavg"))
    sample_runs.write_run(tmp_path / "runs" / "fedld", "fedld", algorithm__note="</script><img src=x>")
    return make_contents(*read_runs([tmp_path / "runs"]))


def test_the_page_fetches_nothing(report_contents):
    reader = Reader(page.render_page(report_contents, "report_files", is_watched=False))
    assert reader.addresses and all(re.match(r"(#|data:,|report_files/)", address) for address in reader.addresses)
    styles = [text for kind, text in reader.texts if kind == "style"]
    assert styles and not any("url(" in text or "@import" in text for text in styles)
    scripts = [text for kind, text in reader.texts if kind == "script"]
    assert sum("plotly.js v" in text[:200] for text in scripts) == 1
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|https?://|WebSocket|sendBeacon", scripts[-1])
    policy = next(meta["content"] for meta in reader.metas if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy and "http" not in policy.lower() and "connect-src" not in policy


@pytest.mark.extended
def test_settings_cannot_break_out_of_the_page(report_contents):
    text = page.render_page(report_contents, "report_files", is_watched=False)
    assert "</script><img" not in text and "&lt;/script&gt;&lt;img src=x&gt;" in text
    data = next(text for kind, text in Reader(text).texts if text.lstrip().startswith('{"figures"'))
    assert json.loads(data)["figures"]["curves"]["title"] == "Learning curves"


@pytest.mark.slow
def test_every_link_of_the_page_is_an_existing_file(tmp_path, capsys):
    run = sample_runs.write_snapshots(sample_runs.write_run(tmp_path / "fedavg"), rounds=[0])
    assert command.main([str(run), f"--out={tmp_path / 'a.html'}"]) == 0
    assert "a.html, and its tables and figures in" in capsys.readouterr().out
    text = (tmp_path / "a.html").read_text()
    links = [address for address in Reader(text).addresses if address.startswith("a_files/")]
    links += [f"{stem}.{ending}" for stem in re.findall(r'data-stem="([^"]+)"', text) for ending in ("png", "svg")]
    assert {link.rpartition(".")[2] for link in links} == {"md", "tex", "csv", "png", "svg"}
    assert all((tmp_path / link).stat().st_size for link in links)
    assert {path.name for path in (tmp_path / "a_files").iterdir()} == {link.removeprefix("a_files/") for link in links}
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".partial")]


def test_a_run_in_progress_is_marked_and_shown_as_far_as_it_is(tmp_path):
    sample_runs.write_run(tmp_path / "fedld", "fedld", is_finished=False)
    (tmp_path / "begun").mkdir()
    sample_runs.write_json(tmp_path / "begun" / "config.json", sample_runs.settings())
    text = page.render_page(make_contents(*read_runs([tmp_path])), "files", is_watched=True)
    assert "running: round 10 of 10" in text and "running: round 0 of 10" in text and "2 of 2 runs are not" in text
    assert [meta["content"] for meta in Reader(text).metas if meta.get("http-equiv") == "refresh"] == ["10"]
    assert 'id="table-results"' in text and 'id="figure-curves"' in text


def test_a_page_that_is_not_watched_does_not_reload(report_contents):
    assert 'http-equiv="refresh"' not in page.render_page(report_contents, "files", is_watched=False)


@pytest.mark.extended
def test_watching_rewrites_a_changed_report_and_stops_reloading_at_the_end(tmp_path, monkeypatch, capsys):
    run = sample_runs.write_run(tmp_path / "run", is_finished=False)
    report = page.Report(tmp_path / "report.html")
    steps = iter(["nothing", "grow", "break", "mend", "stop"])
    metrics, pages = (run / "metrics.jsonl").read_text(), []
    drawn = []

    def draw(figure, folder):
        """The run continues while the first figures are drawn."""
        if not drawn:
            lines = "".join(json.dumps(sample_runs.metric_line(12, seed, 0.5)) + "\n" for seed in (0, 1))
            (run / "metrics.jsonl").write_text(metrics + lines)
        drawn.append(figure.name)

    def sleep(seconds):
        pages.append(report.out.read_text() if report.out.exists() else "")
        step = next(steps)
        if step == "grow":
            more = "".join(json.dumps(sample_runs.metric_line(15, seed, 0.5)) + "\n" for seed in (0, 1))
            (run / "metrics.jsonl").write_text(metrics + more)
        elif step == "break":
            (run / "config.json").rename(run / "gone")
        elif step == "mend":
            (run / "gone").rename(run / "config.json")
        elif step == "stop":
            raise KeyboardInterrupt

    monkeypatch.setattr(page.time, "sleep", sleep)
    monkeypatch.setattr(page.plots, "write_figure", draw)
    page.watch(report, [run])
    assert [re.search(r"round (\d+) of 10", text)[1] for text in pages] == ["10", "12", "15", "15", "15"]
    assert all('http-equiv="refresh"' in text for text in pages)
    assert 'http-equiv="refresh"' not in report.out.read_text()
    assert "no config.json" in capsys.readouterr().err


def test_unchanged_figures_are_not_drawn_again(report_contents, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(page.plots, "write_figure", lambda figure, folder: drawn.append(figure.name))
    report = page.Report(tmp_path / "report.html")
    for _ in range(2):
        report.write(report_contents)
    assert len(drawn) == len(set(drawn)) == len(report_contents.figures)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{}/none"], "is not a directory"),
        (["{}"], "no config.json and no grid.json"),
        (["{}/run", "--out={}/report.pdf"], "--out: .* End it in .html"),
        (["{}/run", "--out=/proc/none/report.html"], "--out: cannot write"),
    ],
)
def test_input_errors_exit_with_status_2(tmp_path, capsys, arguments, said):
    sample_runs.write_run(tmp_path / "run" / "run")
    (tmp_path / "empty").mkdir()
    texts = [argument.format(tmp_path / "empty" if argument == "{}" else tmp_path) for argument in arguments]
    assert command.main(texts) == 2
    assert re.match(f"error: .*{said}", capsys.readouterr().err)


def test_the_error_for_a_missing_extra_says_how_to_install_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "fedjax_het.cli.report.page")
    monkeypatch.delattr("fedjax_het.cli.report.page")
    assert command.main([str(sample_runs.write_run(tmp_path / "run"))]) == 2
    assert capsys.readouterr().err == 'error: the report needs jinja2: pip install "fedjax-het[report]"\n'
