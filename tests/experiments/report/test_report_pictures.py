"""Pictures on the page, and in files beside it."""

import base64

import pytest

from experiments.report import images, page, run_paths
from experiments.report.contents import contents
from experiments.report.writer import Report
from fedjax_het.errors import InputError
from tests.experiments.report import written


@pytest.fixture
def run(tmp_path):
    folder = written.looks(written.run(tmp_path / "run", "harmofl"))
    written.picture(folder)
    return folder


def test_the_page_shows_the_pictures_of_the_last_look(run, tmp_path):
    told = contents(*run_paths.runs([run]))
    section = next(each for each in told.sections if each.name == "pictures")
    assert [each.name for each in section.pictures] == ["contours_0", "normalisation_0"]
    assert all("Round 6, seed 0." in each.caption for each in section.pictures)
    assert all(each.files["png"].startswith(b"\x89PNG") and b"<svg" in each.files["svg"] for each in told.pictures)
    report = Report(tmp_path / "report.html")
    report.write(told)
    text = report.out.read_text()
    for picture in told.pictures:
        assert base64.b64encode(picture.files["png"]).decode() in text
        for ending, content in picture.files.items():
            assert (report.folder / f"{picture.name}.{ending}").read_bytes() == content
            assert f'href="report_files/{picture.name}.{ending}"' in text


def test_a_row_is_a_client_and_images_that_are_missing_stay_empty(run, monkeypatch):
    shown = []
    monkeypatch.setattr(images.images, "show_image", lambda axis, image, ends=None: shown.append((axis, ends)))
    row = contents(*run_paths.runs([run])).rows[0]
    shown.clear()
    images.taken([row])
    assert len(shown) == 5 + 2 * 5  # contours, then images and what is made of them
    assert {axis.get_ylabel() for axis, _ in shown} - {""} == {"a", "b", "c"}
    assert len({ends for _, ends in shown[5:]}) == 1


def test_runs_without_pictures_have_no_such_section(tmp_path):
    told = contents(*run_paths.runs([written.looks(written.run(tmp_path / "run"))]))
    assert not told.pictures and "pictures" not in {section.name for section in told.sections}
    assert "picture-" not in page.html(told, "files", is_watched=False)


def test_a_file_that_cannot_be_read_is_named(run):
    (run / "looks/round.npz").write_bytes(b"PK torn")
    with pytest.raises(InputError, match=r"looks/round\.npz: cannot be read"):
        contents(*run_paths.runs([run]))
    (run / "looks/round.npz").unlink()
    with pytest.raises(InputError, match=r"looks/round\.npz: cannot be read"):
        contents(*run_paths.runs([run]))
