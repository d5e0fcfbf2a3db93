"""Losses, divergences and recall of last hidden states. Logits are computed in blocks of positions and not kept."""

import dataclasses

import torch

from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.tasks import Prompt

BLOCK = 256  # positions whose logits are in memory at a time


def text_loss(decoder: Decoder, hidden: torch.Tensor, ids) -> float:
    """Nats a token of ids [n], of which hidden [n, D] are the states."""
    targets = torch.as_tensor(ids[1:], dtype=torch.int64, device=hidden.device)
    total = 0.0
    for begin in range(0, len(targets), BLOCK):
        end = min(begin + BLOCK, len(targets))
        logits = hidden[begin:end] @ decoder.head.T
        total += torch.nn.functional.cross_entropy(logits, targets[begin:end], reduction="sum").item()
    return total / len(targets)


@dataclasses.dataclass
class Recall:
    nats: float  # of an answer, all its tokens together; mean over the answers
    exact: float  # share of the answers all of whose tokens are the most likely ones
    tokens: float  # share of the tokens that are


def recall(decoder: Decoder, hidden: torch.Tensor, prompt: Prompt) -> Recall:
    ids = torch.as_tensor(prompt.ids, dtype=torch.int64, device=hidden.device)
    nats, exact, right, count = 0.0, 0, 0, 0
    for begin, end, _ in prompt.answers:
        logits = hidden[begin - 1 : end - 1] @ decoder.head.T
        nats += torch.nn.functional.cross_entropy(logits, ids[begin:end], reduction="sum").item()
        found = logits.argmax(-1) == ids[begin:end]
        exact += bool(found.all())
        right += int(found.sum())
        count += end - begin
    answers = len(prompt.answers)
    return Recall(nats / answers, exact / answers, right / count)


def divergence(decoder: Decoder, student: torch.Tensor, teacher: torch.Tensor) -> tuple[float, torch.Tensor]:
    """KL(teacher || student) in nats a token, of hidden states [n, D], and its gradient by the student's states."""
    gradient = torch.zeros_like(student)
    total, n, head = 0.0, student.shape[0], decoder.head
    with torch.no_grad(), torch.autocast(student.device.type, enabled=False):
        for begin in range(0, n, BLOCK):
            rows = slice(begin, begin + BLOCK)
            log_q = torch.log_softmax(student[rows] @ head.T, -1)
            log_p = torch.log_softmax(teacher[rows] @ head.T, -1)
            p = log_p.exp()
            total += ((log_p - log_q) * p).sum().item()
            gradient[rows] = (log_q.exp() - p) @ head / n
    return total / n, gradient
