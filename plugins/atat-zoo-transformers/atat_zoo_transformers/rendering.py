"""Rendering of Jinja chat templates as in `transformers`, with limits on time and memory.

Jinja's sandbox protects the machine, but does not limit time and memory. This module adds filters to the compiled
template that count loop iterations, calls, and the strings, lists and numbers that the template creates, on every
platform and without a separate thread. An operation whose result may be much larger than its operands, such as
`'a' * 10**9`, is checked before it runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, MappingView, Sequence
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer
from transformers.utils.chat_template_utils import _compile_jinja_template
from typing_extensions import override

SOURCE = 1 << 16  # maximum characters of a template
CHARACTERS = 1 << 24  # maximum characters that a template may create for empty messages
_EACH = 64  # additional characters that it may create per character of the messages
_STEP, _VALUE = 128, 8  # cost in characters of a step, and of a value in a list
_BITS = 4096  # maximum bits of a number
# Functions whose result may be larger than their arguments, or than numbers in a format string.
_FORMATS = frozenset({"format", "format_map", "%"})
_WIDTHS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "batch", "slice", "tojson"})
_GROWING = _FORMATS | _WIDTHS | {"replace", "translate", "join"}
_ABSENT = ("lipsum", "sum", "urlize", "wordwrap")  # they may take long, and chat templates do not need them


class TooMuchError(Exception):
    """Error for a template that exceeds the limits."""


class _Work:
    """Remaining budget for rendering a template."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def spend(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise TooMuchError

    def size(self, value: Any) -> tuple[int, int]:
        """Return a value's size and number of elements, including nested ones, or raise `TooMuchError` at the limit."""
        characters, values, waiting = 0, 0, [value]
        while waiting:
            each = waiting.pop()
            values += 1
            if isinstance(each, str | bytes):
                characters += len(each)
            elif isinstance(each, list | tuple | range | MappingView):
                waiting += each
            elif isinstance(each, dict):
                waiting += each.items()
            elif isinstance(each, Namespace):
                waiting.append(each._Namespace__attrs)  # type: ignore[attr-defined]
            elif isinstance(each, int):
                characters += each.bit_length()
                if each.bit_length() > _BITS:
                    raise TooMuchError
            if characters + _VALUE * (values + len(waiting)) > self.most:
                raise TooMuchError
        self.spend(_VALUE * (values - 1))
        return characters + values, values

    def steps(self, values: Iterable[Any]) -> Iterator[Any]:
        for each in values:
            self.spend(_STEP)
            yield each

    def ask(self, name: str, given: Sequence[Any]) -> list[Any]:
        """Return a function's arguments, with lists for iterators, or raise if the result may be too large."""
        self.spend(_STEP)
        given = [list(self.steps(each)) if isinstance(each, Iterator) else each for each in given]
        if name in _GROWING:
            sizes = [self.size(each)[0] for each in given]
            sizes += [abs(each) for each in given if isinstance(each, int)]
            sizes += [_largest(str(each)) for each in given if name in _FORMATS]
            *_, second, first = sorted([1, 1, *sizes])
            if second * first > self.most:
                raise TooMuchError
        return given

    def made(self, value: Any, *, written: bool = False) -> Any:
        """Return a created or printed value after counting it; the elements of a list have already been counted."""
        if isinstance(value, Iterator):
            return self.steps(value)
        characters, values = self.size(value)
        self.spend(characters if written or isinstance(value, str) else values)
        return value


_WORK: ContextVar[_Work] = ContextVar("_WORK")


def _largest(text: str) -> int:
    """Return the largest number in a format string, such as a width."""
    digits = "".join(character if character.isdecimal() else " " for character in text).split()
    return max((int(each) if len(each) < 10 else 1 << 30 for each in digits), default=0)


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of a filter that counts its work; the filter's first argument may be Jinja's context."""
    own = int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def counted(*given: Any, **named: Any) -> Any:
        work = _WORK.get()
        asked = work.ask(name, [*given[own:], *named.values()])
        named = dict(zip(named, asked[len(given) - own :], strict=True))
        return work.made(function(*given[:own], *asked[: len(given) - own], **named))

    return counted


@pass_context
def _each(_: Any, values: Any) -> Iterator[Any]:
    return _WORK.get().steps(values)


@pass_context
def _made(_: Any, value: Any) -> Any:
    return _WORK.get().made(value)


@pass_context
def _written(_: Any, value: Any) -> Any:
    return _WORK.get().made(value, written=True)


class _Counting(NodeTransformer):
    """Transformer that adds counting filters to a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(child, "_written") for child in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return self.visit_Output(node)  # type: ignore[arg-type]

    def visit_List(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_made") if getattr(node, "ctx", "load") == "load" else node

    visit_Tuple = visit_Dict = visit_List


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja environment from `transformers` that also counts work."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        theirs = _compile_jinja_template("").environment
        extensions = [type(each) for each in theirs.extensions.values()]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
        self.filters = {name: _counted(name, each) for name, each in theirs.filters.items() if name not in _ABSENT}
        self.filters |= {"_each": _each, "_made": _made, "_written": _written}
        self.globals = {name: each for name, each in theirs.globals.items() if name not in _ABSENT}

    @override
    def _generate(self, source: nodes.Template, *of: Any, **how: Any) -> str:
        return super()._generate(_Counting().visit(source), *of, **how)

    @override
    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        work = _WORK.get()
        work.ask(operator if isinstance(left, str) else "", (left, right))
        if operator == "*" and (times := next((n for n in (left, right) if isinstance(n, int)), None)) is not None:
            other = right if times is left else left
            work.spend(0 if isinstance(other, int | float) else work.size(other)[0] * max(times, 0))
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            work.size(1 << min(left.bit_length() * max(right, 0), 2 * _BITS))
        return work.made(super().call_binop(context, operator, left, right))

    @override
    def call(__self, __context: Any, __function: Any, /, *given: Any, **named: Any) -> Any:
        work = _WORK.get()
        method = getattr(__function, "__wrapped__", __function)  # `format` is wrapped by Jinja
        own = getattr(method, "__self__", None)
        owner = [own] if isinstance(own, str) else []
        asked = work.ask(getattr(method, "__name__", ""), [*given, *named.values(), *owner])
        named = dict(zip(named, asked[len(given) :], strict=False))
        of_loop = isinstance(__function, LoopContext)
        asked = [work.steps(each) if of_loop else each for each in asked[: len(given)]]
        return work.made(super().call(__context, __function, *asked, **named))


@functools.cache
def _environment() -> _Environment:
    return _Environment()


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    if len(source) > SOURCE:
        raise TooMuchError
    return _environment().from_string(source)


def rendered(source: str, messages: Sequence[Mapping[str, str]], **given: Any) -> str:
    """Return the text that the template `source` renders from messages and the variables in `given`.

    Raises:
        TooMuchError: if rendering takes too long or creates too much text.
        Exception: any exception that the template raises, because its code is not trusted.
    """
    length = sum(len(message["content"]) + _STEP for message in messages)
    work = _Work(CHARACTERS + _EACH * length)
    token = _WORK.set(work)
    try:
        pieces = _compiled(source).generate(messages=[dict(each) for each in messages], **given)
        return "".join(pieces)
    finally:
        _WORK.reset(token)
