# The program of a Python zygote: a process that has imported what commands need, and forks
# children, spares, each of which becomes one command. doc.go has the protocol.
#
# A command must not notice: a spare either does exactly as a new interpreter would, or, if that
# cannot be known, executes the interpreter in itself. So the code below hesitates, and executes, rather
# than guesses. No code of the command has run by then.
#
# The syntax is that of Python 2 too, so that any interpreter can say that it is not supported.
import sys

COLD_MODULES = dict(sys.modules)  # what a new interpreter has loaded before it runs a program

import os

CONTROL = 4


def refuse(why):
    os.write(CONTROL, why.encode("utf-8", "replace")[:500])
    os._exit(1)


if sys.version_info < (3, 8) or sys.version_info >= (3, 14) or sys.implementation.name != "cpython":
    refuse("Python %d.%d is not supported: 3.8 to 3.13 are; commands start cold" % sys.version_info[:2])

import gc, io, stat, time
import _signal, _thread, _warnings, _weakref
import _frozen_importlib as importlib
import _frozen_importlib_external as importlib_external
try:
    import _socket
except ImportError:
    refuse("the interpreter has no module _socket; commands start cold")

try:
    import _ctypes
    capset = _ctypes.dlsym(_ctypes.dlopen(None, 0), "capset")
    call_c = _ctypes.call_function
except Exception:
    refuse("the interpreter has no module _ctypes; commands start cold")

# Programs may change their builtins.
__builtins__ = dict(vars(sys.modules["builtins"]))

# The modules of ours that a new interpreter would not have are hidden from programs.
for name in set(sys.modules) - set(COLD_MODULES):
    del sys.modules[name]

