"""Checks what the example of the Python client does not use: every kind of parameter, body and answer."""
import sys
from datetime import datetime, timezone

from boxd_client import BoxdError, Client, ExecRequest, MkdirRequest, ProcessRequest, SessionRequest, SessionSpec, SessionUpdate

boxd = Client(sys.argv[1], token=sys.argv[2])


def check(what, ok, seen=None):
    if not ok:
        raise SystemExit("%s: %r" % (what, seen))


check("text", boxd.healthz() == "ok\n")
status = boxd.status()
check("status", status.available and status.engine.ok and isinstance(status.uptime, float), status)
events = boxd.events(last_event_id=1)
check("events", next(events).type in ("missed", "created"))
events.close()
r = boxd.exec("c", ExecRequest(shell="printf '\\377'; cat", stdin_base64=b"\xfe", session=SessionSpec(idle_ttl="1m30s", labels={"a": "b"})))
check("bytes", r.stdout_base64 == b"\xff\xfe" and r.stdout is None and r.receipt.wall > 0, r)
s = boxd.get_session("c")
check("session", s.idle_ttl == 90 and s.labels == {"a": "b"} and abs(s.created_at - datetime.now(timezone.utc)).total_seconds() < 60, s)
check("update", boxd.update_session("c", SessionUpdate(idle_ttl=120)).idle_ttl == 120)
check("labels", [x.id for x in boxd.list_sessions(label=["a=b"]).sessions] == ["c"] and boxd.list_sessions(label=["a=b", "x"]).sessions == [])
killed = boxd.exec("c", ExecRequest(shell="kill -9 $$"))
check("null", killed.exit_code is None and killed.signal == "SIGKILL", killed)
boxd.mkdir("c", MkdirRequest(path="d/e", parents=True))
with open(sys.argv[0], "rb") as f:
    check("upload", boxd.write_file("c", f, path="d/ä ?&#", mode="0640").mode == "0640")
with open(sys.argv[0], "rb") as f:
    check("download", boxd.read_file("c", path="d/ä ?&#") == f.read())
tar = boxd.pack_files("c", path="d")
check("tar", boxd.unpack_files("c", tar, path="copy", parents=True).files == 1)
lines = list(boxd.exec_stream("c", ExecRequest(argv=["seq", "1000"])))
check("stream", "".join(x.data for x in lines[:-1]).split() == [str(n + 1) for n in range(1000)] and lines[-1].result.exit_code == 0)
slow = boxd.exec_stream("c", ExecRequest(shell="echo begun; sleep 1000"))
check("stream that is left", next(slow).data == "begun\n")
slow.close()
p = boxd.start_process("c", ProcessRequest(id="p", argv=["sleep", "1000"]))
check("process", p.state == "running" and p.exit_code is None and p.ended_at is None)
check("no body", boxd.stop_process("c", "p").state == "stopped")
for call, code, status in ((lambda: boxd.get_session("none"), "session_not_found", 404), (lambda: Client(sys.argv[1], token="x" * 24).status(), "unauthenticated", 401),
                           (lambda: boxd.exec("c", ExecRequest()), "invalid", 422), (lambda: boxd.get_session("../status"), "bad_path", 400)):
    try:
        check("an error", False, call())
    except BoxdError as e:
        check("an error", e.code.startswith(code) and e.status == status and str(e), (e.code, e.status, str(e)))
check("history", [e.verdict for e in boxd.session_history("c", verdict=["signaled"]).execs][-1:] == ["signaled"])
boxd.remove_session("c")
