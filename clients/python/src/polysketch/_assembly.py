"""Responses of a completion to chunks and a result. Does no input or output."""

from __future__ import annotations

from polysketch._requests import ProgressCallback
from polysketch.types import REASONS, Alternative, Choice, Chunk, Completion, Timings, TokenLogprob, Usage, copy_fields
from polysketch.v1 import polysketch_pb2 as pb

_CACHE_MISS = {
    number: "" if number == pb.CACHE_MISS_UNSPECIFIED else name.removeprefix("CACHE_MISS_").lower()
    for name, number in pb.CacheMiss.items()
}


def _logprob(message: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(message.logprob if message.HasField("logprob") else None,
                        tuple(copy_fields(Alternative, other) for other in message.top))


class Assembly:
    """What a completion has sent so far, over all of its calls.

    finish: the last message, once it has arrived. received: whether a token of the current call has arrived.
    """

    def __init__(self, on_progress: ProgressCallback | None, several: bool) -> None:
        self._on_progress = on_progress
        self._choices: dict[int, Choice] = {0: Choice(0)}
        self._state: list[bytes] = []
        self._several = several  # whether each choice has an end of its own
        self.finish: pb.Finish | None = None
        self.received = False
        self.migrations = 0

    def choice(self, index: int) -> Choice:
        return self._choices.setdefault(index, Choice(index))

    def add(self, response: pb.CompleteResponse) -> Chunk | None:
        """Returns the chunk of a message; None for other messages."""
        event = response.WhichOneof("event")
        if event == "progress":
            if self._on_progress is not None:
                self._on_progress(response.progress.processed, response.progress.total)
            return None
        self.received = True
        if event == "delta":
            return self._add_delta(response.delta)
        if event == "choice":
            return self._add_choice(response.choice)
        if event == "finish":
            return self._add_finish(response.finish)
        self._state.append(response.state)
        return None

    def _add_delta(self, delta: pb.Delta) -> Chunk:
        chunk = Chunk(delta.text, tuple(delta.tokens), tuple(map(_logprob, delta.logprobs)), delta.choice, delta.echoed)
        choice = self.choice(chunk.choice)
        choice.text += chunk.text
        choice.tokens += chunk.tokens
        choice.logprobs += chunk.logprobs
        return chunk

    def _add_choice(self, end: pb.ChoiceFinish) -> Chunk:
        self._several = True
        choice = self.choice(end.choice)
        choice.text += end.text
        choice.finish_reason = REASONS.get(end.reason)
        choice.matched_stop, choice.seed, choice.logprob_sum = end.matched_stop, end.seed, end.logprob_sum
        choice.stop_token = end.stop_token if end.HasField("stop_token") else None
        return Chunk(end.text, choice=end.choice, finish_reason=choice.finish_reason)

    def _add_finish(self, finish: pb.Finish) -> Chunk | None:
        self.finish = finish
        if self._several:
            return None
        choice = self.choice(0)
        choice.text += finish.text
        choice.finish_reason = REASONS.get(finish.reason)
        choice.matched_stop, choice.seed = finish.matched_stop, finish.seed
        choice.stop_token = finish.stop_token if finish.HasField("stop_token") else None
        return Chunk(finish.text, finish_reason=choice.finish_reason)

    @property
    def migrated(self) -> bool:
        return self.finish is not None and self.finish.reason == pb.FINISH_REASON_MIGRATED

    def resume(self) -> str:
        """Takes the resume token of a migrated completion: another call follows."""
        assert self.finish is not None
        token, self.finish, self.received = self.finish.resume_token, None, False
        if self.choice(0).finish_reason == "migrated":
            self.choice(0).finish_reason = None
        self.migrations += 1
        return token

    def result(self) -> Completion:
        finish = self.finish or pb.Finish()
        choices = [self._choices[index] for index in sorted(self._choices)]
        return Completion(choices, copy_fields(Usage, finish.usage), copy_fields(Timings, finish.timings),
                          _CACHE_MISS.get(finish.cache_miss, ""), self.migrations, finish.resume_token, b"".join(self._state))
