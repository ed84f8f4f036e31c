"""Declare the parameters of components, and convert TOML tables to component instances.

A component is a frozen, keyword-only attrs class:

    @component
    class Importance:
        \"\"\"One paragraph: what it does, shapes, source.\"\"\"

        name = "importance"
        summary = "one line for `atat zoo list`"
        refs = ("arXiv:2406.07524",)
        temperature: float = param(1.0, help="softness of the ranking", gt=0)
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import operator
import re
import sys
import types
import typing
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol

import attrs

from atat_zoo.registry.context import Context
from atat_zoo.system import old_names
from atat_zoo.system.errors import Problem, clip, nearest

_T = typing.TypeVar("_T")
_COMPONENTS: weakref.WeakSet[type] = weakref.WeakSet()


# Every field of a component is assigned a parameter declaration, which is enough for type checkers.
@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def component_base(cls: type[_T]) -> type[_T]:
    """Return a class as a frozen, keyword-only attrs class: a base class for components, not itself a component."""
    return attrs.frozen(kw_only=True)(cls)


@typing.dataclass_transform(kw_only_default=True, frozen_default=True)
def component(cls: type[_T]) -> type[_T]:
    """Return a class as a component: a frozen, keyword-only attrs class with defaults for missing attributes.

    By default, `refs` is `()`, `package` (an optional dependency) is `None`, `check(experiment)` yields nothing, and
    `build(context)` returns the network from `network_of`, or the component itself if `network` is empty.
    """
    decorated: Any = component_base(cls)
    for name, default in _DEFAULTS.items():
        if not hasattr(decorated, name):
            setattr(decorated, name, default)
    _COMPONENTS.add(decorated)
    return decorated


_DEFAULTS: dict[str, Any] = {
    "refs": (),
    "package": None,
    "network": "",
    "check": lambda part, experiment: (),
    "build": lambda part, context: network_of(part, context) if part.network else part,
}


def complete(cls: Any, contract: type) -> None:
    """Set on a component class, in place, the defaults of its kind's interface for the attributes that it lacks."""
    for name, default in vars(contract).items():
        if not name.startswith("_") and not hasattr(cls, name) and not _says_nothing(default):
            setattr(cls, name, default)


def _says_nothing(member: Any) -> bool:
    """Return whether a method or property consists only of a docstring, so that each component must define its own."""
    function = member.fget if isinstance(member, property) else member
    if not inspect.isfunction(function):
        return False
    code, nothing = function.__code__, _nothing.__code__
    return code.co_code == nothing.co_code and code.co_consts[1:] == nothing.co_consts[1:]


def _nothing() -> None:
    """Do nothing, like the body of a method without a default."""


def network_of(spec: Any, context: Context, *given: Any) -> Any:
    """Return a component's network, built from a context and the component's parameters.

    The class that `network = "package.module:Class"` names is called with the context, with `given`, and with the
    parameters as keyword arguments, of which components are built first. It is imported only here, as is torch.
    """
    module, _, name = spec.network.partition(":")
    values = values_of(spec)
    parts = {field.name for field in fields_of(type(spec)) if field.kind and not field.many}
    built = {key: value.build(context) if key in parts else value for key, value in values.items()}
    return getattr(importlib.import_module(module), name)(context, *given, **built)


def problems_of(part: Any, experiment: Any) -> Iterator[Problem]:
    """Yield the problems that a component's `check` finds in an experiment; strings from it become problems."""
    for problem in part.check(experiment):
        yield problem if isinstance(problem, Problem) else Problem("", str(problem))


def is_component(value: Any) -> bool:
    """Return whether `value` is a component class."""
    return isinstance(value, type) and value in _COMPONENTS


def param(default: Any = attrs.NOTHING, *, help: str, **bounds: float) -> Any:
    """Declare a parameter with its default, a one-line help text, and its bounds.

    `ge`, `gt`, `le` and `lt` bound a number, or each number of a tuple. A parameter without a default is required.
    """
    if not bounds.keys() <= _BOUNDS.keys():
        raise TypeError(f"param accepts the bounds {', '.join(_BOUNDS)}, not {', '.join(bounds)}")

    def check(_: object, attribute: attrs.Attribute[Any], value: Any) -> None:
        if problem := _out_of_bounds(value, bounds):
            raise ValueError(f"{attribute.name} {problem}, not {value!r}")

    return attrs.field(default=default, validator=check, metadata={"help": help, "bounds": bounds})


_BOUNDS = {
    "ge": ("at least", operator.ge),
    "gt": ("greater than", operator.gt),
    "le": ("at most", operator.le),
    "lt": ("less than", operator.lt),
}


