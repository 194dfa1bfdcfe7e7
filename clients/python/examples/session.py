"""Runs commands in a session, streams output, works with files and a managed process, and cleans up.

    python3 examples/session.py [SOCKET | URL [TOKEN]]
"""
import sys

from boxd_client import BoxdError, Client, ExecRequest, ProcessRequest, SessionRequest

where = sys.argv[1] if len(sys.argv) > 1 else "/run/boxd/boxd.sock"
token = sys.argv[2] if len(sys.argv) > 2 else None
boxd = Client(where, token=token) if "://" in where else Client(socket_path=where)

session = boxd.ensure_session(SessionRequest(id="example-py", memory="256M", labels={"made-by": "example"}))
print(session.state, session.memory, session.created)

# A command that fails is a result; a request that is refused is an error.
result = boxd.exec("example-py", ExecRequest(shell="echo hello; exit 3", timeout="10s"))
print(result.verdict, result.exit_code, result.stdout)
try:
    boxd.exec("example-py", ExecRequest(argv=["no-such-program"]))
except BoxdError as err:
    print(err.status, err.code, err.field)

# Output as it arrives.
for part in boxd.exec_stream("example-py", ExecRequest(shell="echo one; sleep 0.5; echo two >&2")):
    print(part.stream or "end", repr(part.data) if part.stream else part.result.verdict)

# Files.
boxd.write_file("example-py", b"content\n", path="dir/file", parents=True)
print(boxd.read_file("example-py", path="dir/file"), [f.name for f in boxd.list_files("example-py", path="dir").files])

# A process that goes on running, and its output.
boxd.start_process("example-py", ProcessRequest(id="count", argv=["sh", "-c", "for n in 1 2 3; do echo $n; done"]))
print(boxd.logs("example-py", "count", follow=True))
process = boxd.get_process("example-py", "count")
print(process.state, process.exit_code)

boxd.remove_session("example-py")
