"""Chat, over the HTTP port of the server: chat templates are there."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from polysketch._closing import AsyncClosing, Closing
from polysketch._http import Events, HttpPort, error_of
from polysketch.errors import InvalidArgumentError, NotFoundError, RpcError, make_error
from polysketch.types import Usage

Messages = str | Sequence[Mapping[str, Any]]
_LIMITS = {"max_tokens": "max_output_tokens"}  # names of the Responses API


@dataclasses.dataclass(frozen=True)
class ToolCall:
    """A call of a tool that the model asks for. arguments: JSON."""

    id: str
    name: str
    arguments: str


@dataclasses.dataclass
class Answer:
    """An answer. finish_reason: "stop", "length" or "tool_calls"."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    usage: Usage = dataclasses.field(default_factory=Usage)


def _usage(found: Any, prompt: str, completion: str, details: str) -> Usage:
    cached = (found.get(details) or {}).get("cached_tokens") or 0
    return Usage(found.get(prompt, 0), found.get(completion, 0), cached)


class _CompletionReader:
    """Reads the events of /v1/chat/completions."""

    def __init__(self) -> None:
        self.answer = Answer()

    def take(self, event: dict[str, Any]) -> str:
        if usage := event.get("usage"):
            self.answer.usage = _usage(usage, "prompt_tokens", "completion_tokens", "prompt_tokens_details")
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {}
            self.answer.reasoning += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls") or ():
                self._add_call(part["index"], part)
            self.answer.finish_reason = choice.get("finish_reason") or self.answer.finish_reason
            return delta.get("content") or ""
        return ""

    def _add_call(self, index: int, part: dict[str, Any]) -> None:
        calls, function = self.answer.tool_calls, part.get("function") or {}
        while len(calls) <= index:
            calls.append(ToolCall("", "", ""))
        call = calls[index]
        calls[index] = ToolCall(part.get("id") or call.id, function.get("name") or call.name,
                                call.arguments + (function.get("arguments") or ""))


