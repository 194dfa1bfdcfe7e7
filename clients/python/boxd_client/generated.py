"""Types and methods of boxd's HTTP API. generate.py has written this from docs/openapi.json."""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO, Dict, Iterator, List, Literal, Optional, Union

from .transport import Transport, quote


@dataclass
class AttachedVolume:
    name: str
    read_only: bool
    # Where it is in the box.
    target: str


@dataclass
class Attachment:
    read_only: bool
    session: str


@dataclass
class AuditHead:
    hash: str
    ok: bool
    seq: int
    # Why entries cannot be written.
    reason: Optional[str] = None


@dataclass
class CodeFile:
    # A relative one lies beside the code and is removed with it. An absolute one is a path in the box: the
    # file is replaced, and stays.
    path: str
    # Content as UTF-8 text.
    content: Optional[str] = None
    # Content in base64, instead of content.
    content_base64: Optional[bytes] = None


@dataclass
class CodeRequest:
    # The source code.
    code: str
    # Arguments of the program.
    args: Optional[List[str]] = None
    # Working directory; empty: the workspace.
    cwd: Optional[str] = None
    # Added to the environment of the session and of the language.
    env: Optional[Dict[str, str]] = None
    # Name of the file for the code; empty: the language's.
    file: Optional[str] = None
    # More files, up to 64.
    files: Optional[List[CodeFile]] = None
    # Seconds between SIGTERM and SIGKILL; 0: 2.
    grace: Optional[Union[float, str]] = None
    # A language of the session's profile; empty: the one whose files end as file does.
    language: Optional[str] = None
    # Make a missing working directory.
    mkdir: Optional[bool] = None
    # Bytes that the program may write to stdout and to stderr, each; more ends it. 0: the server's.
    output_limit: Optional[Union[int, str]] = None
    # Return the files that the command has made or changed and that match: *.png, out or **/*.csv, relative
    # to the working directory; a directory stands for everything in it.
    outputs: Optional[List[str]] = None
    # Make the session with this if it is not there; conflicts if it is there and differs.
    session: Optional[SessionSpec] = None
    # Standard input as UTF-8 text; empty: /dev/null.
    stdin: Optional[str] = None
    # Standard input in base64, instead of stdin.
    stdin_base64: Optional[bytes] = None
    # Seconds, or a string such as "1m"; 0: the session's. Clamped to the profile's cap.
    timeout: Optional[Union[float, str]] = None
    # User in the box; absent: the session's.
    user: Optional[User] = None


@dataclass
class Conflict:
    asked: str
    field: str
    have: str


@dataclass
class Connection:
    allowed: bool
    # Seconds.
    duration: float
    # Bytes that the box received.
    in_: int = dataclasses.field(metadata={"name": 'in'})
    # Bytes that it sent.
    out: int
    port: int
    # connect, socks5, http, or inject for http that was sent as https.
    protocol: str
    # The rule that decided.
    rule: str
    start: datetime
    # Address and port that were dialled.
    address: Optional[str] = None
    # Absent if the program asked for an address.
    name: Optional[str] = None
    # Why it was refused, failed or was closed by boxd.
    reason: Optional[str] = None


@dataclass
class CopyRequest:
    # Path of a file or directory in that session.
    from_: str = dataclasses.field(metadata={"name": 'from'})
    # Path of the copy. A file there is replaced; into a directory, which is made if it is missing, the
    # content of the other one is copied.
    path: str
    # Session to copy from; empty: the same one.
    from_session: Optional[str] = None
    # Only what matches, of a directory: *.png, src or **/*.csv; a directory stands for everything in it.
    glob: Optional[List[str]] = None


@dataclass
class Denial:
    count: int
    # network.
    kind: str
    # The rule that refused it.
    rule: str
    # Such as example.com:443; "…": all that are too many to be told apart.
    what: str


@dataclass
class Difference:
    # Name of the capability, as in docs/engines.md.
    capability: str
    # oci or containerd.
    engine: str
    # What holds instead.
    instead: str
    # namespaces or gvisor.
    isolation: str
    reason: str


@dataclass
class Doctor:
    # When it was checked. The answer is reused for ten seconds.
    at: datetime
    checks: List[DoctorCheck]
    # Nothing has failed: a box can be built now.
    ok: bool
    # Names of the checks that are not made here: boxd doctor makes them, as root on the host.
    on_host: List[str]


@dataclass
class DoctorCheck:
    name: str
    # ok; degraded: boxes can be built, but are weaker in this respect; unknown: it could not be checked;
    # failed: no box can be built; absent: an engine that is not on this host, and that nothing asks for.
    status: Literal["ok", "unknown", "degraded", "failed", "absent"]
    detail: Optional[str] = None
    # What to do about it.
    mend: Optional[str] = None


@dataclass
class EngineState:
    available: bool
    # native, oci or containerd.
    engine: str
    # namespaces or gvisor.
    isolation: str
    # Why it is not available, and what to do.
    reason: Optional[str] = None
    # Program that makes the boxes, with its version.
    runtime: Optional[str] = None


@dataclass
class ErrorList:
    errors: List[ErrorRecord]


@dataclass
class ErrorRecord:
    message: str
    time: datetime
    process: Optional[str] = None
    session: Optional[str] = None
    tenant: Optional[str] = None


@dataclass
class Event:
    # Only grows, over restarts of the daemon too.
    id: int
    time: datetime
    type: Literal["created", "recreated", "adopted", "state", "paused", "resumed", "exec-started", "exec-ended", "process-started", "process-exited", "process-stopped", "process-ready", "process-unready", "oom", "pids-limit", "mount-attached", "mount-detached", "volume-created", "volume-resized", "volume-removed", "sensitive", "volume-sensitive", "image-progress", "image-pulled", "image-removed", "network-connection", "port-published", "port-unpublished", "port-opened", "port-closed", "expired", "removed", "error"]
    box: Optional[str] = None
    details: Optional[Dict[str, Any]] = None
    # Labels of the session and, in an event about one, of the process.
    labels: Optional[Dict[str, str]] = None
    process: Optional[str] = None
    # Id of the request that caused it.
    request: Optional[str] = None
    session: Optional[str] = None
    tenant: Optional[str] = None


@dataclass
class ExecEvent:
    # Of the first byte, from the start of the stream.
    offset: int
    # The piece, if it is UTF-8.
    data: Optional[str] = None
    # The piece in base64, if it is not UTF-8.
    data_base64: Optional[bytes] = None
    # Why there is no result; the last line.
    error: Optional[Problem] = None
    # How it ended; the last line.
    result: Optional[ExecResult] = None
    # stdout or stderr.
    stream: Optional[Literal["stdout", "stderr"]] = None


@dataclass
class ExecRecord:
    ended_at: datetime
    # 0 to 255; null if it did not exit by itself.
    exit_code: Optional[int]
    # Later ones have higher numbers.
    id: int
    receipt: Receipt
    session: str
    started_at: datetime
    tenant: str
    # As in ExecResult.
    verdict: str
    # Who ran the command.
    actor: Optional[str] = None
    # The first 4 KiB, as far as the profile keeps it.
    argv: Optional[List[str]] = None
    box: Optional[str] = None
    # The limit behind the verdict, such as "64 MiB".
    limit: Optional[str] = None
    # ID of the managed process; absent: a command.
    process: Optional[str] = None
    profile: Optional[str] = None
    # ID of the request that ran the command.
    request: Optional[str] = None
    # Signal that ended it, such as SIGKILL.
    signal: Optional[str] = None
    stderr: Optional[str] = None
    stderr_base64: Optional[bytes] = None
    stderr_missing: Optional[Missing] = None
    # Standard output, if the request wants output, the profile keeps it and it is UTF-8.
    stdout: Optional[str] = None
    # Standard output in base64, if it is not UTF-8.
    stdout_base64: Optional[bytes] = None
    # The gap in standard output.
    stdout_missing: Optional[Missing] = None


@dataclass
class ExecRequest:
    # Program and arguments, never run through a shell. Either this or shell; without both, the default
    # command of the image.
    argv: Optional[List[str]] = None
    # Working directory; empty: the workspace.
    cwd: Optional[str] = None
    # Added to the environment of the session.
    env: Optional[Dict[str, str]] = None
    # Seconds between SIGTERM and SIGKILL; 0: 2.
    grace: Optional[Union[float, str]] = None
    # Leave processes running that outlive the command.
    keep_background: Optional[bool] = None
    # Make a missing working directory.
    mkdir: Optional[bool] = None
    # Bytes that the command may write to stdout and to stderr, each; more ends it. 0: the server's.
    output_limit: Optional[Union[int, str]] = None
    # Return the files that the command has made or changed and that match: *.png, out or **/*.csv, relative
    # to the working directory; a directory stands for everything in it.
    outputs: Optional[List[str]] = None
    # Make the session with this if it is not there; conflicts if it is there and differs.
    session: Optional[SessionSpec] = None
    # A line for /bin/sh -c.
    shell: Optional[str] = None
    # Standard input as UTF-8 text; empty: /dev/null.
    stdin: Optional[str] = None
    # Standard input in base64, instead of stdin.
    stdin_base64: Optional[bytes] = None
    # Seconds, or a string such as "1m"; 0: the session's. Clamped to the profile's cap.
    timeout: Optional[Union[float, str]] = None
    # User in the box; absent: the session's.
    user: Optional[User] = None
    # Warm interpreter of the profile that takes the command over; empty: one that matches the command, if
    # there is one.
    zygote: Optional[str] = None


