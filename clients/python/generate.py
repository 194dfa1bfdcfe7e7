#!/usr/bin/env python3
"""Writes boxd_client/generated.py: types and methods for docs/openapi.json.

    python3 clients/python/generate.py [FILE]

FILE is written in its place. It needs nothing but Python 3.9. It knows what boxd's document has, and
fails at anything else.
"""
import json
import keyword
import pathlib
import re
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
DOCUMENT = HERE.parent.parent / "docs" / "openapi.json"
SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
# Of browsers and WebSockets.
SKIPPED = {"page", "page-file", "login", "get-login", "logout", "port", "relay", "tunnel"}


def name_of(text):
    """A name of Python for one of the API."""
    text = re.sub(r"[^0-9A-Za-z]", "_", text)
    return text + "_" if keyword.iskeyword(text) else text


def type_of(schema):
    """The Python type of a schema."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "oneOf" in schema:
        return "Union[%s]" % ", ".join(type_of(s) for s in schema["oneOf"])
    if "enum" in schema:
        return "Literal[%s]" % ", ".join(json.dumps(v) for v in schema["enum"])
    kind = schema.get("type")
    if kind is None:
        return "Any"
    if isinstance(kind, list):  # with "null"
        (kind,) = [k for k in kind if k != "null"]
        return "Optional[%s]" % type_of({**schema, "type": kind})
    if kind == "array":
        return "List[%s]" % type_of(schema["items"])
    if kind == "object":
        values = schema.get("additionalProperties")
        return "Dict[str, %s]" % (type_of(values) if isinstance(values, dict) else "Any")
    if schema.get("contentEncoding") == "base64":
        return "bytes"
    if schema.get("format") == "date-time":
        return "datetime"
    return SCALARS[kind]


def comment(text, indent):
    return textwrap.fill(text, 110, initial_indent=indent + "# ", subsequent_indent=indent + "# ") + "\n" if text else ""


def class_of(name, schema):
    """A dataclass for an object. Fields that may be absent are None then."""
    out = "@dataclass\nclass %s:\n" % name
    required = schema.get("required", [])
    fields = [(f, s) for f, s in schema.get("properties", {}).items() if f != "$schema"]
    for must in (True, False):  # those with a default come last
        for field, s in fields:
            if (field in required) != must:
                continue
            kind, attribute = type_of(s), name_of(field)
            out += comment(s.get("description", ""), "    ")
            default = "" if must else "None"
            if not must and not kind.startswith("Optional["):
                kind = "Optional[%s]" % kind
            if attribute != field:
                default = "dataclasses.field(%smetadata={\"name\": %r})" % ("" if must else "default=None, ", field)
            out += "    %s: %s%s\n" % (attribute, kind, " = " + default if default else "")
    if not fields:
        out += "    pass\n"
    return out + "\n\n"


def method_of(path, verb, op):
    """The methods for an operation: one, and a second one if the answer can be a stream."""
    (status,) = [s for s in op["responses"] if s.startswith("2")]
    answers = op["responses"][status].get("content", {})
    arguments, query = ["self"], []
    for p in op.get("parameters", []):
        if p["in"] == "path":
            arguments.append("%s: str" % name_of(p["name"]))
    wire = "\"%s\"" % path
    if "{" in path:
        wire = "f\"%s\"" % re.sub(r"{(\w+)}", lambda m: "{quote(%s)}" % name_of(m[1]), path)
    body = ""
    content = op.get("requestBody", {}).get("content", {})
    for kind, media in content.items():
        if kind == "application/json":
            optional = not op["requestBody"].get("required")
            arguments.append("body: Optional[%s] = None" % type_of(media["schema"]) if optional else "body: %s" % type_of(media["schema"]))
            body = ", json=body"
        else:
            arguments.append("data: Union[bytes, BinaryIO]")
            body = ", data=data, content_type=%r" % kind
    options = []
    for p in op.get("parameters", []):
        if p["in"] != "query":
            continue
        kind = type_of(p["schema"])
        options.append("%s: %s" % (name_of(p["name"]), kind if p.get("required") else "Optional[%s] = None" % kind))
        query.append("%r: %s" % (p["name"], name_of(p["name"])))
    if options:
        arguments += ["*"] + options
    call = "%r, %s%s%s" % (verb.upper(), wire, ", query={%s}" % ", ".join(query) if query else "", body)
    doc = "%s. %s" % (op["summary"], op["description"])

    def method(name, returns, text):
        return "    def %s(%s) -> %s:\n        \"\"\"%s\"\"\"\n        %s\n\n" % (name, ", ".join(arguments), returns, doc, text)

    name, out = name_of(op["operationId"]), ""
    for kind, media in answers.items():
        schema = media["schema"]
        if kind == "application/json":
            out += method(name, type_of(schema), "return self._json(%s, %s)" % (type_of(schema), call))
        elif kind in ("application/x-ndjson", "text/event-stream"):
            item = type_of(schema["contentSchema"])
            stream = name + "_stream" if len(answers) > 1 else name
            out += method(stream, "Iterator[%s]" % item, "return self._stream(%s, %r, %s)" % (item, kind, call))
        elif kind == "text/plain":
            out += method(name, "str", "return self._bytes(%s).decode()" % call)
        else:
            out += method(name, "bytes", "return self._bytes(%s)" % call)
    if not answers:
        out += method(name, "None", "self._bytes(%s)" % call)
    return out


def main(argv):
    document = json.loads(DOCUMENT.read_text())
    out = '"""Types and methods of boxd\'s HTTP API. generate.py has written this from docs/openapi.json."""\n'
    out += "from __future__ import annotations\n\nimport dataclasses\nfrom dataclasses import dataclass\nfrom datetime import datetime\n"
    out += "from typing import Any, BinaryIO, Dict, Iterator, List, Literal, Optional, Union\n\nfrom .transport import Transport, quote\n\n\n"
    for name, schema in document["components"]["schemas"].items():
        out += class_of(name, schema)
    out += "class Client(Transport):\n    \"\"\"A method for each route of the API but those of browsers and WebSockets.\"\"\"\n\n"
    for path, operations in document["paths"].items():
        for verb, op in operations.items():
            if op["operationId"] not in SKIPPED:
                out += method_of(path, verb, op)
    target = pathlib.Path(argv[1]) if len(argv) > 1 else HERE / "boxd_client" / "generated.py"
    target.write_text(out.rstrip("\n") + "\n")


if __name__ == "__main__":
    main(sys.argv)
