"""The documentation: the site's navigation has every page, and every link leads somewhere."""

import re
from pathlib import Path

import click
import pytest
import yaml

import rt
import rt.spark
from rt.cli.program import rt as program
from tests.layout import PACKAGES, ROOT, python_files
from tools.command_reference import commands, program_context
from tools.site import PYTHON, pages, with_decisions

DOCS = ROOT / "docs"
MADE = pages()
SITE = {path.relative_to(DOCS).as_posix(): path.read_text() for path in DOCS.rglob("*.md")} | MADE
WRITTEN = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    if path.is_file()
)
CODE_BLOCK = re.compile(r"^(```+).*?^\1$|^(?: {4}.*\n)+", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"\bdocs/[\w/.-]+\.md(?:#[\w-]+)?")


def links(text):
    """The targets of a page's links, other sites' left out."""
    found = LINK.findall(CODE_BLOCK.sub("", text))
    return [each for each in found if not re.match(r"[a-z]+:", each)]


def anchors(text):
    """The anchors of a page's headings, where a forge and the site agree on them."""
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"(?ms)^```.*?^```$", "", text), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", each).strip().lower() for each in headings]
    return {re.sub(r"\s", "-", each) for each in plain} & {
        re.sub(r"[-\s]+", "-", each) for each in plain
    }


@pytest.mark.parametrize("path", WRITTEN)
def test_a_picture_fits_a_window_of_1280_pixels(path):
    """The site's column has 656 pixels there, 8.16 for a character; the rest needs scrolling."""
    lines = (ROOT / path).read_text().splitlines()
    drawn = [each for each in lines if each.startswith("    ") and re.search("[│─]", each)]
    assert [each for each in drawn if len(each) - 4 > 80] == []


def entries(nav):
    """The pages of a navigation, of its sections as well."""
    for each in nav:
        for target in each.values() if isinstance(each, dict) else [each]:
            yield from entries(target) if isinstance(target, list) else [target]


def test_the_navigation_names_every_page_once_and_none_that_is_not_there():
    """A page that is in no menu is not read."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    named = list(entries(with_decisions(nav)))
    assert len(named) == len(set(named))
    assert set(named) == {path for path in SITE if path.endswith(".md")}


@pytest.mark.parametrize("path", WRITTEN)
def test_links_of_a_document_lead_to_a_file_and_a_heading(path):
    """As a forge shows it, and without what makes the site."""
    here = ROOT / path
    for link in links(here.read_text()):
        target, _, anchor = link.partition("#")
        file = (here.parent / target).resolve() if target else here
        assert file.exists(), link
        assert not anchor or anchor in anchors(file.read_text()), link


@pytest.mark.parametrize("path", [each for each in MADE if each.endswith(".md")])
def test_links_of_a_page_that_is_made_stay_on_the_site(path):
    """The README is the first page; its links begin elsewhere there."""
    for link in links(MADE[path]):
        target, _, anchor = link.partition("#")
        place = (Path("/site") / path).parent / target
        found = Path(place).resolve().relative_to("/site").as_posix()
        if target and not (DOCS / found).exists():
            assert found in SITE, link
        assert not anchor or anchor in anchors(SITE[found if target else path]), link


def test_documents_that_code_and_deployments_name_have_that_heading():
    """A message that sends its reader to a page that moved is worse than none."""
    places = [ROOT / path for path in python_files(*PACKAGES, "benchmarks", "examples", "tools")]
    places += [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    for place in places:
        for named in NAMED.findall(place.read_text()):
            path, _, anchor = named.partition("#")
            assert (ROOT / path).exists(), (place, named)
            assert not anchor or anchor in anchors((ROOT / path).read_text()), (place, named)


def test_the_reference_has_every_command_and_shows_its_options():
    """It is made from the commands themselves; this is about what is left out."""
    text, context = MADE["reference/commands.md"], program_context()
    for command, inner in commands(program, context):
        assert re.search(rf"^#+ {inner.command_path}$", text, re.MULTILINE)
        options = [] if isinstance(command, click.Group) else command.get_params(inner)
        for option in options:
            record = option.get_help_record(inner)
            assert record is None or not record[1] or f"`{record[0]}`" in text, record


def test_the_reference_has_every_name_that_a_program_may_import():
    """What it leaves out does not exist for its readers."""
    shown = [name.rpartition(".")[2] for names in PYTHON.values() for name in names]
    assert {*rt.__all__} - {"__version__"} <= {*shown}
    assert {*rt.spark.__all__} <= {*shown}
    listed = {name for names in PYTHON.values() for name in names}
    assert {
        f"{getattr(rt, each).__module__}.{each}" for each in {*rt.__all__} - {"__version__"}
    } <= listed


def test_the_site_asks_nothing_of_other_sites():
    """It is read where there is no internet, and by people who do not want to be counted."""
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert settings["theme"]["font"] is False
    assert settings["strict"] is True
    assert "extra_javascript" not in settings
    assert "analytics" not in settings["extra"]
