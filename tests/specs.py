"""Random specifications: any part of a kind, with any parameters that its own bounds allow.

    from tests.specs import specs

    @given(specs("pace"))
    def test_any_pace(pace):
        ...

Needs hypothesis.
"""

from __future__ import annotations

import math
import types
import typing
from typing import TYPE_CHECKING, Any, Literal

import attrs
from hypothesis import strategies as st

from atat_zoo.errors import UserError
from atat_zoo.registry import Zoo
from atat_zoo.registry.spec import fields_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from atat_zoo.registry.spec import Field

# The range of a number above its minimum or default, if it has no upper bound.
_NUMBERS, _REACH = 11, 3.0


def specs(kind: str, zoo: Zoo | None = None) -> SearchStrategy[Any]:
    """Return a strategy of specifications of a kind, from all that is installed.

    Parameters that a part must be given, and texts and tables, keep their defaults or make a part be left out. What a
    part refuses by a rule across its parameters is not drawn.
    """
    zoo = zoo or Zoo.load()
    return _tables(kind, zoo).map(lambda table: _made(zoo, kind, table)).filter(lambda spec: spec is not None)


def _made(zoo: Zoo, kind: str, table: dict[str, Any]) -> Any:
    try:
        return zoo.spec(kind, table)
    except UserError:
        return None


def _tables(kind: str, zoo: Zoo) -> SearchStrategy[dict[str, Any]]:
    found = []
    for name in zoo.names(kind):
        fields = fields_of(zoo.describe(kind, name).load())
        if not any(field.default is attrs.NOTHING for field in fields):
            found.append((name, fields))
    return st.sampled_from(found).flatmap(lambda one: _table(one[0], one[1], zoo))


def _table(name: str, fields: list[Field], zoo: Zoo) -> SearchStrategy[dict[str, Any]]:
    values = {field.name: _value(field, zoo) for field in fields}
    return st.fixed_dictionaries(
        {"use": st.just(name)}, optional={key: value for key, value in values.items() if value is not None}
    )


def _value(field: Field, zoo: Zoo) -> SearchStrategy[Any] | None:
    if field.kind:
        kind = field.kind
        return st.deferred(lambda: _tables(kind, zoo))
    return _of_type(field.type, field)


def _of_type(tp: Any, field: Field) -> SearchStrategy[Any] | None:
    """Return a strategy, or None for types without one."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (typing.Union, types.UnionType):
        # None is what leaving the key out means.
        return _of_type(next(a for a in args if a is not type(None)), field)
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