Module = type(sys)
Function = type(refuse)
BuiltinFunction = type(len)
SlotWrapper = type(object.__init__)
FILES = (io.FileIO, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
MEMORY_FILES = (io.StringIO, io.BytesIO)
PAGE = os.sysconf("SC_PAGESIZE")
MAX_GROWTH = 64 << 20  # bytes that a program may have needed for a fast end
HAS_GC = 1 << 14  # Py_TPFLAGS_HAVE_GC

exec_program = __builtins__["exec"]

# Variables that change how an interpreter or a preloaded library starts. If they are not those of the
# zygote, the command starts cold.
STARTUP_PREFIXES = (b"PYTHON", b"LC_", b"LD_", b"GLIBC_", b"MALLOC_", b"OMP_", b"OPENBLAS_", b"GOTO_", b"MKL_",
                    b"BLIS_", b"VECLIB_", b"NUMEXPR_", b"NPY_", b"NUMPY_")
STARTUP_NAMES = frozenset([b"LANG", b"LANGUAGE", b"LOCPATH", b"GCONV_PATH", b"HOME", b"PATH"])

# Options that the zygote's interpreter may have, and with it all its commands.
OPTIONS = (b"-B", b"-E", b"-I", b"-O", b"-OO", b"-P", b"-s", b"-S")

# Variables with which an interpreter does more at its start or its end than is done here.
REFUSED_VARIABLES = (b"PYTHONINSPECT", b"PYTHONVERBOSE", b"PYTHONDEBUG", b"PYTHONDEVMODE", b"PYTHONTRACEMALLOC",
                     b"PYTHONPROFILEIMPORTTIME", b"PYTHONMALLOCSTATS", b"PYTHONDUMPREFS", b"PYTHONPERFSUPPORT",
                     b"PYTHONUNBUFFERED")

# Extension modules that keep nothing outside of Python that would be lost by a fast end: no buffered
# output of C, no database, no handler of exit(3). With any other the interpreter ends in full.
HARMLESS_EXTENSIONS = frozenset("""
    _asyncio _bisect _blake2 _bz2 _codecs_cn _codecs_hk _codecs_iso2022 _codecs_jp _codecs_kr _codecs_tw
    _contextvars _crypt _csv _datetime _decimal _elementtree _hashlib _heapq _json _lsprof _lzma _md5
    _multibytecodec _multiprocessing _opcode _pickle _posixshmem _posixsubprocess _queue _random _sha1 _sha2
    _sha256 _sha3 _sha512 _socket _ssl _statistics _struct _typing _uuid _zoneinfo array audioop binascii cmath
    fcntl grp math mmap pyexpat resource select syslog termios unicodedata zlib
""".split())
HARMFUL_BUILTINS = frozenset("_ctypes _curses _dbm _gdbm _sqlite3 _tkinter readline".split())

# What the library has called when an object goes, of which nothing is to be seen.
HARMLESS_CALLBACKS = frozenset("""
    _weakrefset.WeakSet.__init__.<locals>._remove weakref.WeakKeyDictionary.__init__.<locals>.remove
    weakref.WeakValueDictionary.__init__.<locals>.remove logging._removeHandlerRef
""".split())


# Nor do they change these.
gettrace, settrace, getprofile, setprofile = sys.gettrace, sys.settrace, sys.getprofile, sys.setprofile
get_objects, get_referrers, get_debug, gc_callbacks, gc_garbage = (
    gc.get_objects, gc.get_referrers, gc.get_debug, gc.callbacks, gc.garbage)


class Zygote:
    """What is known of the interpreter, the same for all commands."""


zygote = Zygote()
zygote.atexit = None
if sys.version_info >= (3, 10) and "atexit" not in sys.modules:
    import atexit
    zygote.atexit = atexit


# --- the start of the zygote ---


def start():
    data = os.read(CONTROL, 1 << 20).split(b"\0")
    count = int(data[0])
    zygote.command = data[1:1 + count]
    preload = [os.fsdecode(name) for name in data[1 + count:-1]]
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGINT])  # that is for commands

    with open("/proc/self/environ", "rb") as f:
        zygote.environ = f.read().split(b"\0")[:-1]
    zygote.startup = startup_variables(zygote.environ)
    variables = parse_environ(zygote.environ)
    if variables is None:
        refuse("the environment has a variable twice, or one without a value; commands start cold")
    for name in REFUSED_VARIABLES:
        if variables.get(name):
            refuse("%s is set; commands start cold" % name.decode())
    for option in zygote.command[1:]:
        if option not in OPTIONS:
            refuse("option %s of the interpreter is not supported; commands start cold" % os.fsdecode(option))
    if getattr(sys.stdout, "write_through", True) or sys.stdin is None or sys.stderr is None:
        refuse("the interpreter's output is unbuffered, or is missing; commands start cold")
    if sys.getfilesystemencoding() != "utf-8":
        refuse("the encoding of file names is %s, not utf-8; commands start cold" % sys.getfilesystemencoding())
    for part in variables.get(b"PYTHONPATH", b"/").split(b":"):
        if part[:1] != b"/":
            refuse("PYTHONPATH has a relative part; commands start cold")
    # PEP 538: the interpreter has set this for itself, and for what it starts.
    coerced = os.environb.get(b"LC_CTYPE")
    zygote.coerced = coerced if coerced != variables.get(b"LC_CTYPE") else None
    zygote.timezone = variables.get(b"TZ")

    zygote.program = find_program(zygote.command[0], variables)
    if zygote.program is None:
        refuse("the interpreter is not found by an absolute PATH; commands start cold")
    mine = os.stat("/proc/self/exe")
    found = os.stat(zygote.program)
    if (mine.st_dev, mine.st_ino) != (found.st_dev, found.st_ino):
        refuse("%s starts another program as interpreter; commands start cold" % os.fsdecode(zygote.program))

    zygote.safe_path = bool(getattr(sys.flags, "safe_path", sys.flags.isolated))
    if not zygote.safe_path:
        del sys.path[0]
    if zygote.atexit is not None:
        del sys.modules["atexit"]
    for name in preload:
        try:
            __import__(name)
        except BaseException as e:
            refuse("preloading %s: %s: %s" % (name, type(e).__name__, " ".join(str(e).split())))
    if _thread._count():
        refuse("a preloaded module has started a thread; commands start cold")
    if gc.get_freeze_count():
        refuse("a preloaded module has called gc.freeze; commands start cold")
    watch(variables)
    forget_young_directories()

    if "linecache" in COLD_MODULES:
        del sys.modules["linecache"]  # of Python 3.13 with -c only
        COLD_MODULES["linecache"].clearcache()
    zygote.modules = set(sys.modules)
    zygote.exit_functions = exit_functions()[0]
    zygote.c_library = None
    if "ctypes" in sys.modules:
        zygote.c_library = CLibrary(sys.modules["ctypes"])
        zygote.modules.update(set(sys.modules))
    gc.collect()
    loaded = zygote.modules - set(COLD_MODULES) - set(["_ctypes"] if zygote.c_library else [])
    zygote.ends_in_full = harmful_extension(loaded) or has_finalizers(gc.get_objects())
    gc.disable()
    gc.freeze()
    zygote.resident = resident()


