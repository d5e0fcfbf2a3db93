"""Keyword arguments to request messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from polysketch.v1 import polysketch_pb2 as pb

DEFAULT_MAX_TOKENS = 256
# Characters, and ids, of a message of a long input: at most 1 MiB. The server accepts --max-message-bytes (4 MiB).
PART_CHARACTERS = 1 << 18
PART_TOKENS = 1 << 17
# Bytes of a state in a message; a larger prompt is sent in parts.
PART_BYTES = 1 << 20

ProgressCallback = Callable[[int, int], None]
TextInput = str | Iterable[str]
TokensInput = Sequence[int] | Iterable[Sequence[int]]


class CompletionOptions(TypedDict, total=False):
    """Keyword arguments of complete. Unset: the default of the server, except for max_tokens.

    max_tokens is 256 by default; None: the limit of the server. cache_read, cache_write and cache_points are the fields of
    CacheOptions. json_schema (a JSON Schema, as a mapping or as JSON), json_object, regex, ebnf, choice (texts) and
    compact_json are those of StructuredOutput; at most one of the first five may be set. on_progress is called with the processed and the total number of tokens of a long prompt. timeout, in
    seconds, covers all tries and resumes. proto/polysketch/v1/polysketch.proto describes the other fields.
    """

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_in_output: bool
    logprobs: int
    echo: bool
    logprobs_from: int
    n: int
    best_of: int
    priority: int
    draft_tokens: int
    json_schema: str | Mapping[str, Any]
    json_object: bool
    regex: str
    ebnf: str
    choice: Sequence[str]
    compact_json: bool
    cache_read: bool
    cache_write: bool
    cache_points: Sequence[int]
    return_state: bool
    on_progress: ProgressCallback | None
    timeout: float | None


_SAMPLING = {field.name for field in pb.Sampling.DESCRIPTOR.fields}
_STRUCTURED_OUTPUT = {field.name for field in pb.StructuredOutput.DESCRIPTOR.fields}
_NOT_IN_THE_REQUEST = {"on_progress", "timeout"}


def _set(message: Any, field: str, name: str, value: Any) -> None:
    """Sets a field. An error names the argument."""
    try:
        if isinstance(value, Mapping):
            getattr(message, field).update(value)
        elif isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
            getattr(message, field).extend(value)
        else:
            setattr(message, field, value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error


def _set_option(request: pb.CompleteRequest, name: str, value: Any) -> None:
    if name in _SAMPLING:
        _set(request.sampling, name, name, value)
    elif name.startswith("cache_"):
        _set(request.cache, name.removeprefix("cache_"), name, value)
    elif name == "json_schema" and isinstance(value, Mapping):
        request.structured_output.json_schema = json.dumps(value)
    elif name == "choice":
        _set(request.structured_output.choice, "texts", name, value)
    elif name in _STRUCTURED_OUTPUT:
        _set(request.structured_output, name, name, value)
    elif name == "stop":
        _set(request, name, name, [value] if isinstance(value, str) else value)
    else:
        _set(request, name, name, value)


def _shown(value: Any) -> str:
    """A value in an error."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:40] + '...'} ({type(value).__name__})"


def set_input(message: Any, text: str | None, tokens: Iterable[int] | None) -> None:
    """Sets the oneof of a text and token ids."""
    if text is not None:
        if not isinstance(text, str):
            raise TypeError(f"prompt: expected a text (str), found {_shown(text)}; tokens= takes ids")
        _set(message, "text", "prompt", text)
    if tokens is not None:
        message.tokens.SetInParent()  # an empty list is an input too
        _set(message.tokens, "ids", "tokens", tokens)