@dataclass
class ExecResult:
    # Seconds the request took in the daemon.
    duration: float
    # 0 to 255; null if the command did not exit by itself.
    exit_code: Optional[int]
    receipt: Receipt
    # Exit status as a shell reports it: 128+n after signal n, 124 after a timeout, 137 for a lost box or too
    # much output.
    status: int
    # exited, signaled, timeout, oom, pids-limit, disk-quota, output-limit, canceled or box-lost.
    verdict: Literal["exited", "signaled", "timeout", "oom", "pids-limit", "disk-quota", "output-limit", "canceled", "box-lost"]
    # This request made the session.
    created: Optional[bool] = None
    # What boxd refused to the session while the command ran; other commands may have asked for it.
    denied: Optional[List[Denial]] = None
    # The limit behind the verdict, such as "64 MiB".
    limit: Optional[str] = None
    # The files that the request's outputs chose, sorted by path.
    outputs: Optional[List[OutputFile]] = None
    # Why there are no outputs.
    outputs_error: Optional[str] = None
    # There are more than the 100 files that are here.
    outputs_truncated: Optional[bool] = None
    # This request gave the session a new box: background processes and files outside the workspace are gone.
    recreated: Optional[bool] = None
    # Signal that ended it, such as SIGKILL.
    signal: Optional[str] = None
    stderr: Optional[str] = None
    stderr_base64: Optional[bytes] = None
    stderr_missing: Optional[Missing] = None
    stderr_truncated: Optional[bool] = None
    # Standard output, if it is UTF-8.
    stdout: Optional[str] = None
    # Standard output in base64, if it is not UTF-8.
    stdout_base64: Optional[bytes] = None
    # The gap in standard output, of which beginning and end are here.
    stdout_missing: Optional[Missing] = None
    # There was more than is here: see stdout_missing.
    stdout_truncated: Optional[bool] = None
    # A warm interpreter of the profile took the command over.
    warm: Optional[bool] = None


@dataclass
class FileChange:
    # ready: changes are reported from now on; created or moved to here, modified (content), attributes
    # (rights, owner or times), removed or moved away; missed: some could not be reported; gone: the directory
    # itself was removed or moved; error: see error.
    type: str
    # It is a directory.
    dir: Optional[bool] = None
    # Why the stream ends.
    error: Optional[Problem] = None
    # Relative to the directory.
    path: Optional[str] = None
    # The path, if it is not UTF-8.
    path_base64: Optional[bytes] = None


@dataclass
class FileInfo:
    gid: int
    mod_time: datetime
    # Permission bits in octal, such as 0644.
    mode: str
    name: str
    path: str
    size: int
    # file, dir, symlink, fifo, socket or device.
    type: Literal["file", "dir", "symlink", "fifo", "socket", "device"]
    uid: int
    # The name, if it is not UTF-8.
    name_base64: Optional[bytes] = None
    # The path, if it is not UTF-8.
    path_base64: Optional[bytes] = None
    # What a symlink points to.
    target: Optional[str] = None


@dataclass
class FileList:
    files: List[FileInfo]
    # There are more than are here.
    truncated: Optional[bool] = None


@dataclass
class FileTree:
    bytes: int
    directories: int
    files: int
    # Devices, FIFOs and other entries that were left out.
    skipped: int
    symlinks: int


@dataclass
class Health:
    ok: bool
    reason: Optional[str] = None


@dataclass
class History:
    execs: List[ExecRecord]
    # There is more: ask again with before=next.
    next: Optional[int] = None


@dataclass
class Image:
    # When the reference began to mean this image.
    added: datetime
    # Size of all files of all layers.
    bytes: int
    # Of the manifest of this platform: "sha256:" and 64 hexadecimal digits.
    digest: str
    # IDs of the layers, lowest first. Images share them.
    layers: List[str]
    # Full reference, such as "docker.io/library/python:3.12", or the name of an imported image.
    name: str
    # OS/architecture[/variant].
    platform: str
    cmd: Optional[List[str]] = None
    entrypoint: Optional[List[str]] = None
    # KEY=VALUE.
    env: Optional[List[str]] = None
    labels: Optional[Dict[str, str]] = None
    # Declared, and ignored.
    ports: Optional[List[str]] = None
    # Such as SIGTERM.
    stop_signal: Optional[str] = None
    # Tenant that owns the reference; absent: it is shared by all.
    tenant: Optional[str] = None
    # When a session last used it; absent: never.
    used: Optional[datetime] = None
    # UID, name, UID:GID, name:group or a mixture; absent: 0.
    user: Optional[str] = None
    # Declared, and ignored.
    volumes: Optional[List[str]] = None
    working_dir: Optional[str] = None


@dataclass
class ImageEvent:
    # Why there is no image; the last line.
    error: Optional[Problem] = None
    # The image; the last line.
    image: Optional[Image] = None
    progress: Optional[ImageProgress] = None


@dataclass
class ImageList:
    images: List[Image]


@dataclass
class ImageName:
    # As people write it, or a digest; at most 512 bytes.
    reference: str
    # The shared image, even if the tenant has one of this name.
    shared: Optional[bool] = None


@dataclass
class ImageProgress:
    # Bytes.
    done: int
    # resolve, download, unpack or done.
    step: Literal["resolve", "download", "unpack", "done"]
    # Bytes; 0: not known.
    total: int
    # Digest of the layer's blob.
    layer: Optional[str] = None


@dataclass
class ImagePull:
    # As people write it, such as "python:3.12" or "ghcr.io/a/b@sha256:…"; at most 512 bytes.
    reference: str
    # Ask the registry even if the daemon has the reference, which may mean another image now.
    always: Optional[bool] = None
    # OS/architecture[/variant], such as "linux/amd64"; absent: the host's.
    platform: Optional[str] = None
    # The image is for every tenant. Only callers who may act for all tenants can ask for that.
    shared: Optional[bool] = None


@dataclass
class ImagesCollected:
    bytes: int
    images: int
    layers: int


@dataclass
class InjectedHeader:
    header: str
    # Name, with :PORT if https is not at 443.
    host: str


@dataclass
class Language:
    # Command line; {file} is the path of the code, {dir} its directory. Arguments follow.
    command: List[str]
    # Name of the file for the code.
    file: str
    name: str


@dataclass
class Link:
    expires_at: datetime
    url: str


@dataclass
class LinkRequest:
    # TCP port of the box's loopback, 1 to 65535. Nothing need listen there yet.
    port: int
    # How long the link is valid, in seconds or as a string such as "30m"; absent: an hour. At most 7 days, or
    # less if the daemon's configuration says so.
    ttl: Optional[Union[float, str]] = None


@dataclass
class Login:
    # The caller's name in the audit log, such as token:ci.
    actor: str
    # viewer, operator or admin.
    role: str
    # The caller's own; * for a caller of all tenants.
    tenant: str
    # The caller chooses the tenant with X-Boxd-Tenant.
    all_tenants: Optional[bool] = None
    # When the login of a page ends unless it is renewed; absent: the request had other credentials.
    expires_at: Optional[datetime] = None
    # In the answer to POST: what each request of the page sends as X-Boxd-Page, beside the cookie.
    page: Optional[str] = None


@dataclass
class LoginRequest:
    # A token of the daemon's tokens_file.
    token: str


@dataclass
class Missing:
    # Length of the gap. What follows in the output is the end of the stream.
    bytes: int
    # Bytes of the stream before the gap, which are here.
    offset: int


@dataclass
class MkdirRequest:
    path: str
    # Permission bits in octal; 0755 if absent.
    mode: Optional[str] = None
    # Make missing parents, and do not mind if it exists.
    parents: Optional[bool] = None


@dataclass
class Mount:
    # Absolute path on the host, beneath an allowed root. In answers also volume:NAME/path, which is boxd's
    # own and cannot be asked for.
    source: str
    # Absolute path in the box.
    target: str
    read_only: Optional[bool] = None


@dataclass
class Network:
    # What was refused, most frequent first.
    denied: List[Denial]
    # Open connections, oldest first.
    live: List[Connection]
    # It leads out of the box now.
    on: bool
    # The last 100 that have ended, newest first.
    recent: List[Connection]


@dataclass
class NetworkLimits:
    # Bytes per second, both directions together.
    bandwidth: Optional[Union[int, str]] = None
    # Bytes in both directions together, as long as the box lives.
    bytes: Optional[Union[int, str]] = None
    # New connections per second; ten times as many at once. Further ones wait.
    connection_rate: Optional[int] = None
    # Connections open at once.
    connections: Optional[int] = None
    # Seconds, or a string such as "5m", without a byte after which a connection ends.
    idle: Optional[Union[float, str]] = None


