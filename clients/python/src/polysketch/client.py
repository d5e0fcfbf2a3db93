"""The sync client."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack

import grpc

from polysketch import _calls
from polysketch._base import ClientBase
from polysketch._closing import Closing
from polysketch._replicas import Replica
from polysketch._requests import (CompletionOptions, LongInput, ProgressCallback, TextInput, TokensInput,
                                  completion_request, tokenize_request)
from polysketch._stream import Job, StreamState
from polysketch.chat import ChatStream, Conversation, Messages, start_chat
from polysketch.errors import RpcError, from_grpc
from polysketch.retry import Attempts, Deadline
from polysketch.session import Session
from polysketch.types import Chunk, Completion, Score, SessionInfo, Snapshot
from polysketch.v1 import polysketch_pb2 as pb


class CompletionStream(StreamState, Closing, Iterator[Chunk]):
    """An iterator over the chunks of a completion, started when it is made.

    close, or the end of a with statement, cancels what is still running. result reads the rest.
    """

    def __init__(self, client: Client, job: Job) -> None:
        super().__init__(job, client._replicas, client._retry, client._metadata(job.request.session), client._timeout)
        self._resolve = client._resolve
        self._start()

    def _start(self) -> None:
        self._resolve()
        self._open()

    def __next__(self) -> Chunk:
        try:
            while not self._done:
                chunk = self._read()
                if chunk is not None:
                    return chunk
        except BaseException:
            self._cancel()
            raise
        raise StopIteration

    def _read(self) -> Chunk | None:
        try:
            response = next(self._call)
        except StopIteration:
            raise self._ended() from None
        except grpc.RpcError as error:
            if self._done:  # closed by another thread
                return None
            time.sleep(self._failed(error))
            self._start()
            return None
        chunk, again = self._accept(response)
        if again or self._done:
            _calls.read_status(self._call)
        if again:
            self._start()
        return chunk

    def result(self) -> Completion:
        """Reads to the end and returns the whole completion. CancelledError after close."""
        for _ in self:
            pass
        return self._result()

    def close(self) -> None:
        """Cancels the completion. Does nothing after its end."""
        if not self._done:
            self._cancel()


class Client(ClientBase, Closing):
    """A client of one or several replicas of the PolySketch server. Threads may share it.

    target: HOST:PORT, http://HOST:PORT, https://HOST:PORT (TLS), or several in a list or separated by commas. With
      dns:///HOST:PORT each address of the host name is a replica. Default: POLYSKETCH_SERVER, otherwise 127.0.0.1:50051.
    tls_ca, cert, key: PEM files with the certificates that sign the server's, and with the certificate and the key of the
      client. One of them, or https, selects TLS. Defaults: POLYSKETCH_TLS_CA, POLYSKETCH_CERT, POLYSKETCH_KEY.
    api_key: sent with each call. Default: POLYSKETCH_API_KEY.
    timeout: seconds for each call with all its tries. Default: no limit.
    retry: when calls are repeated. None: never; a completion that a draining server migrates then ends with the finish
      reason "migrated".
    tenant: x-tenant-id, for servers that trust it.
    metadata: sent with each call.
    http: address of the HTTP port, for chat. Default: port 8000 of the host of the first target.
    """

    _channels = grpc

    def _resolve(self) -> None:
        if not self._replicas.stale:
            return
        answers = []
        for name in self._replicas.names:
            try:
                answers.append((name, socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)))
            except OSError as error:
                if not self._replicas.all():
                    raise _calls.unresolved(name, error) from error
        for channel in self._replicas.resolved(answers):
            channel.close()

    def _attempt(self, run: Callable[[Replica, float | None], Any], timeout: float | None, *,
                 home: Replica | None = None, repeatable: bool = True,
                 cause: Callable[[], BaseException | None] = lambda: None) -> tuple[Any, Replica]:
        """run(replica, seconds), repeated. Returns its result and the replica that gave it."""
        self._resolve()
        attempts = Attempts(self._retry if repeatable else None, self._replicas, Deadline(timeout), home=home)
        while True:
            try:
                return run(attempts.replica, attempts.deadline.left()), attempts.replica
            except grpc.RpcError as error:
                if (own := cause()) is not None:
                    raise own from None
                failed = from_grpc(error, attempts.replica.target)
            time.sleep(attempts.failed(failed))
            self._resolve()

    def _unary(self, method: str, request: Any, *, session: str = "", home: Replica | None = None,
               timeout: float | None = None) -> tuple[Any, Replica]:
        def run(replica: Replica, seconds: float | None) -> Any:
            return getattr(replica.stub, method)(request, timeout=seconds, metadata=self._metadata(session))

        return self._attempt(run, self._timeout if timeout is None else timeout, home=home)

    def _long(self, method: str, source: LongInput, reader: Any, *, session: str = "", home: Replica | None = None,
              timeout: float | None = None) -> tuple[Any, Replica]:
        """Sends a long input. Returns reader.result."""
        def run(replica: Replica, seconds: float | None) -> Any:
            call = getattr(replica.stub, method)(iter(source), timeout=seconds, metadata=self._metadata(session))
            reader.start()
            try:
                for response in call:
                    reader.add(response)
            except BaseException:
                call.cancel()
                raise
            return reader.result()

        return self._attempt(run, self._timeout if timeout is None else timeout, home=home,
                             repeatable=source.repeatable, cause=lambda: source.error)

    # --- text ---

    def complete(self, prompt: str | None = None, *, tokens: Sequence[int] | None = None, state: bytes | None = None,
                 resume_token: str | None = None, **options: Unpack[CompletionOptions]) -> CompletionStream:
        """Continues a text or token ids. Returns an iterator over the chunks of the output.

        state: Completion.state of an earlier completion, which the prompt follows. resume_token: of a completion with the
        finish reason "migrated"; excludes the other arguments but return_state.
        """
        request = completion_request(prompt, tokens, options, resume_token=resume_token)
        return self._completion(Job(request, options, state))

    def _completion(self, job: Job) -> CompletionStream:
        return CompletionStream(self, job)

    def score(self, text: TextInput | None = None, *, tokens: TokensInput | None = None, logprobs: bool = True,
              far_mass: bool = False, on_progress: ProgressCallback | None = None,
              timeout: float | None = None) -> Score:
        """Returns the log-probability of every token of an input of any length.

        text, tokens: the input, or an iterable of its parts. An iterable is read once, so its call is not repeated.
        logprobs: whether the result holds the log-probability of each token, beside their sum. far_mass: whether it says
        what share of the queries' denominators comes from the state.
        """
        source = LongInput(text, tokens, pb.ScoreRequest(far_mass=far_mass))
        result: Score = self._long("Score", source, _calls.ScoreReader(logprobs, on_progress), timeout=timeout)[0]
        return result

    def tokenize(self, text: str, *, add_bos: bool | None = None, parse_special: bool = False,
                 timeout: float | None = None) -> list[int]:
        """The token ids of a text.

        add_bos: as for a prompt by default. parse_special: whether a control piece spelled in the text ("</s>") is that
        piece.
        """
        request = tokenize_request(text, add_bos, parse_special)
        return list(self._unary("Tokenize", request, timeout=timeout)[0].tokens)

    def detokenize(self, tokens: Iterable[int], *, timeout: float | None = None) -> str:
        """The text of token ids."""
        text: str = self._unary("Detokenize", pb.DetokenizeRequest(tokens=tokens), timeout=timeout)[0].text
        return text

    def info(self, *, timeout: float | None = None) -> pb.GetModelResponse:
        """The model, the device and the limits of the server."""
        response: pb.GetModelResponse = self._unary("GetModel", pb.GetModelRequest(), timeout=timeout)[0]
        return response

    def health(self, *, timeout: float | None = 5) -> dict[str, str]:
        """The state of each replica by its address: SERVING, NOT_SERVING, or UNAVAILABLE for one that does not answer."""
        self._resolve()
        return {replica.target: self._check(replica, timeout) for replica in self._replicas.all()}

    def _check(self, replica: Replica, timeout: float | None) -> str:
        try:
            check = replica.channel.unary_unary(_calls.HEALTH_METHOD, **_calls.HEALTH_SERIALIZERS)
            return _calls.health_name(check(_calls.HEALTH_REQUEST, timeout=timeout, metadata=self._metadata()))
        except grpc.RpcError as error:
            return _calls.health_of_error(from_grpc(error, replica.target))

    # --- chat ---

    def chat(self, messages: Messages, *, system: str | None = None, timeout: float | None = None,
             **options: Any) -> ChatStream:
        """Answers messages, over the HTTP port. Returns an iterator over the pieces of the text.

        messages: a text of the user, or messages as {"role": ..., "content": ...}. options: parameters of
        /v1/chat/completions, such as max_tokens, temperature and tools.
        """
        return start_chat(self._http_port(), messages, system, self._timeout if timeout is None else timeout, options)

    def conversation(self, *, system: str | None = None, timeout: float | None = None, **options: Any) -> Conversation:
        """A conversation that the server keeps between turns. options: parameters of /v1/responses of every turn."""
        return Conversation(self._http_port(), system, self._timeout if timeout is None else timeout, options)

    # --- sessions ---

    def session(self, session: str | None = None, *, durable: bool = False, ttl: int = 0) -> Session:
        """Creates a session, or opens the session of an id.

        durable: whether it is in the state store before each response. ttl: seconds without use after which it is
        deleted; 0: --session-ttl of the server.
        """
        if session is not None:
            return self._open_session(session)
        request = pb.CreateSessionRequest(durable=durable, ttl_seconds=ttl)
        response, replica = self._unary("CreateSession", request)
        return Session(self, response, replica, owned=True)

    def _open_session(self, session: str) -> Session:
        """Finds the replica that has the session in memory, or one that knows it."""
        self._resolve()
        found: Session | None = None
        error: RpcError | None = None
        for replica in self._replicas.all():
            try:
                response, where = self._unary("ListSessions", pb.ListSessionsRequest(), home=replica)
            except RpcError as failed:
                error = failed
                continue
            for one in response.sessions:
                if one.session == session and (found is None or one.in_memory):
                    found = Session(self, one, where, owned=False)
        if found is None:
            raise error or _calls.no_session(session)
        return found

    def restore(self, snapshot: str, *, durable: bool = False, ttl: int = 0) -> Session:
        """Creates a session that begins with the snapshot of a key."""
        request = pb.RestoreSessionRequest(snapshot=snapshot, durable=durable, ttl_seconds=ttl)
        response, replica = self._unary("RestoreSession", request)
        return Session(self, response, replica, owned=True)

    def sessions(self) -> list[SessionInfo]:
        """The sessions of the tenant on a replica and in its state store."""
        return _calls.session_list(self._unary("ListSessions", pb.ListSessionsRequest())[0])

    def snapshots(self) -> list[Snapshot]:
        """The snapshots of the tenant on a replica and in its state store."""
        return _calls.snapshot_list(self._unary("ListSessions", pb.ListSessionsRequest())[0])

    def delete(self, session: str) -> None:
        """Deletes the session of an id or the snapshot of a key. NotFoundError if there is none."""
        self._delete(session, None)

    def _delete(self, session: str, home: Replica | None) -> None:
        self._unary("DeleteSession", pb.DeleteSessionRequest(session=session), session=session, home=home)

    def close(self) -> None:
        """Closes the connections. Calls that run are cancelled."""
        for replica in self._replicas.all():
            channel = replica.take_channel()
            if channel is not None:
                channel.close()
