"""The report as a user has it: in Chromium, by mouse and by keys, wide and narrow."""

import json
from importlib import resources

import compared_job
import pytest


def tool(page, name):
    return page.locator("#tools").get_by_label(name, exact=True)


def tiles(page):
    return page.locator("#grid .tile:visible")


def test_the_grid_has_every_image_in_its_row_and_column(visit, report, compared):
    page = visit(report)
    assert tiles(page).count() == 11
    heads = page.locator("#grid .top [role=columnheader]").all_inner_texts()
    assert heads[1:] == ["euler 8", "euler 8 quick", "euler 8 thrifty", "euler 2", "euler 5", "euler 7"]
    rows = page.locator("#grid .body")
    assert rows.count() == 3
    for row in range(2):
        cells = rows.nth(row).locator("[role=cell]")
        assert [cells.nth(place).locator(".tile").count() for place in range(6)] == [1, 1, 1, 0, 1, 1]
    loaded = page.locator("#grid img").evaluate_all(
        "images => Promise.all(images.map(image => image.decode().then(() => image.naturalWidth)))"
    )
    assert loaded == [128] * 11


def test_filters_search_and_axes_change_what_is_shown(visit, report):
    page = visit(report)
    tool(page, "columns").select_option("policy")
    assert page.locator("#grid .top [role=columnheader]").all_inner_texts()[1:] == ["full", "quick", "thrifty"]
    tool(page, "steps").select_option(label="8")
    assert tiles(page).count() == 6
    tool(page, "search").fill("red house")
    assert tiles(page).count() == 3
    assert "3 of 11" in page.locator("#number").inner_text()
    tool(page, "search").fill("no such words")
    assert page.get_by_text("No picture fits the filters.").is_visible()
    tool(page, "search").fill("")
    tool(page, "rows").select_option("")
    tool(page, "columns").select_option("")
    assert tiles(page).count() == 6


