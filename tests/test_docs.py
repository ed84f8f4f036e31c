"""README and site: every command does what it says, every part is named, links lead somewhere, and the site builds."""

import inspect
import re
import shutil
from importlib import import_module
from importlib.util import find_spec

import pytest

from atat_zoo.cli import COMMANDS
from atat_zoo.cli.packages import PACKAGES
from atat_zoo.experiment import from_table
from atat_zoo.experiment.schema import SECTIONS, TOP_LEVEL
from atat_zoo.registry import KINDS, TABLES, Zoo
from atat_zoo.registry.spec import fields_of
from atat_zoo.studies import study_schema
from atat_zoo.system.errors import UserError
from tests import bad_input, forked, pages
from tests.pages import ROOT

DOCS = ROOT / "docs"
SHELVES = ("", "tutorials", "how-to", "explanation", "results")
READMES = sorted(ROOT.glob("plugins/atat-zoo-*/README.md"))
PAGES = [*sorted(page for shelf in SHELVES for page in (DOCS / shelf).glob("*.md")), bad_input.PAGE]
# Those with something to carry out; tests/test_bad_input.py holds the one of bad input, and packages those of theirs.
WORKING = [
    page
    for page in PAGES
    if page.stem not in ("error-messages", "exporting")
    and any(b.language in ("console", "toml", "python") for b in pages.blocks(page))
]

# How many figures the page of a kind has.
CURVES = {
    "noise": 1,
    "mask_rates": 1,
    "masking": 5,
    "position_bias": 1,
    "curriculum": 1,
    "uncertainty": 1,
    "schedule": 1,
}


