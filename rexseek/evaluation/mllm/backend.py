"""One request to an OpenAI-compatible server, with the client's own retries (back-off, `Retry-After`)."""

import json
import os
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletion

_REFUSED = "content_filter"


class BackendError(Exception):
    """The server gave no answer, after all retries."""


class BackendMisuseError(ValueError):
    """The server will answer no request: wrong key, model or address."""


@dataclass(frozen=True)
class Reply:
    """What the server sent.

    Attributes:
        text: of the answer, with any thinking the server left in it.
        finish_reason: "stop", "length" (cut off) ...
        refused: the server says so itself (a refusal, a content filter).
        separate_thinking: the server sent the thinking apart.
        prompt_tokens, completion_tokens: None if the server does not say.
        latency_s: seconds of the request that was answered, without retries and waiting.
        retries: requests that failed before.
    """

    text: str
    finish_reason: str
    refused: bool = False
    separate_thinking: bool = False
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    latency_s: float = 0.0
    retries: int = 0


class ChatBackend:
    """A model on a server; may be shared by threads.

    Args:
        base_url: such as http://localhost:8000/v1.
        model: its name there.
        generation: arguments of `chat.completions.create`.
        timeout_s: of one try.
        max_retries: after a rate limit, a server error, a lost connection or a timeout.
    """

    def __init__(
        self, base_url: str, model: str, generation: dict[str, Any], timeout_s: float, max_retries: int
    ) -> None:
        self.base_url, self.model, self._generation = base_url, model, generation
        key = os.environ.get("OPENAI_API_KEY") or "none"  # servers of one's own ask for none
        self._client = openai.OpenAI(
            base_url=base_url, api_key=key, timeout=timeout_s, max_retries=max_retries
        )

    def ask(self, messages: list[dict[str, Any]]) -> Reply:
        """Send a conversation.

        Raises:
            BackendError: no answer after all retries, or one that is no chat completion.
            BackendMisuseError: the server refuses the key or does not know the model.
        """
        create = self._client.chat.completions.with_raw_response.create
        try:
            raw = create(model=self.model, messages=messages, **self._generation)
            completion = raw.parse()
        except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
            raise BackendMisuseError(f"{self.base_url}, model {self.model!r}: {error}") from error
        except openai.BadRequestError as error:
            if _REFUSED in (error.code, error.type):
                return Reply("", _REFUSED, refused=True)
            raise BackendError(f"{type(error).__name__}: {error}") from error
        except (openai.OpenAIError, json.JSONDecodeError) as error:
            raise BackendError(f"{type(error).__name__}: {error}") from error
        if not isinstance(completion, ChatCompletion) or not completion.choices:
            raise BackendError(f"no chat completion: {raw.text:.200}")
        return _reply(completion, raw.elapsed.total_seconds(), raw.retries_taken)


def _reply(completion: ChatCompletion, latency_s: float, retries: int) -> Reply:
    choice, usage = completion.choices[0], completion.usage
    message = choice.message
    extra = message.model_extra or {}
    return Reply(
        text=message.content or "",
        finish_reason=choice.finish_reason or "",
        refused=bool(message.refusal) or choice.finish_reason == _REFUSED,
        separate_thinking=bool(extra.get("reasoning_content") or extra.get("reasoning")),
        prompt_tokens=usage and usage.prompt_tokens,
        completion_tokens=usage and usage.completion_tokens,
        latency_s=latency_s,
        retries=retries,
    )
