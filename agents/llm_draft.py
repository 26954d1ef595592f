"""An answer of a model while it streams in, and what it is when it has ended; one reading for each vendor's events.

Events are read as plain JSON: servers that imitate a vendor leave fields out, or send a whole answer where a stream was
asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from pydantic import BaseModel

# The vendors' words for why an answer ended, in OpenAI's terms; a word that is not here stays as it is.
_finishes = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
}


class Usage(BaseModel):
    """Tokens as the endpoint counted them; None: it did not say. Input includes the cached, output the reasoning."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None


class Completion(BaseModel):
    """What a model answered. `refusal`: its words when it declined; `finish`: stop, length, content_filter, …"""

    text: str
    refusal: str
    finish: str
    model: str
    usage: Usage


class Draft(ABC):
    """Collects the events of one answer; `finish` is None until the model said that it is whole."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.finish: str | None = None
        self.usage: dict[str, int] = {}

    @abstractmethod
    def error(self, event: Mapping[str, object]) -> object:
        """The error that an event is, or None."""

    @abstractmethod
    def feed(self, event: Mapping[str, object]) -> None:
        """Take one event of a stream, or a whole answer."""

    @property
    def chars(self) -> int:
        return sum(map(len, self.texts))

    def completion(self) -> Completion:
        """The answer. Only to be asked for when `finish` is known."""
        assert self.finish is not None
        finish = _finishes.get(self.finish, self.finish)
        refusal = "".join(self.refusals)
        if refusal and finish == "stop":  # OpenAI says "stop" of a refusal too.
            finish = "refusal"
        return Completion(
            text="".join(self.texts), refusal=refusal, finish=finish, model=self.model, usage=Usage(**self.usage)
        )

    def _count(self, name: str, *values: object) -> None:
        numbers = [value for value in values if isinstance(value, int)]
        if numbers:
            self.usage[name] = sum(numbers)


class OpenAiDraft(Draft):
    """Chat completions: chunks with `delta`, or one answer with `message`; usage comes last, without choices."""

    def error(self, event: Mapping[str, object]) -> object:
        return event if event.get("error") or event.get("object") == "error" else None

    def feed(self, event: Mapping[str, object]) -> None:
        self.model = _text(event.get("model")) or self.model
        usage = _object(event.get("usage"))
        self._count("input_tokens", usage.get("prompt_tokens"))
        self._count("output_tokens", usage.get("completion_tokens"))
        self._count("cached_input_tokens", _object(usage.get("prompt_tokens_details")).get("cached_tokens"))
        self._count("reasoning_tokens", _object(usage.get("completion_tokens_details")).get("reasoning_tokens"))
        choices = event.get("choices")
        choice = _object(choices[0]) if isinstance(choices, list) and choices else {}
        said = _object(choice.get("delta") or choice.get("message"))
        self.texts.append(_text(said.get("content")))
        self.refusals.append(_text(said.get("refusal")))
        self.finish = _text(choice.get("finish_reason")) or self.finish


class AnthropicDraft(Draft):
    """Messages: `message_start`, deltas, `message_delta` with the reason of the end; or one `message`."""

    def error(self, event: Mapping[str, object]) -> object:
        return event if event.get("type") == "error" else None

    def feed(self, event: Mapping[str, object]) -> None:
        whole = event if event.get("type") == "message" else _object(event.get("message"))
        self.model = _text(whole.get("model")) or self.model
        self._feed_usage(_object(whole.get("usage") or event.get("usage")))
        self.texts.append(_text(whole.get("content")))
        self.texts.append(_text(_object(event.get("content_block")).get("text")))
        delta = _object(event.get("delta"))
        self.texts.append(_text(delta.get("text")))
        details = _object(delta.get("stop_details") or whole.get("stop_details"))
        self.refusals.append(_text(details.get("explanation")))
        self.finish = _text(delta.get("stop_reason") or whole.get("stop_reason")) or self.finish

    def _feed_usage(self, usage: Mapping[str, object]) -> None:
        cached = usage.get("cache_read_input_tokens")
        if isinstance(
            usage.get("input_tokens"), int
        ):  # Its input is what was neither read from the cache nor put there.
            self._count("input_tokens", usage["input_tokens"], usage.get("cache_creation_input_tokens"), cached)
        self._count("cached_input_tokens", cached)
        self._count("output_tokens", usage.get("output_tokens"))
        details = _object(usage.get("output_tokens_details"))
        self._count("reasoning_tokens", details.get("thinking_tokens"))


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    """A text, or the texts of a list of blocks."""
    if isinstance(value, list):
        return "".join(_text(_object(block).get("text")) for block in value)
    return value if isinstance(value, str) else ""
