"""What the two installations are made of: names and versions, which are within what the package asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FILES = ("constraints.txt", "constraints-current.txt")


def lines(name):
    return (ROOT / name).read_text(encoding="utf-8").splitlines()


def versions(name):
    pins = [line.split("==") for line in lines(name) if not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pins}


@pytest.mark.parametrize("name", FILES)
def test_only_names_and_versions_stand_there_each_name_once(name):
    pins = [line for line in lines(name) if not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[a-z0-9.]+", pin)] == []
    assert len(versions(name)) == len(pins)
    assert [line for line in lines(name) if "://" in line] == []


@pytest.mark.parametrize("name", FILES)
def test_they_are_what_the_package_asks_for(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [Requirement(text) for text in [*project["dependencies"], *project["optional-dependencies"]["test"]]]
    pinned = versions(name)
    others = [need for need in asked if need.name != project["name"]]
    assert [str(need) for need in others if pinned[canonicalize_name(need.name)] not in need.specifier] == []


def test_the_current_torch_is_newer_than_the_one_that_composer_allows():
    allowed, current = map(versions, FILES)
    assert allowed["torch"] < current["torch"]
    assert allowed["mosaicml"] == current["mosaicml"]