def test_a_click_opens_the_picture_and_its_manifest(visit, report, compared):
    page = visit(report)
    manifests = compared.manifests("compared")
    for place in (0, 6):  # of both prompts, one of them hostile
        tile = tiles(page).nth(place)
        manifest = manifests[tile.get_attribute("data-stem")]
        tile.click()
        dialog = page.get_by_role("dialog")
        assert dialog.get_by_text(manifest["request_id"]).is_visible()
        dialog.locator("summary", has_text="Manifest").click()
        assert json.loads(dialog.locator("pre").text_content()) == manifest
        assert dialog.locator(".stage img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 128
        page.keyboard.press("Escape")
        assert not dialog.is_visible()


def test_a_forecast_is_seen_beside_its_twin(visit, report, compared):
    page = visit(report)
    tile = page.locator("#grid .tile[data-stem*=quick]").first
    stem = tile.get_attribute("data-stem")
    tile.click()
    dialog = page.get_by_role("dialog")
    (found,) = [image for image in compared.json("compare", "outputs/compared")["images"] if image["image"] == stem]
    assert dialog.get_by_text(f"at step {found['twin']['first_different_step']}", exact=True).is_visible()
    own = dialog.locator(".stage img").get_attribute("src")
    page.keyboard.press("r")
    twin = dialog.locator(".stage img").get_attribute("src")
    assert twin != own
    assert (report.parent / twin).is_file()
    assert dialog.locator(".stage img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 128
    dialog.get_by_role("button", name="euler 8", exact=True).click()
    assert dialog.locator("h2").inner_text() == twin.removesuffix(".png")


def test_links_lead_to_the_files(visit, report):
    page = visit(report)
    tiles(page).first.click()
    for name in ("manifest", "picture"):
        href = page.get_by_role("dialog").get_by_role("link", name=name, exact=True).get_attribute("href")
        assert (report.parent / href).is_file()


def test_everything_can_be_done_by_keys(visit, report):
    page = visit(report)
    page.keyboard.press("/")
    page.keyboard.type("house")
    assert tiles(page).count() == 5
    page.keyboard.press("Escape")
    stems = [tiles(page).nth(place).get_attribute("data-stem") for place in range(5)]
    focused = "document.activeElement.dataset.stem"
    assert page.evaluate(focused) == stems[0]
    page.keyboard.press("ArrowRight")
    assert page.evaluate(focused) == stems[1]
    page.keyboard.press("End")
    assert page.evaluate(focused) == stems[4]
    page.keyboard.press("Enter")
    title = page.locator("#picture-title")
    assert title.inner_text() == stems[4]
    page.keyboard.press("ArrowLeft")
    assert title.inner_text() == stems[3]
    page.keyboard.press("Escape")
    page.wait_for_function(f"{focused} === '{stems[3]}'")  # a dialog tells of its end later than it ends


def test_up_and_down_stay_in_the_column(visit, report):
    page = visit(report)
    quick = page.locator("#grid .tile[data-stem*=quick]")
    stems = [quick.nth(place).get_attribute("data-stem") for place in range(2)]
    quick.first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.stem") == stems[1]
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.dataset.stem") == stems[0]


def test_one_tab_stop_leads_into_the_grid(visit, report):
    page = visit(report)
    assert page.locator("#grid .tile[tabindex='0']").count() == 1


def test_tabs_work_by_keys_and_by_address(visit, report):
    page = visit(report, "#time")
    assert page.get_by_role("heading", name="Where time went").is_visible()
    page.locator("#tab-time").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#checks").is_visible()
    assert page.evaluate("document.activeElement.id") == "tab-checks"


def test_the_comparison_says_what_compare_says(visit, report, compared):
    page = visit(report, "#comparison")
    found = compared.json("compare", "jobs/compared.toml")
    cells = page.locator("#comparison tbody tr", has_text="euler 8 quick").first.inner_text()
    (row,) = [row for row in found["settings"] if row["setting"] == "euler 8 quick"]
    assert f"{row['psnr_db']:.1f}" in cells
    assert f"{row['ssim']:.4f}" in cells
    rows = page.locator("#compared tbody tr:visible")
    assert rows.count() == sum(bool(image["twin"]) for image in found["images"])
    page.get_by_label("flagged only").check()
    assert rows.count() == found["flagged"]
    page.locator("#compared [data-stem]:visible").first.click()
    assert page.get_by_role("dialog").is_visible()


def test_a_hostile_prompt_stays_text(visit, report):
    page = visit(report)
    assert page.evaluate("document.querySelectorAll('script').length") == 2
    assert page.locator("#grid small", has_text="alert(1)").inner_text() == compared_job.HOSTILE
    tool(page, "search").fill("</script>")
    assert tiles(page).count() == 5


def test_colours_follow_the_system_until_they_are_chosen(visit, report):
    back = "getComputedStyle(document.body).backgroundColor"
    page = visit(report, color_scheme="dark")
    dark = page.evaluate(back)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(back)
    assert dark != light
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate(back) == dark
    page.reload()
    assert page.evaluate(back) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_serious_fault(visit, report, scheme, width):
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page = visit(report, viewport={"width": width, "height": 800}, color_scheme=scheme)

    def faults():
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            (entry["id"], [node["html"] for node in entry["nodes"][:3]])
            for entry in found["violations"]
            if entry["impact"] in ("serious", "critical")
        ]

    assert faults() == []
    for name in ("comparison", "time", "checks", "environment"):
        page.locator(f"#tab-{name}").click()
        assert faults() == []
    page.locator("#tab-pictures").click()
    page.locator("#grid .tile[data-stem*=quick]").first.click()
    assert faults() == []


def test_a_phone_never_scrolls_the_page_sideways(visit, report):
    page = visit(report, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    for name in ("pictures", "comparison", "time", "checks", "environment"):
        page.locator(f"#tab-{name}").tap()
        assert page.evaluate(sideways) == 0
    page.locator("#tab-pictures").tap()
    tiles(page).first.tap()
    dialog = page.get_by_role("dialog")
    assert dialog.evaluate("dialog => dialog.scrollWidth - dialog.clientWidth") == 0
    dialog.get_by_role("button", name="Close").tap()
    assert not dialog.is_visible()
