"""Regenerate the committed pages of studies from their JSON, without training or evaluation."""

import json
from pathlib import Path

from atat_zoo.experiment.runs import write_text
from atat_zoo.studies import markdown

FOLDER = Path(__file__).parents[1] / "docs" / "studies"


def main() -> None:
    """Write a page for the JSON file of every study."""
    for path in sorted(FOLDER.glob("*.json")):
        write_text(path.with_suffix(".md"), markdown.page(json.loads(path.read_text(encoding="utf-8"))))
        print(path)
