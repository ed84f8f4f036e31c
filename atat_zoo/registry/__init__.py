"""The registry of parts: from a name to a part. Imports no torch."""

from atat_zoo.registry.context import Context
from atat_zoo.registry.hookspecs import CONTRACT, KINDS, PROJECT, TABLES, hookimpl
from atat_zoo.registry.spec import component, component_base, network_of, param, problems_of, values_of
from atat_zoo.registry.zoo import Zoo, part, parts

__all__ = [
    "CONTRACT",
    "KINDS",
    "PROJECT",
    "TABLES",
    "Context",
    "Zoo",
    "component",
    "component_base",
    "hookimpl",
    "network_of",
    "param",
    "part",
    "parts",
    "problems_of",
    "values_of",
]
