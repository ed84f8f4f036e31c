"""Random specifications: any part of a kind, with any parameters that its own bounds allow.

    from tests.specs import specs

    @given(specs("pace"))
    def test_any_pace(pace):
        ...

Needs hypothesis.
"""

import math
import types
import typing
from contextlib import suppress
from typing import Any, Literal

import attrs
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from atat_zoo.errors import UserError
from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import Field, fields_of

# The range of a number above its minimum or default, if it has no upper bound.
_NUMBERS, _REACH = 11, 3.0


def specs(kind: str, zoo: Zoo | None = None) -> SearchStrategy[Any]:
    """Return a strategy of specifications of a kind, from all that is installed.

    Parameters that a part must be given, and texts and tables, keep their defaults or make a part be left out. What a
    part refuses by a rule across its parameters is not drawn.
    """
    zoo = zoo or Zoo.load()

    def made(table: dict[str, Any]) -> Any:
        with suppress(UserError):
            return zoo.spec(kind, table)

    return _tables(kind, zoo).map(made).filter(lambda spec: spec is not None)


def _tables(kind: str, zoo: Zoo) -> SearchStrategy[dict[str, Any]]:
    tables = []
    for name in zoo.names(kind):
        fields = fields_of(zoo.describe(kind, name).load())
        if not any(field.default is attrs.NOTHING for field in fields):
            values = {field.name: _value(field.type, field, zoo) for field in fields}
            drawn = {key: value for key, value in values.items() if value is not None}
            tables.append(st.fixed_dictionaries({"use": st.just(name)}, optional=drawn))
    return st.one_of(tables)


def _value(tp: Any, field: Field, zoo: Zoo) -> SearchStrategy[Any] | None:
    """Return a strategy, or None for types without one."""
    if field.kind:
        return st.deferred(lambda: _tables(field.kind, zoo))
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (typing.Union, types.UnionType):
        # None is what leaving the key out means.
        return _value(next(a for a in args if a is not type(None)), field, zoo)
    if origin is Literal:
        return st.sampled_from(args)
    if tp is bool:
        return st.booleans()
    bounds = field.bounds
    above, below = bounds.get("gt", -math.inf), bounds.get("lt", math.inf)
    if tp is int:
        least = int(max(bounds.get("ge", -math.inf), above + 1))
        return st.integers(least, int(min(bounds.get("le", math.inf), below - 1, least + _NUMBERS)))
    if tp is float:
        low = max(bounds.get("ge", -math.inf), above)
        high = min(bounds.get("le", math.inf), below, low + _REACH)
        return st.floats(low, high, exclude_min=low == above, exclude_max=high == below, allow_subnormal=False)
    return None
