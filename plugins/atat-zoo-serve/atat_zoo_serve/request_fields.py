"""What a request may ask for: the fields of the three endpoints that write, checked, each mistake a sentence.

Fields of OpenAI's that ask a masked diffusion model for what it does not have are refused, and say why. Values of them
that clients send to say nothing are taken.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

_LARGEST, _DEEPEST = 2**31 - 1, 16  # of a number in a sampler's table, and of the tables in it
_STOPS = 4


def _wrong(sentence: str) -> PydanticCustomError:
    return PydanticCustomError("asked", "{sentence}", {"sentence": sentence})


def _texts(value: Any) -> list[str]:
    """Return a text or a list of texts as a list."""
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise _wrong("expected a text or a list of texts; token ids are not taken")
    return texts


def _whole(text: str) -> str:
    """Return a text that UTF-8 can have."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _wrong("has half of a pair of surrogates, which is no character; leave it out")
    return text


def _absent(sentence: str, neutral: tuple[Any, ...], value: Any) -> Any:
    """Refuse a value of a field other than the neutral ones, and say why."""
    same = (value == each and isinstance(value, bool) == isinstance(each, bool) for each in neutral)
    if value is not None and not any(same):
        raise _wrong(f"{sentence}; leave it out")
    return value


def _unless(sentence: str, *neutral: Any) -> BeforeValidator:
    return BeforeValidator(partial(_absent, sentence, neutral))


def _named(value: Any, depth: int = 0) -> Any:
    """Return a sampler's name, or its table if it is small in every way."""
    if depth == 0 and not isinstance(value, str | dict | None):
        raise _wrong('expected a name or a table, as {"use": "ancestral", "steps": 32}')
    if depth > _DEEPEST:
        raise _wrong(f"is nested more than {_DEEPEST} deep; take a plainer one")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _named(inner, depth + 1)
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise _wrong(f"has a number beyond {_LARGEST:,}; take a smaller one")
    return value


def _integer(value: Any) -> Any:
    """Return a number without a fraction as an integer, which JSON does not tell apart."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_integer)]
Text = Annotated[str, AfterValidator(_whole)]
Texts = Annotated[list[Text], BeforeValidator(_texts)]
Stops = Annotated[Texts | None, BeforeValidator(lambda value: None if value == [] else value)]
Named = Annotated[Any, BeforeValidator(_named)]
_ORDER = "a masked diffusion model draws the tokens of a text out of order"
BestOf = Annotated[Any, _unless("texts are not ranked, as the likelihood of a text is only bounded", 1)]
LogProbs = Annotated[Any, _unless(f"{_ORDER}, and has no log-probability of each given those before", False, 0)]
LogitBias = Annotated[Any, _unless("words are weighed by guidance.use=token_bias when the server is started", {})]
Penalty = Annotated[Any, _unless(f"{_ORDER}, and penalises none for those before", 0)]
Tools = Annotated[Any, _unless("this model calls no tools", [], "none", "auto")]
Format = Annotated[Any, _unless("this model writes text", {"type": "text"}, ["text"])]
Unread = Annotated[Any, Field(description="is not read")]


class _Table(BaseModel):
    """A JSON object whose values are what they are: no text is taken for a number."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(_Table):
    """How a stream ends."""

    include_usage: bool | None = Field(None, description="whether a last chunk has the usage")
    include_obfuscation: bool | None = Field(None, description="is not read: nothing here is padded")


class TextRequest(_Table):
    """What every request takes."""

    model: str | None = Field(None, description="the model's name, as `/v1/models` has it")
    n: Integer | None = Field(None, ge=1, description="texts for each text that is given; 1 when absent")
    seed: Integer | None = Field(None, ge=-1, lt=2**63, description="the same seed gives the same text; -1 draws one")
    stream: bool | None = Field(None, description="answer by server-sent events")
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, description="of the draw; 0 takes the most probable token")
    top_p: float | None = Field(None, ge=0, le=1, description="draw from the likeliest tokens of this probability")
    user: Unread = None
    sampler: Named = Field(None, description="a sampler's name, or a table {use = …} of it")
    unmasking: bool | None = Field(None, description="whether a stream has the state of the whole text")


class EndingRequest(TextRequest):
    """What the requests take whose text ends where a text ends."""

    max_tokens: Integer | None = Field(None, ge=0, description="tokens to write; as long as a text of the training")
    stop: Stops | None = Field(None, description="up to four texts, before which what is written ends")
    logprobs: LogProbs = None
    logit_bias: LogitBias = None
    frequency_penalty: Penalty = None
    presence_penalty: Penalty = None

    @field_validator("stop")
    @classmethod
    def _stop(cls, value: list[str] | None) -> list[str] | None:
        if value and "" in value:
            raise _wrong("an empty text is everywhere; name one that ends the completion")
        if value and len(value) > _STOPS:
            raise _wrong(f"{len(value)} texts are too many; name at most {_STOPS}")
        return value


class CompletionRequest(EndingRequest):
    """The fields of `/v1/completions`."""

    prompt: Texts | None = Field(None, description="beginning of the text, or several")
    suffix: Text | None = Field(None, description="end of the text")
    echo: bool | None = Field(None, description="whether the text begins with the prompt")
    windows: bool | None = Field(None, description="whether the text goes on behind an EOS, as running text does")
    best_of: BestOf = None


class ChatRequest(EndingRequest):
    """The fields of `/v1/chat/completions`."""

    messages: list[dict[str, Any]] = Field(
        min_length=1, description="the dialogue so far, of which an answer is written"
    )
    max_completion_tokens: Integer | None = Field(None, ge=1, description="tokens to write, in place of max_tokens")
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
    """The fields of `/v1/infill`."""

    text: Texts = Field(description="a text with gaps: [MASK], [MASK:3], [MASK:2-4]; or several")