# Without the tree of all pages beside each, which takes a third of the time.
SPHINX = """
import sys
import furo
from sphinx.cmd.build import main
furo._compute_navigation_tree = lambda context: ""
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    made = tmp_path_factory.mktemp("prepared")
    pages.prepare(made)
    return made


@pytest.fixture(scope="module")
def folder(prepared, tmp_path_factory):
    return shutil.copytree(prepared, tmp_path_factory.mktemp("pages"), dirs_exist_ok=True)


def test_every_path_in_the_tree_of_contributing_leads_somewhere():
    """A file or folder is in the room whose lines name it, and every room of the package is there."""
    tree = next(block.text for block in pages.blocks(ROOT / "CONTRIBUTING.md") if block.language == "text")
    room, top, rooms, lost = ROOT, [], [], []
    for line in tree.splitlines():
        if found := re.match(r"( {0,2})(\S+)", line):
            place, name = (ROOT / "atat_zoo" if found[1] else ROOT), found[2].rstrip("/")
            room = place / name
            (rooms if found[1] else top).append(name)
        named = re.findall(r"(?<![\w./-])[\w./-]*\w(?:\.(?:py|toml|md|json)\b|/(?!\w))|atat-zoo-[\w-]*\w", line)
        near = [path for path in (ROOT, room.parent, room, *room.rglob("*")) if path.is_dir()]
        lost += [(room.name, name) for name in named if not any((at / name).exists() for at in near)]
    assert lost == []
    assert {"atat_zoo", "plugins", "registry.toml", "experiments", "tests", "docs", "benchmarks"} <= {*top}
    package = {
        path.name for path in (ROOT / "atat_zoo").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert {*rooms} == package - {"__init__.py", "__main__.py", "train.py"}


def test_what_contributing_names_besides_leads_somewhere():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)", text)) <= targets
    assert all((ROOT / path).exists() for path in re.findall(r"`((?:atat_zoo|tests|plugins|docs)/[\w./-]+)`", text))
    assert all(find_spec(module) for module in re.findall(r"`(atat_zoo(?:\.\w+)+)`", text))
    assert all((ROOT / "benchmarks" / f"{name}.py").exists() for name in re.findall(r"-m benchmarks (\w+)", text))


@pytest.mark.slow
def test_every_command_and_block_of_the_readme_runs(prepared, tmp_path):
    pages.carry_out(ROOT / "README.md", shutil.copytree(prepared, tmp_path, dirs_exist_ok=True))


@pytest.mark.slow
@pytest.mark.parametrize("page", WORKING, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_do_what_they_say(page, folder):
    pages.carry_out(page, folder)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *READMES, *PAGES], ids=str)
def test_links_to_files_lead_somewhere(page):
    """On GitHub, too, where a page that is written when the site is built is not."""
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
        assert "components/" not in target, f"{target} is not a file of the repository"


def test_the_page_of_study_files_has_every_key():
    text = (DOCS / "how-to" / "studies.md").read_text(encoding="utf-8")
    for spec in (study_schema.PlainSpec, study_schema.ArmSpec, *study_schema.TABLES.values()):
        assert not [field.name for field in fields_of(spec) if f"`{field.name}`" not in text], spec
    assert all(f"`[{table}]`" in text for table in study_schema.TABLES)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_a_plugin_is_installed_from_the_checkout(readme):
    asked = re.findall(r"pip install (?:-e )?\S+", readme.read_text(encoding="utf-8"))
    assert f"pip install -e plugins/{readme.parent.name}" in asked
    assert all("-e " in words for words in asked if "atat-zoo-" in words)


def test_the_messages_of_troubleshooting_are_messages():
    """Each is printed for bad input, or is said in the package."""
    said = "\n".join(case["prints"] for case in bad_input.CASES.values())
    said += "".join(path.read_text(encoding="utf-8") for path in (ROOT / "atat_zoo").rglob("*.py"))
    messages = re.findall(
        r"^\| `([^`]+)` \|", (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(messages) > 10
    for message in messages:
        assert all(piece in said for piece in message.split(" … ")), message


@pytest.mark.slow
def test_every_part_is_on_the_page_of_its_kind(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setenv("ATAT_ZOO_PLUGINS", "")
    kinds = import_module("kinds")
    kinds.write(tmp_path)
    zoo = Zoo.load()
    for kind in KINDS:
        page = (tmp_path / f"{kind}.md").read_text(encoding="utf-8")
        for name in zoo.names(kind):
            entry = zoo.describe(kind, name)
            section = page.split(f"\n## `{name}`\n")[1].split("\n## ")[0]
            assert all(f"\n| `{parameter}` |" in section for parameter in entry.parameters), f"{kind} {name}"
            shown = [f"[{ref}](" in section or f"<{ref}>" in section for ref in entry.refs if ref != "ATAT"]
            assert all(shown), f"{kind} {name}"
        assert kinds.contracts(KINDS[kind].module), f"{kind} has a contract"
        figures = re.findall(r"^<figure.*</figure>$", page, re.MULTILINE)
        assert len(figures) == CURVES.get(kind, 0)
        assert all(figure.count("<path") > 10 and "NaN" not in figure for figure in figures)


@pytest.fixture
def reference(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    monkeypatch.setenv("ATAT_ZOO_PLUGINS", "")
    return import_module("reference")


@pytest.mark.slow
def test_every_key_of_an_experiment_is_on_one_page_with_its_type_default_and_meaning(reference):
    page = reference.keys()
    rows = [row.split(" | ") for row in re.findall(r"^\| (\[?`.*) \|$", page.replace(r" \| ", "/"), re.MULTILINE)]
    assert all(len(row) == 4 and all(cell.strip() for cell in row) for row in rows)
    named = [re.sub(r"\[?`(\[?\w+\]?)`.*", r"\1", row[0]) for row in rows]
    sections = [field.name for spec in SECTIONS.values() for field in fields_of(spec)]
    assert named == [*TOP_LEVEL, *sections, *(f"[{kind}]" for kind in TABLES)]
    assert all(f"| `{TABLES[kind]}` | {KINDS[kind].summary} |" in page for kind in TABLES)
    with pytest.raises(UserError) as raised:
        from_table({"name": "x", "sede": 1})
    assert f"(available: {', '.join([*TOP_LEVEL, *TABLES, *SECTIONS])})" in str(raised.value)


@pytest.mark.slow
def test_every_command_and_option_is_on_the_page_of_commands(reference):
    page = reference.commands()
    sections = dict(re.findall(r"^##+ `atat (.+)`\n((?:(?!##).*\n)*)", page, re.MULTILINE))

    def held(name, command):
        section = sections[name]
        flags = {flag for param in command.params for flag in param.opts if flag[:2] == "--" and not param.hidden}
        assert flags <= set(re.findall(r"--[\w-]+", section)), name
        assert inspect.cleandoc(command.help).partition("\n")[0] in section
        for inner, its in getattr(command, "commands", {}).items():
            if inner not in KINDS or inner == "masking":  # all kinds have the same options
                held(f"{name} {'KIND' if inner in KINDS else inner}", its)

    for name, (module, function, _) in COMMANDS.items():
        held(name, getattr(import_module(f"atat_zoo.cli.{module}"), function))
    assert set(PACKAGES) <= {*sections}, "the packages' commands too"
    assert "--push" in sections["export"] or not find_spec("safetensors")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    for name in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(name, reason="pip install -c constraints.txt -e '.[docs]'")
    site = tmp_path / "site"
    words = ["-W", "--keep-going", "-q", "-d", str(tmp_path / "doctrees"), str(DOCS), str(site)]
    done = forked.run(words, ROOT, code=SPHINX)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert {page.stem for page in site.rglob("*.html")} >= {page.stem for page in PAGES}
    packages = (ROOT / "plugins").glob("atat-zoo-*/*.md")
    assert all((site / "plugins" / path.parent.name / f"{path.stem}.html").exists() for path in packages)
    from sphinx.util.inventory import InventoryFile

    described = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    names = {name for objects in described.values() for name in objects}
    public = (ROOT / "tests" / "registry" / "public.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert {re.split(r"[:(]", line)[0] for line in public} <= names, "the reference has all that is public"
    fetch = re.compile(r"<(?:script|link|img|iframe|source)[^>]*(?:src|href)=.https?:|url\(.?https?:|@import")
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert not fetch.findall(path.read_text(encoding="utf-8")), f"{path.name} asks the network for something"
