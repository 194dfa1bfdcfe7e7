package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// builtinProbes run as the user of a file operation, while the operation is in progress.
var builtinProbes = []probe{
	{"builtin-ptrace", "code runs in the launcher's program, and answers its caller", onBuiltin(ptrace), false},
	{"builtin-mem", "its memory is read or written", onBuiltin(spy(unix.O_RDWR, "mem")), false},
	{"builtin-vm", "its memory is read or written", onBuiltin(vm), false},
	{"builtin-spy", "it is dumpable: what it holds can be seen", onBuiltin(spy(unix.O_RDONLY,
		"environ", "maps", "auxv", "stack", "fd", "fdinfo", "map_files", "io", "mem", "cwd", "root", "ns/mnt")), false},
	{"builtin-getfd", "its descriptors are copied: content is read or forged", onBuiltin(getfd), false},
	{"builtin-fd", "its descriptors are opened again", onBuiltin(spy(unix.O_RDWR, "fd/0", "fd/1", "fd/2", "fd/3")), false},
	{"builtin-exe", "the launcher's program is overwritten or copied (CVE-2019-5736)", onBuiltin(exe), false},
	{"builtin-execute", "the launcher's program is executed with other arguments", onBuiltin(execute), false},
	{"builtin-adjust", "its settings are written", onBuiltin(spy(unix.O_WRONLY, "oom_score_adj", "clear_refs", "coredump_filter")), false},
}

// onBuiltin probes the file operation that runs beside this process.
func onBuiltin(try func(pid int) outcome) func(bait) outcome {
	return func(bait) outcome {
		found, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range found {
			line, _ := os.ReadFile(path)
			if !bytes.HasPrefix(line, []byte("boxd-agent\x00files\x00")) {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				return untried(cause(err))
			}
			return try(pid)
		}
		return untried("no file operation is under way")
	}
}

// spy opens files of a process with flags.
func spy(flags int, names ...string) func(pid int) outcome {
	return func(pid int) outcome {
		return each(func(name string) outcome { return openOne(procPath(pid, name), flags) }, names...)
	}
}

// execute only asks access(2), because an exec would replace this process.
func execute(pid int) outcome {
	return failing("access "+procPath(pid, "exe"), unix.Access(procPath(pid, "exe"), unix.X_OK))
}