@dataclass
class NetworkLimitsInForce:
    # Bytes per second, both directions together.
    bandwidth: Optional[int] = None
    # Bytes in both directions together, as long as the box lives.
    bytes: Optional[int] = None
    # New connections per second; ten times as many at once. Further ones wait.
    connection_rate: Optional[int] = None
    # Connections open at once.
    connections: Optional[int] = None
    # Seconds, or a string such as "5m", without a byte after which a connection ends.
    idle: Optional[float] = None


@dataclass
class NetworkRules:
    # Names, addresses and CIDRs that the session reaches, as far as its profile allows them; empty: all that
    # the profile allows.
    allow: Optional[List[str]] = None
    # Those that it does not reach.
    deny: Optional[List[str]] = None
    # Lower limits than those of the profile; absent or 0: the profile's.
    limits: Optional[NetworkLimits] = None


@dataclass
class OutputFile:
    mod_time: datetime
    # Permission bits in octal, such as 0644.
    mode: str
    # Relative to the working directory.
    path: str
    size: int
    # The content, if it is UTF-8.
    content: Optional[str] = None
    # The content in base64, if it is not UTF-8.
    content_base64: Optional[bytes] = None
    # The content is not here, since the user may not read it, or all files together would be larger than 4
    # MiB: get it with files/content.
    omitted: Optional[bool] = None
    # The path, if it is not UTF-8.
    path_base64: Optional[bytes] = None


@dataclass
class PauseRequest:
    # Also give memory of the paused session to the host: page cache, and what the host's swap has room for.
    # The answer comes when that is done, after at most some two seconds; nothing runs meanwhile. Refused, and
    # nothing is paused, where the host cannot: without swap, cgroup v2 or Linux 5.19.
    reclaim: Optional[bool] = None


@dataclass
class Pool:
    # Boxes taken from the pool since the launcher started.
    hits: int
    # The most that there may be.
    limit: int
    # Boxes built on request since then, by reason: empty (there was none of the kind), spec (there is never
    # one of the kind), broken (it could not be completed).
    misses: Dict[str, int]
    # As many as there are.
    ready: int
    # As many as the demand of the last minutes asks for.
    wanted: int


@dataclass
class Port:
    address: str
    port: int
    # tcp, tcp6, udp or udp6.
    protocol: Literal["tcp", "tcp6", "udp", "udp6"]


@dataclass
class PortList:
    ports: List[Port]
    # Ports of the host that lead to ports of the box.
    published: List[Published]


@dataclass
class Problem:
    # The kind of error as one stable word.
    code: Literal["malformed_json", "unknown_field", "wrong_type", "bad_path", "body_too_large", "body_timeout", "unsupported_media_type", "http_version", "unauthenticated", "forbidden", "no_such_route", "method_not_allowed", "session_not_found", "process_not_found", "volume_not_found", "volume_exists", "volume_in_use", "volume_lost", "images_disabled", "previews_disabled", "image_not_present", "image_not_found", "image_login", "image_damaged", "image_platform", "image_refused", "registry_unreachable", "not_found", "session_conflict", "exists", "paused", "bad_state", "not_started", "not_ready", "process_ended", "output_gone", "bad_relay_request", "writer_taken", "no_such_offset", "no_such_stream", "shutting_down", "storage", "quota_exceeded", "rate_limited", "denied", "program_not_found", "program_not_executable", "box_at_limit", "no_such_directory", "unenforceable", "box_lost", "engine_unavailable", "not_attached", "no_mount_point", "invalid", "too_many_connections", "unavailable", "timeout", "internal", "file_too_large", "wrong_file_type", "file_timeout", "box_disturbed", "not_empty", "no_space", "file_permission", "no_such_file", "file_exists", "file_operation"]
    # HTTP status.
    status: int
    # The kind of error in words.
    title: str
    # urn:boxd:problem: and the code.
    type: str
    # How much was asked for.
    asked: Optional[str] = None
    # Fields in which the live session differs from the request.
    conflicts: Optional[List[Conflict]] = None
    # What is wrong this time and what to do.
    detail: Optional[str] = None
    # The field of the request that is wrong.
    field: Optional[str] = None
    # With rate_limited: the name of that tenant or token.
    holder: Optional[str] = None
    # How much of it is in use.
    in_use: Optional[str] = None
    # Id of the request; it is in the daemon's log lines.
    instance: Optional[str] = None
    # Name of the quota that is used up: sessions, processes, execs, memory, cpus, workspace_bytes, volumes,
    # volume_bytes, watches, watches_per_session, cpu_per_day, execs_per_day or written_per_day. With
    # rate_limited: requests, creates or execs.
    limit: Optional[str] = None
    # With not_ready: the end of what the process had written.
    output: Optional[str] = None
    # With rate_limited: seconds until it is worth trying again.
    retry_after: Optional[int] = None
    # Whose quota: tenant or global. With rate_limited: tenant or token.
    scope: Optional[Literal["tenant", "global"]] = None
    # Value of that quota, in its unit.
    value: Optional[str] = None


@dataclass
class Process:
    argv: List[str]
    # null while it runs, and if it did not exit by itself.
    exit_code: Optional[int]
    # Bytes of each output stream that are kept.
    history: int
    id: str
    session: str
    started_at: datetime
    # starting, running, exited, stopping, stopped, or failed: its probes gave it up, or its box was lost, so
    # there is no exit code. With ready in place of running: starting, ready, or unready while its probes
    # fail. restarting: it has failed, and is started again.
    state: Literal["starting", "running", "stopping", "exited", "stopped", "failed", "ready", "unready", "restarting"]
    tty: bool
    # Id of the box it runs in.
    box: Optional[str] = None
    # What boxd refused to the session while the process ran, or has refused since it started: the 20 most
    # frequent. Others may have asked for it.
    denied: Optional[List[Denial]] = None
    drop_oldest: Optional[bool] = None
    drop_stderr: Optional[bool] = None
    ended_at: Optional[datetime] = None
    # Why it has failed, or the run before; kept with ready or restart, until it is ready.
    failure: Optional[str] = None
    # The end of what it had written then, up to 4 KiB: of stderr, or else of stdout.
    failure_output: Optional[str] = None
    labels: Optional[Dict[str, str]] = None
    limit: Optional[str] = None
    # Its own limit in bytes; absent: only the session's limit.
    memory: Optional[int] = None
    # Process id in the box.
    pid: Optional[int] = None
    ready: Optional[ProcessReady] = None
    # When it was ready for the first time.
    ready_at: Optional[datetime] = None
    restart: Optional[str] = None
    # When it is started again.
    restart_at: Optional[datetime] = None
    # How often it was restarted in a row.
    restarts: Optional[int] = None
    signal: Optional[str] = None
    stderr: Optional[Stream] = None
    stdout: Optional[Stream] = None
    verdict: Optional[Literal["exited", "signaled", "timeout", "oom", "pids-limit", "disk-quota", "output-limit", "canceled", "box-lost"]] = None


@dataclass
class ProcessList:
    processes: List[Process]


@dataclass
class ProcessReady:
    # Ready when this program, run in the box as the process's user in its directory, exits with 0.
    command: Optional[List[str]] = None
    # PORT/PATH, such as 8080/health: ready when GET of the path, on that port of the box's loopback, answers
    # 200 to 399.
    http: Optional[str] = None
    # Ready when a line of its output, stdout or stderr, contains this text.
    line: Optional[str] = None
    # Repeat the probe this often once it is ready, at least 1s; not with line. After three failures in a row
    # the process is unready, or restarted if restart says so. 0: do not repeat.
    live_every: Optional[float] = None
    # Ready when something in the box listens on this TCP port.
    port: Optional[int] = None
    # How long it may take, up to an hour; a process that is not ready then is ended. 0: 1m.
    timeout: Optional[float] = None


@dataclass
class ProcessRequest:
    # Id of the process, once in its session.
    id: str
    # Program and arguments. Either this or shell; without both, the default command of the image.
    argv: Optional[List[str]] = None
    # Working directory; empty: the workspace.
    cwd: Optional[str] = None
    # Drop output that nobody read instead of making the process wait.
    drop_oldest: Optional[bool] = None
    # Do so for stderr only: stdout makes the process wait.
    drop_stderr: Optional[bool] = None
    env: Optional[Dict[str, str]] = None
    # Bytes of each output stream that are kept; 0: 1 MiB.
    history: Optional[Union[int, str]] = None
    # Labels of the process, beside those of its session.
    labels: Optional[Dict[str, str]] = None
    # RAM in bytes that the process and what it starts may use, beside the limit of the session; 0: only that.
    memory: Optional[Union[int, str]] = None
    mkdir: Optional[bool] = None
    # How to find out that it does its work; absent: it is ready as soon as its program runs.
    ready: Optional[Ready] = None
    # on-failure, or on-failure:N: start it again when it fails, after a growing pause and at most N (5) times
    # in a row. Absent or no: never.
    restart: Optional[str] = None
    # Make the session with this if it is not there.
    session: Optional[SessionSpec] = None
    # A line for /bin/sh -c.
    shell: Optional[str] = None
    # Give it a terminal of this size.
    tty: Optional[WindowSize] = None
    user: Optional[User] = None
    # Answer when the process is ready, or not_ready when it has failed for good. Needs ready.
    wait: Optional[bool] = None


