"""What calls return. proto/polysketch/v1/polysketch.proto describes the fields."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeVar

from polysketch.v1 import polysketch_pb2 as pb

FinishReason = Literal["stop", "length", "migrated"]
_Message = TypeVar("_Message")


def copy_fields(kind: type[_Message], message: Any) -> _Message:
    """A dataclass with the fields of the same name of a protobuf message."""
    return kind(**{field.name: getattr(message, field.name) for field in dataclasses.fields(kind)})  # type: ignore


@dataclasses.dataclass(frozen=True)
class Alternative:
    """A token that could have been sampled."""

    token: int
    logprob: float
    piece: str


@dataclasses.dataclass(frozen=True)
class TokenLogprob:
    """logprob: natural logarithm; None for the first token of a sequence. top: most likely first."""

    logprob: float | None
    top: tuple[Alternative, ...] = ()


@dataclasses.dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclasses.dataclass(frozen=True)
class Timings:
    """Seconds on the clock of the server."""

    queue_seconds: float = 0
    prefill_seconds: float = 0
    decode_seconds: float = 0
    first_token_seconds: float = 0
    total_seconds: float = 0


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive tokens of one choice, as they arrive.

    logprobs: one for each token if asked for. echoed: whether these are tokens of the prompt. finish_reason: in the last
    chunk of the choice, which may have text that was held back and has no tokens.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    choice: int = 0
    echoed: bool = False
    finish_reason: FinishReason | None = None


@dataclasses.dataclass
class Choice:
    """One output. With echo, text, tokens and logprobs of choice 0 begin with the prompt."""

    index: int
    text: str = ""
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprob] = dataclasses.field(default_factory=list)
    finish_reason: FinishReason | None = None
    matched_stop: str = ""
    stop_token: int | None = None
    seed: int = 0
    logprob_sum: float = 0


@dataclasses.dataclass
class Completion:
    """The result of a completion. text, tokens, logprobs, finish_reason, matched_stop, stop_token and seed are
    those of choice 0.

    migrations: how often a draining server handed the completion over to another replica. resume_token: only with the
    finish reason "migrated". state: the final state, with return_state. cache_miss: "",
    "disabled", "too_short" or "no_prefix".
    """

    choices: list[Choice]
    usage: Usage
    timings: Timings
    cache_miss: str
    migrations: int = 0
    resume_token: str = ""
    state: bytes = b""

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> list[int]:
        return self.choices[0].tokens

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    @property
    def matched_stop(self) -> str:
        return self.choices[0].matched_stop

    @property
    def stop_token(self) -> int | None:
        """The stop token that ended the output; None: EOS, or another reason."""
        return self.choices[0].stop_token

    @property
    def seed(self) -> int:
        return self.choices[0].seed


@dataclasses.dataclass(frozen=True)
class FarMass:
    """The share of the queries' denominators in a layer that comes from the state, by head: means over the queries of a
    range of positions, which begins at `first`."""

    layer: int
    first: int
    queries: int
    shares: list[float]


@dataclasses.dataclass(frozen=True)
class Score:
    """logprobs[i] is ln p(token i + 1 | all tokens before it), and of token i in a session; greedy[i] says whether greedy
    sampling takes that token. Both, and far_mass, are empty if they were not asked for."""

    tokens: int
    logprobs: list[float]
    logprob_sum: float
    perplexity: float
    timings: Timings
    greedy: list[bool] = dataclasses.field(default_factory=list)
    far_mass: list[FarMass] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class SessionInfo:
    """A session as the server lists it."""

    session: str
    tokens: int
    bytes: int
    durable: bool
    in_memory: bool
    age_seconds: float
    idle_seconds: float
    ttl_seconds: float


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A stored copy of a session. snapshot: its key, for Client.restore."""

    snapshot: str
    bytes: int
    age_seconds: float


REASONS: dict[int, FinishReason] = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_MIGRATED: "migrated",
}
