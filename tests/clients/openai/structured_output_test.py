"""1,000 completions that JSON Schemas bound, by OpenAI's own Python client, checked by PyPI's jsonschema."""

import concurrent.futures
import json
import unittest

import jsonschema
import openai
from openai_test import ServerTest

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "water"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
PLACE = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 10},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}, "inside": {"type": "boolean"}},
            "required": ["x", "inside"],
            "additionalProperties": False,
        },
    },
    "required": ["city", "at"],
    "additionalProperties": False,
}
EITHER = {"anyOf": [PERSON, {"type": "array", "items": PLACE, "minItems": 1, "maxItems": 2}, {"const": None}]}
SCHEMAS = [PERSON, PLACE, EITHER]
COMPLETIONS = 1000


class StructuredOutput(ServerTest):
    TIMEOUT = 240

    def complete(self, seed, **extra):
        return self.client.completions.create(model="demo", prompt="It was late", seed=seed, max_tokens=600, **extra)

    def test_a_thousand_completions_are_valid(self):
        def complete(seed):
            schema = SCHEMAS[seed % len(SCHEMAS)]
            outputs = {"json": schema, "disable_any_whitespace": True}
            answer = self.complete(seed, extra_body={"structured_outputs": outputs})
            self.assertEqual(answer.choices[0].finish_reason, "stop")
            jsonschema.validate(json.loads(answer.choices[0].text), schema)
            return answer.choices[0].text

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(complete, range(COMPLETIONS)))
        self.assertEqual(len(texts), COMPLETIONS)
        self.assertGreater(len(set(texts)), COMPLETIONS / 4)

    def test_response_format(self):
        schema = {"type": "object", "properties": {"b": {"const": 1}, "a": {"const": 2}}, "required": ["b", "a"]}
        form = {"type": "json_schema", "json_schema": {"name": "pair", "schema": schema, "strict": True}}
        answer = self.complete(1, extra_body={"response_format": form}, temperature=0)
        self.assertEqual(list(json.loads(answer.choices[0].text).items()), [("b", 1), ("a", 2)])
        with self.assertRaisesRegex(openai.BadRequestError, "guided_regex: "):
            self.complete(1, extra_body={"guided_regex": "(a"})


if __name__ == "__main__":
    unittest.main()
