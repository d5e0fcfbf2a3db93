"""Instructions whose answers a program checks, in the manner of IFEval (arXiv 2311.07911): each with each topic, in a chat of one turn."""

import json
import re
import urllib.request

MAX_TOKENS = 300
TOPICS = ("the sea", "a train journey", "learning to cook", "an old library", "a small garden", "the night sky", "a football match", "bread")


def _words(answer):
    return len(re.findall(r"\w[\w'-]*", answer))


def _is_json(answer):
    """A fence around it is allowed, as IFEval allows it."""
    try:
        return isinstance(json.loads(re.sub(r"^```(json)?\n|\n```$", "", answer)), dict)
    except ValueError:
        return False


# Name -> what the answer must be like, and whether it is.
INSTRUCTIONS = {
    "lowercase": ("Use only lowercase letters.", str.islower),
    "capitals": ("Use only capital letters.", str.isupper),
    "no comma": ("Do not use any commas.", lambda answer: "," not in answer),
    "bullets": ("Answer with exactly three lines, each of which begins with an asterisk and a space.",
                lambda answer: re.fullmatch(r"(\* .+\n?){3}", answer.replace("\n\n", "\n")) is not None),
    "ending": ("End your answer with exactly these words: That is all.", lambda answer: answer.endswith("That is all.")),
    "keyword": ("Use the word window at least twice.", lambda answer: len(re.findall(r"\bwindows?\b", answer, re.IGNORECASE)) >= 2),
    "forbidden": ("Do not use the word the.", lambda answer: re.search(r"\bthe\b", answer, re.IGNORECASE) is None),
    "short": ("Use at most 30 words.", lambda answer: _words(answer) <= 30),
    "long": ("Use at least 120 words.", lambda answer: _words(answer) >= 120),
    "quotation": ("Put your whole answer in double quotation marks.", lambda answer: re.fullmatch(r'".+"', answer, re.DOTALL) is not None),
    "title": ("Begin with a title in double angle brackets, such as <<title>>.", lambda answer: re.match(r"<<[^\n]+>>", answer) is not None),
    "object": ("Answer with one JSON object and nothing else.", _is_json),
    "paragraphs": ("Write exactly two paragraphs, separated by a line of three asterisks.",
                   lambda answer: len([part for part in re.split(r"\n\s*\*\*\*\s*\n", answer) if part.strip()]) == 2),
}


def ask(server, text):
    """The server's answer at temperature 0."""
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": MAX_TOKENS}
    request = urllib.request.Request(f"http://{server.http}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["choices"][0]["message"]["content"].strip()


def follow(server, name):
    """How many answers follow instruction `name`, of how many, and the words of each answer."""
    instruction, follows = INSTRUCTIONS[name]
    answers = [ask(server, f"Write something about {topic}. {instruction}") for topic in TOPICS]
    return {"asked": len(answers), "followed": sum(follows(answer) for answer in answers), "words": [_words(answer) for answer in answers]}
