"""The page in a real browser: headless Chromium, if available."""

import shutil

import pytest

from fedjax_het.cli.report import page
from fedjax_het.cli.report.contents import make_contents
from fedjax_het.cli.runs.results import read_runs
from tests.cli.report import sample_runs

pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not on the PATH"),
]
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
POINTS = """
const graphs = document.querySelector(`#figure-${arguments[0]}`).querySelectorAll(".js-plotly-plot");
return [...graphs].map((graph) => graph.data.filter((trace) => trace.meta.part !== "band").map(
  (trace) => [trace.name ?? "", (trace.z ?? [trace.x]).flat().length]));
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    sample_runs.write_snapshots(sample_runs.write_run(folder / "runs" / "1", finals=(0.5, 0.7)))
    sample_runs.write_run(folder / "runs" / "2", "fedld", finals=(0.8, 0.9))
    sample_runs.write_run(
        folder / "runs" / "3", "a_rather_long_name_of_an_algorithm", finals=(0.1, 0.11), is_finished=False
    )
    text = page.render_page(make_contents(*read_runs([folder / "runs"])), "report_files", is_watched=False)
    (folder / "report.html").write_text(text)
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def opened(browser, address):
    """The page, opened once; tests do not affect each other."""
    resize(browser, 1200)
    browser.get(address)
    browser.execute_script("report.drawAll()")
    return browser


def resize(browser, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def test_the_page_opens_without_errors_or_requests(opened):
    assert opened.get_log("browser") == []
    requests = "return performance.getEntriesByType('resource').map((each) => each.name)"
    assert [address for address in opened.execute_script(requests) if not address.startswith(("data:", "blob:"))] == []


def test_tables_sort_on_a_click(opened):
    def column(index):
        return [
            row.find_elements("css selector", "th, td")[index].text
            for row in table.find_elements("css selector", "tbody tr")
        ]

    table = opened.find_element("css selector", "#table-results table")
    assert column(0) == ["FedAvg", "FedLD", "a_rather_long_name_of_an_algorithm"]
    head = table.find_elements("css selector", "thead button")[1]
    head.click()
    assert column(1) == ["85.0 ± 5.0 (2 seeds)", "60.0 ± 10.0 (2 seeds)", "10.5 ± 0.5 (2 seeds)"]
    head.click()
    assert column(1) == ["10.5 ± 0.5 (2 seeds)", "60.0 ± 10.0 (2 seeds)", "85.0 ± 5.0 (2 seeds)"]
    assert head.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    table.find_elements("css selector", "thead button")[0].click()
    assert column(0) == ["a_rather_long_name_of_an_algorithm", "FedAvg", "FedLD"]


def test_figures_have_as_many_points_as_the_data(opened):
    three = [["FedAvg", 2], ["FedLD", 2], ["a_rather_long_name_of_an_algorithm", 2]]
    assert opened.execute_script(POINTS, "curves") == [three] * 4
    assert opened.execute_script(POINTS, "clients") == [[["FedAvg", 3], ["FedLD", 3]]]
    assert opened.execute_script(POINTS, "partition") == [[["", 6]]]
    assert opened.execute_script(POINTS, "conflict_cosines") == [[["", 4]]]
    assert opened.execute_script(POINTS, "landscape") == [[["", 9]]]


def test_curves_zoom_to_the_data_and_are_smoothed(opened):
    figure = opened.find_element("id", "figure-curves")
    first = "const graph = arguments[0].querySelector('.js-plotly-plot'); "
    ends = first + "return graph.layout.yaxis.range"
    curve = first + "return graph.data.find((trace) => trace.meta.part === 'line').y"
    whole, (start, end) = opened.execute_script(ends, figure), opened.execute_script(curve, figure)
    zoom = figure.find_element("css selector", ".zoom")
    opened.execute_script("arguments[0].click()", zoom)
    zoomed = opened.execute_script(ends, figure)
    assert zoomed[0] > whole[0] and zoomed[1] - zoomed[0] < whole[1] - whole[0]
    opened.execute_script("arguments[0].click()", zoom)
    assert opened.execute_script(ends, figure) == whole
    slide = "const slider = arguments[0].querySelector('input'); slider.value = arguments[1]; "
    slide += "slider.dispatchEvent(new Event('input'))"
    opened.execute_script(slide, figure, 0.5)
    assert opened.execute_script(curve, figure) == pytest.approx([start, (0.5 * start + end) / 1.5])
    opened.execute_script(slide, figure, 0)
    assert opened.execute_script(curve, figure) == [start, end]


def test_selecting_another_view_redraws_and_relinks_the_figure(opened):
    figure = opened.find_element("id", "figure-clients")
    opened.execute_script("arguments[0].click()", figure.find_elements("css selector", ".views button")[1])
    assert figure.find_elements("css selector", "[data-ending=png]")[0].get_dom_attribute("href").endswith("sorted.png")
    x = "return arguments[0].querySelector('.js-plotly-plot').data[0].x"
    assert opened.execute_script(x, figure) == pytest.approx([1 / 6, 1 / 2, 5 / 6])


def test_hiding_a_row_hides_it_in_every_figure(opened):
    opened.find_elements("css selector", ".legend button")[1].click()
    shown = """return [...document.querySelectorAll(".js-plotly-plot")].flatMap((graph) => graph.data)
      .filter((trace) => trace.meta.row && trace.visible).map((trace) => trace.meta.row)"""
    assert set(opened.execute_script(shown)) == {"FedAvg", "a_rather_long_name_of_an_algorithm"}


@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_does_not_scroll_sideways(opened, width):
    resize(opened, width)
    opened.execute_script(
        "report.drawAll(); document.querySelectorAll('details').forEach((each) => { each.open = true; })"
    )
    needed, available = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert needed <= available == width


def test_the_theme_switch_turns_the_page_dark_and_persists(opened):
    def colors():
        opened.execute_script("document.querySelector('#figure-curves').scrollIntoView()")
        WebDriverWait(opened, 10).until(lambda _: opened.find_elements("css selector", ".js-plotly-plot"))
        drawn = "return document.querySelector('.js-plotly-plot').data.at(-1).line.color"
        page = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
        return page, opened.execute_script("return report.isDark()"), opened.execute_script(drawn)

    switch = opened.find_element("id", "theme")
    switch.click()
    light = colors()
    switch.click()
    dark = colors()
    assert (light[1], dark[1]) == (False, True) and light[0] == "rgb(255, 255, 255)" and light[0] != dark[0]
    assert light[2] != dark[2]
    opened.refresh()
    assert colors() == dark


def test_the_page_follows_the_color_scheme_of_the_system(opened):
    opened.execute_script("localStorage.clear()")
    opened.refresh()
    for scheme in ("dark", "light"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        colors = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (colors != "rgb(255, 255, 255)") is (scheme == "dark")


def test_interaction_causes_no_browser_errors(opened):
    assert opened.get_log("browser") == []