def completion_request(prompt: str | None, tokens: Iterable[int] | None, options: CompletionOptions, *,
                       session: str = "", expected_position: int | None = None,
                       resume_token: str | None = None) -> pb.CompleteRequest:
    unknown = options.keys() - CompletionOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"complete() got an unexpected keyword argument {sorted(unknown)[0]!r}")
    if prompt is not None and tokens is not None:
        raise ValueError("prompt and tokens: expected one of them, found both")
    grammars = sorted(name for name in options.keys() & (_STRUCTURED_OUTPUT - {"compact_json"}))
    if len(grammars) > 1:
        raise ValueError(f"{grammars[1]}: expected one field that constrains the output, found {grammars[0]} beside it")
    request = pb.CompleteRequest(session=session, expected_position=expected_position, resume_token=resume_token)
    if prompt is not None or tokens is not None:
        set_input(request.prompt, prompt, tokens)
    # A resumed completion keeps its options.
    defaults: CompletionOptions = {} if resume_token else {"max_tokens": DEFAULT_MAX_TOKENS}
    for name, value in (defaults | options).items():
        if name not in _NOT_IN_THE_REQUEST and value is not None:
            _set_option(request, name, value)
    return request


def tokenize_request(text: str, add_bos: bool | None, parse_special: bool) -> pb.TokenizeRequest:
    request = pb.TokenizeRequest(parse_special=parse_special)
    _set(request, "text", "text", text)
    if add_bos is not None:
        request.add_bos = add_bos
    return request


def open_completion(stub: Any, request: pb.CompleteRequest, state: bytes | None, **call: Any) -> Any:
    """Starts the call of a completion on a replica, in sync and in asyncio."""
    if state is None and request.prompt.ByteSize() <= PART_BYTES:
        return stub.Complete(request, **call)
    return stub.CompleteStream(_request_parts(request, state or b""), **call)


def _request_parts(request: pb.CompleteRequest, state: bytes) -> Iterator[pb.CompleteStreamRequest]:
    for first in range(0, len(state), PART_BYTES):
        yield pb.CompleteStreamRequest(state=state[first : first + PART_BYTES])
    rest = pb.CompleteRequest()
    rest.CopyFrom(request)
    large = request.prompt.ByteSize() > PART_BYTES
    if large:
        rest.ClearField("prompt")
    yield pb.CompleteStreamRequest(request=rest)
    if not large:
        return
    text, ids = request.prompt.text, request.prompt.tokens.ids
    for first in range(0, len(text), PART_CHARACTERS):
        yield pb.CompleteStreamRequest(text=text[first : first + PART_CHARACTERS])
    for first in range(0, len(ids), PART_TOKENS):
        yield pb.CompleteStreamRequest(tokens=pb.TokenIds(ids=ids[first : first + PART_TOKENS]))


class LongInput:
    """Input of any length, as messages of a client stream.

    repeatable: whether the messages can be made again. error: what the caller's iterable raised; gRPC, which runs it,
    reports only that it failed.
    """

    def __init__(self, text: TextInput | None, tokens: TokensInput | None, first: Any) -> None:
        if (text is None) == (tokens is None):
            raise ValueError(f"text and tokens: expected one of them, found {'neither' if text is None else 'both'}")
        if text is not None and not isinstance(text, Iterable):
            raise TypeError(f"text: expected a text (str) or parts of one, found {_shown(text)}")
        self._text = text
        self._tokens = tokens
        self._first = first  # a message, whose input is not set
        self.repeatable = isinstance(text, str) or isinstance(tokens, Sequence)
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Any]:
        message = type(self._first)()
        message.CopyFrom(self._first)
        try:
            for part in self._parts():
                if isinstance(part, str):
                    set_input(message, part, None)
                else:
                    set_input(message, None, part)
                yield message
                message = type(self._first)()
        except Exception as error:
            self.error = error
            raise

    def _parts(self) -> Iterator[Any]:
        if self._text is not None:
            for text in [self._text] if isinstance(self._text, str) else self._text:
                yield from (text[at : at + PART_CHARACTERS] for at in range(0, len(text), PART_CHARACTERS))
        elif self._tokens is not None:
            whole = isinstance(self._tokens, Sequence) and not (self._tokens and isinstance(self._tokens[0], Sequence))
            lists: Any = [self._tokens] if whole else self._tokens
            for ids in lists:
                yield from (ids[at : at + PART_TOKENS] for at in range(0, len(ids), PART_TOKENS))
