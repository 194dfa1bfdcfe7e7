"""An MCP server on stdin and stdout with what the conformance suite asks for, and with ways to misbehave.

    python3 fixture.py [WAY...]

Ways: "garbage" prints lines that are no messages; "exit" ends at once; "mute" never answers; "deaf" never
reads; "long" answers every call with 17 MiB; "flood" writes notifications without end; "strict" refuses a
second initialize; "changes" has another tool after each list.
"""
import json
import os
import sys
import threading
import time

ways = set(sys.argv[1:])
lock = threading.Lock()
answers = {}  # of the client, by the ID of our request: [event, message]
cancelled = {}  # events of the calls of "wait", by the IDs of their threads
threads = {}  # of calls, by the IDs of these
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
started = lists = 0


def write(message):
    line = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"))
    with lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def ask(method, params):
    """Asks the client."""
    entry = [threading.Event(), None]
    with lock:
        number = f"server-{len(answers)}"
        answers[number] = entry
    write({"id": number, "method": method, "params": params})
    if not entry[0].wait(30):
        raise RuntimeError(f"{method}: no answer")
    if "error" in entry[1]:
        raise RuntimeError(f"{method}: {entry[1]['error']['message']}")
    return entry[1]["result"]


def text(t):
    return {"content": [{"type": "text", "text": t}]}


def resource(uri, t):
    return {"type": "resource", "resource": {"uri": uri, "mimeType": "text/plain", "text": t}}


def elicit(message, properties, required=()):
    return ask("elicitation/create", {"message": message, "requestedSchema": {"type": "object", "properties": properties, "required": list(required)}})


def logging(args, token):
    for i, line in enumerate(["Tool execution started", "Tool processing data", "Tool execution completed"]):
        if i:
            time.sleep(0.05)
        write({"method": "notifications/message", "params": {"level": "info", "data": line}})
    return text("logged")


def progress(args, token):
    for done in (0, 50, 100):
        if token is not None:
            write({"method": "notifications/progress", "params": {"progressToken": token, "progress": done, "total": 100}})
        time.sleep(0.05)
    return text("done")


def defaults(args, token):
    r = elicit("Defaults", {
        "name": {"type": "string", "default": "John Doe"}, "age": {"type": "integer", "default": 30}, "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"}, "verified": {"type": "boolean", "default": True},
    })
    return text(f"Elicitation completed: action={r['action']}, content={json.dumps(r.get('content'))}")


def enums(args, token):
    titled = [{"const": f"value{i}", "title": f"Option {i}"} for i in (1, 2, 3)]
    plain = ["option1", "option2", "option3"]
    r = elicit("Enums", {
        "untitledSingle": {"type": "string", "enum": plain}, "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}}, "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    })
    return text(f"Elicitation completed: action={r['action']}, content={json.dumps(r.get('content'))}")


def sampling(args, token):
    r = ask("sampling/createMessage", {"messages": [{"role": "user", "content": {"type": "text", "text": args["prompt"]}}], "maxTokens": 100})
    return text("LLM response: " + r["content"]["text"])


def elicitation(args, token):
    string = {"type": "string"}
    r = elicit(args["message"], {"username": string, "email": string}, ("username", "email"))
    return text(f"User response: {r['action']} {json.dumps(r.get('content'))}")


def fail(args, token):
    raise RuntimeError("This tool intentionally returns an error for testing")


def wait(args, token):
    """Waits until the call is cancelled."""
    event = cancelled[threading.get_ident()] = threading.Event()
    print("waiting", file=sys.stderr, flush=True)
    if token is not None:
        write({"method": "notifications/progress", "params": {"progressToken": token, "progress": 0}})
    event.wait(args.get("seconds", 60))
    return text("waited")


def die(args, token):
    print("dying\nof a bug", file=sys.stderr, flush=True)
    os._exit(7)


def whoami(args, token):
    cache = ""  # what an install step has left there
    if os.path.exists("/mcp/.cache/mark"):
        with open("/mcp/.cache/mark") as f:
            cache = f.read().strip()
    return {**text(str(os.getpid())), "structuredContent": {"pid": os.getpid(), "started": started, "cache": cache}}