def watch(variables):
    """Remembers what a new interpreter would read at its start, and what is preloaded."""
    zygote.watched = {}
    zygote.search_path = {}
    program = os.fsdecode(zygote.program)
    beside = os.path.dirname(program)
    paths = [program, beside + "/pyvenv.cfg", os.path.dirname(beside) + "/pyvenv.cfg"]
    user_site = getattr(sys.modules.get("site"), "USER_SITE", None)
    if user_site:
        paths.append(user_site)
    libraries = os.path.dirname(os.__file__) + "/"
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and (not path.startswith(libraries) or "-packages/" in path):
            paths.append(path)
    given = os.fsdecode(variables.get(b"PYTHONPATH", b"")).split(":")
    for path in sys.path:
        if path in given:
            zygote.search_path[path] = signature(path), relevant(path)
        else:
            paths.append(path)
    for path in paths:
        zygote.watched[path] = signature(path)


def signature(path):
    """What changes when a file is replaced or written, or a directory gets or loses an entry; None without it."""
    try:
        s = os.stat(path)
    except OSError:
        return None
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns


def relevant(directory):
    """The entries of a directory of PYTHONPATH that a new interpreter or a preloaded module would import."""
    try:
        names = os.listdir(directory)
    except OSError:
        return None
    return sorted(n for n in names if n.partition(".")[0] in sys.modules or n.startswith(("sitecustomize", "usercustomize")))


def stale():
    """The first path that is no longer as it was when the zygote started."""
    for path, was in zygote.watched.items():
        if signature(path) != was:
            return path
    for path, (was, entries) in zygote.search_path.items():
        if signature(path) != was and relevant(path) != entries:
            return path
    return None


def forget_young_directories():
    """Drops what is remembered of directories that may have changed within the same tick of the clock."""
    now = time.time()
    for finder in sys.path_importer_cache.values():
        if getattr(finder, "_path_mtime", -1) > now - 2:
            finder.invalidate_caches()


def find_program(name, variables):
    """The path that execvp(3) finds, if that does not depend on the current directory."""
    if b"/" in name:
        return name if name[:1] == b"/" else None
    for directory in variables.get(b"PATH", b"").split(b":"):
        if directory[:1] != b"/":
            return None
        path = directory + b"/" + name
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def parse_environ(environ):
    """The variables, or None if a mapping cannot carry them."""
    variables = {}
    for variable in environ:
        name, equals, value = variable.partition(b"=")
        if not equals or not name or name in variables:
            return None
        variables[name] = value
    return variables


def startup_variables(environ):
    return sorted(v for v in environ if v.startswith(STARTUP_PREFIXES) or v.partition(b"=")[0] in STARTUP_NAMES)


# --- spares ---


def serve():
    """Forks spares until the agent goes. Returns in a spare, with its socket."""
    control = _socket.socket(fileno=CONTROL)
    control.send(b"ready")
    while True:
        request, fds = receive(control, 64)
        if not request:
            os._exit(0)
        changed = stale()
        if changed:
            refuse("stale: %s has changed since the interpreter was started" % changed)
        if len(fds) != 1:
            refuse("a request came with %d descriptors: one is expected" % len(fds))
        try:
            spare = fork(control, fds[0])
        except OSError as e:
            control.send(("no process: %s" % e).encode())
            spare = None
        if spare is not None:
            return spare
        os.close(fds[0])


def fork(control, fd):
    """Forks a child of PID 1. Returns the socket of fd in the child, and None in the zygote."""
    hold, held = os.pipe()
    try:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            control.send(b"forked")
            return None
        try:
            child = os.fork()
        except OSError:
            os._exit(1)  # the spare's socket closes with us
        if child:
            os._exit(0)
        os.close(held)
        held = -1
        control.close()
        os.read(hold, 1)  # until the zygote has seen our parent end
        spare = _socket.socket(fileno=fd)
        os.setsid()
        return spare
    finally:
        os.close(hold)
        if held >= 0:
            os.close(held)