@dataclass
class Profile:
    allow_network: bool
    allow_persistent: bool
    # Sessions may publish ports.
    allow_publish: bool
    # Use resumes a paused session.
    auto_resume: bool
    # The most that a request may ask for; -1 is no cap, for times as well.
    caps: ProfileCaps
    cpus: float
    # Bytes; -1: unlimited.
    file_size: int
    # Seconds.
    idle_ttl: float
    # "host", or the full reference of an image.
    image: str
    # namespaces or gvisor.
    isolation: str
    # What the history keeps of command lines: full, program or none.
    keep_argv: str
    # Bytes of each output stream of a command that the history keeps; 0: none.
    keep_output: int
    # Languages of source code, sorted by name.
    languages: List[Language]
    # Fields of a request that are ignored: the profile's values count.
    locked: List[str]
    # Seconds; 0: none.
    max_lifetime: float
    # Bytes.
    memory: int
    # The most that extra mounts get: rw, ro or none.
    mount_mode: Literal["rw", "ro", "none"]
    name: str
    network: bool
    # What sessions with a network reach.
    network_rules: ProfileNetwork
    open_files: int
    persistent: bool
    pids: int
    # No weaker wall than isolation says.
    require: bool
    # How long the workspace stays when a TTL ends the session: none, forever, or a time such as 7d.
    retain: str
    # The session has no network, for good.
    sensitive: bool
    # Seconds.
    timeout: float
    tmp_size: int
    upper_size: int
    # Files and directories in it; 0: by the size.
    workspace_inodes: int
    workspace_mode: Literal["rw", "ro", "none"]
    # Hard limit of the workspace in bytes; 0: none.
    workspace_size: int
    writable_root: bool
    # The only engine that may build the box; absent: the order decides.
    engine: Optional[str] = None
    # Engines that may build the boxes, in the order in which they are tried; absent: those of the daemon.
    engines: Optional[List[str]] = None
    # Images other than "host" need a digest.
    image_digests: Optional[bool] = None
    # Patterns of the images that sessions may have; absent: every image.
    images: Optional[List[str]] = None
    # When a session pulls its image: never, missing or always.
    pull: Optional[str] = None
    # Default of a request that names neither id nor scope.
    scope: Optional[str] = None
    # Interpreters that the boxes keep warm.
    zygotes: Optional[List[Zygote]] = None


@dataclass
class ProfileCaps:
    cpus: float
    idle_ttl: float
    max_lifetime: float
    memory: int
    pids: int
    timeout: float
    tmp_size: int
    upper_size: int
    # A workspace without a hard limit is above every cap.
    workspace_size: int


@dataclass
class ProfileList:
    profiles: List[Profile]
    # The profile of a request of this tenant that names none; absent if all tenants are asked for.
    default: Optional[str] = None


@dataclass
class ProfileNetwork:
    # Names, addresses and CIDRs.
    allow: Optional[List[str]] = None
    # Those that are denied whatever else allows them.
    deny: Optional[List[str]] = None
    # Secrets of the operator that its proxy adds to requests for http://HOST, which it sends by https.
    inject: Optional[List[InjectedHeader]] = None
    # The most that one box uses; absent: no limit.
    limits: Optional[NetworkLimitsInForce] = None
    # Every public address.
    public: Optional[bool] = None


@dataclass
class PublishWish:
    # TCP port on which a program of the box listens, 1 to 65535.
    port: int
    # Port of the host, of the pool in the daemon's configuration; "auto" or absent: any free one.
    host: Optional[str] = None


@dataclass
class Published:
    # Address of the host; 0.0.0.0 and :: are all of them. Empty if the configuration has no publish.ports any
    # more.
    address: str
    # Connections through it now.
    connections: int
    # Port of the host.
    host: int
    # Port of the box.
    port: int
    # Why it is not open now; absent: it is.
    reason: Optional[str] = None


@dataclass
class QuotaUse:
    in_use: float
    # -1: none.
    limit: float
    # sessions, processes, execs, memory, cpus, workspace_bytes, volumes, volume_bytes or watches.
    name: str
    # tenant or global.
    scope: Literal["tenant", "global"]


@dataclass
class Ready:
    # Ready when this program, run in the box as the process's user in its directory, exits with 0.
    command: Optional[List[str]] = None
    # PORT/PATH, such as 8080/health: ready when GET of the path, on that port of the box's loopback, answers
    # 200 to 399.
    http: Optional[str] = None
    # Ready when a line of its output, stdout or stderr, contains this text.
    line: Optional[str] = None
    # Repeat the probe this often once it is ready, at least 1s; not with line. After three failures in a row
    # the process is unready, or restarted if restart says so. 0: do not repeat.
    live_every: Optional[Union[float, str]] = None
    # Ready when something in the box listens on this TCP port.
    port: Optional[int] = None
    # How long it may take, up to an hour; a process that is not ready then is ended. 0: 1m.
    timeout: Optional[Union[float, str]] = None


@dataclass
class Receipt:
    # Seconds.
    wall: float
    io_read_bytes: Optional[int] = None
    io_write_bytes: Optional[int] = None
    # Bytes, page cache included.
    memory_peak: Optional[int] = None
    oom_kills: Optional[int] = None
    # Forks that were refused.
    pids_limit_reached: Optional[int] = None
    pids_peak: Optional[int] = None
    stderr_bytes: Optional[int] = None
    stdout_bytes: Optional[int] = None
    system: Optional[float] = None
    # Seconds that the CPU limit made it wait.
    throttled: Optional[float] = None
    # Seconds of processor time in user mode.
    user: Optional[float] = None


@dataclass
class RenameRequest:
    path: str
    # The new path, absolute or relative to the workspace, in the same file system.
    to: str
    # Replace a file or symlink that is there, atomically; a directory replaces only an empty one.
    replace: Optional[bool] = None


@dataclass
class RunRequest:
    # Program and arguments, never run through a shell. Either this or shell.
    argv: Optional[List[str]] = None
    # The box: profile (empty: "run"), engine, isolation, require, cpus, memory, pids, writable_root,
    # tmp_size, upper_size, user, env, hostname, name and labels. Others must be absent. What is absent is
    # boxd's own default, and a profile that gives anything else refuses the run.
    box: Optional[SessionSpec] = None
    # Working directory; empty: the home directory.
    cwd: Optional[str] = None
    # Environment of the command.
    env: Optional[Dict[str, str]] = None
    # Seconds between SIGTERM and SIGKILL; 0: 2.
    grace: Optional[Union[float, str]] = None
    # Make a missing working directory.
    mkdir: Optional[bool] = None
    # Bytes that the command may write to stdout and to stderr, each; more ends it. 0: the server's, or none
    # if the client passes descriptors.
    output_limit: Optional[Union[int, str]] = None
    # A line for /bin/sh -c.
    shell: Optional[str] = None
    # Standard input as UTF-8 text; empty: /dev/null.
    stdin: Optional[str] = None
    # Standard input in base64, instead of stdin.
    stdin_base64: Optional[bytes] = None
    # Seconds, or a string such as "1m"; 0: none. One above the profile's cap is refused.
    timeout: Optional[Union[float, str]] = None


@dataclass
class Sensitive:
    reason: str
    since: datetime


@dataclass
class SensitivePath:
    # Path of the host, or volume:NAME/path in a volume of boxd's own, such as a skill of LangBot's.
    path: str
    reason: str
    since: datetime
    # Tenant whose session could write to it.
    tenant: str


@dataclass
class SensitivePathList:
    paths: List[SensitivePath]


