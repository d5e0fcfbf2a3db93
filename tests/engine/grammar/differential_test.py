#!/usr/bin/env python3
"""Compares the grammars of generated patterns and JSON Schemas with Python's re and jsonschema.

    differential_test.py PROBE [--cases N] [--seed N] [--kind patterns|string_patterns|schemas]

PROBE is grammar-probe. A case is a pattern or a schema, with texts: some that the oracle accepts, some changed a little, and
samples of the grammar. What the grammar accepts the oracle must accept. What the oracle accepts the grammar must accept too,
where docs/structured-output.md does not say that grammars are narrower. The seed is printed; a failure prints its case.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings

import jsonschema

warnings.simplefilter("ignore", FutureWarning)  # sets that look like nested ones
warnings.simplefilter("ignore", DeprecationWarning)


class TooSlow(Exception):
    """A grammar that the server would refuse for its processor time, or a pattern on which re backtracks."""


def alarm(signum, frame):
    raise TooSlow


class Probe:
    TIMEOUT = 3  # seconds

    def __init__(self, program):
        self.program = program
        self.start()

    def start(self):
        self.process = subprocess.Popen([self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, **request):
        watch = threading.Timer(self.TIMEOUT, self.process.kill)
        watch.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        watch.cancel()
        if not answer:
            status = self.process.wait()
            self.start()
            if status == -signal.SIGKILL:
                raise TooSlow
            raise AssertionError(f"the probe ended with {status}: {request}")
        answer = json.loads(answer)
        if "failure" in answer:
            raise AssertionError(f"{answer['failure']}: {request}")
        return answer


# Patterns

LETTERS = "ab01_ -.\\\"'\n\té€😀/{}]"


class Patterns:
    """Patterns that re and ECMA-262 have in common."""

    def __init__(self, rng):
        self.rng = rng

    def pick(self, *choices):
        return self.rng.choice(choices)

    def literal(self):
        c = self.rng.choice("ab01_ -é€😀\"'/,:")
        return self.pick(c, c, c, "\\x%02x" % ord(c) if ord(c) < 256 else c, "\\u%04x" % ord(c) if ord(c) < 0x10000 else c)

    def escape(self):
        return self.pick("\\n", "\\t", "\\.", "\\\\", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "\\\"", "\\{", "\\]", "\\x41b", "\\u00e9a",
                         "\\-", "\\/", "\\$", "\\^", "\\x0a", "\\r")

    def bracket(self):
        def member():
            return self.pick("a-c", "0-9", "b", "_", " ", "\\d", "\\w", "\\s", "\\n", "\\]", "\\\\", "\"", "é", "€", "\\x41-\\x5a", "\\u0100-\\u017f",
                             ".", "$", "(", "|", "\\-", "😀", "{", "a", "\\W", "\\D", "\\S")
        return "[" + self.pick("", "", "^") + "".join(member() for _ in range(self.rng.randint(1, 3))) + self.pick("", "", "-") + "]"

    def atom(self, depth):
        kind = self.rng.random()
        if depth > 0 and kind < 0.25:
            return self.pick("(", "(?:", "(?P<n%d>" % self.rng.randint(0, 10 ** 9)) + self.pattern(depth - 1) + ")"
        if kind < 0.45:
            return self.bracket()
        if kind < 0.6:
            return self.escape()
        if kind < 0.65:
            return "."
        return self.literal()

    def repeated(self, depth):
        atom = self.atom(depth)
        bounds = self.pick("", "", "", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "??", "{0,3}")
        return atom + bounds

    def sequence(self, depth):
        return "".join(self.repeated(depth) for _ in range(self.rng.randint(0 if self.rng.random() < 0.1 else 1, 4)))

    def pattern(self, depth):
        return "|".join(self.sequence(depth) for _ in range(self.pick(1, 1, 1, 2, 3)))

    def anchored(self):
        text = self.pattern(1)
        kind = self.rng.random()
        if kind < 0.35:
            return "^(?:" + text + ")$"
        if kind < 0.5:
            return "^" + self.sequence(1)
        if kind < 0.65:
            return self.sequence(1) + "$"
        if kind < 0.75:
            return "^" + self.sequence(1) + "$|" + self.sequence(1)
        if kind < 0.8:
            return "(?:^|" + self.literal() + ")" + self.sequence(1) + "(?:$|" + self.literal() + ")"
        return text


def example(rng, pattern):
    """A text that a compiled pattern may match: the parse tree of re, with choices at random."""
    import re._constants as c
    import re._parser as parser

    def one_of(items):
        kind, value = rng.choice([item for item in items if item[0] is not c.NEGATE])
        if kind is c.LITERAL:
            return chr(value)
        if kind is c.RANGE:
            return chr(rng.randint(*value))
        return {c.CATEGORY_DIGIT: "7", c.CATEGORY_WORD: "w", c.CATEGORY_SPACE: " "}.get(value, "-")

    def walk(items):
        out = ""
        for kind, value in items:
            if kind is c.LITERAL:
                out += chr(value)
            elif kind is c.NOT_LITERAL:
                out += "x" if value != ord("x") else "y"
            elif kind is c.ANY:
                out += rng.choice("ab é")
            elif kind is c.IN:
                out += rng.choice("ab0 é-\"\n") if value[0][0] is c.NEGATE else one_of(value)
            elif kind is c.BRANCH:
                out += walk(rng.choice(value[1]))
            elif kind is c.SUBPATTERN:
                out += walk(value[3])
            elif kind in (c.MAX_REPEAT, c.MIN_REPEAT):
                low, high, inner = value
                for _ in range(rng.randint(low, min(high, low + 3))):
                    out += walk(inner)
        return out
    return walk(parser.parse(pattern))


def changed(rng, text):
    text = list(text)
    for _ in range(rng.randint(1, 2)):
        at = rng.randint(0, len(text))
        kind = rng.random()
        if kind < 0.4:
            text.insert(at, rng.choice(LETTERS))
        elif text and kind < 0.7:
            del text[min(at, len(text) - 1)]
        elif text:
            text[min(at, len(text) - 1)] = rng.choice(LETTERS)
    return "".join(text)


# Characters on which the dialects agree: a grammar holds all that re matches in them.
def is_plain(text):
    return all(0x20 <= ord(c) < 0x7f or c in "\n\té€😀" for c in text)


def texts_of(rng, pattern):
    texts = [example(rng, pattern) for _ in range(3)]
    texts += [changed(rng, text) for text in texts] + ["", "a", "ab", "0"]
    return sorted({text for text in texts if not any(0xd800 <= ord(c) < 0xe000 for c in text)})


class Differences(Exception):
    pass


def check(case, text, grammar, oracle, exact):
    if grammar and not oracle:
        raise Differences(f"{case}: the grammar accepts {text!r}, which is not valid")
    if oracle and exact and not grammar:
        raise Differences(f"{case}: the grammar does not accept {text!r}, which is valid")


def pattern_case(rng, probe):
    pattern = Patterns(rng).pattern(2)
    compiled = re.compile(pattern)
    texts = texts_of(rng, pattern)
    answer = probe.ask(kind="regex", text=pattern, texts=texts, samples=4, seed=rng.randint(0, 2 ** 31))
    if "error" in answer:
        if "a class with a character" in answer["error"]:
            return "refused"
        raise Differences(f"pattern {pattern!r}: {answer['error']}")
    for text, accepted in zip(texts, answer["accepts"]):
        check(f"pattern {pattern!r}", text, accepted, compiled.fullmatch(text) is not None, is_plain(text) and not dialect(pattern))
    for text in answer["samples"]:
        check(f"pattern {pattern!r}", text, True, compiled.fullmatch(text) is not None, False)
    return "compared"


def dialect(pattern):
    """Whether a pattern has a class that the dialects do not agree on for the characters of is_plain."""
    return any(escape in pattern for escape in ("\\w", "\\W"))


def string_pattern_case(rng, probe):
    pattern = Patterns(rng).anchored()
    try:
        compiled = re.compile(pattern)
    except re.error:
        return "skipped"
    schema = {"type": "string", "pattern": pattern}
    if rng.random() < 0.2:
        schema["maxLength"] = rng.randint(0, 8)
    if rng.random() < 0.2:
        schema["minLength"] = rng.randint(0, 4)
    texts = texts_of(rng, pattern)
    quoted = [json.dumps(text, ensure_ascii=False) for text in texts]
    answer = probe.ask(kind="json_schema", text=json.dumps(schema), texts=quoted, samples=4, seed=rng.randint(0, 2 ** 31))
    if "error" in answer:
        if re.search("within a|lengths that follow|class with a character|excludes every value", answer["error"]):
            return "refused"
        raise Differences(f"{schema}: {answer['error']}")
    validator = jsonschema.Draft202012Validator(schema)
    for text, quote, accepted in zip(texts, quoted, answer["accepts"]):
        # $ is the end alone, not the place before a last line break. Repetitions leave out what JSON escapes.
        exact = is_plain(text) and not dialect(pattern) and not text.endswith("\n") and "\\" not in quote
        check(schema, quote, accepted, validator.is_valid(text), exact)
    for text in answer["samples"]:
        check(schema, text, True, validator.is_valid(json.loads(text)), False)
    return "compared"


# Schemas

class Schemas:
    def __init__(self, rng):
        self.rng = rng

    def pick(self, *choices):
        return self.rng.choice(choices)

    def value(self, depth=2):
        kind = self.rng.randint(0, 8 if depth > 0 else 6)
        if kind < 2:
            return self.rng.choice([0, 1, -3, 7, 20, 2.5, -0.25, 10 ** 20, 12345678901234567890123])
        if kind < 4:
            return self.rng.choice(["", "a", "ab", "x\"y", "line\n", "é😀", "cat", "\\"])
        if kind < 7:
            return self.rng.choice([True, False, None])
        if kind == 7:
            return [self.value(depth - 1) for _ in range(self.rng.randint(0, 3))]
        return {self.rng.choice("abc"): self.value(depth - 1) for _ in range(self.rng.randint(0, 3))}

    def maybe(self, schema, chance, **keywords):
        for name, value in keywords.items():
            if self.rng.random() < chance:
                schema[name.replace("__", "$")] = value() if callable(value) else value
        return schema

    def number(self):
        schema = self.pick({"type": "integer"}, {"type": "number"}, {})
        bound = lambda: self.rng.choice([-100, -7, -1, 0, 1, 3, 9, 10, 99, 105, 1000, 2.5, -0.75, 0.1, 0.015, 10 ** 18])
        self.maybe(schema, 0.35, minimum=bound, maximum=bound)
        self.maybe(schema, 0.15, exclusiveMinimum=bound, exclusiveMaximum=bound)
        if schema.get("type") == "integer" and len(schema) == 1:
            self.maybe(schema, 0.3, multipleOf=lambda: self.rng.choice([1, 2, 3, 7, 10]))
        return schema

    def string(self):
        schema = self.pick({"type": "string"}, {"type": "string"}, {})
        self.maybe(schema, 0.3, minLength=lambda: self.rng.randint(0, 3), maxLength=lambda: self.rng.randint(2, 6))
        if self.rng.random() < 0.25:
            schema["pattern"] = self.rng.choice(["^[a-c]+$", "a", "^\"[a-c]\"$", "^x", "\\d$", "^.{0,3}$", "^[^\"]*$", "^(cat|dog)s?$"])
        elif self.rng.random() < 0.1:
            schema["format"] = self.rng.choice(["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname"])
        return schema

    def array(self, depth):
        schema = {"type": "array"} if self.rng.random() < 0.9 else {}
        self.maybe(schema, 0.7, items=lambda: self.schema(depth - 1))
        if self.rng.random() < 0.25:
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.rng.randint(1, 2))]
        self.maybe(schema, 0.3, minItems=lambda: self.rng.randint(0, 2), maxItems=lambda: self.rng.randint(1, 4))
        self.maybe(schema, 0.05, uniqueItems=True)
        return schema

    def object(self, depth):
        schema = {"type": "object"} if self.rng.random() < 0.85 else {}
        names = self.rng.sample(["a", "b", "c", "kind", "x\"y"], self.rng.randint(0, 3))
        if names or self.rng.random() < 0.3:
            schema["properties"] = {name: self.schema(depth - 1) for name in names}
        pool = names + (["other"] if self.rng.random() < 0.2 else [])
        if pool and self.rng.random() < 0.7:
            schema["required"] = self.rng.sample(pool, self.rng.randint(1, len(pool)))
        self.maybe(schema, 0.25, additionalProperties=lambda: self.pick(False, False, True, self.schema(depth - 1)))
        self.maybe(schema, 0.1, minProperties=lambda: self.rng.randint(0, 2), maxProperties=lambda: self.rng.randint(1, 3))
        if self.rng.random() < 0.08:
            schema["patternProperties"] = {self.rng.choice(["^k", "^[0-9]+$", "z"]): self.schema(depth - 1)}
        if self.rng.random() < 0.05:
            schema["propertyNames"] = self.rng.choice([{"enum": ["a", "b", "d"]}, {"pattern": "^[a-z]{1,3}$"}])
        return schema

    def combined(self, depth):
        keyword = self.pick("anyOf", "anyOf", "oneOf", "allOf")
        parts = [self.schema(depth - 1) for _ in range(self.rng.randint(1, 3))]
        schema = {keyword: parts}
        if self.rng.random() < 0.4:  # siblings
            schema.update(self.pick(self.object(depth - 1), self.number(), self.string(), {"title": "T"}))
        return schema

    def union(self, depth):
        """As pydantic writes a discriminated union."""
        tags = ["cat", "dog", "owl"][:self.rng.randint(2, 3)]
        for tag in tags:
            schema = self.object(depth - 1)
            schema.pop("patternProperties", None)
            schema.pop("propertyNames", None)
            schema.pop("minProperties", None)
            schema.pop("maxProperties", None)
            schema["type"] = "object"
            schema["properties"] = {"kind": {"const": tag, "title": "Kind", "type": "string"}, **{
                name: value for name, value in schema.get("properties", {}).items() if name != "kind"}}
            schema["required"] = sorted({"kind", *schema.get("required", [])})
            self.defs[tag] = schema
        return {"discriminator": {"propertyName": "kind", "mapping": {tag: "#/$defs/" + tag for tag in tags}},
                "oneOf": [{"$ref": "#/$defs/" + tag} for tag in tags]}

    def schema(self, depth):
        kind = self.rng.random()
        if kind < 0.05:
            return self.pick(True, {}, {"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]})
        if depth <= 0 or kind < 0.4:
            if self.rng.random() < 0.3:
                schema = self.pick({"const": self.value()}, {"enum": [self.value() for _ in range(self.rng.randint(1, 4))]})
                if self.rng.random() < 0.5:
                    schema.update(self.pick(self.number(), self.string(), {"type": "integer"}, {"not": {"const": 1}},
                                            {"uniqueItems": True}, {"if": {"type": "string"}, "then": {"minLength": 1}}))
                return schema
            return self.pick(self.number, self.string)()
        if kind < 0.65:
            return self.object(depth)
        if kind < 0.8:
            return self.array(depth)
        if kind < 0.88:
            return self.combined(depth)
        if kind < 0.93:
            return self.union(depth)
        name = self.pick("node", "leaf")
        if name not in self.defs:
            self.defs[name] = True
            self.defs[name] = self.schema(depth - 1)
        schema = {"$ref": "#/$defs/" + name}
        return self.maybe(schema, 0.3, title="T", description="D", type=lambda: self.pick("object", "string", "integer"))

    def root(self):
        self.defs = {}
        schema = self.schema(3)
        if not isinstance(schema, dict):
            schema = {}
        if self.defs:
            schema["$defs"] = self.defs
        return schema

    def instance(self, schema, root, depth=6):
        """A value that may be valid."""
        if depth <= 0 or not isinstance(schema, dict):
            return self.value(1)
        if "$ref" in schema:
            return self.instance(root["$defs"][schema["$ref"].split("/")[-1]], root, depth - 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.rng.choice(schema["enum"])
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema and ("properties" not in schema or self.rng.random() < 0.5):
                return self.instance(self.rng.choice(schema[keyword]), root, depth - 1)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = self.rng.choice(kind)
        if kind == "object" or "properties" in schema or "required" in schema:
            value = {}
            for name, inner in schema.get("properties", {}).items():
                if name in schema.get("required", []) or self.rng.random() < 0.5:
                    value[name] = self.instance(inner, root, depth - 1)
            for name in schema.get("required", []):
                value.setdefault(name, 1)
            if self.rng.random() < 0.2:
                value[self.rng.choice(["z", "k1", "12", "abc"])] = self.instance(schema.get("additionalProperties"), root, depth - 1)
            return value
        if kind == "array" or "items" in schema or "prefixItems" in schema:
            value = [self.instance(inner, root, depth - 1) for inner in schema.get("prefixItems", [])]
            return value + [self.instance(schema.get("items"), root, depth - 1) for _ in range(self.rng.randint(0, 3))]
        if kind == "string" or "pattern" in schema or "minLength" in schema:
            return self.rng.choice(["", "a", "abc", "cat", "x1", "\"a\"", "hello", "2024-02-29", "12:30:00Z", "é", "a\nb", "1.2.3.4"])
        if kind in ("integer", "number") or "minimum" in schema or "maximum" in schema:
            bounds = [schema[name] for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if name in schema]
            if bounds and self.rng.random() < 0.7:
                near = self.rng.choice(bounds)
                return near + self.rng.choice([-1, 0, 1, 4, -9] if isinstance(near, int) else [0, 0.005, -0.1, 1, -1])
            return self.rng.choice([-100, -8, -1, 0, 1, 2, 3, 5, 9, 10, 11, 50, 99, 100, 105, 106, 999, 10 ** 18, 2.5, 0.1, 0.05, -0.5, 7.25])
        if kind == "boolean":
            return self.rng.random() < 0.5
        return None if kind == "null" else self.value(1)


def spellings(value):
    yield json.dumps(value, ensure_ascii=False), True
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":")), False
    yield json.dumps(value, ensure_ascii=False, indent=2), False


# What a grammar is narrower in than a schema (docs/structured-output.md): a value outside these is in both or in neither.
def is_exact(schema):
    text = json.dumps(schema)
    narrower = ("prefixItems", "pattern", "format", "propertyNames", "oneOf")
    if any('"' + keyword in text for keyword in narrower):
        return False
    if '"properties"' in text or '"required"' in text:  # those of several schemas have one order
        if any('"' + keyword in text for keyword in ("anyOf", "allOf", "$ref")):
            return False

    def typed(node):
        if isinstance(node, list):
            return all(map(typed, node))
        if not isinstance(node, dict):
            return True
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "items", "minItems", "maxItems",
                  "additionalProperties", "multipleOf", "uniqueItems", "properties", "required", "minProperties", "maxProperties")
        if any(keyword in node for keyword in bounds) and "type" not in node and "enum" not in node and "const" not in node:
            return False
        return all(typed(value) for name, value in node.items() if name not in ("const", "enum"))
    return typed(schema)


def is_in_order(value, schema):
    """Whether the objects of a value have the properties of the schema, in its order, and no others."""
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return True
    if isinstance(value, list):
        return all(is_in_order(item, schema.get("items", {})) for item in value)
    if not isinstance(value, dict):
        return True
    properties = schema.get("properties", {})
    if "properties" not in schema and "required" not in schema:  # any names
        others = schema.get("additionalProperties", {})
        return all(is_in_order(item, others) for item in value.values())
    return [name for name in properties if name in value] == list(value) and all(
        is_in_order(item, properties[name]) for name, item in value.items())


REFUSED = re.compile(r"exclude each other|excludes every value|supported beside enum and const|uniqueItems|leads back to itself|"
                     r"lengths that follow|another beside it|multipleOf|patternProperties|propertyNames|beside it|at most 1024 choices")


def has_odd_number(value):
    """Numbers with fractions of many digits or exponents are not written where there are bounds."""
    if isinstance(value, float):
        return True
    if isinstance(value, list):
        return any(has_odd_number(item) for item in value)
    if isinstance(value, dict):
        return any(has_odd_number(item) for item in value.values())
    return False


def schema_case(rng, probe):
    schemas = Schemas(rng)
    schema = schemas.root()
    values = [schemas.instance(schema, schema) for _ in range(6)] + [schemas.value() for _ in range(2)]
    texts, kinds = [], []
    for value in values:
        for text, spaced in spellings(value):
            texts.append(text)
            kinds.append((value, spaced))
    compact = rng.random() < 0.3
    schema_text = json.dumps(schema)
    answer = probe.ask(kind="json_schema", text=schema_text, compact=compact, texts=texts, samples=4, seed=rng.randint(0, 2 ** 31))
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    try:
        validator.is_valid(values[0])
    except RecursionError:
        return "skipped"
    if "error" in answer:
        if not REFUSED.search(answer["error"]):
            raise Differences(f"{json.dumps(schema)}: {answer['error']}")
        return "refused"
    exact = is_exact(schema)
    escapes_left_out = any(keyword in schema_text for keyword in ("maxLength", "additionalProperties"))
    for text, (value, spaced), accepted in zip(texts, kinds, answer["accepts"]):
        case = f"compact {compact}, {json.dumps(schema)}"
        holds = exact and is_in_order(value, schema) and (spaced or not compact) and not has_odd_number(value) and not ("\\" in text and escapes_left_out)
        check(case, text, accepted, validator.is_valid(value), holds)
    for text in answer["samples"]:
        check(json.dumps(schema), text, True, validator.is_valid(json.loads(text)), False)
    return "compared"


KINDS = {"patterns": pattern_case, "string_patterns": string_pattern_case, "schemas": schema_case}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("probe")
    full = bool(os.environ.get("POLYSKETCH_TEST_FULL"))
    parser.add_argument("--cases", type=int, default=10_000 if full else 300)
    parser.add_argument("--seed", type=int, default=None, help="by default 1 for the default of cases, else a new one each time")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--keep-going", action="store_true", help="count the differences, show the first 40")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else 1 if args.cases == 300 else random.SystemRandom().randint(0, 2 ** 31)
    print(f"seed {seed}, {args.cases} cases", flush=True)
    probe = Probe(args.probe)
    signal.signal(signal.SIGALRM, alarm)
    counts, shown = {}, 0
    start = time.monotonic()
    for i in range(args.cases):
        kind = args.kind or list(KINDS)[i % len(KINDS)]
        # A case has a seed of its own, so that one can be run alone.
        signal.setitimer(signal.ITIMER_REAL, 2 * Probe.TIMEOUT)
        try:
            outcome = KINDS[kind](random.Random(f"{seed}-{i}"), probe)
        except TooSlow:
            outcome = "slow"
        except Differences as difference:
            outcome = "different"
            shown += 1
            print(f"case {i} of seed {seed} ({kind}): {difference}", flush=True)
            if not args.keep_going or shown >= 40:
                return 1
        counts[kind, outcome] = counts.get((kind, outcome), 0) + 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind:16} {outcome:10} {count}")
    print(f"{time.monotonic() - start:.0f} s")
    for kind in KINDS if args.kind is None else [args.kind]:
        if counts.get((kind, "compared"), 0) < args.cases / len(KINDS) / 3:
            print(f"{kind}: too few cases were compared")
            return 1
    return 1 if shown else 0


if __name__ == "__main__":
    sys.exit(main())
