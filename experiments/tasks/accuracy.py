"""The accuracy of a served model on a task: its greedy completions beside the answers."""

import numpy as np
from serving import Client
from synthetic_tasks import Task


def accuracy(client: Client, task: Task, rows: np.ndarray) -> dict:
    """Each answer of rows [rows, length] is completed from all tokens before it. `tokens`: the share of right tokens, `answers`:
    of answers without a wrong token."""
    asked = [(row[:begin], row[begin:end]) for row in rows for begin, end in task.answers]
    found = client.complete([prompt for prompt, _ in asked], [len(answer) for _, answer in asked])
    right = np.array([np.array(tokens) == answer for tokens, (_, answer) in zip(found, asked, strict=True)])
    return {"tokens": float(right.mean()), "answers": float(right.all(axis=1).mean()), "answers_asked": len(right)}
