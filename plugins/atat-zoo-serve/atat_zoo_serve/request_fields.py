"""Request fields for the three generation endpoints, with their validation and error messages.

A field of OpenAI's API that a masked diffusion model cannot support is an error, unless its value is a default that
clients send and that has no effect.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

_LARGEST, _DEEPEST = 2**31 - 1, 16  # largest number in a sampler's table, and maximum nesting depth
_STOPS = 4


def _wrong(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("asked", "{sentence}", {"sentence": sentence})


def _texts(value: Any) -> list[str]:
    """Return a string or a list of strings as a list."""
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise _wrong("expected a string or a list of strings; token ids are not supported")
    return texts


def _whole(text: str) -> str:
    """Return the text, or raise an error if UTF-8 cannot encode it."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _wrong("contains an unpaired surrogate, which is not a character; remove it")
    return text


def _absent(sentence: str, neutral: tuple[Any, ...], value: Any) -> Any:
    """Return the value if it has no effect; otherwise, raise an error with the reason."""
    same = (value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
    if value is not None and not any(same):
        raise _wrong(f"{sentence}; leave it out")
    return value


def _unless(sentence: str, *neutral: Any) -> BeforeValidator:
    return BeforeValidator(partial(_absent, sentence, neutral))


def _named(value: Any, depth: int = 0) -> Any:
    """Return a name or table, or raise an error if it is nested too deeply, has a large number or is another type."""
    if depth == 0 and not isinstance(value, str | dict | None):
        raise _wrong('expected a name or an object, such as {"use": "ancestral", "steps": 32}')
    if depth > _DEEPEST:
        raise _wrong(f"is nested more than {_DEEPEST} levels deep; use a simpler object")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _named(inner, depth + 1)
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise _wrong(f"contains a number whose magnitude exceeds {_LARGEST:,}; use a smaller one")
    return value


def _integer(value: Any) -> Any:
    """Return an integral float as an integer, because JSON does not distinguish them."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_integer)]
Text = Annotated[str, AfterValidator(_whole)]
Texts = Annotated[list[Text], BeforeValidator(_texts)]
Stops = Annotated[Texts | None, BeforeValidator(lambda value: None if value == [] else value)]
Named = Annotated[Any, BeforeValidator(_named)]
_ORDER = "a masked diffusion model does not generate from left to right"
BestOf = Annotated[Any, _unless("texts cannot be ranked, because only a bound on their likelihood is known", 1)]
LogProbs = Annotated[Any, _unless(f"{_ORDER}, so it has no log-probabilities of the next token", False, 0)]
_BIAS = "logit biases cannot be set per request; start the server with guidance.use=token_bias"
LogitBias = Annotated[Any, _unless(_BIAS, {})]
Penalty = Annotated[Any, _unless(f"{_ORDER}, so it has no penalty for earlier tokens", 0)]
Tools = Annotated[Any, _unless("this model does not call tools", [], "none", "auto")]
Format = Annotated[Any, _unless("this model only generates plain text", {"type": "text"}, ["text"])]
Unread = Annotated[Any, Field(description="ignored")]


class _Table(BaseModel):
    """JSON object without type coercion: for example, a string is not converted to a number."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(_Table):
    """Options of a streamed response."""

    include_usage: bool | None = Field(None, description="whether to send the numbers of tokens in a last chunk")
    include_obfuscation: bool | None = Field(None, description="ignored: the server does not pad chunks")


class TextRequest(_Table):
    """Fields of every request for texts."""

    model: str | None = Field(None, description="name of the model as listed by `/v1/models`")
    n: Integer | None = Field(None, ge=1, description="number of texts to generate per input (default: 1)")
    seed: Integer | None = Field(None, ge=-1, lt=2**63, description="random seed; -1 (default) chooses one at random")
    stream: bool | None = Field(None, description="whether to stream the response as server-sent events")
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, description="sampling temperature; 0 is greedy")
    top_p: float | None = Field(
        None, ge=0, le=1, description="nucleus sampling: cumulative probability of the candidates"
    )
    user: Unread = None
    sampler: Named = Field(None, description='name of a sampler, or an object such as {"use": "ancestral"}')
    unmasking: bool | None = Field(None, description="whether each stream chunk contains the state of the whole text")


class EndingRequest(TextRequest):
    """Fields of requests whose generated text can end early."""

    max_tokens: Integer | None = Field(
        None, ge=0, description="number of tokens to generate (default: as many as fit in the model's input)"
    )
    stop: Stops | None = Field(None, description="up to four strings; the text ends before the first of them")
    logprobs: LogProbs = None
    logit_bias: LogitBias = None
    frequency_penalty: Penalty = None
    presence_penalty: Penalty = None

    @field_validator("stop")
    @classmethod
    def _stop(cls, value: list[str] | None) -> list[str] | None:
        if value and "" in value:
            raise _wrong("contains an empty string, which matches everywhere; remove it")
        if value and len(value) > _STOPS:
            raise _wrong(f"contains {len(value)} strings; use at most {_STOPS}")
        return value


class CompletionRequest(EndingRequest):
    """Fields of `/v1/completions`."""

    prompt: Texts | None = Field(None, description="beginning of the text, or a list of several")
    suffix: Text | None = Field(None, description="end of the text")
    echo: bool | None = Field(None, description="whether the returned text includes the prompt")
    windows: bool | None = Field(None, description="whether EOS only separates documents and does not end the text")
    best_of: BestOf = None


class ChatRequest(EndingRequest):
    """Fields of `/v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(
        min_length=1, description="dialogue so far, for which the model generates the next message"
    )
    max_completion_tokens: Integer | None = Field(None, ge=1, description="same as max_tokens, but takes precedence")
    top_logprobs: LogProbs = None
    tools: Tools = None
    tool_choice: Tools = None
    functions: Tools = None
    function_call: Tools = None
    response_format: Format = None
    modalities: Format = None
    metadata: Unread = None
    parallel_tool_calls: Unread = None
    prompt_cache_key: Unread = None
    safety_identifier: Unread = None
    service_tier: Unread = None
    store: Unread = None

    @field_validator("messages")
    @classmethod
    def _messages(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        _whole(json.dumps(_named(value, 1), ensure_ascii=False))
        return value


class InfillRequest(TextRequest):
    """Fields of `/v1/infill`."""

    text: Texts = Field(description="text with gaps such as [MASK], [MASK:3] or [MASK:2-4], or a list of such texts")