@dataclass
class Session:
    # -1: unlimited.
    cpus: float
    created_at: datetime
    # Execs that are running.
    execs: int
    # Counts the boxes of the session, from 1.
    generation: int
    id: str
    # Seconds.
    idle_ttl: float
    last_used_at: datetime
    # Seconds; 0: none.
    max_lifetime: float
    # Bytes; -1: unlimited.
    memory: int
    network: bool
    persistent: bool
    # -1: unlimited.
    pids: int
    # Managed processes that are running.
    processes: int
    profile: str
    # creating, running, stopping, stopped or failed. A failed session gets a new box with its next use.
    state: Literal["creating", "running", "stopping", "stopped", "failed"]
    tenant: str
    # Seconds an exec may take unless it asks otherwise.
    timeout: float
    # Seconds an exec may ask for.
    timeout_cap: float
    tmp_size: int
    user: User
    workspace_mode: Literal["rw", "ro", "none"]
    # Where the workspace is mounted, or would be.
    workspace_target: str
    writable_root: bool
    # Use resumes it when it is paused.
    auto_resume: Optional[bool] = None
    # Id of its box.
    box: Optional[str] = None
    # This request made the session.
    created: Optional[bool] = None
    # Why its box has a weaker wall than the session asks for; only where it accepts that (require false).
    degraded: Optional[str] = None
    # What built its box: native, oci or containerd; absent without a box.
    engine: Optional[str] = None
    # Why it was this engine.
    engine_reason: Optional[str] = None
    # KEY=VALUE, sorted; viewers get the names only.
    env: Optional[List[str]] = None
    # When it ends if nothing uses it.
    expires_at: Optional[datetime] = None
    hostname: Optional[str] = None
    # "host", or the full reference of an image.
    image: Optional[str] = None
    # Digest that the image had when the session was created; absent for "host".
    image_digest: Optional[str] = None
    # The wall around its box: namespaces or gvisor; absent without a box.
    isolation: Optional[str] = None
    labels: Optional[Dict[str, str]] = None
    mounts: Optional[List[Mount]] = None
    # Name for people.
    name: Optional[str] = None
    # Why the network that the session has is off now, such as a profile that allows none any more; absent: it
    # is on, or network is false.
    network_off: Optional[str] = None
    # What narrows the rules of its profile; absent: nothing.
    network_rules: Optional[SessionNetworkRules] = None
    # Fields of the request that the profile locks: its values count.
    overridden: Optional[List[str]] = None
    # Since when it is paused; absent: it is not. Its state is running.
    paused_at: Optional[datetime] = None
    # Ports of the host that lead to ports of its box.
    published: Optional[List[Published]] = None
    # Why it failed or stopped.
    reason: Optional[str] = None
    # How much of its memory this request gave to the host; only in the answer to a pause with reclaim.
    reclaimed_bytes: Optional[int] = None
    # This request gave it a new box, as the old one was lost.
    recreated: Optional[bool] = None
    # How long its workspace stays when a TTL ends it: none, forever, or a time such as 7d. It is stopped
    # then, and expires_at says when it goes; its next use gives it a new box.
    retain: Optional[str] = None
    # Since when and why the session has no network, for good; absent: it is not sensitive.
    sensitive: Optional[Sensitive] = None
    # Which of its limits this host cannot enforce, and why; only where the daemon allows that.
    unenforced: Optional[str] = None
    # Volumes of the tenant that the session has.
    volumes: Optional[List[AttachedVolume]] = None
    # What the session lacks of what its client asked for, such as a network.
    warnings: Optional[List[str]] = None
    workspace: Optional[str] = None
    # What the workspace was measured at last.
    workspace_bytes: Optional[int] = None
    # Hard limit of the files and directories in it; absent: it follows from the size.
    workspace_inodes: Optional[int] = None
    # Hard limit of the workspace in bytes; absent: none.
    workspace_size: Optional[int] = None


@dataclass
class SessionList:
    sessions: List[Session]


@dataclass
class SessionNetworkRules:
    # Names, addresses and CIDRs that the session reaches, as far as its profile allows them; empty: all that
    # the profile allows.
    allow: Optional[List[str]] = None
    # Those that it does not reach.
    deny: Optional[List[str]] = None
    # Lower limits than those of the profile; absent or 0: the profile's.
    limits: Optional[NetworkLimitsInForce] = None


@dataclass
class SessionRequest:
    # Whether use resumes a paused session. Otherwise it is refused.
    auto_resume: Optional[bool] = None
    # Processors' worth of time.
    cpus: Optional[float] = None
    # Template that counts if token and profile have none; instead of the daemon's.
    default_scope: Optional[str] = None
    # The engine that builds the box: native, oci or containerd. Empty: the first that can, in the order of
    # the profile or of the daemon's configuration.
    engine: Optional[str] = None
    # Environment of all commands of the session.
    env: Optional[Dict[str, str]] = None
    # Host name in the box.
    hostname: Optional[str] = None
    # Id of the session.
    id: Optional[str] = None
    # Seconds without use, or a string such as "5m", after which the session ends.
    idle_ttl: Optional[Union[float, str]] = None
    # Root file system: "host", the host's system directories, read-only; or an image such as "python:3.12".
    # Empty: the profile's.
    image: Optional[str] = None
    # The wall around the box: namespaces, or gvisor, a kernel of its own in user space. Never weaker than the
    # profile's.
    isolation: Optional[str] = None
    # Labels to find and count the session by: up to 64 keys with values.
    labels: Optional[Dict[str, str]] = None
    # Seconds after which the session ends, used or not; 0: never.
    max_lifetime: Optional[Union[float, str]] = None
    # RAM in bytes, or a string such as "512M".
    memory: Optional[Union[int, str]] = None
    # More host directories and files to mount.
    mounts: Optional[List[Mount]] = None
    # Name for people, up to 128 bytes; it need not be unique.
    name: Optional[str] = None
    # Whether the box has a network beyond loopback.
    network: Optional[bool] = None
    # Narrow what the profile lets a session with a network reach.
    network_rules: Optional[NetworkRules] = None
    # Never end for idleness.
    persistent: Optional[bool] = None
    # Processes and threads at once.
    pids: Optional[int] = None
    # Name of the profile; empty: "default".
    profile: Optional[str] = None
    # Ports of the host that lead to ports of the box, from the pool of the daemon's configuration.
    publish: Optional[List[PublishWish]] = None
    # Refuse a box with a weaker wall than isolation says. false accepts one while no engine offers that
    # isolation, and the session says so in degraded.
    require: Optional[bool] = None
    # How long the workspace that boxd keeps stays when idle_ttl or max_lifetime end the session: none,
    # forever, or a time such as 7d or 12h.
    retain: Optional[str] = None
    # Template that gives the id, such as "{launcher_type}_{launcher_id}"; instead of id. Without both, the
    # default scope of the token, the profile or the daemon counts.
    scope: Optional[str] = None
    # Whether the session holds sensitive data: then it has no network, for good.
    sensitive: Optional[bool] = None
    # Refuse a scope with a {name} whose variable is missing, as if the tenant's scopes were strict.
    strict_scope: Optional[bool] = None
    # Default timeout of an exec, in seconds.
    timeout: Optional[Union[float, str]] = None
    # Size of /tmp, of the home directory and of /dev/shm, each.
    tmp_size: Optional[Union[int, str]] = None
    # Size of the writable layer.
    upper_size: Optional[Union[int, str]] = None
    # User that runs commands that name none.
    user: Optional[User] = None
    # Variables of the scope. Of one that is missing, {name} becomes "unknown" unless the tenant's scopes are
    # strict, {name!} is refused, and {name:-text} becomes the text.
    variables: Optional[Dict[str, str]] = None
    # Volumes of the tenant to attach.
    volumes: Optional[List[SessionVolume]] = None
    # Host directory to mount as the workspace; empty: one of boxd's own, which stays with the session.
    workspace: Optional[str] = None
    # Files and directories that can be in it, at most one for each KiB of its size; 0: one for each 16 KiB of
    # its size, at least 1024.
    workspace_inodes: Optional[int] = None
    # rw, ro or none.
    workspace_mode: Optional[Literal["rw", "ro", "none"]] = None
    # Hard limit of the workspace, from 1 MiB: who writes more gets ENOSPC. 0: none.
    workspace_size: Optional[Union[int, str]] = None
    # Where it is mounted; empty: /workspace. Commands start there.
    workspace_target: Optional[str] = None
    # Lay a private writable layer over the root, thrown away with the box.
    writable_root: Optional[bool] = None


@dataclass
class SessionSpec:
    # Whether use resumes a paused session. Otherwise it is refused.
    auto_resume: Optional[bool] = None
    # Processors' worth of time.
    cpus: Optional[float] = None
    # The engine that builds the box: native, oci or containerd. Empty: the first that can, in the order of
    # the profile or of the daemon's configuration.
    engine: Optional[str] = None
    # Environment of all commands of the session.
    env: Optional[Dict[str, str]] = None
    # Host name in the box.
    hostname: Optional[str] = None
    # Seconds without use, or a string such as "5m", after which the session ends.
    idle_ttl: Optional[Union[float, str]] = None
    # Root file system: "host", the host's system directories, read-only; or an image such as "python:3.12".
    # Empty: the profile's.
    image: Optional[str] = None
    # The wall around the box: namespaces, or gvisor, a kernel of its own in user space. Never weaker than the
    # profile's.
    isolation: Optional[str] = None
    # Labels to find and count the session by: up to 64 keys with values.
    labels: Optional[Dict[str, str]] = None
    # Seconds after which the session ends, used or not; 0: never.
    max_lifetime: Optional[Union[float, str]] = None
    # RAM in bytes, or a string such as "512M".
    memory: Optional[Union[int, str]] = None
    # More host directories and files to mount.
    mounts: Optional[List[Mount]] = None
    # Name for people, up to 128 bytes; it need not be unique.
    name: Optional[str] = None
    # Whether the box has a network beyond loopback.
    network: Optional[bool] = None
    # Narrow what the profile lets a session with a network reach.
    network_rules: Optional[NetworkRules] = None
    # Never end for idleness.
    persistent: Optional[bool] = None
    # Processes and threads at once.
    pids: Optional[int] = None
    # Name of the profile; empty: "default".
    profile: Optional[str] = None
    # Ports of the host that lead to ports of the box, from the pool of the daemon's configuration.
    publish: Optional[List[PublishWish]] = None
    # Refuse a box with a weaker wall than isolation says. false accepts one while no engine offers that
    # isolation, and the session says so in degraded.
    require: Optional[bool] = None
    # How long the workspace that boxd keeps stays when idle_ttl or max_lifetime end the session: none,
    # forever, or a time such as 7d or 12h.
    retain: Optional[str] = None
    # Whether the session holds sensitive data: then it has no network, for good.
    sensitive: Optional[bool] = None
    # Default timeout of an exec, in seconds.
    timeout: Optional[Union[float, str]] = None
    # Size of /tmp, of the home directory and of /dev/shm, each.
    tmp_size: Optional[Union[int, str]] = None
    # Size of the writable layer.
    upper_size: Optional[Union[int, str]] = None
    # User that runs commands that name none.
    user: Optional[User] = None
    # Volumes of the tenant to attach.
    volumes: Optional[List[SessionVolume]] = None
    # Host directory to mount as the workspace; empty: one of boxd's own, which stays with the session.
    workspace: Optional[str] = None
    # Files and directories that can be in it, at most one for each KiB of its size; 0: one for each 16 KiB of
    # its size, at least 1024.
    workspace_inodes: Optional[int] = None
    # rw, ro or none.
    workspace_mode: Optional[Literal["rw", "ro", "none"]] = None
    # Hard limit of the workspace, from 1 MiB: who writes more gets ENOSPC. 0: none.
    workspace_size: Optional[Union[int, str]] = None
    # Where it is mounted; empty: /workspace. Commands start there.
    workspace_target: Optional[str] = None
    # Lay a private writable layer over the root, thrown away with the box.
    writable_root: Optional[bool] = None


