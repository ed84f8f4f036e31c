"""Small parameters for the conformance tests."""

EXAMPLES = {
    ("task", "line_infilling"): lambda _: {"corpus": "python_library", "lines": 9, "max_tokens": 14},
    ("task", "token_classes"): lambda _: {"corpus": "python_library", "sequences": 12},
}
