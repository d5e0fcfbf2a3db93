"""Sessions of the sync client."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from polysketch import _calls
from polysketch._closing import Closing
from polysketch._replicas import Replica
from polysketch._requests import CompletionOptions, LongInput, ProgressCallback, TextInput, TokensInput, completion_request
from polysketch._stream import Job
from polysketch.errors import NotFoundError
from polysketch.types import Score, Snapshot, Usage, copy_fields
from polysketch.v1 import polysketch_pb2 as pb

if TYPE_CHECKING:
    from polysketch.client import Client, CompletionStream


class SessionState:
    """What the sessions of both clients hold.

    id: the id. tokens: the tokens in the session after the last call of this object, which its next call expects: a call
    that is repeated is never applied twice. durable: whether the session is in the state store before each response.
    """

    def __init__(self, client: Any, session: pb.Session, replica: Replica, owned: bool) -> None:
        self._client = client
        self._replica = replica
        self._owned = owned  # deleted at the end of a with statement
        self.id = session.session
        self.tokens = session.tokens
        self.durable = session.durable

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, {self.tokens} tokens>"

    def _moved(self, session: pb.Session, replica: Replica) -> None:
        self.tokens, self._replica = session.tokens, replica

    def _job(self, prompt: str | None, tokens: Sequence[int] | None, options: CompletionOptions) -> Job:
        request = completion_request(prompt, tokens, options, session=self.id, expected_position=self.tokens)
        return Job(request, options, home=self._replica,
                   finished=lambda finish, replica: self._moved(finish.session, replica))

    def _input(self, text: TextInput | None, tokens: TokensInput | None, kind: Any = pb.AppendRequest,
               **fields: Any) -> LongInput:
        return LongInput(text, tokens, kind(session=self.id, expected_position=self.tokens, **fields))

    def _where(self) -> dict[str, Any]:
        return {"session": self.id, "home": self._replica}


class Session(SessionState, Closing):
    """A sequence that the server keeps between calls. Made by Client.session, Client.restore and fork.

    At the end of a with statement a session that this client created is deleted.
    """

    _client: Client

    def append(self, text: TextInput | None = None, *, tokens: TokensInput | None = None,
               on_progress: ProgressCallback | None = None, timeout: float | None = None) -> Usage:
        """Appends input of any length: a text, token ids, or an iterable of their parts, which is read once."""
        response, replica = self._client._long("Append", self._input(text, tokens), _calls.AppendReader(on_progress),
                                               timeout=timeout, **self._where())
        self._moved(response.session, replica)
        return copy_fields(Usage, response.usage)

    def complete(self, prompt: str | None = None, *, tokens: Sequence[int] | None = None,
                 **options: Unpack[CompletionOptions]) -> CompletionStream:
        """As Client.complete; the prompt follows the tokens of the session. The session holds prompt and output once the
        stream has ended; it is unchanged if the stream is closed before."""
        return self._client._completion(self._job(prompt, tokens, options))

    def score(self, text: TextInput | None = None, *, tokens: TokensInput | None = None, logprobs: bool = True,
              far_mass: bool = False, on_progress: ProgressCallback | None = None,
              timeout: float | None = None) -> Score:
        """As Client.score; the input follows the tokens of the session, which stays as it is."""
        source = self._input(text, tokens, pb.ScoreRequest, far_mass=far_mass)
        result: Score = self._client._long("Score", source, _calls.ScoreReader(logprobs, on_progress), timeout=timeout,
                                           **self._where())[0]
        return result

    def fork(self, count: int = 1) -> list[Session]:
        """Creates sessions that begin with the tokens of this one."""
        request = pb.ForkSessionRequest(session=self.id, count=count, expected_position=self.tokens)
        response, replica = self._client._unary("ForkSession", request, **self._where())
        return [Session(self._client, one, replica, owned=True) for one in response.sessions]

    def snapshot(self, *, ttl: int = 0) -> Snapshot:
        """Stores a copy. ttl: seconds after which it is deleted; 0: --session-ttl of the server."""
        request = pb.SnapshotSessionRequest(session=self.id, ttl_seconds=ttl)
        return copy_fields(Snapshot, self._client._unary("SnapshotSession", request, **self._where())[0])

    def refresh(self) -> int:
        """Asks the server for the tokens in the session, as after an error that leaves open whether a call was applied."""
        found = self._client._open_session(self.id)
        self.tokens, self._replica = found.tokens, found._replica
        return self.tokens

    def close(self) -> None:
        """Deletes the session. Does nothing if it is deleted already."""
        with contextlib.suppress(NotFoundError):
            self._client._delete(self.id, self._replica)

    def __exit__(self, *error: object) -> None:
        if self._owned:
            self.close()