def receive(sock, size):
    data, ancillary, _, _ = sock.recvmsg(size, _socket.CMSG_SPACE(3 * 4), _socket.MSG_CMSG_CLOEXEC)
    fds = []
    for level, kind, value in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += [int.from_bytes(value[i:i + 4], sys.byteorder) for i in range(0, len(value) // 4 * 4, 4)]
    return data, fds


def prepare():
    """Does ahead what does not depend on the command."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()  # random itself does so after each fork
    rehearse()
    gc.freeze()


REHEARSAL = b"""
class A:
    def f(self, *a, **k): return [str(x) + "%s" % x for x in a], dict(k), 1.5 * len(a)
try:
    A().f(1, "a", x=2)
    raise ValueError(1)
except ValueError as e:
    str(e)
print("".join(map(repr, sorted({3: 4, 5: 6}))))
"""


def rehearse():
    """Goes the way of a command, so that the pages on it are the spare's own before they are needed.

    A page that a process writes to for the first time since its fork costs more than a
    system call, and a reference to an object is a write.
    """
    path, modules = list(sys.path), dict(sys.modules)
    streams = [(name, getattr(sys, name)) for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")]
    args, variables = zygote.command + [b"-c", REHEARSAL], zygote.environ
    head = [b"%d" % len(args), b"%d" % len(variables), b"0", b"/"]
    try:
        program = Program(Command(b"\0".join(head + args + variables) + b"\0"))
        program.set_up()
        run, arguments, _ = program.entry()
        program.mark = [object()]
        run(*arguments)
        conclude(program, None)
        sys.stdout.flush()
        exit_functions()
        needs_full_end(program)
    except Cold:
        pass  # such as with a file that has changed
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - set(modules):
            del sys.modules[name]
        sys.modules.update(modules)
        for name, stream in streams:
            setattr(sys, name, stream)


class Command:
    """What the agent wants a spare to become."""

    def __init__(self, payload):
        strings = payload.split(b"\0")
        argc, envc = int(strings[0]), int(strings[1])
        self.make_dir, self.dir = strings[2] == b"1", strings[3]
        self.args = strings[4:4 + argc]
        self.environ = strings[4 + argc:4 + argc + envc]


def become_traceable():
    """Drops the capability that keeps other processes of the user out of zygotes and spares."""
    # struct __user_cap_header_struct with version 3, and two of __user_cap_data_struct.
    if call_c(capset, (b"\x22\x05\x08\x20" + bytes(4), bytes(24))) != 0:
        os._exit(1)


def receive_command(sock):
    payload, fds = receive(sock, 1 << 16)
    if not payload:
        os._exit(0)
    while len(payload) < 4 or len(payload) < 4 + int.from_bytes(payload[:4], "little"):
        more = sock.recv(1 << 20)
        if not more:
            os._exit(0)
        payload += more
    if len(fds) != 3:
        os._exit(1)
    command = Command(payload[4:])
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    become_traceable()
    return command


def forget_interrupts():
    """Discards a SIGINT that came while the spare waited, blocked: it was not for the command."""
    while _signal.sigtimedwait([_signal.SIGINT], 0) is not None:
        pass


def enter_dir(command, sock):
    """Enters the command's directory, as boxd_spawn of the agent does, with the same errors."""
    step = "chdir"
    try:
        try:
            os.chdir(command.dir)
        except FileNotFoundError:
            if not command.make_dir:
                raise
            step = "mkdir"
            make_dirs(command.dir)
            step = "chdir"
            os.chdir(command.dir)
        step = "cwd"
        cwd = os.getcwdb()
        if cwd[:1] != b"/" or cwd == b"/proc" or cwd.startswith(b"/proc/"):
            raise PermissionError(1, "")
    except OSError as e:
        # getcwd(3) says ENOENT where the directory is not below the root.
        number = 1 if step == "cwd" and e.errno == 2 else e.errno
        sock.send(("%s %d\n" % (step, number)).encode())
        os._exit(127)


def make_dirs(path):
    at = 0
    while at >= 0:
        at = path.find(b"/", at + 1)
        try:
            os.mkdir(path if at < 0 else path[:at], 0o755)
        except FileExistsError:
            pass


# --- becoming a program ---


class Cold(Exception):
    """The command is to be executed, not emulated."""


def execute(command, sock):
    """Becomes what the arguments name, by execve(2), as execvp(3) finds it."""
    variables = parse_environ(command.environ)
    if variables is None or not command.args or not command.args[0]:
        sock.send(b"cold 0\n")  # execve is not to be had from Python then
        os._exit(127)
    if sock.fileno() >= 0:
        sock.send(b"1")  # closed by execve
    # The interpreter ignores these, and what it executes would do so too.
    for number in "SIGPIPE", "SIGXFSZ", "SIGXFZ":
        if hasattr(_signal, number):
            _signal.signal(getattr(_signal, number), _signal.SIG_DFL)
    # An interrupt from here on is for the program, not for Python.
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, [])
    name, error = command.args[0], 2
    paths = [name]
    if b"/" not in name:
        paths = [(d or b".") + b"/" + name for d in variables.get(b"PATH", b"").split(b":")]
    for path in paths:
        try:
            os.execve(path, command.args, variables)
        except OSError as e:
            if e.errno == 13:
                error = 13
            elif e.errno not in (2, 20):
                error = e.errno
                break
    if sock.fileno() < 0:
        give_up("cannot execute %s: %s" % (os.fsdecode(name), os.strerror(error)))
    sock.send(("exec %d\n" % error).encode())
    os._exit(127)


def give_up(why):
    """Ends a command that counts as started, but of which no code has run."""
    try:
        os.write(2, ("boxd: %s\n" % why).encode("utf-8", "backslashreplace"))
    finally:
        os._exit(127)


def put_back(data):
    """Makes data what is read from stdin: all of it or, with an OSError, nothing.

    A pipe is small, but the limit of file sizes is not for it.
    """
    again, end = os.pipe()
    os.set_blocking(end, False)
    try:
        write(end, data)  # of which the end is there when the program is executed
    except BlockingIOError:
        again = os.memfd_create("stdin")
        write(again, data)
        os.lseek(again, 0, os.SEEK_SET)
    os.dup2(again, 0)


def write(fd, data):
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest):]


