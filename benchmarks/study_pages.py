"""Write the committed pages of studies again from their JSON, without training or measuring."""

import json
from pathlib import Path

from atat_zoo.experiment.runs import write_json, write_text
from atat_zoo.studies import markdown
from atat_zoo.studies.differences import completed

FOLDER = Path(__file__).parents[1] / "docs" / "studies"


def main() -> None:
    """Complete every JSON file of a study, and write its page."""
    for path in sorted(FOLDER.glob("*.json")):
        report = completed(json.loads(path.read_text(encoding="utf-8")))
        write_json(path, report)
        write_text(path.with_suffix(".md"), markdown.page(report))
        print(path)