@dataclass
class SessionUpdate:
    # Mounts to add.
    attach: Optional[List[Mount]] = None
    # Volumes of the tenant to attach.
    attach_volumes: Optional[List[SessionVolume]] = None
    auto_resume: Optional[bool] = None
    cpus: Optional[float] = None
    # Targets of mounts and volumes to take away; done first.
    detach: Optional[List[str]] = None
    # Seconds.
    idle_ttl: Optional[Union[float, str]] = None
    # Labels to set; null removes one. Others stay.
    labels: Optional[Dict[str, Optional[str]]] = None
    # Seconds from the creation; 0: none.
    max_lifetime: Optional[Union[float, str]] = None
    memory: Optional[Union[int, str]] = None
    # New name for people.
    name: Optional[str] = None
    # false gives the network up, for good. true opens one for commands that start later, unless the session
    # is sensitive or its profile forbids it.
    network: Optional[bool] = None
    # Narrow what the profile allows, in place of the session's rules so far. Connections that are not allowed
    # any more end at once.
    network_rules: Optional[NetworkRules] = None
    persistent: Optional[bool] = None
    pids: Optional[int] = None
    retain: Optional[str] = None
    # Only true: what has been sensitive stays so until the session is removed.
    sensitive: Optional[bool] = None


@dataclass
class SessionVolume:
    # Name of the volume.
    name: str
    # Absolute path in the box.
    target: str
    # Several sessions can have a volume read-only, or one can have it read-write.
    read_only: Optional[bool] = None
    # Create the volume with this size, from 1 MiB, if it does not exist. An existing one keeps its size.
    size: Optional[Union[int, str]] = None


@dataclass
class SignalRequest:
    # Name or number: SIGHUP, HUP or 1.
    signal: str


@dataclass
class Status:
    # True only if the daemon and its engine can serve.
    available: bool
    # Whether a box can be built at all.
    engine: Health
    # Execs that are running.
    execs: int
    # Managed processes that are running.
    processes: int
    # Sessions by state; of the caller's tenant unless all tenants are asked for.
    sessions: Dict[str, int]
    # Seconds.
    uptime: float
    version: str
    # Head of the audit log's chain; for callers of all tenants.
    audit: Optional[AuditHead] = None
    # What boxes of other engines and isolations do in another way than those of native with namespaces; a
    # pair that is not listed does everything as they do.
    capabilities: Optional[List[Difference]] = None
    # What boxes of sessions can be built with, in the order in which it is tried; absent while the launcher
    # does not answer.
    engines: Optional[List[EngineState]] = None
    # Whether LangBot can use the daemon: what its protocol's /readyz says. Absent: langbot.listen is not
    # configured.
    langbot: Optional[Health] = None
    # Boxes that are built before they are asked for; for callers of all tenants, and absent if there is no
    # pool.
    pool: Optional[Pool] = None
    # Ports of sessions have host names, so there can be links to them.
    previews: Optional[bool] = None
    # Limits and what is in use.
    quota: Optional[List[QuotaUse]] = None
    # Why it is not available.
    reason: Optional[str] = None
    # Settings that the operator of the daemon should change. Only callers with access to all tenants get
    # them.
    warnings: Optional[List[str]] = None
    # Deliveries to the receivers of webhooks; for callers of all tenants.
    webhooks: Optional[List[WebhookState]] = None


@dataclass
class StopRequest:
    # Seconds between SIGTERM and the kill; absent: the server's.
    grace: Optional[Union[float, str]] = None


@dataclass
class Stream:
    # Offset behind the newest.
    end: int
    # Offset of the oldest byte that is kept.
    oldest: int


@dataclass
class Usage:
    # Seconds of processor time since the box was made.
    cpu: Optional[float] = None
    # Bytes, page cache included.
    memory: Optional[int] = None
    # Processes and threads.
    pids: Optional[int] = None
    # Seconds that the CPU limit made it wait.
    throttled: Optional[float] = None


@dataclass
class UsageList:
    usage: List[UsageRow]


@dataclass
class UsageRow:
    # Seconds of processor time, user and system.
    cpu: float
    # Commands.
    execs: int
    # From block devices.
    io_read_bytes: int
    # To block devices.
    io_write_bytes: int
    # Memory of their boxes multiplied with time.
    memory_gib_seconds: float
    # Managed processes.
    processes: int
    # For how long sessions have had a box, added up: seconds of wall time.
    session_time: float
    tenant: str
    # Seconds between start and end, added up.
    wall: float
    # If by has day: YYYY-MM-DD in UTC.
    day: Optional[str] = None
    # If by has profile.
    profile: Optional[str] = None
    # If by has session; * stands for sessions that are not told apart any more.
    session: Optional[str] = None
    # If by has user: the label user of the session; absent: sessions without it.
    user: Optional[str] = None


@dataclass
class User:
    gid: int
    uid: int


@dataclass
class Volume:
    # Sessions that have it: several read-only, or one read-write.
    attached: List[Attachment]
    created_at: datetime
    name: str
    # Hard limit in bytes.
    size: int
    # ready, removing, or lost: the data is gone from the launcher's data directory.
    state: Literal["ready", "removing", "lost"]
    tenant: str
    # Bytes in it, as measured last.
    used_bytes: int
    # This request made the volume.
    created: Optional[bool] = None
    # Volume of which it was a copy at first.
    from_: Optional[str] = dataclasses.field(default=None, metadata={"name": 'from'})
    # Hard limit of files and directories; absent: it follows from the size.
    inodes: Optional[int] = None
    # Since when and why sessions that have it have no network; absent: it is not sensitive.
    sensitive: Optional[Sensitive] = None


@dataclass
class VolumeList:
    volumes: List[Volume]


@dataclass
class VolumeRequest:
    # 1 to 64 of A-Z, a-z, 0-9 and "._-", not starting with "." and without "..".
    name: str
    # Volume whose content a new volume gets. No session may have that volume read-write. Its size and inodes
    # are the defaults, and the least that is possible.
    from_: Optional[str] = dataclasses.field(default=None, metadata={"name": 'from'})
    # Files and directories that can be in it, at most one for each KiB of its size; absent: one for each 16
    # KiB, at least 1024.
    inodes: Optional[int] = None
    # Mark the volume as sensitive, also one that exists: sessions that have it have no network, for good.
    sensitive: Optional[bool] = None
    # Hard limit in bytes, or a string such as "1G", from 1 MiB: who writes more gets ENOSPC. Only with from
    # it can be absent.
    size: Optional[Union[int, str]] = None


@dataclass
class VolumeUpdate:
    # New limit of files and directories; absent: as before.
    inodes: Optional[int] = None
    # true marks the volume as sensitive, without a size. The mark stays.
    sensitive: Optional[bool] = None
    # New hard limit. It can shrink to what the volume holds if the host has project quota; otherwise it can
    # only grow, on some hosts only while no session has it.
    size: Optional[Union[int, str]] = None


@dataclass
class Webhook:
    data: WebhookData
    # When it ended.
    timestamp: datetime
    # Type of the event.
    type: Literal["process-exited", "process-stopped", "expired", "removed"]


@dataclass
class WebhookData:
    # Id of the session.
    session: str
    tenant: str
    box: Optional[str] = None
    # As in the event of the same type.
    details: Optional[Dict[str, Any]] = None
    # Labels of the session and of the process.
    labels: Optional[Dict[str, str]] = None
    # The managed process, with as much of argv and ready.command as keep_argv of the profile says, up to 4
    # KiB each (what is longer ends in …), and without failure_output if keep_output is 0; absent: the session
    # has ended.
    process: Optional[Process] = None
    # Id of the request that caused it.
    request: Optional[str] = None


