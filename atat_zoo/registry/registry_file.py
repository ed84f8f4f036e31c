"""Read and write `registry.toml`, which describes a package's components, so that listing them imports none."""

import pkgutil
import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from atat_zoo.registry.hookspecs import KINDS
from atat_zoo.registry.spec import Mismatch, complete, convert, fields_of, is_component
from atat_zoo.system import old_names
from atat_zoo.system.errors import UserError

PACKAGE = Path(__file__).resolve().parents[1]
HEADER = """\
# The registry of atat_zoo, which lists every built-in component by kind.
# `atat zoo manifest --write` regenerates it from the code, except
# [plugins] and [alias], which are edited by hand. A test compares the file with the code.
"""


@attrs.frozen(kw_only=True)
class Entry:
    """A component in a registry file. Its `path`, `module:Class`, is imported only when the component is used."""

    kind: str
    name: str
    path: str
    summary: str
    refs: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    parameters: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    distribution: str = "atat-zoo"

    def load(self) -> type:
        """Import and return the component's class, to which the defaults of its kind's interface are added."""
        module, _, name = self.path.partition(":")
        cls = getattr(import_module(module), name)
        if not isinstance(cls, type):
            raise TypeError(f"{name} is not a class, but {cls!r}")
        contract = "".join(word.capitalize() for word in self.kind.split("_"))
        complete(cls, getattr(import_module(KINDS[self.kind].module), contract))
        return cls


@attrs.frozen(kw_only=True)
class RegistryFile:
    """The content of a registry file: entries, disabled plugins, aliases by kind, and the version of the interfaces."""

    entries: tuple[Entry, ...] = ()
    contract: object = 1
    disabled: tuple[str, ...] = ()
    aliases: dict[str, dict[str, str]] = attrs.field(factory=dict)


def shipped() -> Path:
    """Return the path of the built-in `registry.toml`, which is in the package or, in a checkout, next to it."""
    # The package comes first: files next to an installed package belong to other packages.
    inside = PACKAGE / "registry.toml"
    return inside if inside.is_file() else PACKAGE.parent / "registry.toml"


def read(path: Path, distribution: str = "atat-zoo") -> RegistryFile:
    """Return the content of a registry file, or raise a `UserError` if it is missing, damaged or has unknown kinds."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; reinstall the package that owns it") from None
    except (OSError, ValueError) as error:  # ValueError: invalid TOML or UTF-8
        raise UserError(f"{path} cannot be read as TOML: {error}; reinstall the package that owns it") from None
    aliases = _typed(data.get("alias", {}), dict[str, dict[str, str]], f"{path}: [alias]")
    unknown = sorted({*data, *aliases} - {*KINDS, "plugins", "alias", "command"})
    if unknown and (now := old_names.KINDS.get(unknown[0])):
        raise UserError(f"{path}: the kind [{unknown[0]}] is now called [{now}]; rename it")
    if unknown:
        raise UserError(f"{path}: [{unknown[0]}] is not a kind of component; use one of {', '.join(KINDS)}")
    entries = []
    for kind in KINDS:
        for name, table in _typed(data.get(kind, {}), dict[str, dict[str, Any]], f"{path}: [{kind}]").items():
            where = f"{path}: [{kind}.{name}]"
            values = {key: _typed(table[key], _KEYS[key], f"{where} {key}") for key in _KEYS if key in table}
            for key in ("path", "summary"):
                if key not in values:
                    raise UserError(f"{where} lacks the key {key!r}; add it")
            for parameter, description in values.get("parameters", {}).items():
                for key in ("type", "help"):
                    _typed(description.get(key), str, f"{where} parameters.{parameter}.{key}")
            entries.append(Entry(kind=kind, name=name, distribution=distribution, **values))
    settings = _typed(data.get("plugins", {}), dict[str, Any], f"{path}: [plugins]")
    disabled = _typed(settings.get("disabled", []), tuple[str, ...], f"{path}: plugins.disabled")
    contract = settings.get("contract", 1)
    return RegistryFile(entries=tuple(entries), disabled=disabled, aliases=aliases, contract=contract)


_KEYS = {"path": str, "summary": str, "refs": tuple[str, ...], "parameters": dict[str, dict[str, Any]]}


def _typed(value: Any, tp: Any, where: str) -> Any:
    try:
        return convert(value, tp)
    except Mismatch as error:
        raise UserError(f"{where}: {error}; correct it") from None


def components_of(kind: str) -> list[type]:
    """Import and return the built-in component classes of a kind, by module and then in source order."""
    parts: list[type] = []
    package = KINDS[kind].module
    spec = find_spec(package)
    inside = pkgutil.iter_modules(spec.submodule_search_locations or () if spec else ())
    for name in (package, *(f"{package}.{module.name}" for module in inside)):
        # The kind with the innermost module: `samplers.order` contains orders, not samplers.
        around = [place for place in KINDS.values() if f"{name}.".startswith(f"{place.module}.")]
        if max(around, key=lambda place: len(place.module)).name == kind:
            parts += [cls for cls in vars(import_module(name)).values() if is_component(cls) and cls.__module__ == name]
    return parts


def entry_of(kind: str, cls: Any, distribution: str) -> Entry:
    """Return the entry for a component class, or raise a `TypeError` if the class lacks something required."""
    where = f"{cls.__module__}.{cls.__qualname__}"
    for word in ("name", "summary"):
        if not isinstance(getattr(cls, word, None), str):
            raise TypeError(f"{where} lacks the attribute {word!r}; set it to a string")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", cls.name):
        raise TypeError(f"{where} is named {cls.name!r}; a name may contain only letters, digits, - and _")
    name, summary = cls.name, cls.summary
    if not attrs.has(cls):
        raise TypeError(f"{where} is not an attrs class; decorate it with @component")
    parameters = {}
    for field in fields_of(cls):
        described: dict[str, Any] = {"type": field.type_name}
        if field.default is attrs.NOTHING:
            described["required"] = True
        elif field.default is not None:
            described["default"] = list(field.default) if isinstance(field.default, tuple) else field.default
        described |= field.bounds
        described["help"] = field.help
        parameters[field.name] = described
    return Entry(
        kind=kind,
        name=name,
        path=f"{cls.__module__}:{cls.__qualname__}",
        summary=summary,
        refs=getattr(cls, "refs", ()),
        parameters=parameters,
        distribution=distribution,
    )


def inline(value: Any) -> str:
    """Return a value as one line of TOML."""
    import tomli_w

    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {inline(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    # tomllib finds the end of a literal string at once, but reads other strings one character at a time.
    if isinstance(value, str) and value.isprintable() and "'" not in value:
        return f"'{value}'"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")


def write(manifest: RegistryFile) -> str:
    """Return the text of a registry file, which has one line per parameter for readable diffs."""
    lines = [HEADER, "[plugins]", f"disabled = {inline(list(manifest.disabled))}", ""]
    for kind, names in manifest.aliases.items():
        lines += [f"[alias.{kind}]", *(f"{name} = {inline(target)}" for name, target in names.items()), ""]
    for entry in sorted(manifest.entries, key=lambda e: (list(KINDS).index(e.kind), e.name)):
        lines += [f"[{entry.kind}.{entry.name}]", f"path = {inline(entry.path)}", f"summary = {inline(entry.summary)}"]
        if entry.refs:
            lines.append(f"refs = {inline(list(entry.refs))}")
        if entry.parameters:
            lines.append(f"[{entry.kind}.{entry.name}.parameters]")
            lines += [f"{name} = {inline(described)}" for name, described in entry.parameters.items()]
        lines.append("")
    return "\n".join(lines)
