"""What Hugging Face transformers makes of a chat template: Jinja with the settings of its _compile_jinja_template.

Of transformers itself where it is installed, or else the same settings on jinja2 (requirements.txt).
"""

import datetime
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class GenerationTag(Extension):
    """{% generation %}: the text of the assistant, as transformers' AssistantTracker has it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def _to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(form):
    return datetime.datetime.now().strftime(form)


def _environment():
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


def compile_template(text):
    """Returns a function from variables to the text. Both raise an exception for what Jinja refuses."""
    try:
        from transformers.utils.chat_template_utils import _compile_jinja_template
    except ImportError:
        return _environment().from_string(text).render
    return _compile_jinja_template(text).render


def expected(text, variables):
    """{"text": ...} or {"error": ...}."""
    try:
        return {"text": compile_template(text)(**variables)}
    except Exception as error:  # noqa: BLE001  Jinja passes on the errors of Python's operators
        return {"error": f"{type(error).__name__}: {error}"}