class Program:
    """A command that can be emulated."""

    def __init__(self, command):
        args = command.args
        count = len(zygote.command)
        if args[:count] != zygote.command:
            raise Cold
        variables = parse_environ(command.environ)
        if variables is None or startup_variables(command.environ) != zygote.startup or stale():
            raise Cold
        if find_program(args[0], variables) != zygote.program:
            raise Cold
        for fd in range(3):
            mode = os.fstat(fd).st_mode
            if stat.S_ISDIR(mode) or stat.S_ISCHR(mode) and os.isatty(fd):
                raise Cold
        self.orig_argv = [os.fsdecode(arg) for arg in args]
        rest = self.orig_argv[count:]
        self.variables = variables
        self.file = None
        self.code = None
        self.source = None
        self.mark = None  # for has_frozen: a list with one object, made after our last gc.freeze
        if not rest or rest[0] == "-":
            self.kind, self.argv, self.path0 = "stdin", rest or [""], ""
            self.file = "<stdin>"
        elif rest[0] in ("-c", "-m"):
            if len(rest) == 1:
                raise Cold
            self.kind, self.argv = rest[0], [rest[0]] + rest[2:]
            if self.kind == "-c":
                self.path0 = ""
                self.source = rest[1] + "\n"
                self.code = compile_quietly(self.source, "<string>")
            else:
                self.module = rest[1]
                self.path0 = current_directory()
        elif rest[0][:1] in ("-", ""):
            raise Cold
        else:
            self.argv = rest
            self.find_script(rest[0])

    def find_script(self, name):
        path = name
        if name[0] != "/" and sys.version_info >= (3, 9):
            path = os.getcwd().rstrip("/") + "/" + name
        mode = os.stat(path).st_mode
        data = b""
        if stat.S_ISREG(mode):
            with open(path, "rb") as f:
                data = f.read()
        elif not stat.S_ISDIR(mode):
            raise Cold
        # zipimport looks for the end of a directory there.
        if stat.S_ISDIR(mode) or b"PK\5\6" in data[-(1 << 16) - 22:]:
            self.kind, self.path0 = "package", path
            return
        if name.endswith(".pyc") or data[:2] == importlib_external.MAGIC_NUMBER[:2]:
            raise Cold
        self.kind, self.file = "file", path
        self.path0 = os.path.dirname(os.path.realpath(path))
        self.code = compile_quietly(data, path)

    def set_up(self):
        """Makes the interpreter as it would be before it runs the program."""
        os.environ.clear()
        for name, value in self.variables.items():
            os.environb[name] = value
        if zygote.coerced is not None:
            os.environb[b"LC_CTYPE"] = zygote.coerced
        if self.variables.get(b"TZ") != zygote.timezone:
            time.tzset()
        sys.argv = self.argv
        if hasattr(sys, "orig_argv"):
            sys.orig_argv = self.orig_argv
        if not zygote.safe_path and self.path0 is not None:
            sys.path.insert(0, self.path0)
        sys.excepthook = sys.__excepthook__
        for name in "last_type", "last_value", "last_traceback", "last_exc":
            sys.__dict__.pop(name, None)
        refresh_preloaded()
        make_streams()
        self.streams = sys.stdin, sys.stdout, sys.stderr

    def main_module(self):
        module = Module("__main__")
        sys.modules["__main__"] = module
        names = module.__dict__
        names["__loader__"] = importlib.BuiltinImporter
        if sys.version_info < (3, 14):
            names["__annotations__"] = {}
        names["__builtins__"] = sys.modules["builtins"]
        return names

    def entry(self):
        """The function that runs the program, its arguments, and how many calls it is deep."""
        names = self.names = self.main_module()
        if self.kind in ("-m", "package"):
            import runpy
            run = runpy._run_module_as_main
            return run, (self.module, True) if self.kind == "-m" else ("__main__", False), 1
        if self.kind == "-c":
            remember_source(self.source)
        else:
            names["__file__"] = self.file
            names["__cached__"] = None
            if self.kind == "file":
                names["__loader__"] = importlib_external.SourceFileLoader("__main__", self.file)
        # Up to 3.11, calling a function written in C counts as well.
        return exec_program, (self.code, names), 2 if sys.version_info < (3, 12) else 1

    def read_stdin(self, command, sock):
        parts = []
        start = None
        try:
            start = os.lseek(0, 0, os.SEEK_CUR)
        except OSError:
            pass
        while True:
            more = os.read(0, 1 << 16)
            if not more:
                break
            parts.append(more)
        data = b"".join(parts)
        try:
            self.code = compile_quietly(data, "<stdin>")
        except Cold:
            try:
                if start is not None:
                    os.lseek(0, start, os.SEEK_SET)
                else:
                    put_back(data)
            except OSError as e:
                give_up("the program on stdin has a warning or an error, and cannot be given to a new interpreter, "
                        "which would report it: %d bytes: %s; start it from a file" % (len(data), e.strerror))
            execute(command, sock)


