"""Random specifications: any part of a kind, with any parameters that its own bounds allow.

    from tests.specs import specs

    @given(specs("tokens_per_step"))
    def test_any_pace(tokens_per_step):
        ...

Needs hypothesis.
"""

import math
import types
import typing
from contextlib import suppress
from typing import Literal

import attrs
from hypothesis import strategies as st

from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import fields_of
from atat_zoo.system.errors import UserError

# The range of a number above its minimum or default, if it has no upper bound.
_NUMBERS, _REACH = 11, 3.0
_WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def specs(kind, zoo=None):
    """Return a strategy of specifications of a kind, from all that is installed.

    Parameters that a part must be given, and texts and tables, keep their defaults or make a part be left out. What a
    part refuses by a rule across its parameters is not drawn.
    """
    zoo = zoo or Zoo.load()

    def made(table):
        with suppress(UserError):
            return zoo.spec(kind, table)

    return _tables(kind, zoo).map(made).filter(lambda spec: spec is not None)


def _tables(kind, zoo):
    tables = []
    for name in zoo.names(kind):
        fields = fields_of(zoo.describe(kind, name).load())
        if not any(field.default is attrs.NOTHING for field in fields):
            drawn = {field.name: value for field in fields if (value := _value(field, zoo)) is not None}
            tables.append(st.fixed_dictionaries({"use": st.just(name)}, optional=drawn))
    return st.one_of(tables)


def _value(field, zoo):
    """Return a strategy, or None for types without one."""
    if field.kind:
        return st.deferred(lambda: _tables(field.kind, zoo))
    tp = field.type
    if typing.get_origin(tp) in (typing.Union, types.UnionType):
        # None is what leaving the key out means.
        tp = next(a for a in typing.get_args(tp) if a is not type(None))
    simple = typing.get_origin(tp) is Literal or tp in (bool, int, float)
    return values(tp, field.bounds, near=True) if simple else None


def values(tp, bounds, near=False):
    """Return a strategy of a type's values as TOML has them, within bounds; `near` keeps numbers near the lower one."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(a, bounds, near) for a in args if a is not type(None)])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0], bounds, near), max_size=3)
    if origin is tuple:
        return st.tuples(*(values(a, bounds, near) for a in args)).map(list)
    if origin is dict:
        return st.dictionaries(_WORDS, values(args[1], bounds, near), max_size=3)
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    if tp is int:
        least = -(2**63) if low is None else math.ceil(low + ("gt" in bounds))
        most = 2**63 - 1 if high is None else math.floor(high - ("lt" in bounds))
        return st.integers(least, min(most, least + _NUMBERS) if near else most)
    if tp is float:
        if near and low is not None:
            high = low + _REACH if high is None else min(high, low + _REACH)
        ends = {"exclude_min": "gt" in bounds, "exclude_max": high is not None and high == bounds.get("lt")}
        return st.floats(
            low, high, **ends, allow_nan=False, allow_infinity=False, allow_subnormal=False if near else None
        )
    return {bool: st.booleans(), str: _WORDS}[tp]
