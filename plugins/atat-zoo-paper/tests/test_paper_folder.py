"""The folder of a paper: LaTeX can read it, the author's own text is kept, and the command says what is missing."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from atat_zoo_paper import latex
from atat_zoo_paper.paper_file import load
from atat_zoo_paper.paper_folder import compile_in, compiler, fill, write
from manifests import ARMS, CITED, balanced
from test_paper_figures import FIGURE

from atat_zoo.studies import load as load_study
from atat_zoo.system.errors import UserError
from tests.limited import full_disk
from tests.pages import ROOT


def test_what_is_not_balanced_is_found():
    assert balanced(r"\begin{a}{\{ 5\,\%}$x$\end{a}")
    for text in (r"\begin{a}", r"\begin{a}\end{b}", "{", "}", r"{\}", "$x", r"\begin{a}{\end{a}}"):
        assert not balanced(text), text


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    with contextlib.chdir(ROOT):
        filled = fill(load(Path("atat")))
        write(filled, out)
    return filled, out


def test_latex_can_read_the_paper_that_ships(shipped):
    filled, out = shipped
    main, references = ((out / name).read_text(encoding="utf-8") for name in ("main.tex", "references.bib"))
    inputs = re.findall(r"\\input\{(.+?)\}", main)
    assert len(inputs) == 1 + len(filled.tables) + len(filled.figures)
    texts = {name: (out / f"{name}.tex").read_text(encoding="utf-8") for name in inputs}
    assert [name for name, text in [*texts.items(), ("main", main), ("", references)] if not balanced(text)] == []
    whole = "".join(texts.values())
    labels = re.findall(r"\\label\{(.+?)\}", whole)
    assert sorted(set(labels)) == sorted(labels)
    assert set(re.findall(r"\\ref\{(.+?)\}", whole)) <= set(labels)
    keys = re.findall(r"^@misc\{(.+),$", references, re.MULTILINE)
    assert sorted(set(keys)) == sorted(keys)
    assert {"arXiv-2406.07524", "arXiv-2211.15029"} | set(re.findall(r"\\cite\{(.+?)\}", whole)) <= set(keys)
    for figure in re.findall(r"\\includegraphics\{(.+?)\}", whole):
        assert (out / figure).read_bytes().startswith(b"%PDF")
        assert "<svg" in (out / figure).with_suffix(".svg").read_text(encoding="utf-8")
    packages = ["fontenc", "lmodern", "textcomp", "geometry", "adjustbox", "booktabs", "graphicx", "hyperref"]
    assert [line for line in packages if not re.search(rf"\\usepackage.*\{{{line}\}}", main)] == []


@pytest.mark.skipif(not (shutil.which("tectonic") or shutil.which("latexmk")), reason="no LaTeX is installed")
def test_the_paper_that_ships_compiles(shipped, tmp_path):
    shutil.copytree(shipped[1], tmp_path / "it")
    assert compile_in(tmp_path / "it", compiler()) == ""
    assert (tmp_path / "it" / "main.pdf").is_file()


def test_what_is_committed_is_not_missing_and_the_rest_says_how_it_is_measured(shipped):
    filled, out = shipped
    by_table = {what.partition(":")[0]: command for command, found in filled.missing().items() for what in found}
    committed = "main ablation parts parts-no-prior sampling screen samplers budgets gaps steps arms sensitivity"
    assert not by_table.keys() & {*committed.split(), "promises", "control", "infilling"}
    assert by_table.keys() >= {"lm1b", "zero-shot", "glue", "dna", "efficiency"}
    assert by_table["lm1b"].endswith("--split validation")  # its corpus has no test split
    page = (out / "missing.md").read_text(encoding="utf-8")
    assert all(f"`{command}`" in page for command in filled.missing())


def test_special_characters_are_escaped_and_what_the_author_has_written_is_kept(place):
    place.study("sets")
    place.made(ARMS, cited=[CITED], title="A_paper & 100 %")
    assert r"\caption{What 50~\% \& more\_of \#1 costs.}" in place.texts("main")[0]
    assert r"\title{A\_paper \& 100~\%}" in place.text("main.tex")
    bibliography, main = place.out / "references.bib", place.out / "main.tex"
    text = bibliography.read_text(encoding="utf-8")
    assert "ATAT," not in text
    mine = text.replace("title = {{arXiv:2406.07524}}", "title = {Mine}") + "@book{own, title = {Own}}\n"
    bibliography.write_text(mine, encoding="utf-8")
    main.write_text("mine", encoding="utf-8")
    filled = fill(load(place.manifest(ARMS, cited=[CITED, CITED | {"source": "arXiv:1901.02860"}])))
    for _ in range(2):
        write(filled, place.out)
        again = bibliography.read_text(encoding="utf-8")
        assert again.startswith(mine)
        assert (again.count("{arXiv-2406.07524,"), again.count("{arXiv-1901.02860,")) == (1, 1)
    assert main.read_text(encoding="utf-8") == "mine"


def test_references_are_entries_of_their_kinds():
    text = latex.references({"doi:10.1/a": ["one"], "https://x.org/p": ["the part"]})
    assert r"\url{https://doi.org/10.1/a}" in text
    assert "title = {{the part}}" in text
    assert "author" not in text


def test_references_that_are_known_have_authors_titles_and_years(shipped):
    known = tomllib.loads((Path(latex.__file__).parent / "references.toml").read_text(encoding="utf-8"))
    text = latex.references({source: ["a part"] for source in known})
    assert balanced(text)
    assert text.count("author = {") == text.count("year = {") == len(known)
    mdlm = latex.references({"arXiv:2406.07524": ["objective mdlm"]})
    for line in ("author = {Sahoo, Subham Sekhar and", "title = {{Simple and Effective Masked", "year = {2024}"):
        assert line in mdlm
    assert "Plug \\& Play" in latex.references({"arXiv:1612.00005": ["a part"]})
    entries = re.split("^@", (shipped[1] / "references.bib").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if "arXiv-2406.07524" in entry and "author" not in entry] == []


def test_without_the_library_of_charts_there_are_tables_and_what_to_install(atat, place, monkeypatch):
    place.study("sets"), place.study("sets_budgets")
    monkeypatch.setattr("atat_zoo_paper.paper_folder.find_spec", lambda name: None)
    code, out, err = atat("paper", str(place.manifest(ARMS, figures=[FIGURE])), "--out", str(place.out))
    assert (code, err) == (0, "")
    assert "1 table and 0 figures" in out
    assert "pip install 'atat-zoo[report]'" in out
    assert (place.out / "tables" / "main.tex").is_file()
    assert "atat-zoo" in (place.out / "figures" / f"{FIGURE['label']}.tex").read_text()
    assert not (place.out / "figures" / f"{FIGURE['label']}.pdf").exists()


def test_a_study_of_ones_own_is_read_where_it_left_its_results(place):
    report = place.study("sets")
    (place.results / "sets.json").unlink()
    place.results.rmdir()
    file = ROOT / "experiments" / "studies" / "sets.toml"
    mine = place.root / "mine.toml"
    mine.write_text(file.read_text())
    study = load_study(mine)
    with pytest.raises(UserError, match=r"results: the folder .* does not exist; run `atat study` first"):
        fill(load(place.manifest({**ARMS, "study": str(mine)})))
    with contextlib.chdir(place.root):
        study.folder.mkdir(parents=True)
        (study.folder / "study.json").write_text(json.dumps(report))
        filled = fill(load(place.manifest({**ARMS, "study": str(mine)})))
    assert filled.missing() == {}


def test_a_paper_that_finds_no_room_is_as_it_was(place):
    def files():
        return {path: path.read_bytes() for path in place.out.rglob("*") if path.is_file()}

    place.study("sets_budgets")
    place.made(figures=[FIGURE])
    before = files()
    changed = place.manifest(figures=[FIGURE | {"names": {"mdlm": "another"}}])
    for room, what in ((0, ""), (5_000, rf"{place.out}/figures/steps\.(pdf|svg) ")):
        refused = rf"{what}cannot be written: File too large; free some space"
        with full_disk(room), pytest.raises(UserError, match=refused):
            write(fill(load(changed)), place.out)
        assert files() == before
    write(fill(load(changed)), place.out)
    assert files() != before
    assert not list(place.out.rglob("*.part"))


def test_the_command_lists_what_is_missing(atat, place):
    code, out, err = atat("paper", str(place.manifest(ARMS)), "--out", str(place.out))
    assert (code, err) == (0, "")
    assert "1 table and 0 figures" in out
    assert "16 cells missing" in out
    assert re.search(r"^16 cells  atat study sets --jobs 2 --write ", out, re.MULTILINE)


@pytest.mark.parametrize(("code", "said"), [(0, "compiled: "), (1, "cannot compile")])
def test_where_latex_is_installed_it_compiles(atat, place, monkeypatch, code, said):
    programs = place.root / "bin"
    programs.mkdir()
    (programs / "tectonic").write_text(f"#!/bin/sh\necho it says; test -f $1 && exit {code}\n")
    (programs / "tectonic").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    found, out, err = atat("paper", str(place.manifest(ARMS)), "--out", str(place.out))
    assert (found, said in out + err, "it says" in err) == (code, True, bool(code))


def test_a_paper_is_made_without_torch(place):
    place.study("sets")
    path = place.manifest(ARMS)
    code = "import sys; from atat_zoo_paper.paper_folder import *; from atat_zoo_paper.paper_file import load; "
    code += f"write(fill(load(Path({str(path)!r}))), Path({str(place.out)!r})); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
