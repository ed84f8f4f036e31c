"""The checks of all components, as a list for parametrising a test, and the checks that all kinds share."""

import functools
import inspect
import re
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
from hypothesis.errors import Flaky

from atat_zoo.registry import KINDS, Zoo
from atat_zoo.registry.plugins import of_plugin
from atat_zoo.registry.registry_file import Entry
from atat_zoo.registry.spec import fields_of, structure, unstructure
from atat_zoo.system.errors import UserError, clip
from atat_zoo.testing.component_examples import EXAMPLES, Example
from atat_zoo.testing.suites import SUITES

Promises = dict[str, Callable[..., None]]


class _Checks(Mapping[str, Promises]):
    """A mapping from each kind to its checks by name, which imports the module of a kind when the kind is looked up."""

    def __getitem__(self, kind: str) -> Promises:
        if kind not in KINDS:
            raise KeyError(kind)
        module = import_module(f"atat_zoo.testing.{SUITES[kind]}")
        if kind == "sampler":
            return {"invariants": module.check_sampler, "policy": module.check_policy}
        # If a kind has only one promise, `check_KIND` tests it.
        several: Promises | None = getattr(module, "PROMISES", None) if kind in ("objective", "masking") else None
        return several or {"contract": getattr(module, f"check_{kind}")}

    def __iter__(self) -> Iterator[str]:
        return iter(KINDS)

    def __len__(self) -> int:
        return len(KINDS)


CHECKS = _Checks()


@attrs.frozen(kw_only=True, eq=False)
class Case:
    """One check of one component; for example, `str(case)` is `masking-importance-rate`."""

    kind: str
    name: str
    promise: str
    check: Callable[..., None]
    makes: Callable[[Path], Any]

    def __str__(self) -> str:
        return f"{self.kind}-{self.name}-{self.promise}"

    def run(self, examples: int | None = None) -> None:
        """Run the check, on `examples` batches if it draws any; raise AssertionError or, if it cannot run, SkipTest."""
        drawn = "examples" in inspect.signature(self.check).parameters
        settings = {} if examples is None or not drawn else {"examples": examples}
        with tempfile.TemporaryDirectory() as folder:
            self.check(self.makes(Path(folder)), **settings)

    def failure(self) -> str:
        """Run the check; return its error in one sentence with the smallest failing example, or "" if it passes."""
        try:
            with of_plugin():
                self.run()
        except unittest.SkipTest:
            return ""
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin's component may fail in any way
            example = _example(error)
            broken = f"{self.kind} {self.name!r} fails the check {self.promise!r}: {_said(self.kind, error)}"
            return clip(" ".join(f"{broken}{f'; smallest example: {example}' if example else ''}".split()), 1000)
        return ""


def _said(kind: str, error: BaseException) -> str:
    if isinstance(error, Flaky):
        return "the same input must give the same result"
    if isinstance(error, AttributeError) and attrs.has(type(error.obj)):
        return f"{error.name!r} is missing; the contract of a {kind} is in {KINDS[kind].module}"
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


def _example(error: BaseException) -> str:
    """Return the failing arguments that hypothesis added to an error, without its comments."""
    for note in getattr(error, "__notes__", ()):
        if found := re.match(r"(?:Falsifying example|Failing test case): \w+\((.*)\)", note, re.DOTALL):
            return " ".join(re.sub(r"# (?:or any other|The test) .*", "", found[1]).split()).rstrip(",")
    return ""


def cases(zoo: Zoo | None = None, distribution: str | None = None, kind: str | None = None) -> list[Case]:
    """Return the checks of all components.

    A component is tested with its example (see `example_of`) or, if it has none, with its defaults. If it has required
    parameters but no example, only its description and import are tested.

    Args:
        zoo: The components (default: all installed components).
        distribution: Return only checks of components from this distribution, named as in `atat zoo plugins`.
        kind: Return only checks of components of this kind.

    Raises:
        ValueError: If no component matches, so that a test with a wrong name cannot pass.
    """
    zoo = zoo or Zoo.load()
    entries = [zoo.describe(key, name) for key in ([kind] if kind else KINDS) for name in zoo.names(key)]
    promises = [case for entry in entries if distribution in (None, entry.distribution) for case in _of(entry, zoo)]
    if not promises:
        raise ValueError(f"{distribution or 'the zoo'} has no component of {f'kind {kind}' if kind else 'any kind'}")
    return promises