def _out_of_bounds(value: Any, bounds: Mapping[str, float]) -> str:
    """Return a clause about the bound that a number violates, or an empty string."""
    if isinstance(value, tuple | list):
        return next(filter(None, (_out_of_bounds(item, bounds) for item in value)), "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    for key, bound in bounds.items():
        words, holds = _BOUNDS[key]
        if not holds(value, bound):
            return f"must be {words} {bound}"
    return ""


class Field(typing.NamedTuple):
    """A parameter as a component declares it: name, type, default, help, bounds, and the kind of a component."""

    name: str
    type: Any  # the resolved type, or None for a component
    default: Any  # attrs.NOTHING if the parameter is required
    help: str
    bounds: dict[str, float]
    kind: str | None  # the kind of component that the parameter takes, if any
    many: bool = False  # whether the parameter takes a list of components

    @property
    def type_name(self) -> str:
        """The type in words, such as `float`, `"linear" | "step"`, `masking component`, `list of logger components`."""
        if self.many:
            return f"list of {self.kind} components"
        return f"{self.kind} component" if self.kind else type_name(self.type)


def fields_of(cls: type) -> tuple[Field, ...]:
    """Return the parameters of a component in the order of their declaration."""
    return _fields_of(cls)


@functools.cache
def _fields_of(cls: type) -> tuple[Field, ...]:
    fields = []
    for attribute in attrs.fields(cls):
        meta, default, tp = attribute.metadata, attribute.default, attribute.type
        kind = meta.get("part")
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = meta["part_default"] if kind else default.factory()
        if kind:
            tp = None
        elif isinstance(tp, str):  # an annotation as a string, evaluated in the module of its class
            owner = next(owner for owner in cls.__mro__ if attribute.name in inspect.get_annotations(owner))
            tp = eval(tp, vars(sys.modules[owner.__module__]))
        help, bounds, many = meta.get("help", ""), dict(meta.get("bounds", {})), meta.get("many", False)
        fields.append(Field(attribute.name, tp, default, help, bounds, kind, many))
    return tuple(fields)


def type_name(tp: Any) -> str:
    """Return the name of a type as shown to users."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if tp is Any:
        return "value"
    if origin is Literal:
        return " | ".join(f'"{a}"' if isinstance(a, str) else str(a) for a in args)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(type_name(a) for a in args if a is not type(None))
    if origin is tuple:
        if args[-1] is Ellipsis:
            return f"list of {type_name(args[0])}"
        return f"[{', '.join(map(type_name, args))}]"
    if origin is dict:
        return f"table of {type_name(args[1])}"
    return getattr(tp, "__name__", str(tp))


# NUL, and the surrogates that stand for invalid UTF-8 bytes: neither file names nor TOML and JSON files can hold them.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")


class Mismatch(Exception):
    """The error for a value of the wrong type."""


def convert(value: Any, tp: Any) -> Any:
    """Return `value` as type `tp`, or raise `Mismatch`; conversions are only from int to float, and list to tuple."""
    if tp is Any:
        return value
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is Literal:
        if value in args and any(type(value) is type(a) for a in args):
            return value
        hint = nearest(value, [a for a in args if isinstance(a, str)]) if isinstance(value, str) else ""
        raise Mismatch(f"expected {type_name(tp)}, got {_show(value)}{hint}")
    if origin in (typing.Union, types.UnionType):
        options = [a for a in args if a is not type(None)]
        if len(options) == 1 and value is not None:
            return convert(value, options[0])  # for its clearer message
        for option in args:
            try:
                return convert(value, option)
            except Mismatch:
                continue
        raise Mismatch(f"expected {type_name(tp)}, got {_show(value)}")
    if origin is tuple and isinstance(value, list | tuple):
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        if len(kinds) != len(value):
            raise Mismatch(f"expected {len(kinds)} values, {type_name(tp)}, got {len(value)}")
        return tuple(convert(v, k) for v, k in zip(value, kinds, strict=True))
    if origin is dict and isinstance(value, dict):
        return {k: _of_key(k, v, args[1]) for k, v in value.items()}
    if tp is float and type(value) in (int, float):
        try:
            number = float(value)
        except OverflowError:  # TOML integers are unbounded
            number = math.inf
        if not math.isfinite(number):
            raise Mismatch(f"expected a finite number, got {_show(value)}")
        return number
    if tp in (int, bool, str, type(None)) and type(value) is tp:
        if tp is int and not -(2**63) <= value < 2**63:
            raise Mismatch(f"expected an integer of at most 64 bits, got {_show(value)}")
        if tp is str and _UNWRITABLE.search(value):
            raise Mismatch(f"expected a UTF-8 string without NUL characters, got {_show(value)}")
        return value
    raise Mismatch(f"expected {type_name(tp)}, got {_show(value)}")


def _of_key(key: str, value: Any, tp: Any) -> Any:
    try:
        return convert(value, tp)
    except Mismatch as error:
        raise Mismatch(f"{clip(key)}: {error}") from None


def _show(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a table" if isinstance(value, dict) else "a list"
    return f"{clip(repr(value), 60)} ({type(value).__name__})"


class PartProvider(Protocol):
    """The interface of `Zoo` that `structure` uses to build the components in a table."""

    def structure(self, kind: str, value: Any, path: str) -> tuple[Any, list[Problem]]:
        """Return the component for a name or a table `{use = …}`, or None if it has problems, and the problems."""


def structure(cls: type, table: Mapping[str, Any], path: str, zoo: PartProvider) -> tuple[Any, list[Problem]]:
    """Return an instance of `cls` from a TOML table without `use`, or None if it has problems, and the problems.

    `path` is the key path of the table for messages, such as `masking` or `sampler.order`, and is empty for a whole
    file. The zoo provides the nested components.
    """
    problems: list[Problem] = []
    within = f"{path}." if path else ""
    values: dict[str, Any] = {}

    def refuse(key: str, text: str) -> None:
        problems.append(Problem(within + key, text))

    fields = {field.name: field for field in fields_of(cls)}
    absent = {key: field.default for key, field in fields.items() if key not in table}
    for key, value in [*table.items(), *absent.items()]:
        field = fields.get(key)
        # A class without a component name may have a parameter called `name`.
        owner = path if "name" in fields else getattr(cls, "name", path)
        if field is None and (now := old_names.KEYS.get(owner, {}).get(key)) in fields:
            refuse(key, f"was renamed to {within}{now}")
        elif field is None:
            close, takes = nearest(key, list(fields)), ", ".join(fields) or "none"
            if nested := _nested(key, fields.values(), table, zoo):
                close = f"; set {within}{nested}.{key}"
            refuse(key, f"is not a parameter of {owner!r}{close} (it takes: {takes})")
        elif value is attrs.NOTHING:
            refuse(key, f"is missing: {field.help} ({field.type_name})")
        elif field.kind:
            values[key], wrong = _part_of(field, value, within + key, zoo)
            problems += wrong
        elif key in table:
            try:
                values[key] = convert(value, field.type)
            except Mismatch as error:
                refuse(key, str(error))
            else:
                if broken := _out_of_bounds(values[key], field.bounds):
                    refuse(key, f"{broken}, not {clip(repr(value), 60)}")
    if problems:
        return None, problems
    try:
        return cls(**values), []
    except ValueError as error:
        return None, [Problem(path, str(error))]


def _nested(key: str, fields: Iterable[Field], table: Mapping[str, Any], zoo: PartProvider) -> str:
    """Return the name of the first field whose component has a parameter `key`, or an empty string."""
    for field in fields:
        if field.kind and not field.many:
            part, _ = zoo.structure(field.kind, table.get(field.name, field.default), "")
            if part is not None and any(each.name == key for each in fields_of(type(part))):
                return field.name
    return ""


def _part_of(field: Field, value: Any, path: str, zoo: PartProvider) -> tuple[Any, list[Problem]]:
    """Return the component or the tuple of components that a parameter contains, and the problems."""
    assert field.kind is not None
    if field.many:
        if not isinstance(value, list | tuple):
            return None, [Problem(path, f"expected a {field.type_name}, got {_show(value)}")]
        results = [zoo.structure(field.kind, item, f"{path}[{i}]") for i, item in enumerate(value)]
        return tuple(part for part, _ in results), [problem for _, problems in results for problem in problems]
    default = field.default
    if value is None and default is None:
        return None, []
    if isinstance(value, dict) and "use" not in value and isinstance(default, str | dict):
        # Without `use`, these are parameters of the default component.
        value = {**(default if isinstance(default, dict) else {"use": default}), **value}
    return zoo.structure(field.kind, value, path)


def evolve(spec: _T, **changes: Any) -> _T:
    """Return a copy of a component with some of its parameters changed."""
    own: Any = spec  # which type checkers do not know to be an attrs instance
    return attrs.evolve(own, **changes)


def values_of(spec: Any) -> dict[str, Any]:
    """Return a component's parameters as a dict from name to value, without converting nested components."""
    return attrs.asdict(spec, recurse=False)


def components_in(spec: Any) -> Iterator[tuple[str, Any]]:
    """Yield the kind and the instance of every component that is a parameter of a component, at any depth."""
    for field in fields_of(type(spec)):
        if field.kind:
            value = getattr(spec, field.name)
            for part in value if field.many else [] if value is None else [value]:
                yield field.kind, part
                yield from components_in(part)


def unstructure(spec: Any) -> dict[str, Any]:
    """Return a component as a TOML table that contains `use`, then every parameter that is not None."""
    table: dict[str, Any] = {"use": spec.name} if hasattr(spec, "name") else {}
    for field in fields_of(type(spec)):
        value = getattr(spec, field.name)
        if field.many:
            table[field.name] = [unstructure(item) for item in value]
        elif value is None:
            continue
        elif field.kind:
            table[field.name] = unstructure(value)
        else:
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table
