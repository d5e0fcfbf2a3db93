"""The asyncio client. Cancelling a task cancels the call that it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Unpack

import grpc
import grpc.aio

from polysketch import _calls
from polysketch._base import ClientBase
from polysketch._closing import AsyncClosing
from polysketch._replicas import Replica
from polysketch._requests import (CompletionOptions, LongInput, ProgressCallback, TextInput, TokensInput,
                                  completion_request, tokenize_request)
from polysketch._stream import Job, StreamState
from polysketch.chat import AsyncChatStream, AsyncConversation, Conversation, Messages, start_chat
from polysketch.errors import NotFoundError, RpcError, from_grpc
from polysketch.retry import Attempts, Deadline
from polysketch.session import SessionState
from polysketch.types import Chunk, Completion, Score, SessionInfo, Snapshot, Usage, copy_fields
from polysketch.v1 import polysketch_pb2 as pb


class AsyncCompletionStream(StreamState, AsyncClosing, AsyncIterator[Chunk]):
    """As CompletionStream. The call starts when the first chunk, or the result, is awaited."""

    def __init__(self, client: AsyncClient, job: Job) -> None:
        super().__init__(job, client._replicas, client._retry, client._metadata(job.request.session), client._timeout)
        self._resolve = client._resolve

    async def __anext__(self) -> Chunk:
        try:
            while not self._done:
                chunk = await self._read()
                if chunk is not None:
                    return chunk
        except BaseException:
            self._cancel()
            raise
        raise StopAsyncIteration

    async def _read(self) -> Chunk | None:
        if self._call is None:
            await self._resolve()
            self._open()
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            await asyncio.sleep(self._failed(error))
            self._call = None
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._done and not (task is not None and task.cancelling()):  # closed by another task
                return None
            raise
        if response is grpc.aio.EOF:
            raise self._ended()
        chunk, again = self._accept(response)
        if again or self._done:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._call.read()  # the status, so that the call ends and is not cancelled
        if again:
            self._call = None
        return chunk

    async def result(self) -> Completion:
        """Reads to the end and returns the whole completion. CancelledError after close."""
        async for _ in self:
            pass
        return self._result()

    async def close(self) -> None:
        """Cancels the completion. Does nothing after its end."""
        if not self._done:
            self._cancel()


class _Opening(Awaitable["AsyncSession"]):
    """A session to be opened, by await or by async with."""

    def __init__(self, opened: Awaitable[AsyncSession]) -> None:
        self._opened = opened

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return self._opened.__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._opened
        return self._session

    async def __aexit__(self, *error: Any) -> None:
        await self._session.__aexit__(*error)


class AsyncClient(ClientBase, AsyncClosing):
    """As Client, for one event loop."""

    _channels = grpc.aio

    async def _resolve(self) -> None:
        if not self._replicas.stale:
            return
        answers = []
        for name in self._replicas.names:
            try:
                answer = await asyncio.get_running_loop().getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
            except OSError as error:
                if not self._replicas.all():
                    raise _calls.unresolved(name, error) from error
            else:
                answers.append((name, answer))
        for channel in self._replicas.resolved(answers):
            await channel.close()

    async def _attempt(self, run: Callable[[Replica, float | None], Awaitable[Any]], timeout: float | None, *,
                       home: Replica | None = None, repeatable: bool = True,
                       cause: Callable[[], BaseException | None] = lambda: None) -> tuple[Any, Replica]:
        """run(replica, seconds), repeated. Returns its result and the replica that gave it."""
        await self._resolve()
        attempts = Attempts(self._retry if repeatable else None, self._replicas, Deadline(timeout), home=home)
        while True:
            try:
                return await run(attempts.replica, attempts.deadline.left()), attempts.replica
            except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                if (own := cause()) is not None:
                    raise own from None  # gRPC cancels a call whose input fails
                if isinstance(error, asyncio.CancelledError):
                    raise
                failed = from_grpc(error, attempts.replica.target)
            await asyncio.sleep(attempts.failed(failed))
            await self._resolve()

    async def _unary(self, method: str, request: Any, *, session: str = "", home: Replica | None = None,
                     timeout: float | None = None) -> tuple[Any, Replica]:
        async def run(replica: Replica, seconds: float | None) -> Any:
            return await getattr(replica.stub, method)(request, timeout=seconds, metadata=self._metadata(session))

        return await self._attempt(run, self._timeout if timeout is None else timeout, home=home)

    async def _long(self, method: str, source: LongInput, reader: Any, *, session: str = "", home: Replica | None = None,
                    timeout: float | None = None) -> tuple[Any, Replica]:
        """Sends a long input. Returns reader.result."""
        async def run(replica: Replica, seconds: float | None) -> Any:
            call = getattr(replica.stub, method)(iter(source), timeout=seconds, metadata=self._metadata(session))
            reader.start()
            try:
                async for response in call:
                    reader.add(response)
            finally:
                call.cancel()  # does nothing after its end
            return reader.result()

        return await self._attempt(run, self._timeout if timeout is None else timeout, home=home,
                                   repeatable=source.repeatable, cause=lambda: source.error)

    # --- text ---

    def complete(self, prompt: str | None = None, *, tokens: Sequence[int] | None = None, state: bytes | None = None,
                 resume_token: str | None = None, **options: Unpack[CompletionOptions]) -> AsyncCompletionStream:
        """As Client.complete: `async for chunk in client.complete(...)`, or `await client.complete(...).result()`."""
        request = completion_request(prompt, tokens, options, resume_token=resume_token)
        return AsyncCompletionStream(self, Job(request, options, state))

    async def score(self, text: TextInput | None = None, *, tokens: TokensInput | None = None, logprobs: bool = True,
                    far_mass: bool = False, on_progress: ProgressCallback | None = None,
                    timeout: float | None = None) -> Score:
        """As Client.score."""
        source = LongInput(text, tokens, pb.ScoreRequest(far_mass=far_mass))
        result: Score = (await self._long("Score", source, _calls.ScoreReader(logprobs, on_progress), timeout=timeout))[0]
        return result

    async def tokenize(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False,
                       timeout: float | None = None) -> list[int]:
        """As Client.tokenize."""
        request = tokenize_request(text, add_bos, parse_special)
        return list((await self._unary("Tokenize", request, timeout=timeout))[0].tokens)

    async def detokenize(self, tokens: Iterable[int], *, timeout: float | None = None) -> str:
        """As Client.detokenize."""
        text: str = (await self._unary("Detokenize", pb.DetokenizeRequest(tokens=tokens), timeout=timeout))[0].text
        return text

    async def info(self, *, timeout: float | None = None) -> pb.GetModelResponse:
        """As Client.info."""
        response: pb.GetModelResponse = (await self._unary("GetModel", pb.GetModelRequest(), timeout=timeout))[0]
        return response

    async def health(self, *, timeout: float | None = 5) -> dict[str, str]:
        """As Client.health."""
        await self._resolve()
        replicas = self._replicas.all()
        states = await asyncio.gather(*(self._check(replica, timeout) for replica in replicas))
        return {replica.target: state for replica, state in zip(replicas, states, strict=True)}

    async def _check(self, replica: Replica, timeout: float | None) -> str:
        try:
            check = replica.channel.unary_unary(_calls.HEALTH_METHOD, **_calls.HEALTH_SERIALIZERS)
            return _calls.health_name(await check(_calls.HEALTH_REQUEST, timeout=timeout, metadata=self._metadata()))
        except grpc.aio.AioRpcError as error:
            return _calls.health_of_error(from_grpc(error, replica.target))

    # --- chat ---

    def chat(self, messages: Messages, *, system: str | None = None, timeout: float | None = None,
             **options: Any) -> AsyncChatStream:
        """As Client.chat."""
        seconds = self._timeout if timeout is None else timeout
        return AsyncChatStream(lambda: start_chat(self._http_port(), messages, system, seconds, options))

    def conversation(self, *, system: str | None = None, timeout: float | None = None,
                     **options: Any) -> AsyncConversation:
        """As Client.conversation."""
        seconds = self._timeout if timeout is None else timeout
        return AsyncConversation(Conversation(self._http_port(), system, seconds, options))

    # --- sessions ---

    def session(self, session: str | None = None, *, durable: bool = False, ttl: int = 0) -> _Opening:
        """As Client.session: `await client.session()`, or `async with client.session() as session`."""
        if session is not None:
            return _Opening(self._open_session(session))
        request = pb.CreateSessionRequest(durable=durable, ttl_seconds=ttl)
        return _Opening(self._make_session("CreateSession", request))

    def restore(self, snapshot: str, *, durable: bool = False, ttl: int = 0) -> _Opening:
        """As Client.restore: `await`, or `async with`."""
        request = pb.RestoreSessionRequest(snapshot=snapshot, durable=durable, ttl_seconds=ttl)
        return _Opening(self._make_session("RestoreSession", request))

    async def _make_session(self, method: str, request: Any) -> AsyncSession:
        response, replica = await self._unary(method, request)
        return AsyncSession(self, response, replica, owned=True)

    async def _open_session(self, session: str) -> AsyncSession:
        """Finds the replica that has the session in memory, or one that knows it."""
        await self._resolve()
        found: AsyncSession | None = None
        error: RpcError | None = None
        for replica in self._replicas.all():
            try:
                response, where = await self._unary("ListSessions", pb.ListSessionsRequest(), home=replica)
            except RpcError as failed:
                error = failed
                continue
            for one in response.sessions:
                if one.session == session and (found is None or one.in_memory):
                    found = AsyncSession(self, one, where, owned=False)
        if found is None:
            raise error or _calls.no_session(session)
        return found

    async def sessions(self) -> list[SessionInfo]:
        """As Client.sessions."""
        return _calls.session_list((await self._unary("ListSessions", pb.ListSessionsRequest()))[0])

    async def snapshots(self) -> list[Snapshot]:
        """As Client.snapshots."""
        return _calls.snapshot_list((await self._unary("ListSessions", pb.ListSessionsRequest()))[0])

    async def delete(self, session: str) -> None:
        """As Client.delete."""
        await self._delete(session, None)

    async def _delete(self, session: str, home: Replica | None) -> None:
        await self._unary("DeleteSession", pb.DeleteSessionRequest(session=session), session=session, home=home)

    async def close(self) -> None:
        """Closes the connections. Calls that run are cancelled."""
        for replica in self._replicas.all():
            channel = replica.take_channel()
            if channel is not None:
                await channel.close()


class AsyncSession(SessionState, AsyncClosing):
    """As Session. Made by AsyncClient.session, AsyncClient.restore and fork."""

    _client: AsyncClient

    async def append(self, text: TextInput | None = None, *, tokens: TokensInput | None = None,
                     on_progress: ProgressCallback | None = None, timeout: float | None = None) -> Usage:
        """As Session.append."""
        response, replica = await self._client._long("Append", self._input(text, tokens),
                                                     _calls.AppendReader(on_progress), timeout=timeout, **self._where())
        self._moved(response.session, replica)
        return copy_fields(Usage, response.usage)

    def complete(self, prompt: str | None = None, *, tokens: Sequence[int] | None = None,
                 **options: Unpack[CompletionOptions]) -> AsyncCompletionStream:
        """As Session.complete."""
        return AsyncCompletionStream(self._client, self._job(prompt, tokens, options))

    async def score(self, text: TextInput | None = None, *, tokens: TokensInput | None = None, logprobs: bool = True,
                    far_mass: bool = False, on_progress: ProgressCallback | None = None,
                    timeout: float | None = None) -> Score:
        """As Session.score."""
        source = self._input(text, tokens, pb.ScoreRequest, far_mass=far_mass)
        result: Score = (await self._client._long("Score", source, _calls.ScoreReader(logprobs, on_progress),
                                                  timeout=timeout, **self._where()))[0]
        return result

    async def fork(self, count: int = 1) -> list[AsyncSession]:
        """As Session.fork."""
        request = pb.ForkSessionRequest(session=self.id, count=count, expected_position=self.tokens)
        response, replica = await self._client._unary("ForkSession", request, **self._where())
        return [AsyncSession(self._client, one, replica, owned=True) for one in response.sessions]

    async def snapshot(self, *, ttl: int = 0) -> Snapshot:
        """As Session.snapshot."""
        request = pb.SnapshotSessionRequest(session=self.id, ttl_seconds=ttl)
        return copy_fields(Snapshot, (await self._client._unary("SnapshotSession", request, **self._where()))[0])

    async def refresh(self) -> int:
        """As Session.refresh."""
        found = await self._client._open_session(self.id)
        self.tokens, self._replica = found.tokens, found._replica
        return self.tokens

    async def close(self) -> None:
        """As Session.close."""
        with contextlib.suppress(NotFoundError):
            await self._client._delete(self.id, self._replica)

    async def __aexit__(self, *error: object) -> None:
        if self._owned:
            await self.close()