def refresh_preloaded():
    """Gives modules of the library what they have noted of the process that has imported them."""
    logging = sys.modules.get("logging")
    if logging is not None:
        logging._startTime = time.time_ns() if type(logging._startTime) is int else time.time()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        directory = current_directory()
        process.ORIGINAL_DIR = directory and os.path.abspath(directory)
        process._current_process._config["authkey"] = process.AuthenticationString(os.urandom(32))


def remember_source(source):
    """Python 3.13 shows the lines of -c in tracebacks."""
    if "linecache" not in COLD_MODULES:
        return
    linecache = sys.modules.setdefault("linecache", COLD_MODULES["linecache"])
    lines = [line + "\n" for line in source.splitlines()]
    linecache.cache["<string>"] = (len(source), None, lines, "<string>")


def compile_quietly(source, name):
    """Compiles a program that is right and causes no warning. Others are for the interpreter itself."""
    _warnings.filters.insert(0, ("error", None, Warning, None, 0))
    _warnings._filters_mutated()
    try:
        return compile(source, name, "exec", 0, True)
    except KeyboardInterrupt:
        raise  # a program from stdin counts as started
    except BaseException:
        raise Cold
    finally:
        del _warnings.filters[0]
        _warnings._filters_mutated()


def current_directory():
    try:
        return os.getcwd()
    except OSError:
        return None


def make_streams():
    """Builds stdin, stdout and stderr as the interpreter does, in create_stdio of pylifecycle.c."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        model = zygote.streams[fd]
        binary = io.open(fd, "wb" if fd else "rb", closefd=False)
        binary.raw.name = "<%s>" % name
        text = io.TextIOWrapper(binary, model.encoding, model.errors, "\n",
                                line_buffering=model.line_buffering, write_through=model.write_through)
        text.mode = "w" if fd else "r"
        setattr(sys, "__%s__" % name, text)
        setattr(sys, name, text)


# --- the end of a program ---


def harmful_extension(names):
    for name in names:
        if name in HARMFUL_BUILTINS:
            return True
        module = sys.modules.get(name)
        if not isinstance(module, Module):
            continue
        spec = object.__getattribute__(module, "__dict__").get("__spec__")
        if type(getattr(spec, "loader", None)) is importlib_external.ExtensionFileLoader:
            if name not in HARMLESS_EXTENSIONS and not name.startswith("numpy."):
                return True
    return False


class CLibrary:
    """What a program can do by a preloaded ctypes, for example numpy's, that a fast end would lose."""

    def __init__(self, ctypes):
        self.fflush = ctypes.CDLL(None).fflush
        self.function = ctypes._CFuncPtr
        self.loaded = self.libraries()

    def libraries(self):
        with open("/proc/self/maps", "rb") as f:
            return {line.split(b"/", 1)[1] for line in f.read().splitlines() if b".so" in line and b"/" in line}

    def is_harmful(self, objects):
        """Whether a function of the program can be called by C, or a library of its own has been loaded."""
        if any(issubclass(kind, self.function) for kind in set(map(type, objects))):
            return True
        extensions = [os.fsencode(getattr(sys.modules[name], "__file__", None) or "/")[1:] for name in set(sys.modules) - zygote.modules]
        return not self.libraries() <= self.loaded.union(extensions)


