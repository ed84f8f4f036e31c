"""Each kind of error has its status."""

import pytest
from atat_zoo_serve.batching import StoppedError
from atat_zoo_serve.refusals import RefusedError, refusal
from atat_zoo_serve.service import TooLargeError
from starlette.exceptions import HTTPException

from atat_zoo.errors import UserError


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RefusedError(418, "tea"), 418, "tea"),
        (HTTPException(404), 404, ""),
        (UserError("a is no b; write c"), 400, "a is no b; write c"),
        (TooLargeError("too much; ask for less"), 413, "too much; ask for less"),
        (StoppedError(), 503, "the server has been stopped"),
        (MemoryError(), 413, "this takes more memory than there is"),
        (KeyError("a"), 500, "this is a mistake of the server"),
    ],
)
def test_an_error_has_its_status_and_a_sentence(error, status, said):
    found = refusal(error)
    assert (found.status, found.sentence.startswith(said)) == (status, True)
