"""Parts of tokenizer.json that do not depend on what a tokenizer is made of."""


def sequence(name: str, steps: list[dict]) -> dict:
    """Returns the steps as one: itself, or a Sequence whose steps are its field `name`."""
    return steps[0] if len(steps) == 1 else {"type": "Sequence", name: steps}


def added_token(token_id: int, content: str, *, special: bool) -> dict:
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def begin_with(token: str, token_id: int) -> dict:
    """Returns the post-processor that puts a token before each text."""

    def after_token(text: str, type_id: int) -> list[dict]:
        return [
            {"SpecialToken": {"id": token, "type_id": type_id}},
            {"Sequence": {"id": text, "type_id": type_id}},
        ]

    return {
        "type": "TemplateProcessing",
        "single": after_token("A", 0),
        "pair": after_token("A", 0) + after_token("B", 1),
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
