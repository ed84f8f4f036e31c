"""The rating form as one offline HTML file that does not reveal which run generated a text."""

from atat_zoo.reports.offline_page import alone, asset, fill, inert, policy
from atat_zoo_human_eval.rating_form import RatingForm

_HERE = "atat_zoo_human_eval"


def page(form: RatingForm) -> str:
    """Return the form as an HTML page, which keeps ratings in the rater's browser until they are saved as a file."""
    script = alone(asset("page.js", _HERE))
    parts = {
        "policy": policy(script),
        "style": asset("page.css") + asset("page.css", _HERE),
        "given": inert(form.blinded()),
        "script": script,
    }
    return fill(asset("page.html", _HERE), parts)