def example_of(entry: Entry) -> Example | None:
    """Return the function that creates a component's test parameters, or None to test it with its defaults.

    The examples of built-in components are in `EXAMPLES`. A plugin defines its own `EXAMPLES` in the module `examples`
    of its package, which is imported only for tests.

    Raises:
        UserError: If this module cannot be imported or has no `EXAMPLES`.
    """
    package = entry.path.partition(":")[0].partition(".")[0]
    if package == "atat_zoo":
        return EXAMPLES.get((entry.kind, entry.name))
    module = f"{package}.examples"
    try:
        with of_plugin():
            return import_module(module).EXAMPLES.get((entry.kind, entry.name))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may fail in any way
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            return None
        raise UserError(f"cannot import EXAMPLES from {module}: {type(error).__name__}: {error}") from error


def is_held_by_description_alone(entry: Entry) -> bool:
    """Return whether a component has required parameters but no example, so that it cannot be built for a test."""
    return any(parameter.get("required") for parameter in entry.parameters.values()) and not example_of(entry)


def _of(entry: Entry, zoo: Zoo) -> list[Case]:
    example = example_of(entry)

    def made(folder: Path) -> Any:
        return zoo.spec(entry.kind, {"use": entry.name, **(example(folder) if example else {})})

    case = functools.partial(Case, kind=entry.kind, name=entry.name)
    described = functools.partial(check_description, entry.kind, zoo=zoo)
    found = [
        case(promise="description", check=described, makes=lambda _: entry.load()),
        case(promise="imports", check=check_imports, makes=lambda _: [entry.path]),
    ]
    if is_held_by_description_alone(entry):
        return found
    checks = CHECKS[entry.kind]
    if entry.kind == "masking":  # this kind has three contracts
        checks = import_module("atat_zoo.testing.masking_checks").promises_of(entry.load())
    return found + [case(promise=promise, check=check, makes=made) for promise, check in checks.items()]


_PROBE = """
import importlib, sys
for path in sys.argv[1:]:
    module, _, name = path.partition(":")
    getattr(importlib.import_module(module), name)
    for heavy in ("torch", "composer", "hypothesis"):
        if heavy in sys.modules:
            sys.exit(f"importing {module} imports {heavy}; import it inside the method that needs it")
"""


def check_description(kind: str, cls: type, zoo: Zoo | None = None) -> None:
    """Check that a component class has the description that every kind requires; `zoo` resolves nested components."""
    zoo = zoo or Zoo.load()
    where = f"{kind} {cls.__module__}.{cls.__qualname__}"
    for word in ("name", "summary"):
        text = cls.__dict__.get(word)
        assert isinstance(text, str), f"{where}: {word} must be a string"
        assert text.strip() == text != "", f"{where}: {word} must be a nonempty string without spaces around it"
        assert "\n" not in text, f"{where}: {word} must be a single line"
    assert isinstance(getattr(cls, "refs", None), tuple), (
        f"{where}: refs must be a tuple of sources, which may be empty"
    )
    assert (cls.__doc__ or "").strip(), f"{where} must have a docstring"
    assert attrs.has(cls), f"{where} is not a component; decorate it with @component"
    assert all(field.kw_only for field in attrs.fields(cls)), f"{where}: parameters must be keyword-only"
    for field in fields_of(cls):
        assert field.help, f"{where}.{field.name} must have a help text"
    if any(field.default is attrs.NOTHING for field in fields_of(cls)):
        return  # it cannot be built without its parameters
    spec, problems = structure(cls, {}, kind, zoo)
    assert not problems, f"{where}: the default parameters must be valid: {problems}"
    table = unstructure(spec)
    assert table.pop("use") == spec.name, f"{kind} {spec.name}: the `use` of its table must be its name"
    again, problems = structure(cls, table, kind, zoo)
    assert not problems, f"{kind} {spec.name} must be loadable from its own table: {problems}"
    assert again == spec, f"{kind} {spec.name}: loading its own table must give an equal component"
    try:
        spec.name_of_no_field = 1
    except AttributeError:
        return
    raise AssertionError(f"{kind} {spec.name} must not be changeable after it is created; decorate it with @component")


def check_imports(paths: Iterable[str]) -> None:
    """Check in a fresh interpreter that `module:Class` paths import without torch, composer and hypothesis."""
    done = subprocess.run([sys.executable, "-P", "-c", _PROBE, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