nothing = {"type": "object"}
tools = {
    "test_simple_text": lambda a, t: text("This is a simple text response for testing."),
    "test_image_content": lambda a, t: {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]},
    "test_audio_content": lambda a, t: {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]},
    "test_embedded_resource": lambda a, t: {"content": [resource("test://embedded-resource", "This is an embedded resource content.")]},
    "test_multiple_content_types": lambda a, t: {"content": text("Multiple content types test:")["content"] + [
        {"type": "image", "data": PNG, "mimeType": "image/png"}, resource("test://mixed-content-resource", '{"test":"data","value":123}')]},
    "test_tool_with_logging": logging, "test_tool_with_progress": progress, "test_error_handling": fail,
    "test_sampling": sampling, "test_elicitation": elicitation,
    "test_elicitation_sep1034_defaults": defaults, "test_elicitation_sep1330_enums": enums,
    "test_reconnection": lambda a, t: text("there is nothing to reconnect to"),
    "json_schema_2020_12_tool": lambda a, t: text("ok"),
    "wait": wait, "die": die, "whoami": whoami,
    "echo": lambda a, t: {**text("echo"), "structuredContent": a},
}
schemas = {
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}}, "additionalProperties": False,
    },
}
prompts = {
    "test_simple_prompt": lambda a: [text("This is a simple prompt for testing.")["content"][0]],
    "test_prompt_with_arguments": lambda a: [text(f"arg1={a['arg1']}, arg2={a['arg2']}")["content"][0]],
    "test_prompt_with_embedded_resource": lambda a: [resource(a["resourceUri"], "embedded"), text("Look at this.")["content"][0]],
    "test_prompt_with_image": lambda a: [{"type": "image", "data": PNG, "mimeType": "image/png"}, text("Look at this.")["content"][0]],
}
arguments = {"test_prompt_with_arguments": ["arg1", "arg2"], "test_prompt_with_embedded_resource": ["resourceUri"]}


def initialize(p):
    global started
    started += 1
    if "strict" in ways and started > 1:
        raise ValueError("initialized already")
    return {"protocolVersion": p["protocolVersion"], "serverInfo": {"name": "fixture", "version": "1"}, "instructions": "Instructions of the fixture.",
            "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "prompts": {}, "logging": {}, "completions": {}}}


def list_tools(p):
    global lists
    lists += 1
    names = list(tools) + ([f"sudden_{lists}"] if "changes" in ways and lists > 1 else [])
    return {"tools": [{"name": n, "description": f"The tool {n}.", "inputSchema": schemas.get(n, nothing)} for n in names]}


def call(p):
    if "long" in ways:
        return text("x" * (17 << 20))
    try:
        return tools[p["name"]](p.get("arguments") or {}, (p.get("_meta") or {}).get("progressToken"))
    except RuntimeError as e:
        return {**text(str(e)), "isError": True}


def read(p):
    uri = p["uri"]
    if uri == "test://static-binary":
        return {"contents": [{"uri": uri, "mimeType": "image/png", "blob": PNG}]}
    if uri.startswith("test://template/"):
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": json.dumps({"id": uri.split("/")[3]})}]}
    return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource."}]}


methods = {
    "initialize": initialize, "ping": lambda p: {}, "logging/setLevel": lambda p: {}, "tools/list": list_tools, "tools/call": call,
    "resources/list": lambda p: {"resources": [{"uri": u, "name": u, "mimeType": "text/plain"} for u in ("test://static-text", "test://static-binary", "test://watched-resource")]},
    "resources/templates/list": lambda p: {"resourceTemplates": [{"uriTemplate": "test://template/{id}/data", "name": "template"}]},
    "resources/read": read, "resources/subscribe": lambda p: {}, "resources/unsubscribe": lambda p: {},
    "prompts/list": lambda p: {"prompts": [{"name": n, "description": n, "arguments": [{"name": a, "required": True} for a in arguments.get(n, [])]} for n in prompts]},
    "prompts/get": lambda p: {"messages": [{"role": "user", "content": c} for c in prompts[p["name"]](p.get("arguments") or {})]},
    "completion/complete": lambda p: {"completion": {"values": ["test1", "test2"], "total": 2, "hasMore": False}},
    "x-unknown/method": lambda p: {"params": p},
}


def handle(m):
    threads[m["id"]] = threading.get_ident()
    try:
        if m["method"] not in methods:
            write({"id": m["id"], "error": {"code": -32601, "message": "Method not found"}})
            return
        write({"id": m["id"], "result": methods[m["method"]](m.get("params") or {})})
    except (KeyError, ValueError) as e:
        write({"id": m["id"], "error": {"code": -32602, "message": str(e)}})
    finally:
        threads.pop(m["id"], None)


def main():
    if "garbage" in ways:
        print("Welcome to the fixture!\n{not json}\n[1]\n" + "x" * 100_000, flush=True)
    if "exit" in ways:
        print("cannot find my configuration", file=sys.stderr, flush=True)
        sys.exit(3)
    if "deaf" in ways:
        time.sleep(1000)
    if "flood" in ways:
        threading.Thread(target=flood, daemon=True).start()
    for line in sys.stdin:
        m = json.loads(line)
        if "mute" in ways:
            print("I have heard", m.get("method"), file=sys.stderr, flush=True)
            continue
        if "method" not in m:
            entry = answers.get(m["id"])
            if entry:
                entry[1] = m
                entry[0].set()
        elif "id" in m:
            threading.Thread(target=handle, args=(m,), daemon=True).start()
        elif m["method"] == "notifications/cancelled":
            print("cancelled", m["params"], file=sys.stderr, flush=True)
            event = cancelled.pop(threads.get(m["params"]["requestId"]), None)
            if event:
                event.set()


def flood():
    while True:
        write({"method": "notifications/message", "params": {"level": "info", "data": "x" * 1000}})


main()