class _ResponseReader:
    """Reads the events of /v1/responses."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.id = ""

    def take(self, event: dict[str, Any]) -> str:
        kind = event.get("type", "")
        if kind == "response.output_text.delta":
            return str(event["delta"])
        if kind == "response.failed":
            raise error_of(500, json.dumps(event["response"]).encode(), {}, "")
        if kind in ("response.completed", "response.incomplete"):
            self._end(event["response"], kind)
        return ""

    def _end(self, response: dict[str, Any], kind: str) -> None:
        self.id = response["id"]
        for item in response.get("output", ()):
            if item.get("type") == "function_call":
                self.answer.tool_calls.append(ToolCall(item["call_id"], item["name"], item["arguments"]))
            elif item.get("type") == "reasoning":
                self.answer.reasoning += "".join(part.get("text", "") for part in item.get("content") or ())
        self.answer.finish_reason = ("length" if kind == "response.incomplete" else
                                     "tool_calls" if self.answer.tool_calls else "stop")
        self.answer.usage = _usage(response.get("usage") or {}, "input_tokens", "output_tokens", "input_tokens_details")


class ChatStream(Closing, Iterator[str]):
    """An iterator over the pieces of an answer's text, started when it is made.

    close, or the end of a with statement, cancels what is still running. result reads the rest. text: what has arrived.
    """

    def __init__(self, events: Events, reader: Any, finished: Callable[[Any], None] = lambda reader: None) -> None:
        self._events, self._reader, self._finished = events, reader, finished
        self._iterator: Iterator[dict[str, Any]] | None = iter(events)

    @property
    def text(self) -> str:
        return str(self._reader.answer.text)

    def __next__(self) -> str:
        while self._iterator is not None:
            try:
                piece = self._reader.take(next(self._iterator))
            except StopIteration:
                self._end()
            except BaseException:
                if self._iterator is None:  # closed by another thread
                    break
                self.close()
                raise
            else:
                if piece:
                    self._reader.answer.text += piece
                    return str(piece)
        raise StopIteration

    def _end(self) -> None:
        if self._iterator is None:
            return
        self._iterator = None
        if self._reader.answer.finish_reason is None:
            raise make_error(grpc.StatusCode.UNAVAILABLE, "expected the end of the answer, found that of the connection")
        self._finished(self._reader)

    def result(self) -> Answer:
        """Reads to the end and returns the whole answer. finish_reason is None after close."""
        for _ in self:
            pass
        answer: Answer = self._reader.answer
        return answer

    def close(self) -> None:
        """Cancels the answer. Does nothing after its end."""
        if self._iterator is not None:
            self._iterator = None
            self._events.close()


def _messages(messages: Messages, system: str | None) -> list[Mapping[str, Any]]:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or not all(isinstance(one, Mapping) for one in messages):
        raise TypeError(f"messages: expected a text (str) or messages as {{'role': ..., 'content': ...}}, found {messages!r:.80}")
    return [*([{"role": "system", "content": system}] if system is not None else []), *messages]


def start_chat(port: HttpPort, messages: Messages, system: str | None, timeout: float | None,
               options: Mapping[str, Any]) -> ChatStream:
    body = {name: value for name, value in options.items() if value is not None}
    body |= {"messages": _messages(messages, system), "stream": True, "stream_options": {"include_usage": True}}
    return ChatStream(port.call("POST", "/v1/chat/completions", body, timeout), _CompletionReader())


class Conversation(Closing):
    """A conversation that the server keeps between turns, so that a turn costs its new tokens. Made by Client.conversation.

    messages: the input items of /v1/responses so far, as the server would get them whole. They are sent again where the
    server has lost the conversation. A turn whose stream is closed before its end is not part of the conversation.
    """

    def __init__(self, port: HttpPort, system: str | None, timeout: float | None, options: Mapping[str, Any]) -> None:
        self._port, self._timeout = port, timeout
        self._options = {_LIMITS.get(name, name): value for name, value in options.items() if value is not None}
        if system is not None:
            self._options["instructions"] = system
        self.messages: list[dict[str, Any]] = []
        self._id = ""
        self._owned: set[str] = set()

    def say(self, text: str, **options: Any) -> ChatStream:
        """Sends a message of the user. Returns the stream of the answer."""
        if not isinstance(text, str):
            raise TypeError(f"text: expected a text (str), found {text!r:.80}")
        return self._turn([{"role": "user", "content": text}], options)

    def return_results(self, results: Mapping[str, str], **options: Any) -> ChatStream:
        """Sends the results of the calls of the last answer, by their ids. Returns the stream of the next answer."""
        items = [{"type": "function_call_output", "call_id": call, "output": output} for call, output in results.items()]
        return self._turn(items, options)

    def _turn(self, items: list[dict[str, Any]], options: Mapping[str, Any]) -> ChatStream:
        body = self._options | {_LIMITS.get(name, name): value for name, value in options.items()} | {"stream": True}
        try:
            events = self._send(body, items)
        except (NotFoundError, InvalidArgumentError) as error:
            if not self._id or "previous_response_id" not in error.fields:
                raise
            self._id = ""  # the server has lost it, or cannot go on from it
            events = self._send(body, items)
        return ChatStream(events, _ResponseReader(), lambda reader: self._moved(items, reader))

    def _send(self, body: dict[str, Any], items: list[dict[str, Any]]) -> Events:
        what = {"previous_response_id": self._id, "input": items} if self._id else {"input": self.messages + items}
        return self._port.call("POST", "/v1/responses", body | what, self._timeout)

    def _moved(self, items: list[dict[str, Any]], reader: _ResponseReader) -> None:
        answer = reader.answer
        self.messages += items
        if answer.text or not answer.tool_calls:
            self.messages.append({"role": "assistant", "content": answer.text})
        self.messages += [{"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
                          for call in answer.tool_calls]
        former, self._id = self._id, reader.id
        self._delete(former)
        self._owned.add(reader.id)

    def fork(self) -> Conversation:
        """A conversation that goes on apart from this one."""
        fork = copy.copy(self)
        fork.messages, fork._owned = list(self.messages), set()
        # Its first turn may come after this one has moved on and deleted what the fork would go on from.
        fork._id = ""
        return fork

    def _delete(self, response: str) -> None:
        if response in self._owned:
            self._owned.discard(response)
            with contextlib.suppress(RpcError):  # the server deletes it after a while
                self._port.call("DELETE", f"/v1/responses/{response}", None, self._timeout).close()

    def close(self) -> None:
        """Deletes the conversation on the server."""
        for response in list(self._owned):
            self._delete(response)


class AsyncChatStream(AsyncClosing, AsyncIterator[str]):
    """As ChatStream. The call starts when the first piece, or the result, is awaited. A thread waits for the server."""

    def __init__(self, start: Callable[[], ChatStream]) -> None:
        self._start: Callable[[], ChatStream] = start
        self._stream: ChatStream | None = None
        self._closed = False

    @property
    def text(self) -> str:
        return "" if self._stream is None else self._stream.text

    def _next(self) -> str | None:
        if self._stream is None:
            self._stream = self._start()
            if self._closed:
                self._stream.close()
        return next(self._stream, None)

    async def __anext__(self) -> str:
        if self._closed:
            raise StopAsyncIteration
        try:
            piece = await asyncio.to_thread(self._next)
        except asyncio.CancelledError:
            self._cancel()
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def result(self) -> Answer:
        """Reads to the end and returns the whole answer."""
        async for _ in self:
            pass
        return Answer() if self._stream is None else self._stream.result()

    def _cancel(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()

    async def close(self) -> None:
        """Cancels the answer. Does nothing after its end."""
        self._cancel()


class AsyncConversation(AsyncClosing):
    """As Conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self._conversation.messages

    def say(self, text: str, **options: Any) -> AsyncChatStream:
        return AsyncChatStream(lambda: self._conversation.say(text, **options))

    def return_results(self, results: Mapping[str, str], **options: Any) -> AsyncChatStream:
        return AsyncChatStream(lambda: self._conversation.return_results(results, **options))

    def fork(self) -> AsyncConversation:
        return AsyncConversation(self._conversation.fork())

    async def close(self) -> None:
        await asyncio.to_thread(self._conversation.close)