@dataclass
class WebhookState:
    # Size of their bodies.
    bytes: int
    # Messages that the receiver has taken.
    delivered: int
    # Messages that were given up: too old, or displaced by newer ones.
    dropped: int
    # Attempts that have failed; each is repeated.
    failed: int
    # Host of its URL, with the port if the URL has one. The rest of the URL can be a secret.
    host: str
    name: str
    # Messages that wait.
    pending: int
    # Why the last attempt has failed; absent: it has not.
    error: Optional[str] = None
    # When that ended which the oldest of them is about; absent: none waits.
    oldest: Optional[datetime] = None


@dataclass
class WindowSize:
    cols: int
    rows: int


@dataclass
class Zygote:
    # How commands call the interpreter: the program, and options of it.
    command: Optional[List[str]]
    # Name by which a command asks for it.
    name: str
    # Commands of this interpreter use it without asking for it.
    match: Optional[bool] = None
    # Modules that are imported ahead of time.
    preload: Optional[List[str]] = None
    # Processes that wait for commands, for each user that has run one.
    spares: Optional[int] = None


class Client(Transport):
    """A method for each route of the API but those of browsers and WebSockets."""

    def healthz(self) -> str:
        """Whether the daemon answers. Open to everybody."""
        return self._bytes('GET', "/healthz").decode()

    def metrics(self) -> str:
        """Metrics for Prometheus. Role viewer of all tenants, or above."""
        return self._bytes('GET', "/metrics").decode()

    def readyz(self) -> str:
        """Whether daemon and engine can serve. Role viewer or above."""
        return self._bytes('GET', "/readyz").decode()

    def doctor(self) -> Doctor:
        """What of boxd doctor the daemon can check itself; an answer is reused for ten seconds. Role operator of all tenants, or above."""
        return self._json(Doctor, 'GET', "/v1/doctor")

    def errors(self) -> ErrorList:
        """The last errors, newest first. Role viewer or above."""
        return self._json(ErrorList, 'GET', "/v1/errors")

    def events(self, *, last_event_id: Optional[int] = None) -> Iterator[Event]:
        """What happens, as server-sent events. Role viewer or above."""
        return self._stream(Event, 'text/event-stream', 'GET', "/v1/events", query={'last_event_id': last_event_id})

    def history(self, *, since: Optional[str] = None, until: Optional[str] = None, verdict: Optional[List[str]] = None, output: Optional[bool] = None, limit: Optional[int] = None, before: Optional[int] = None) -> History:
        """Commands and managed processes of the tenant that have ended, newest first. Role viewer or above."""
        return self._json(History, 'GET', "/v1/execs", query={'since': since, 'until': until, 'verdict': verdict, 'output': output, 'limit': limit, 'before': before})

    def remove_image(self, *, reference: str, shared: Optional[bool] = None) -> None:
        """Remove a reference; the layers go with the next collection. Role operator or above."""
        self._bytes('DELETE', "/v1/images", query={'reference': reference, 'shared': shared})

    def list_images(self) -> ImageList:
        """The images that the tenant can use: its own and the shared ones. Role viewer or above."""
        return self._json(ImageList, 'GET', "/v1/images")

    def pull_image(self, body: ImagePull) -> Image:
        """Pull an image from its registry, unless it is there; with Accept: application/x-ndjson the progress is streamed. Role operator or above."""
        return self._json(Image, 'POST', "/v1/images", json=body)

    def pull_image_stream(self, body: ImagePull) -> Iterator[ImageEvent]:
        """Pull an image from its registry, unless it is there; with Accept: application/x-ndjson the progress is streamed. Role operator or above."""
        return self._stream(ImageEvent, 'application/x-ndjson', 'POST', "/v1/images", json=body)

    def collect_images(self) -> ImagesCollected:
        """Delete layers and images that nothing needs. Role admin or above."""
        return self._json(ImagesCollected, 'POST', "/v1/images/gc")

    def import_image(self, data: Union[bytes, BinaryIO], *, name: Optional[str] = None, platform: Optional[str] = None, shared: Optional[bool] = None) -> Image:
        """Import an image from a tar archive: an OCI layout, an archive of docker save, or a root file system; with Accept: application/x-ndjson the progress is streamed. Role operator or above."""
        return self._json(Image, 'POST', "/v1/images/import", query={'name': name, 'platform': platform, 'shared': shared}, data=data, content_type='application/x-tar')

    def import_image_stream(self, data: Union[bytes, BinaryIO], *, name: Optional[str] = None, platform: Optional[str] = None, shared: Optional[bool] = None) -> Iterator[ImageEvent]:
        """Import an image from a tar archive: an OCI layout, an archive of docker save, or a root file system; with Accept: application/x-ndjson the progress is streamed. Role operator or above."""
        return self._stream(ImageEvent, 'application/x-ndjson', 'POST', "/v1/images/import", query={'name': name, 'platform': platform, 'shared': shared}, data=data, content_type='application/x-tar')

    def get_image(self, *, reference: str, shared: Optional[bool] = None) -> Image:
        """An image, with what it says of the commands that run in it. Role viewer or above."""
        return self._json(Image, 'GET', "/v1/images/inspect", query={'reference': reference, 'shared': shared})

    def verify_image(self, body: ImageName) -> None:
        """Compare an image on disk with what was pulled. Role operator or above."""
        self._bytes('POST', "/v1/images/verify", json=body)

    def openapi(self) -> Dict[str, Any]:
        """This document. Role viewer or above."""
        return self._json(Dict[str, Any], 'GET', "/v1/openapi.json")

    def profiles(self) -> ProfileList:
        """The profiles. Role viewer or above."""
        return self._json(ProfileList, 'GET', "/v1/profiles")

    def run(self, body: RunRequest) -> ExecResult:
        """Run a command in a box of its own, of which nothing stays; with Accept: application/x-ndjson its output is streamed. Role operator or above."""
        return self._json(ExecResult, 'POST', "/v1/run", json=body)

    def run_stream(self, body: RunRequest) -> Iterator[ExecEvent]:
        """Run a command in a box of its own, of which nothing stays; with Accept: application/x-ndjson its output is streamed. Role operator or above."""
        return self._stream(ExecEvent, 'application/x-ndjson', 'POST', "/v1/run", json=body)

    def forget_sensitive_path(self, *, path: str) -> None:
        """Forget that a path is sensitive, once it is removed or emptied. Role admin or above."""
        self._bytes('DELETE', "/v1/sensitive-paths", query={'path': path})

    def list_sensitive_paths(self) -> SensitivePathList:
        """Paths of the host and of skills that sensitive sessions could write to. Role viewer of all tenants, or above."""
        return self._json(SensitivePathList, 'GET', "/v1/sensitive-paths")

    def list_sessions(self, *, label: Optional[List[str]] = None) -> SessionList:
        """The sessions of the tenant. Role viewer or above."""
        return self._json(SessionList, 'GET', "/v1/sessions", query={'label': label})

    def ensure_session(self, body: SessionRequest) -> Session:
        """Get a session, and make it if it is not there. Role operator or above."""
        return self._json(Session, 'POST', "/v1/sessions", json=body)

    def remove_session(self, id: str) -> None:
        """End a session with all that runs in it. Role operator or above."""
        self._bytes('DELETE', f"/v1/sessions/{quote(id)}")

    def get_session(self, id: str) -> Session:
        """A session; looking is not use. Role viewer or above."""
        return self._json(Session, 'GET', f"/v1/sessions/{quote(id)}")

    def update_session(self, id: str, body: SessionUpdate) -> Session:
        """Change mounts, network, TTL and limits of a live session. Role operator or above."""
        return self._json(Session, 'PATCH', f"/v1/sessions/{quote(id)}", json=body)

    def code(self, id: str, body: CodeRequest) -> ExecResult:
        """Run source code in a language of the session's profile; the answer is exec's, streamed likewise. Role operator or above."""
        return self._json(ExecResult, 'POST', f"/v1/sessions/{quote(id)}/code", json=body)

    def code_stream(self, id: str, body: CodeRequest) -> Iterator[ExecEvent]:
        """Run source code in a language of the session's profile; the answer is exec's, streamed likewise. Role operator or above."""
        return self._stream(ExecEvent, 'application/x-ndjson', 'POST', f"/v1/sessions/{quote(id)}/code", json=body)

    def exec(self, id: str, body: ExecRequest) -> ExecResult:
        """Run a command and wait for it; with Accept: application/x-ndjson its output is streamed. Role operator or above."""
        return self._json(ExecResult, 'POST', f"/v1/sessions/{quote(id)}/exec", json=body)

    def exec_stream(self, id: str, body: ExecRequest) -> Iterator[ExecEvent]:
        """Run a command and wait for it; with Accept: application/x-ndjson its output is streamed. Role operator or above."""
        return self._stream(ExecEvent, 'application/x-ndjson', 'POST', f"/v1/sessions/{quote(id)}/exec", json=body)

    def session_history(self, id: str, *, since: Optional[str] = None, until: Optional[str] = None, verdict: Optional[List[str]] = None, output: Optional[bool] = None, limit: Optional[int] = None, before: Optional[int] = None) -> History:
        """Commands and managed processes of a session that have ended, newest first. Role viewer or above."""
        return self._json(History, 'GET', f"/v1/sessions/{quote(id)}/execs", query={'since': since, 'until': until, 'verdict': verdict, 'output': output, 'limit': limit, 'before': before})

    def list_files(self, id: str, *, path: str, limit: Optional[int] = None) -> FileList:
        """The entries of a directory in the box. Role viewer or above."""
        return self._json(FileList, 'GET', f"/v1/sessions/{quote(id)}/files", query={'path': path, 'limit': limit})

    def remove_file(self, id: str, *, path: str, recursive: Optional[bool] = None) -> None:
        """Remove a file or directory in the box. Role operator or above."""
        self._bytes('DELETE', f"/v1/sessions/{quote(id)}/files/content", query={'path': path, 'recursive': recursive})

    def read_file(self, id: str, *, path: str, offset: Optional[int] = None, limit: Optional[int] = None) -> bytes:
        """The content of a file in the box. Role viewer or above."""
        return self._bytes('GET', f"/v1/sessions/{quote(id)}/files/content", query={'path': path, 'offset': offset, 'limit': limit})

    def write_file(self, id: str, data: Union[bytes, BinaryIO], *, path: str, mode: Optional[str] = None, append: Optional[bool] = None, parents: Optional[bool] = None) -> FileInfo:
        """Replace a file in the box, or add to it. Role operator or above."""
        return self._json(FileInfo, 'PUT', f"/v1/sessions/{quote(id)}/files/content", query={'path': path, 'mode': mode, 'append': append, 'parents': parents}, data=data, content_type='application/octet-stream')

    def copy_files(self, id: str, body: CopyRequest) -> FileTree:
        """Copy a file or the content of a directory from a session of the tenant. Role operator or above."""
        return self._json(FileTree, 'POST', f"/v1/sessions/{quote(id)}/files/copy", json=body)

    def mkdir(self, id: str, body: MkdirRequest) -> None:
        """Make a directory in the box. Role operator or above."""
        self._bytes('POST', f"/v1/sessions/{quote(id)}/files/mkdir", json=body)

    def rename_file(self, id: str, body: RenameRequest) -> None:
        """Rename a file or directory in the box. Role operator or above."""
        self._bytes('POST', f"/v1/sessions/{quote(id)}/files/rename", json=body)

    def stat_file(self, id: str, *, path: str) -> FileInfo:
        """What is at a path in the box. Role viewer or above."""
        return self._json(FileInfo, 'GET', f"/v1/sessions/{quote(id)}/files/stat", query={'path': path})

    def make_symlink(self, id: str, *, path: str, target: str) -> None:
        """Make a symlink in the box, in place of a file or symlink that is there. Role operator or above."""
        self._bytes('PUT', f"/v1/sessions/{quote(id)}/files/symlink", query={'path': path, 'target': target})

    def pack_files(self, id: str, *, path: str, glob: Optional[List[str]] = None) -> bytes:
        """The content of a directory in the box, as a tar archive; with Accept-Encoding: gzip it is compressed. Role viewer or above."""
        return self._bytes('GET', f"/v1/sessions/{quote(id)}/files/tar", query={'path': path, 'glob': glob})

    def unpack_files(self, id: str, data: Union[bytes, BinaryIO], *, path: str, glob: Optional[List[str]] = None, parents: Optional[bool] = None) -> FileTree:
        """Unpack a tar archive into a directory in the box; Content-Encoding may be gzip. Role operator or above."""
        return self._json(FileTree, 'PUT', f"/v1/sessions/{quote(id)}/files/tar", query={'path': path, 'glob': glob, 'parents': parents}, data=data, content_type='application/x-tar')

    def watch_files(self, id: str, *, path: str, recursive: Optional[bool] = None, glob: Optional[List[str]] = None) -> Iterator[FileChange]:
        """Changes in a directory in the box, as server-sent events. Role viewer or above."""
        return self._stream(FileChange, 'text/event-stream', 'GET', f"/v1/sessions/{quote(id)}/files/watch", query={'path': path, 'recursive': recursive, 'glob': glob})

    def revoke_links(self, id: str) -> None:
        """Revoke all links to the session's box, and end what they have opened. Role operator or above."""
        self._bytes('DELETE', f"/v1/sessions/{quote(id)}/links")

    def make_link(self, id: str, body: LinkRequest) -> Link:
        """Make a link that shows a port of the session's box to its holder, without a login. Role operator or above."""
        return self._json(Link, 'POST', f"/v1/sessions/{quote(id)}/links", json=body)

    def network(self, id: str) -> Network:
        """Connections of the session's box, and what was refused. Role viewer or above."""
        return self._json(Network, 'GET', f"/v1/sessions/{quote(id)}/network")

    def pause_session(self, id: str, body: Optional[PauseRequest] = None) -> Session:
        """Stop everything that runs in a session until it is resumed; a paused one stays paused. Role operator or above."""
        return self._json(Session, 'POST', f"/v1/sessions/{quote(id)}/pause", json=body)

    def ports(self, id: str) -> PortList:
        """What listens in the session's box. Role viewer or above."""
        return self._json(PortList, 'GET', f"/v1/sessions/{quote(id)}/ports")

    def list_processes(self, id: str, *, label: Optional[List[str]] = None) -> ProcessList:
        """The managed processes of a session. Role viewer or above."""
        return self._json(ProcessList, 'GET', f"/v1/sessions/{quote(id)}/processes", query={'label': label})

    def start_process(self, id: str, body: ProcessRequest) -> Process:
        """Start a managed process. Role operator or above."""
        return self._json(Process, 'POST', f"/v1/sessions/{quote(id)}/processes", json=body)

    def remove_process(self, id: str, pid: str) -> None:
        """End a managed process and forget its output. Role operator or above."""
        self._bytes('DELETE', f"/v1/sessions/{quote(id)}/processes/{quote(pid)}")

    def get_process(self, id: str, pid: str) -> Process:
        """A managed process. Role viewer or above."""
        return self._json(Process, 'GET', f"/v1/sessions/{quote(id)}/processes/{quote(pid)}")

    def logs(self, id: str, pid: str, *, stream: Optional[Literal["stdout", "stderr"]] = None, offset: Optional[int] = None, tail: Optional[int] = None, since: Optional[str] = None, timestamps: Optional[bool] = None, follow: Optional[bool] = None, limit: Optional[int] = None) -> bytes:
        """Output of a managed process as plain bytes. Role viewer or above."""
        return self._bytes('GET', f"/v1/sessions/{quote(id)}/processes/{quote(pid)}/logs", query={'stream': stream, 'offset': offset, 'tail': tail, 'since': since, 'timestamps': timestamps, 'follow': follow, 'limit': limit})

    def signal_process(self, id: str, pid: str, body: SignalRequest) -> None:
        """Send a signal to a managed process. Role operator or above."""
        self._bytes('POST', f"/v1/sessions/{quote(id)}/processes/{quote(pid)}/signal", json=body)

    def stop_process(self, id: str, pid: str, body: Optional[StopRequest] = None) -> Process:
        """End a managed process and keep its output. Role operator or above."""
        return self._json(Process, 'POST', f"/v1/sessions/{quote(id)}/processes/{quote(pid)}/stop", json=body)

    def resume_session(self, id: str) -> Session:
        """Let a paused session go on; one that is not paused stays as it is. Role operator or above."""
        return self._json(Session, 'POST', f"/v1/sessions/{quote(id)}/resume")

    def usage(self, id: str) -> Usage:
        """What the session's box uses now. Role viewer or above."""
        return self._json(Usage, 'GET', f"/v1/sessions/{quote(id)}/usage")

    def status(self) -> Status:
        """Whether the service can serve, and what it holds. Role viewer or above."""
        return self._json(Status, 'GET', "/v1/status")

    def tenant_usage(self, *, from_: Optional[str] = None, to: Optional[str] = None, by: Optional[List[str]] = None) -> UsageList:
        """What everything that has ended has used. Role viewer or above."""
        return self._json(UsageList, 'GET', "/v1/usage", query={'from': from_, 'to': to, 'by': by})

    def list_volumes(self) -> VolumeList:
        """The volumes of the tenant. Role viewer or above."""
        return self._json(VolumeList, 'GET', "/v1/volumes")

    def create_volume(self, body: VolumeRequest) -> Volume:
        """Get a volume, and make it, empty or as a copy of another, if it is not there. Role operator or above."""
        return self._json(Volume, 'POST', "/v1/volumes", json=body)

    def remove_volume(self, name: str) -> None:
        """Remove a volume that no session has, with all that is in it. Role operator or above."""
        self._bytes('DELETE', f"/v1/volumes/{quote(name)}")

    def get_volume(self, name: str) -> Volume:
        """A volume. Role viewer or above."""
        return self._json(Volume, 'GET', f"/v1/volumes/{quote(name)}")

    def resize_volume(self, name: str, body: VolumeUpdate) -> Volume:
        """Change the size of a volume, or mark it as sensitive, also while sessions have it. Role operator or above."""
        return self._json(Volume, 'PATCH', f"/v1/volumes/{quote(name)}", json=body)