def has_finalizers(objects):
    """Whether one of objects does something when it goes, or when another does: a file, a suspended
    generator, __del__, a weak reference with a callback."""
    ours = {id(s) for stream in zygote.streams for s in (stream, stream.buffer, stream.buffer.raw)}
    types = set(map(type, objects))
    for kind in types:
        if finalizes(kind) and kind not in MEMORY_FILES:
            for o in objects:
                if type(o) is kind and id(o) not in ours and not (kind in FILES and is_closed(o)):
                    return True
    for kind in types:
        if issubclass(kind, (_weakref.ProxyType, _weakref.CallableProxyType)):
            return True  # it does not say whether it has a callback
        if issubclass(kind, _weakref.ReferenceType) and any(type(o) is kind and calls_back(o) for o in objects):
            return True
        if issubclass(kind, type):
            # The collector does not know the objects of these classes.
            for o in objects:
                if type(o) is kind and not o.__flags__ & HAS_GC and finalizes(o, written_in_c=False):
                    return True
    return False


def calls_back(reference):
    callback = _weakref.ReferenceType.__callback__.__get__(reference)
    if type(callback) is Function:
        return "%s.%s" % (callback.__module__, callback.__qualname__) not in HARMLESS_CALLBACKS
    if type(callback) is BuiltinFunction and type(callback.__self__) is _weakref.ReferenceType:
        return False  # of _abc or _thread, which tidy up
    return callback is not None


def is_closed(file):
    try:
        return file.closed
    except ValueError:  # not initialized, or detached
        return False


def finalizes(kind, written_in_c=True):
    for base in type.__dict__["__mro__"].__get__(kind):
        if "__del__" in base.__dict__ and (written_in_c or type(base.__dict__["__del__"]) is not SlotWrapper):
            return True
    return False


def conclude(program, failed):
    """Does what the interpreter does when a program has ended with the exception failed, or None.

    Returns the exit status. A SystemExit that it raises is for the interpreter.
    """
    if program.file is not None:
        for stream in sys.stderr, sys.stdout:
            try:
                stream.flush()
            except BaseException:
                pass
    status = 0
    if failed is not None:
        status = 1
        if not isinstance(failed, SystemExit):
            failed = report(failed)
        if failed is not None:
            status = exit_status(program, failed)
    if program.file is not None:
        program.names.pop("__file__", None)
        program.names.pop("__cached__", None)
    return status


def exit_status(program, exit):
    """The exit status that exit asks for, after its message if it has one."""
    if type(exit) is not SystemExit:
        raise exit
    code = exit.code
    if code is None:
        return 0
    if type(code) in (int, bool) and -1 << 63 <= code < 1 << 63:
        return code & 255
    if type(code) is not str or sys.stderr is not program.streams[2]:
        raise exit
    try:
        sys.stderr.write(code)
        sys.stderr.write("\n")
    except BaseException:
        pass
    return 1


def report(failed):
    """Reports an uncaught exception. Returns the SystemExit that the hook raises, if it does."""
    kind, trace = type(failed), failed.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = kind, failed, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = failed
    hook = getattr(sys, "excepthook", None)
    second = None
    if hook is None:
        write_stderr("sys.excepthook is missing\n")
        sys.__excepthook__(kind, failed, trace)
        return None
    try:
        hook(kind, failed, trace)
    except BaseException as e:
        second = e
    if second is None:
        return None
    second.__traceback__ = second.__traceback__.tb_next
    if isinstance(second, SystemExit):
        return second
    write_stderr("Error in sys.excepthook:\n")
    sys.__excepthook__(type(second), second, second.__traceback__)
    write_stderr("\nOriginal exception was:\n")
    sys.__excepthook__(kind, failed, trace)
    return None


def write_stderr(text):
    try:
        sys.stderr.write(text)
    except BaseException:
        pass


