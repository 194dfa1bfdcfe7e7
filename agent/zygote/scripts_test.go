package zygote

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func code(name, text string, args ...string) script {
	return script{name: name, args: append([]string{"-c", text}, args...)}
}

func merged(s script) script {
	s.merged = true
	return s
}

func file(name, text string, args ...string) script {
	return script{name: name, args: append([]string{"main.py"}, args...), files: map[string]string{"main.py": text}}
}

func executed(s script) script {
	s.cold = true
	return s
}

const state = `
import sys
print(sys.argv, getattr(sys, "orig_argv", None), sys.path, sys.flags, sys.executable, sys.prefix, sys._xoptions, sys.warnoptions)
print([(k, v if k != "sys" else 0) for k, v in globals().items() if k != "__loader__"], type(__loader__), getattr(__loader__, "path", 0))
print([(s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.buffer.mode, s.buffer.raw.mode, type(s.buffer).__name__, s.buffer.raw.closefd, s.fileno(), s.isatty(), s.seekable(), s.readable()) for s in (sys.stdin, sys.stdout, sys.stderr)])
print([s is getattr(sys, n) for n, s in (("stdin", sys.__stdin__), ("stdout", sys.__stdout__), ("stderr", sys.__stderr__))])
print(sys.excepthook is sys.__excepthook__, [n for n in ("last_type", "last_value", "last_traceback", "last_exc") if hasattr(sys, n)])
print(sorted(m for m in sys.modules if m not in PRELOADED))
print(sys.modules["__main__"].__dict__ is globals(), sys.meta_path, sys.path_hooks)
import os
print(dict(os.environ), os.environb == {os.fsencode(k): os.fsencode(v) for k, v in os.environ.items()})
import posix
print(posix.environ == os.environb)
print(os.getcwd(), os.umask(0o22), os.getpgrp() == os.getpid() == os.getsid(0), sorted(os.listdir("/proc/self/fd")))
import signal
print([(s, signal.getsignal(s)) for s in sorted(signal.Signals)], signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(open("/proc/self/status").read().split("SigBlk")[1].split("Cap")[0])
import gc, threading, locale, warnings
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.garbage, gc.callbacks)
print(threading.current_thread(), threading.main_thread() is threading.current_thread(), threading.active_count(), os.listdir("/proc/self/task") == [str(os.getpid())])
print(locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding(), sys.getdefaultencoding(), sys.getfilesystemencodeerrors())
print(warnings.filters, sys.exc_info(), sys.gettrace(), sys.getprofile())
print(sys.getswitchinterval(), sys.getdlopenflags(), sys.dont_write_bytecode, sys.stdin.buffer.raw.seekable())
import time, site
print(time.tzname, time.timezone, site.USER_SITE, site.ENABLE_USER_SITE, site.USER_BASE)
import builtins
print(sorted(vars(builtins)), callable(exit), hasattr(builtins, "_"))
`

// The modules that tests preload, and what these load.
func stateOf(preloaded string) string { return strings.ReplaceAll(state, "PRELOADED", preloaded) }

func devFull() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) }

func brokenPipe() (*os.File, error) {
	r, w, err := os.Pipe()
	if err == nil {
		r.Close()
	}
	return w, err
}

// A regular file with text, which is read from its second line.
func seekable() (*os.File, error) {
	f, err := os.CreateTemp("", "stdin")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	f.WriteString("not( python\nprint(__file__)\nimport sys; print(sys.stdin.read(), sys.stdin.tell())\n")
	_, err = f.Seek(int64(len("not( python\n")), 0)
	return f, err
}

