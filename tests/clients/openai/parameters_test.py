"""Each parameter of the openai and anthropic packages stands in a table of the documentation: supported, ignored or refused."""

import pathlib
import re
import typing
import unittest

from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

DOCS = pathlib.Path(__file__).parents[3] / "docs"


def names(params):
    """The members of a TypedDict, or of those of a union."""
    members = typing.get_args(params) or (params,)
    return {name for member in members for name in typing.get_type_hints(member)}


def documented(page):
    """The names in the tables of a page."""
    rows = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    return {name for row in rows for name in re.findall(r"`([a-z_]+)[`.]", row)}


class ParametersTest(unittest.TestCase):
    def check(self, page, *params, headers=()):
        sent = set().union(*map(names, params)) - set(headers)
        self.assertIn("model", sent)
        self.assertGreater(len(sent), 15)
        self.assertEqual(sent - documented(page), set(), page)

    def test_openai(self):
        self.check(
            "openai-api.md",
            completion_create_params.CompletionCreateParams,
            chat_create_params.CompletionCreateParams,
            response_create_params.ResponseCreateParams,
        )

    def test_anthropic(self):
        self.check(
            "anthropic-api.md",
            message_create_params.MessageCreateParams,
            message_count_tokens_params.MessageCountTokensParams,
            headers=("user_profile_id", "workspace_id"),
        )


if __name__ == "__main__":
    unittest.main()
