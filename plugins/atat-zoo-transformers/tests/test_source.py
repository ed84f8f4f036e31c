"""What is read of a model's settings, and that the library is quiet only while it is read."""

from __future__ import annotations

import logging

import pytest
import transformers
from atat_zoo_transformers.model_description import Unreadable, ends_of, longest_of, pinned, reading

from atat_zoo.system.errors import UserError

LIBRARY, HUB = transformers.utils.logging, logging.getLogger("huggingface_hub")


@pytest.mark.parametrize("error", [None, UserError("a sentence"), MemoryError(), OSError("first\nsecond"), KeyError()])
def test_the_library_is_quiet_while_a_model_is_read_and_no_longer(error):
    before = LIBRARY.get_verbosity()
    LIBRARY.set_verbosity_info()
    raised = None
    try:
        with reading("a model"):
            assert LIBRARY.get_verbosity() == logging.ERROR == HUB.level
            if error:
                raise error
    except (UserError, MemoryError) as found:
        raised = found
    assert LIBRARY.get_verbosity() == logging.INFO
    LIBRARY.set_verbosity(before)
    if isinstance(error, OSError | KeyError):
        said = "first" if isinstance(error, OSError) else "KeyError"
        assert isinstance(raised, Unreadable)
        assert f"model = 'a model' cannot be loaded ({said}); use a model" in str(raised)
    else:
        assert raised is error


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"n_positions": 65, "max_position_embeddings": 64, "max_sequence_length": 66}, 64),
        ({"max_position_embeddings": 0, "n_positions": "70", "max_sequence_length": 1}, 1),
        ({}, None),
    ],
)
def test_how_long_a_text_may_be_is_what_the_settings_say_first(config, longest):
    assert longest_of(config) == longest


@pytest.mark.parametrize(
    ("config", "ends"),
    [
        ({"model_type": "llama", "bos_token_id": 5, "eos_token_id": [7, 9]}, {5, 7, 9}),
        ({"model_type": "llama"}, {1, 2}),  # as the library has them
        ({"model_type": "bert", "eos_token_id": 0}, {0}),
        ({"model_type": "of its author", "bos_token_id": 4}, {4}),
        ({"model_type": "of its author", "bos_token_id": None}, set()),
    ],
)
def test_ends_are_those_of_the_settings_or_of_the_architecture(config, ends):
    assert ends_of(config) == ends


def test_the_hash_of_a_folder_is_of_its_code_and_of_where_this_stands(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "config.json").write_text("{}")
    first = pinned(str(tmp_path), None)
    assert len(first) == 64
    assert pinned(str(tmp_path), first) == first
    (tmp_path / "config.json").write_text("{ }")
    assert pinned(str(tmp_path), None) == first
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    second = pinned(str(tmp_path), None)
    (tmp_path / "b.py").rename(tmp_path / "inner" / "b.py")
    third = pinned(str(tmp_path), None)
    (tmp_path / "inner" / "b.py").write_text("2")
    fourth = pinned(str(tmp_path), None)
    assert len({first, second, third, fourth}) == 4
    with pytest.raises(Unreadable, match=r"does not match the code .* which has changed; review the code, and leave"):
        pinned(str(tmp_path), first)