def end_fast(program, status, interrupted):
    """Ends the process, unless the interpreter has something to do that could be noticed."""
    if zygote.ends_in_full or _thread._count():
        return
    if getattr(sys.modules.get("threading"), "_threading_atexits", None):
        return
    count, run = exit_functions()
    if count > zygote.exit_functions:
        return  # an exception in one of the program's would show us
    if count:
        try:
            run()
        except BaseException:
            pass  # it has been reported
    if needs_full_end(program):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        return
    if zygote.c_library is not None:
        zygote.c_library.fflush(None)
    if interrupted:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)
        status = 130
    os._exit(status)


def flush_before_c(program):
    """Writes what Python has buffered before what C has, as the interpreter does at a normal end.

    A SystemExit makes it write stdout of C first, and we have no other way to end it with status 0.
    """
    names = set(sys.modules)
    if "_ctypes" not in names and not harmful_extension(names - set(COLD_MODULES)):
        return  # C has nothing
    if _thread._count():
        return  # the interpreter waits for them, and says if that is interrupted
    count, run = exit_functions()
    if count > zygote.exit_functions:
        run = None  # as in end_fast
    for finish in run, getattr(sys.stdout, "flush", None):
        try:
            if finish is not None:
                finish()
        except BaseException:
            pass  # it has been reported, or will be


def exit_functions():
    """How many functions are registered with atexit, and the function that calls them."""
    # Up to 3.9, loading the module once more would drop the functions.
    atexit = sys.modules.get("atexit") or zygote.atexit
    return (atexit._ncallbacks(), atexit._run_exitfuncs) if atexit else (0, None)


def resident():
    """The memory of the process, in bytes."""
    with open("/proc/self/statm", "rb") as f:
        return int(f.read().split()[1]) * PAGE


def has_frozen(program):
    """Whether the program has called gc.freeze, which hides objects from get_objects, and from get_referrers."""
    return program.mark is not None and not any(o is program.mark for o in get_referrers(program.mark[0]))


def needs_full_end(program):
    # A list of all objects of a large program could exceed its limit.
    if resident() > zygote.resident + MAX_GROWTH:
        return True
    objects = get_objects()
    return (
        _thread._count()
        or has_frozen(program)
        or gc_callbacks or gc_garbage or get_debug()  # a last collection tells them, or of them
        or (sys.stdin, sys.stdout, sys.stderr) != program.streams
        or harmful_extension(set(sys.modules) - zygote.modules)
        or has_finalizers(objects)
        or zygote.c_library is not None and zygote.c_library.is_harmful(objects)
    )


def become():
    """Returns in a spare that has become a command: the program and its entry."""
    sock = serve()
    prepare()
    sock.send(b"h")
    command = receive_command(sock)
    enter_dir(command, sock)
    try:
        program = Program(command)
        program.set_up()
    except BaseException:
        program = None
    forget_interrupts()
    if program is None:
        execute(command, sock)
    sock.send(b"0")
    sock.close()
    return command, sock, program


# --- the bottom of the stack ---


def main(*unused):
    """Is called by the interpreter, as the hook for the exception at the end of this file.

    So it is the only frame below a program. warnings.warn does not count it, because of the name
    of this file. If it returns, the interpreter ends with status 1, as after any other exception.
    """
    command, sock, program = become()
    failed = None
    running = False
    try:
        run, arguments, depth = program.entry()
        gc.freeze()
        program.mark = [object()]
        gc.enable()
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [_signal.SIGINT])
        if program.kind == "stdin":
            program.read_stdin(command, sock)
            arguments = program.code, program.names
        running = True
        sys.setrecursionlimit(sys.getrecursionlimit() + depth)
        run(*arguments)
    except BaseException as e:
        failed = e
    if failed is not None:
        failed.__traceback__ = failed.__traceback__.tb_next if running else None
    trace, profile = gettrace(), getprofile()
    settrace(None)
    setprofile(None)
    interrupted = type(failed) is KeyboardInterrupt
    try:
        status = conclude(program, failed)
        if trace is None and profile is None:
            try:
                end_fast(program, status, interrupted)
            except Exception:
                pass  # a program can break much; the interpreter ends in full then
            if failed is None:
                flush_before_c(program)
    finally:
        if not has_frozen(program):
            gc.unfreeze()  # what only we have frozen
        settrace(trace)
        setprofile(profile)
    if interrupted:
        try:
            exec_program("raise KeyboardInterrupt", {})  # the interpreter remembers, and ends by SIGINT
        except KeyboardInterrupt:
            pass
    elif failed is None or isinstance(failed, SystemExit) or status != 1:
        raise SystemExit(status)


zygote.streams = (sys.stdin, sys.stdout, sys.stderr)
zygote.main = sys.modules["__main__"]
start()
sys.excepthook = main
raise Exception
