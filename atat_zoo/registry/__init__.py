"""What parts there are, and how a name becomes one. Imports no torch.

`hookspecs` says which kinds exist, `spec` how a component declares its
parameters, `manifest` how `registry.toml` lists them, `plugins` how packages of
others join in, and `zoo` puts the four together.
"""

from atat_zoo.registry.context import Context
from atat_zoo.registry.hookspecs import KINDS, PROJECT, TABLES, hookimpl
from atat_zoo.registry.spec import component, component_base, param, part, parts, values_of
from atat_zoo.registry.zoo import Zoo

__all__ = [
    "KINDS",
    "PROJECT",
    "TABLES",
    "Context",
    "Zoo",
    "component",
    "component_base",
    "hookimpl",
    "param",
    "part",
    "parts",
    "values_of",
]
