"""The registry, which maps the kinds and names of components to their classes.

Does not import torch.
"""

from atat_zoo.registry.context import Context
from atat_zoo.registry.hookspecs import CONTRACT, KINDS, PROJECT, TABLES, hookimpl
from atat_zoo.registry.spec import component, component_base, network_of, param, problems_of, values_of
from atat_zoo.registry.zoo import Zoo, component_param, components_param

__all__ = [
    "CONTRACT",
    "KINDS",
    "PROJECT",
    "TABLES",
    "Context",
    "Zoo",
    "component",
    "component_base",
    "component_param",
    "components_param",
    "hookimpl",
    "network_of",
    "param",
    "problems_of",
    "values_of",
]