var scripts = []script{
	// What a program finds.
	code("state", stateOf("()")),
	file("state of a file", stateOf("()"), "a", "b c", ""),
	{name: "state of a module", args: []string{"-m", "main", "a"}, files: map[string]string{"main.py": stateOf("()")}},
	{name: "state of stdin", stdin: stateOf("()")},
	{name: "state of a directory", args: []string{"d", "-x"}, files: map[string]string{"d/__main__.py": stateOf("()")}},
	code("no argument", ""),
	code("arguments", "import sys; print(sys.argv)", "-c", "-m", "--", "", "ä", "\xff\xfe", "a b\n"),
	code("a long argument", "import sys; print(len(sys.argv[1]), hash(sys.argv[1]) == hash('x' * 100000))", strings.Repeat("x", 100_000)),
	code("many arguments", "import sys; print(len(sys.argv), sys.argv[-1])", strings.Split(strings.Repeat("argument ", 9_999), " ")...),
	{name: "variables", args: []string{"-c", "import os, subprocess; print(list(os.environ.items())); subprocess.run(['env'])"}, env: []string{"A=b=c", "EMPTY=", "NL=a\nb", "BAD=\xff"}},
	{name: "a time zone", args: []string{"-c", "import time; print(time.tzname, time.localtime(0)[:6])"}, env: []string{"TZ=Asia/Tokyo"}},
	code("descriptors", "import os; print(sorted(os.listdir('/proc/self/fd'))); os.system('ls /proc/self/fd | wc -l')"),
	code("umask", "import os; print(oct(os.umask(0)))"),
	code("main", "if __name__ == '__main__': print(__name__, __builtins__, __spec__)"),
	code("annotations", "x: int = 1\nprint(__annotations__)"),
	code("docstring", "'''doc'''\nprint(__doc__)"),
	code("future", "from __future__ import annotations\ndef f(x: undefined): pass\nprint(f.__annotations__)"),
	code("no future", "def f(x: int): pass\nprint(f.__annotations__)"),
	code("depth", "import sys\nn = 0\ndef f():\n global n\n n += 1\n f()\ntry: f()\nexcept RecursionError: print(n)"),
	code("depth set by a program", "import sys\nsys.setrecursionlimit(5000)\ndef f(n): return n and f(n - 1)\nprint(f(4000), sys.getrecursionlimit())"),
	code("locals", "def f(): return locals()\nx = 5\nprint(f(), locals() is globals(), eval('x'), vars()['x'])"),
	code("random values are Random's", "import random; random.seed(5); print(random.random(), random.Random(3).random())"),

	// Files, modules, packages.
	{name: "a package", args: []string{"-m", "pkg"}, files: map[string]string{"pkg/__init__.py": "print(__name__, __path__)", "pkg/__main__.py": "from . import x\nprint(__name__, __package__, __spec__)", "pkg/x.py": "print(__name__)"}},
	{name: "a submodule", args: []string{"-m", "pkg.x", "1"}, files: map[string]string{"pkg/__init__.py": "", "pkg/x.py": "import sys\nprint(__name__, sys.argv, __spec__, __file__, __cached__)"}},
	{name: "a package without main", args: []string{"-m", "pkg"}, files: map[string]string{"pkg/__init__.py": ""}},
	{name: "no such module", args: []string{"-m", "nothing_here"}},
	{name: "no such submodule", args: []string{"-m", "json.nothing"}},
	{name: "json.tool", args: []string{"-m", "json.tool"}, stdin: `{"b": [1, 2], "a": "ä"}`},
	{name: "json.tool with an error", args: []string{"-m", "json.tool"}, stdin: `{"b`},
	{name: "module with an error", args: []string{"-m", "main"}, files: map[string]string{"main.py": "def f():\n  1/0\nf()"}},
	{name: "module with a syntax error", args: []string{"-m", "main"}, files: map[string]string{"main.py": "def f(:\n"}},
	{name: "timeit", args: []string{"-m", "timeit", "-n1", "-r1", "-u", "sec", "import time; raise SystemExit(3)"}},
	{name: "file elsewhere", args: []string{"a/../b/main.py"}, files: map[string]string{"a/x": "", "b/main.py": "import other, sys; print(__file__, sys.path[0], sys.argv)", "b/other.py": "print(__name__, __file__)"}},
	{name: "file with a dot", args: []string{"./main.py"}, files: map[string]string{"main.py": "import sys; print(__file__, sys.path[0], sys.argv)\n1/0"}},
	{name: "directory without main", args: []string{"d"}, files: map[string]string{"d/x": ""}},
	{name: "directory with slashes", args: []string{"./d//"}, files: map[string]string{"d/__main__.py": "import sys, x; print(__file__, sys.argv, sys.path[0])", "d/x.py": ""}},
	{name: "directory with an error", args: []string{"d"}, files: map[string]string{"d/__main__.py": "1/0"}},
	{name: "zip", args: []string{"z.zip", "a"}, files: map[string]string{"z.zip": zipOf("__main__.py", "import sys, m; print(__file__, sys.argv, sys.path[0], m.__file__, __loader__.get_source('m'))\n1/0", "m.py", "x = 1")}},
	executed(script{name: "no such file", args: []string{"nothing.py"}}),
	executed(script{name: "syntax error", args: []string{"-c", "print(1)\nx = = 2"}}),
	executed(file("syntax error in a file", "print(1)\nx = 'unfinished\n")),
	{name: "syntax error on stdin", stdin: "print(1)\nfor\n"},
	executed(file("indentation error", "def f():\nprint(1)\n")),
	executed(code("syntax warning", "print('\\d' if 1 is 1 else 2)")),
	executed(file("not UTF-8", "print('\xff')")),
	file("latin 1", "# coding: latin-1\nprint('\xe4'.encode())"),
	file("BOM", "\ufeffprint('ä')"),
	file("CRLF", "print(1)\r\nx = '''a\r\nb'''\r\nprint(repr(x))\r\n"),
	file("first line", "#!/usr/bin/env python3\nprint(__file__)"),
	file("tabs and form feed", "if 1:\n\tprint(1)\n\f\nprint(2)"),
	code("no newline", "print(1)"),
	code("source from a file", "import inspect, linecache, sys\ntry: print(inspect.getsource(sys.modules['__main__']))\nexcept Exception as e: print(type(e), e)"),
	file("own source", "import inspect, sys\ndef f():\n    return 1\nprint(inspect.getsource(f), inspect.getsource(sys.modules['__main__']), inspect.getfile(f))"),
	{name: "stdin", args: []string{"-", "a"}, stdin: "import sys\nprint(sys.argv, sys.stdin.read(), __file__)\n"},
	{name: "stdin with input", stdin: "print(input())"},
	{name: "empty stdin"},
	{name: "warning on stdin", stdin: "import sys\nprint('\\d', sys.stdin.read())\n"},
	{name: "warning on stdin, and no room in files", stdin: "import sys\nprint('\\d', sys.stdin.read())\n", fileSize: 1},
	{name: "warning in a long program on stdin", stdin: "print('\\d')\n" + strings.Repeat("# a program that a pipe does not hold\n", 50_000) + "print('end')\n"},
	{name: "stdin is a file", open: map[int]func() (*os.File, error){0: seekable}},
	{name: "error on stdin", stdin: "def f():\n  1/0\nf()\n"},

	// Interpreter options and variables are for the interpreter.
	executed(script{name: "optimized", args: []string{"-O", "-c", "assert False; import sys; print(sys.flags)"}}),
	executed(script{name: "isolated", args: []string{"-I", "-c", "import sys; print(sys.flags, sys.path)"}}),
	executed(script{name: "unbuffered", args: []string{"-u", "-c", "print(1)"}}),
	executed(script{name: "option", args: []string{"-X", "utf8", "-W", "error", "-c", "import sys; print(sys._xoptions, sys.warnoptions)"}}),
	executed(script{name: "version", args: []string{"-V"}}),
	executed(script{name: "glued", args: []string{"-cprint(1)"}}),
	executed(script{name: "unknown option", args: []string{"--nothing"}}),
	executed(script{name: "missing argument", args: []string{"-c"}}),
	executed(script{name: "empty name", args: []string{""}}),
	executed(script{name: "PYTHONUTF8", args: []string{"-c", "import sys; print(sys.flags)"}, env: []string{"PYTHONUTF8=1"}}),
	executed(script{name: "PYTHONPATH", args: []string{"-c", "import sys; print(sys.path)"}, env: []string{"PYTHONPATH=/x"}}),
	executed(script{name: "PYTHONHASHSEED", args: []string{"-c", "print(hash('a'))"}, env: []string{"PYTHONHASHSEED=3"}}),
	executed(script{name: "LC_ALL", args: []string{"-c", "import sys; print(sys.stdout.encoding)"}, env: []string{"LC_ALL=POSIX"}}),
	executed(script{name: "bytecode", args: []string{"main.pyc"}, files: map[string]string{"main.pyc": "xx"}}),

	// Ends.
	code("exit", "import sys; print(1); sys.exit()"),
	code("exit 3", "import sys; print(1); sys.exit(3)"),
	code("exit 256", "import sys; sys.exit(256)"),
	code("exit -1", "import sys; sys.exit(-1)"),
	code("exit True", "import sys; sys.exit(True)"),
	code("exit 2**70", "import sys; sys.exit(2**70)"),
	code("exit text", "import sys; sys.exit('sörry')"),
	code("exit with an object", "import sys\nclass A:\n  def __str__(self): return 'A!'\nsys.exit(A())"),
	code("exit with None", "raise SystemExit(None)"),
	code("exit with a tuple", "raise SystemExit(1, 2)"),
	code("exit with a float", "raise SystemExit(1.0)"),
	code("exit without stderr", "import sys; sys.stderr = None; sys.exit('x')"),
	code("subclass of exit", "class E(SystemExit):\n  @property\n  def code(self): return 7\nraise E"),
	code("quit", "quit(4)"),
	code("_exit", "import os; print('lost'); os._exit(5)"),
	code("_exit after flush", "import os; print('kept', flush=True); os._exit(5)"),
	code("abort", "import os; os.abort()"),
	code("kill", "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGKILL)"),
	code("term", "import os, signal; print('x'); os.kill(os.getpid(), signal.SIGTERM)"),
	code("execv", "import os; print('x', flush=True); os.execv('/bin/sh', ['sh', '-c', 'echo $0 $X; exit 9'])"),
	code("exec keeps signals ignored by Python", "import os; os.execvp('grep', ['grep', '-E', 'Sig(Blk|Ign|Cgt)', '/proc/self/status'])"),
	code("exit in a thread", "import threading, sys\nt = threading.Thread(target=lambda: sys.exit(3)); t.start(); t.join(); print('end')"),

	// Uncaught exceptions.
	code("exception", "1/0"),
	code("exception in a function", "def f(x):\n  return 1/x\nf(0)"),
	file("exception in a file", "def f(x):\n    return 1/x\n\nprint('before')\nf(0)\n"),
	merged(file("order in a file", "print('before')\n1/0")),
	merged(code("order", "print('before')\n1/0")),
	merged(script{name: "order of a module", args: []string{"-m", "main"}, files: map[string]string{"main.py": "print('before')\n1/0"}}),
	merged(code("order of exit", "import sys; print('before'); sys.exit('message')")),
	merged(file("order of exit in a file", "import sys; print('before'); sys.exit('message')")),
	file("chained", "def f():\n  try:\n    1/0\n  except ZeroDivisionError as e:\n    raise ValueError('x') from e\ntry:\n  f()\nexcept ValueError:\n  raise KeyError(1)"),
	code("no context", "import sys\nprint(sys.exc_info())\ntry: 1/0\nexcept Exception as e: print(e.__context__, e.__traceback__.tb_frame.f_code.co_filename, e.__traceback__.tb_next)"),
	code("recursion", "def f(): f()\nf()"),
	file("recursion in a file", "def f(n):\n    return g(n)\ndef g(n):\n    return f(n + 1)\nf(0)"),
	{name: "recursion in a module", args: []string{"-m", "main"}, files: map[string]string{"main.py": "def f(): f()\nf()"}},
	code("interrupt", "raise KeyboardInterrupt"),
	file("interrupt in a file", "print('x')\nraise KeyboardInterrupt('y')"),
	{name: "interrupt in a module", args: []string{"-m", "main"}, files: map[string]string{"main.py": "raise KeyboardInterrupt"}},
	code("subclass of an interrupt", "class K(KeyboardInterrupt): pass\nraise K"),
	code("interrupt with a file left open", "f = open('x', 'w'); f.write('y')\nraise KeyboardInterrupt"),
	code("group", "import sys\nraise ExceptionGroup('g', [ValueError(1), KeyError(2)]) if sys.version_info >= (3, 11) else ValueError"),
	code("notes", "e = ValueError(1)\nif hasattr(e, 'add_note'): e.add_note('note')\nraise e"),
	code("exception without text", "class E(Exception):\n  def __str__(self): raise ValueError\nraise E"),
	code("exception not printable", "raise ValueError('\\udcff')"),
	code("hook", "import sys\ndef hook(*a): print('hook', a[0], a[1], a[2].tb_lineno, a[2].tb_next, sys.exc_info())\nsys.excepthook = hook\n1/0"),
	code("hook fails", "import sys\ndef hook(*a): {}[3]\nsys.excepthook = hook\n1/0"),
	code("hook exits", "import sys\ndef hook(*a): sys.exit(5)\nsys.excepthook = hook\n1/0"),
	code("no hook", "import sys\ndel sys.excepthook\n1/0"),
	code("last exception", "import atexit, sys\natexit.register(lambda: print(sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))\n1/0"),
	code("thread fails", "import threading\ndef f(): 1/0\nt = threading.Thread(target=f); t.start(); t.join()"),
	code("warning", "import warnings\nwarnings.warn('w')\nwarnings.warn('x', DeprecationWarning)\ndef f(): warnings.warn('y', stacklevel=2)\nf()"),
	code("warning beyond the stack", "import warnings\nwarnings.warn('w', stacklevel=2)\nwarnings.warn('v', stacklevel=9)"),
	file("warning in a file", "import warnings\nwarnings.warn('w', DeprecationWarning)\nwarnings.warn('w', stacklevel=3)"),
	code("print_exc", "import traceback\ntry: 1/0\nexcept Exception: traceback.print_exc()"),

	// Output.
	code("big output", "for i in range(200000): print(i)"),
	code("big output without newline", "import sys; sys.stdout.write('ä' * 3_000_000)"),
	code("bytes", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000); sys.stderr.buffer.write(b'\\xff')"),
	code("surrogates", "import sys; print(ascii(sys.argv)); print('\\udcff')"),
	code("stderr", "import sys; print('a', file=sys.stderr, end=''); print('b')"),
	merged(code("interleaved", "import sys\nfor i in range(3000): print('out', i); print('err', i, file=sys.stderr) if i % 500 == 0 else None")),
	code("closed stdout", "import os; print('lost'); os.close(1)"),
	code("closed both", "import os; print('lost'); os.close(1); os.close(2)"),
	code("stdout.close", "import sys; print('kept'); sys.stdout.close()"),
	code("no stdout", "import sys; print('kept'); sys.stdout = None"),
	code("other stdout", "import sys, io; print('kept'); sys.stdout = io.StringIO(); print('dropped')"),
	code("wrapped stdout", "import sys, io; print('kept'); sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='latin-1', newline='\\r\\n'); print('ä')"),
	code("detached stdout", "import sys, io; print('kept'); b = sys.stdout.detach(); b.write(b'more')"),
	code("reconfigured stdout", "import sys; sys.stdout.reconfigure(encoding='utf-16', line_buffering=True); print('ä'); print('b', end='')"),
	code("dup of stdout", "import os, sys; f = os.fdopen(os.dup(1), 'w'); f.write('a'); print('b')"),
	code("second file on stdout", "f = open(1, 'w', closefd=False); f.write('a'); print('b')"),
	code("redirect", "import contextlib, io\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): print('x')\nprint(repr(b.getvalue()))"),
	{name: "full", args: []string{"-c", "print('x')"}, open: map[int]func() (*os.File, error){1: devFull}},
	{name: "full at once", args: []string{"-c", "print('x' * 100000)"}, open: map[int]func() (*os.File, error){1: devFull}},
	{name: "full stderr", args: []string{"-c", "1/0"}, open: map[int]func() (*os.File, error){2: devFull}},
	{name: "broken pipe", args: []string{"-c", "print('x')"}, open: map[int]func() (*os.File, error){1: brokenPipe}},
	{name: "broken pipe at once", args: []string{"-c", "print('x' * 100000)"}, open: map[int]func() (*os.File, error){1: brokenPipe}},
	{name: "default SIGPIPE", args: []string{"-c", "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL); print('x')"}, open: map[int]func() (*os.File, error){1: brokenPipe}},
	{name: "file as stdout", args: []string{"-c", "import sys; print('x'); print(sys.stdout.tell(), sys.stdout.seekable(), file=sys.stderr)"}, open: map[int]func() (*os.File, error){1: seekable}},
	{name: "binary stdin", args: []string{"-c", "import sys; d = sys.stdin.buffer.read(); print(len(d), sum(d))"}, stdin: strings.Repeat("\x00\xff\n", 100000)},
	{name: "lines of stdin", args: []string{"-c", "import sys\nfor l in sys.stdin: print(repr(l))"}, stdin: "a\r\nb\rc\nä\xff"},
	{name: "input", args: []string{"-c", "print(input('? '), input())\ninput()"}, stdin: "a\nb\n"},
	{name: "rest of stdin", args: []string{"-c", "import sys, os, subprocess\nprint(os.read(0, 2)); subprocess.run(['cat'])"}, stdin: "abcdef\n"},

	// What is left at the end.
	code("file in a global", "f = open('x', 'w'); f.write('text')\nimport atexit, os, subprocess; subprocess.Popen(['sh', '-c', 'read x; cat x'], stdin=subprocess.PIPE)"),
	code("file in a function", "import os\ndef f():\n  g = open(1, 'w', closefd=False); g.write('y')\n  return g\nf()\nprint('z')"),
	code("file in a cycle", "class A: pass\na = A(); a.a = a; a.f = open(1, 'w', closefd=False); a.f.write('cycle\\n'); del a"),
	{name: "file in a module", args: []string{"-c", "import m"}, files: map[string]string{"m.py": "f = open(1, 'w', closefd=False); f.write('module')"}},
	code("file in a preloaded module", "import json; json.f = open(1, 'w', closefd=False); json.f.write('kept')"),
	code("file in a default argument", "def f(x=open(1, 'w', closefd=False)): x.write('kept')\nf()"),
	code("buffered random", "f = open('x', 'wb+'); f.write(b'1' * 100); import os; print(os.path.getsize('x'))"),
	code("finalizer", "class A:\n  def __del__(self): print('del')\na = A()"),
	code("finalizer in a cycle", "class A:\n  def __del__(self): print('del', self.x)\na = A(); a.a = a; a.x = 3; del a"),
	code("finalizer without collector", "class A:\n  __slots__ = ()\n  def __del__(self): print('del')\na = A()"),
	code("finalizer of a class", "class M(type):\n  def __del__(self): print('del', self)\nclass A(metaclass=M): pass\n"),
	code("much memory", "x = [[i] for i in range(1_000_000)]\nclass A:\n  def __del__(self): print('del')\nx.append(A())"),
	code("frozen file", "import gc\nf = open(1, 'w', closefd=False); f.write('kept')\ngc.freeze()"),
	code("frozen finalizer", "import gc, sys\nclass A:\n  def __del__(self): print('del')\na = A()\nsys.modules.pop('json', None); gc.collect(); gc.freeze()"),
	code("frozen and thawed", "import gc\nf = open(1, 'w', closefd=False); f.write('kept')\ngc.freeze(); gc.unfreeze()"),
	code("collector's callback", "import gc, os\ngc.callbacks.append(lambda phase, info, write=os.write: write(1, b'called\\n'))"),
	code("uncollectable", "import gc, warnings\nwarnings.simplefilter('always')\ngc.garbage.append([])"),
	code("weakref.finalize", "import weakref\nclass A: pass\na = A(); weakref.finalize(a, print, 'finalized')"),
	code("weakref callback", "import weakref\nclass A: pass\na = A(); r = weakref.ref(a, lambda r: print('gone'))"),
	code("weakref callback in C", "import weakref\nclass A: pass\na = A(); r = weakref.ref(a, print)"),
	{name: "weakref callback in a module", args: []string{"-c", "import m, weakref\nclass A: pass\na = A(); r = weakref.ref(a, m.gone)"}, files: map[string]string{"m.py": "def gone(r): print('gone')"}},
	code("weakref callback of a method", "import weakref\nclass A:\n  def f(self): pass\na = A(); r = weakref.WeakMethod(a.f, print)"),
	code("weakref proxy with a callback", "import os, weakref\nclass A: pass\na = A(); r = weakref.proxy(a, lambda r, write=os.write: write(1, b'gone'))"),
	code("weak collections", "import logging, weakref\nclass A: pass\na = A(); x = weakref.WeakSet([a]), weakref.WeakKeyDictionary({a: 1}), weakref.WeakValueDictionary({1: a})"),
	code("generator", "def g():\n  try: yield 1\n  finally: print('finally')\nx = g(); next(x)"),
	code("generator not started", "def g():\n  try: yield 1\n  finally: print('finally')\nx = g()"),
	code("coroutine", "async def f(): pass\nc = f()"),
	code("context manager in a generator", "import contextlib\n@contextlib.contextmanager\ndef c():\n  print('in')\n  try: yield\n  finally: print('out')\nx = c(); x.__enter__()"),
	code("atexit", "import atexit\natexit.register(print, 1); atexit.register(print, 2)\natexit.register(lambda: 1/0)\natexit.register(print, 3)\nprint(0)"),
	code("atexit exits", "import atexit, sys\natexit.register(print, 1); atexit.register(sys.exit, 4)\nprint(0)"),
	code("atexit registers", "import atexit\natexit.register(lambda: atexit.register(print, 'inner'))"),
	code("atexit opens", "import atexit\ndef f():\n  global g\n  g = open(1, 'w', closefd=False); g.write('late')\natexit.register(f)"),
	merged(code("atexit after an exception", "import atexit\natexit.register(print, 'atexit')\n1/0")),
	file("atexit sees globals", "import atexit\natexit.register(lambda: print('__file__' in globals(), __name__))"),
	code("logging", "import logging, logging.handlers, sys\nh = logging.handlers.MemoryHandler(100, target=logging.StreamHandler(sys.stdout))\nlogging.getLogger().addHandler(h); logging.warning('kept'); logging.shutdown"),
	code("tempfile", "import tempfile, os\nd = tempfile.TemporaryDirectory(dir='.'); f = tempfile.NamedTemporaryFile(dir='.')\nimport atexit, subprocess\nprint(len(os.listdir('.')))"),
	code("temporary files are removed", "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import tempfile; d = tempfile.TemporaryDirectory(dir=\".\"); f = tempfile.NamedTemporaryFile(dir=\".\")'])\nimport os; print(os.listdir('.'))"),
	code("resource warning", "import warnings; warnings.simplefilter('always'); f = open('/dev/null')"),
	code("database", "import sqlite3\nc = sqlite3.connect('x.db'); c.execute('create table t (a)'); c.execute('insert into t values (1)'); c.commit(); print(c.execute('select * from t').fetchall())"),
	code("C library", "import ctypes\nctypes.CDLL(None).printf(b'from C\\n')"),
	code("C library used in passing", "import ctypes\ndef f(): ctypes.CDLL(None).printf(b'from C\\n')\nf()\nprint('Python')"),
	code("C library calls back", "import ctypes\n@ctypes.CFUNCTYPE(None)\ndef f(): import os; os.write(1, b'called\\n')\nctypes.CDLL(None).on_exit(f, None)\nprint('Python')"),
	file("logging since when", "import logging\nlogging.basicConfig(format='%(relativeCreated)d')\nr = logging.LogRecord('x', 1, 'x', 1, 'x', (), None)\nprint(0 <= r.relativeCreated < 5000)"),
	file("where spawned processes begin", "import multiprocessing.process as p, os\nprint(p.ORIGINAL_DIR == os.getcwd())"),
	code("unraisable", "import sys\nsys.unraisablehook = lambda u: print('unraisable', u.exc_type)\nclass A:\n  def __del__(self): 1/0\na = A()"),
	code("shadowed builtins", "def print(*a): raise KeyError\nimport sys\nsys.exit = None"),
	code("no builtins", "import builtins\nfor n in list(vars(builtins)):\n  if n not in ('print', '__import__'): delattr(builtins, n)\nprint(3)"),
	code("no modules", "import sys\nsys.modules.clear()"),
	code("no main", "import sys\ndel sys.modules['__main__']"),
	code("trace", "import sys\ndef t(f, e, a):\n  print(e, f.f_code.co_name)\n  return t\nsys.settrace(t)\ndef f(): pass\nf()"),

	// Threads and processes.
	code("thread", "import threading, time\ndef f():\n  time.sleep(0.05); print('thread')\nthreading.Thread(target=f).start(); print('main')"),
	code("daemon thread", "import threading, time\ndef f():\n  try: time.sleep(100)\n  finally: print('no')\nthreading.Thread(target=f, daemon=True).start(); print('main')"),
	merged(code("thread after an exception", "import threading, time\ndef f():\n  time.sleep(0.05); print('thread')\nthreading.Thread(target=f).start()\n1/0")),
	code("bare thread", "import _thread, time\n_thread.start_new_thread(time.sleep, (100,)); print('main')"),
	code("executor", "from concurrent.futures import ThreadPoolExecutor\ne = ThreadPoolExecutor(2); f = e.submit(print, 'x'); e.submit(print, 'y')"),
	code("timer", "import threading\nthreading.Timer(0.05, print, ['timer']).start()"),
	code("fork", "import os\nprint('both')\nif os.fork() == 0: print('child')\nelse: os.wait(); print('parent')"),
	code("fork and fail", "import os\nif os.fork() == 0: raise SystemExit(3)\nprint(os.waitstatus_to_exitcode(os.wait()[1]) if hasattr(os, 'waitstatus_to_exitcode') else os.wait()[1] >> 8)"),
	file("multiprocessing, fork", "import multiprocessing as m\ndef f(x): print('child', x, __name__, flush=True)\nif __name__ == '__main__':\n  c = m.get_context('fork'); p = c.Process(target=f, args=(3,)); p.start(); p.join(); print(p.exitcode)"),
	file("multiprocessing, spawn", "import multiprocessing as m\ndef f(x): print('child', x, __name__, flush=True)\nprint('import', __name__, flush=True)\nif __name__ == '__main__':\n  c = m.get_context('spawn'); p = c.Process(target=f, args=(3,)); p.start(); p.join(); print(p.exitcode)"),
	{name: "multiprocessing of a module", args: []string{"-m", "pkg.main"}, files: map[string]string{"pkg/__init__.py": "", "pkg/main.py": "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n  print(m.get_context('spawn').Pool(2).map(f, range(5)))"}},
	file("pool", "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n  with m.get_context('fork').Pool(2) as p: print(p.map(f, range(10)))"),
	file("processes left running", "import multiprocessing as m, time\ndef f(): time.sleep(0.05); print('child', flush=True)\nif __name__ == '__main__':\n  m.get_context('fork').Process(target=f).start(); print('parent', flush=True)"),
	code("subprocess", "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.argv, sys.flags); sys.exit(3)', 'a'], stdout=subprocess.PIPE))"),
	code("system", "import os; print(os.system('echo $X; exit 3'))"),
	code("asyncio", "import asyncio\nasync def f():\n  await asyncio.sleep(0.01); print('async'); return 1\nprint(asyncio.run(f()))"),
	code("asyncio fails", "import asyncio\nasync def f(): 1/0\nasyncio.run(f())"),
	code("asyncio task left", "import asyncio\nasync def f(): await asyncio.sleep(100)\nasync def g(): asyncio.ensure_future(f()); print('g')\nasyncio.new_event_loop().run_until_complete(g())"),
	code("asyncio subprocess", "import asyncio\nasync def f():\n  p = await asyncio.create_subprocess_exec('echo', 'x', stdout=asyncio.subprocess.PIPE); print(await p.communicate())\nasyncio.run(f())"),

	// Signals.
	{name: "interrupted", args: []string{"-c", "import time\nprint('ready', flush=True); time.sleep(100)"}, signal: unix.SIGINT},
	{name: "interrupt caught", args: []string{"-c", "import time\ntry: print('ready', flush=True); time.sleep(100)\nexcept KeyboardInterrupt: print('caught')"}, signal: unix.SIGINT},
	{name: "terminated", args: []string{"-c", "import time\nprint('ready', flush=True); time.sleep(100)"}, signal: unix.SIGTERM},
	{name: "handler", args: []string{"-c", "import time, signal, sys\nsignal.signal(signal.SIGUSR1, lambda *a: sys.exit(6))\nprint('ready', flush=True); time.sleep(100)"}, signal: unix.SIGUSR1},
	{name: "interrupted while threads end", args: []string{"-c", "import threading, time, os, signal\ndef f():\n  time.sleep(0.1); os.kill(os.getpid(), signal.SIGINT); time.sleep(0.2)\nthreading.Thread(target=f).start()\nprint('ready')"}},
	code("alarm", "import signal, time; signal.alarm(1); time.sleep(100)"),

	// The library at work.
	file("pickle", "import pickle\nclass A:\n  def __init__(self): self.x = 1\na = pickle.loads(pickle.dumps(A())); print(type(a).__module__, a.x, pickle.dumps(A(), 0)[:30])"),
	file("unittest", "import unittest\nclass T(unittest.TestCase):\n  def test_a(self): self.assertEqual(1, 1)\n  @unittest.skip('x')\n  def test_b(self): pass\nif __name__ == '__main__': unittest.main(argv=['x', '-v'], testRunner=unittest.TextTestRunner(stream=open('/dev/null', 'w')))"),
	file("doctest", "'''\n>>> f(2)\n4\n>>> f(3)\n7\n'''\ndef f(x): return 2 * x\nimport doctest; print(doctest.testmod())"),
	code("dataclass", "from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int = 3\nprint(A(), A.__module__)"),
	code("enum and typing", "import enum, typing\nclass C(enum.Enum):\n  A = 1\nprint(C.A, typing.get_type_hints(type('T', (), {'__annotations__': {'x': 'int'}})), typing.NamedTuple('N', [('a', int)]).__module__)"),
	code("decimal", "import decimal; decimal.getcontext().prec = 5; print(decimal.Decimal(1) / 3, decimal.getcontext())"),
	code("contextvars", "import contextvars; v = contextvars.ContextVar('v', default=1); print(v.get(), len(contextvars.copy_context())); v.set(2); print(v.get())"),
	code("json and re", "import json, re; print(json.dumps([1, {'a': None}]), re.sub('a+', 'b', 'caat'), json.loads('[1.5]'))"),
	code("linecache", "import linecache; print(linecache.getlines('<string>'), linecache.getline('x', 1))"),
	code("runpy", "import runpy; print(runpy.run_path('/dev/null')['__name__'])"),
	code("code", "import code\ncode.InteractiveInterpreter().runsource('1/0')"),
	code("input through pdb", "import pdb\npdb.Pdb(nosigint=True, readrc=False).runcall(lambda: 1)"),
	code("faulthandler", "import faulthandler, os, signal\nfaulthandler.enable()\nprint(faulthandler.is_enabled())"),
	code("resource", "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_STACK))"),
	code("argparse", "import argparse\np = argparse.ArgumentParser(); p.add_argument('x', type=int); p.parse_args()", "y"),
	file("argparse in a file", "import argparse\np = argparse.ArgumentParser(); p.add_argument('x', type=int); p.parse_args()", "-h"),
	code("help", "help(len)"),
	code("exec in exec", "exec(compile('import sys; print(__name__, sys._getframe().f_code.co_filename)', 'inner', 'exec'))"),
	code("import error", "import nothing_at_all"),
	code("circular import", "import m"),
	code("module of __main__", "import __main__; print(__main__.__dict__ is globals(), __main__)"),
	code("import everything", "import asyncio, collections, csv, ctypes, datetime, email, functools, http.client, inspect, itertools, logging, multiprocessing, pathlib, random, shutil, socket, sqlite3, ssl, subprocess, tempfile, threading, unittest, urllib.request, uuid, xml.dom.minidom, zipfile; print('all')"),
	code("numbers", "import random, uuid, secrets; print(len({random.random() for _ in range(100)}), uuid.uuid4() != uuid.uuid4(), len(secrets.token_hex(8)))"),
}
