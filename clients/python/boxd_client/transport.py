"""Requests to a boxd daemon, over a Unix socket or TCP, with the standard library."""
from __future__ import annotations

import base64
import dataclasses
import http.client
import json as jsonlib
import re
import socket
import ssl
import sys
import typing
import urllib.parse
from datetime import datetime
from typing import Any, BinaryIO, Dict, Iterator, Optional, Union

DEFAULT_SOCKET = "/run/boxd/boxd.sock"


class BoxdError(Exception):
    """The daemon refuses a request, or fails.

    code is a stable word such as "session_not_found", field the part of the request that is to blame
    or "", status the HTTP status. problem has all of the answer.
    """

    def __init__(self, status: int, problem: Dict[str, Any]):
        self.status, self.problem = status, problem
        self.code: str = problem.get("code", "unexpected")
        self.field: str = problem.get("field", "")
        super().__init__(problem.get("detail") or problem.get("title") or "HTTP status %d" % status)


def quote(part: str) -> str:
    """A part of a path."""
    return urllib.parse.quote(str(part), safe="")


class Transport:
    """What is common to all methods of Client.

    Without url it speaks to the Unix socket at socket_path. token authenticates; tenant is whom requests
    are about, for callers who may choose. timeout is in seconds and counts for each wait for the
    network, so it must exceed what a command may take without output. One object makes a connection
    for each request, so threads can share it.
    """

    def __init__(self, url: Optional[str] = None, *, socket_path: str = DEFAULT_SOCKET, token: Optional[str] = None, tenant: Optional[str] = None,
                 timeout: Optional[float] = None, context: Optional[ssl.SSLContext] = None):
        parts = urllib.parse.urlsplit(url or "http://boxd")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url must be http://HOST or https://HOST, with or without a port, not %r" % url)
        self._socket_path = None if url else socket_path
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._timeout, self._context = timeout, context
        self._headers = {"User-Agent": "boxd-client-python"}
        if token:
            self._headers["Authorization"] = "Bearer " + token
        if tenant:
            self._headers["X-Boxd-Tenant"] = tenant

    def _connect(self) -> http.client.HTTPConnection:
        if self._socket_path is None:
            if self._secure:
                return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context or ssl.create_default_context())
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        conn = http.client.HTTPConnection("boxd", timeout=self._timeout)
        conn.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            conn.sock.settimeout(self._timeout)
            conn.sock.connect(self._socket_path)
        except BaseException:
            conn.close()
            raise
        return conn

    def _open(self, method: str, path: str, *, query: Optional[Dict[str, Any]] = None, json: Any = None, data: Union[bytes, BinaryIO, None] = None,
              content_type: str = "application/json", accept: str = "*/*"):
        """Sends a request. The caller closes the connection, which is returned with the answer."""
        pairs = []
        for name, value in (query or {}).items():
            for one in value if isinstance(value, list) else [] if value is None else [value]:
                pairs.append((name, {True: "true", False: "false"}[one] if isinstance(one, bool) else one))
        headers = dict(self._headers, Accept=accept)
        if json is not None:
            data = jsonlib.dumps(to_json(json)).encode()
        if data is not None:
            headers["Content-Type"] = content_type
        conn = self._connect()
        try:
            conn.request(method, self._prefix + path + ("?" + urllib.parse.urlencode(pairs) if pairs else ""), body=data, headers=headers)
            answer = conn.getresponse()
            if not 200 <= answer.status < 300:
                text = answer.read()
                try:
                    problem = jsonlib.loads(text)
                except ValueError:
                    problem = None
                raise BoxdError(answer.status, problem if isinstance(problem, dict) else {"detail": text.decode("utf-8", "replace").strip()})
            return conn, answer
        except BaseException:
            conn.close()
            raise

    def _bytes(self, method: str, path: str, **rest: Any) -> bytes:
        conn, answer = self._open(method, path, **rest)
        try:
            return answer.read()
        finally:
            conn.close()

    def _json(self, kind: Any, method: str, path: str, **rest: Any) -> Any:
        return from_json(kind, jsonlib.loads(self._bytes(method, path, accept="application/json", **rest)))

    def _stream(self, kind: Any, media: str, method: str, path: str, **rest: Any) -> Iterator[Any]:
        """The parts of an answer as they arrive. Closing the iterator ends the request, and with it a command."""
        conn, answer = self._open(method, path, accept=media, **rest)
        try:
            event = b""
            while True:
                line = answer.readline()
                if not line:
                    return
                if media != "text/event-stream":
                    yield from_json(kind, jsonlib.loads(line))
                elif line.startswith(b"event: "):
                    event = line[len(b"event: "):].strip()
                elif line.startswith(b"data: "):  # of each event it is one line
                    value = jsonlib.loads(line[len(b"data: "):])
                    if event == b"missed":  # events that were dropped because this reader was too slow
                        value = {"type": "missed", "details": value}
                    yield from_json(kind, value)
        finally:
            conn.close()


def to_json(value: Any) -> Any:
    """The JSON of a value. Fields that are None are left out."""
    if dataclasses.is_dataclass(value):
        pairs = ((f.metadata.get("name", f.name), getattr(value, f.name)) for f in dataclasses.fields(value))
        return {name: to_json(v) for name, v in pairs if v is not None}
    if isinstance(value, dict):
        return {k: to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return value


_hints: Dict[type, Dict[str, Any]] = {}


def from_json(kind: Any, value: Any) -> Any:
    """A value of a type from its JSON. Fields that the type does not know, of a newer daemon, are left out."""
    if value is None or kind is Any:
        return value
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Union:
        args = tuple(a for a in args if a is not type(None))
        return from_json(args[0], value) if len(args) == 1 else value
    if origin is list:
        return [from_json(args[0], v) for v in value]
    if origin is dict:
        return {k: from_json(args[1], v) for k, v in value.items()}
    if dataclasses.is_dataclass(kind):
        if kind not in _hints:  # not get_type_hints, for which a field with the name of a type hides the type
            names = vars(sys.modules[kind.__module__])
            _hints[kind] = {f.name: eval(f.type, names) for f in dataclasses.fields(kind)}
        known = {}
        for f in dataclasses.fields(kind):
            # An answer has all required fields; a missing one shows as None.
            known[f.name] = from_json(_hints[kind][f.name], value.get(f.metadata.get("name", f.name)))
        return kind(**known)
    if kind is bytes:
        return base64.b64decode(value)
    if kind is datetime:  # Python before 3.11 reads neither nanoseconds nor Z
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", re.sub(r"\.\d+", lambda m: m[0].ljust(7, "0"), value)).replace("Z", "+00:00"))
    if kind is float:
        return float(value)
    return value
