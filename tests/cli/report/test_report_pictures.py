"""Images on the page of the report, and in files beside it."""

import base64

import pytest

from fedjax_het.cli.report import diagnostics, page
from fedjax_het.cli.report.contents import make_contents
from fedjax_het.cli.runs.results import read_runs
from fedjax_het.errors import InputError
from tests.cli.report import sample_runs

pytestmark = pytest.mark.extended


@pytest.fixture
def run(tmp_path):
    folder = sample_runs.write_snapshots(sample_runs.write_run(tmp_path / "run", "harmofl"))
    sample_runs.write_images(folder)
    return folder


@pytest.mark.slow
def test_the_page_shows_the_images_of_the_last_diagnosed_round(run, tmp_path):
    told = make_contents(*read_runs([run]))
    section = next(section for section in told.sections if section.name == "pictures")
    assert [part.name for part in section.parts] == ["contours_0", "normalisation_0"]
    assert all("Round 6, seed 0." in part.caption for part in section.parts)
    assert all(part.files["png"].startswith(b"\x89PNG") and b"<svg" in part.files["svg"] for part in told.pictures)
    report = page.Report(tmp_path / "report.html")
    report.write(told)
    text = report.out.read_text()
    for picture in told.pictures:
        assert base64.b64encode(picture.files["png"]).decode() in text
        for ending, content in picture.files.items():
            assert (report.folder / f"{picture.name}.{ending}").read_bytes() == content
            assert f'href="report_files/{picture.name}.{ending}"' in text


def test_each_client_has_a_row_and_missing_images_are_empty(run, monkeypatch):
    shown = []
    monkeypatch.setattr(diagnostics.plots, "show_image", lambda axis, image, ends=None: shown.append((axis, ends)))
    row = make_contents(*read_runs([run])).rows[0]
    shown.clear()
    diagnostics.draw_pictures([row])
    assert len(shown) == 5 + 2 * 5  # contours, then images and normalised images
    assert {axis.get_ylabel() for axis, _ in shown} - {""} == {"a", "b", "c"}
    assert len({ends for _, ends in shown[5:]}) == 1


def test_runs_without_images_have_no_image_section(tmp_path):
    told = make_contents(*read_runs([sample_runs.write_snapshots(sample_runs.write_run(tmp_path / "run"))]))
    assert not told.pictures and "pictures" not in {section.name for section in told.sections}
    assert "picture-" not in page.render_page(told, "files", is_watched=False)


def test_an_unreadable_image_file_is_named(run):
    (run / "snapshots/round.npz").write_bytes(b"PK torn")
    with pytest.raises(InputError, match=r"snapshots/round\.npz: cannot be read"):
        make_contents(*read_runs([run]))
    (run / "snapshots/round.npz").unlink()
    with pytest.raises(InputError, match=r"snapshots/round\.npz: cannot be read"):
        make_contents(*read_runs([run]))
