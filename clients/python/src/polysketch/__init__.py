"""Client of the PolySketch server: Client for threads, AsyncClient for asyncio.

    with polysketch.Client("127.0.0.1:50051") as client:
        for chunk in client.complete("It was late", max_tokens=40):
            print(chunk.text, end="", flush=True)
"""

import importlib.metadata

from polysketch.aio import AsyncClient, AsyncCompletionStream, AsyncSession
from polysketch.chat import Answer, AsyncChatStream, AsyncConversation, ChatStream, Conversation, ToolCall
from polysketch.client import Client, CompletionStream
from polysketch.errors import *
from polysketch.errors import __all__ as _errors
from polysketch.retry import Retry
from polysketch.session import Session
from polysketch.types import (Alternative, Choice, Chunk, Completion, FarMass, Score, SessionInfo, Snapshot, Timings,
                              TokenLogprob, Usage)

__version__ = importlib.metadata.version("polysketch")
__all__ = [
    "Alternative", "Answer", "AsyncChatStream", "AsyncClient", "AsyncCompletionStream", "AsyncConversation",
    "AsyncSession", "ChatStream", "Choice", "Chunk", "Client", "Completion", "CompletionStream", "Conversation", "FarMass",
    "Retry", "Score", "Session", "SessionInfo", "Snapshot", "Timings", "TokenLogprob", "ToolCall", "Usage", "__version__", *_errors,
]
