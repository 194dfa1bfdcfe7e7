package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// With "make test-root BIN=… ENGINE=oci", all other tests of this package run on boxes of an OCI runtime.

// startOCI is start for a launcher with an OCI runtime.
func startOCI(t *testing.T, runtime string) *native.Engine {
	t.Helper()
	dir := stateDir(t)
	_, initPath := testutil.BuildBinaries(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := native.Start(ctx, native.Options{InitPath: initPath, StateDir: dir, Runtimes: native.Runtimes{OCI: runtime}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// realRunc is the runc of the distribution.
func realRunc(t testing.TB) string {
	t.Helper()
	testutil.RequireProgram(t, "runc")
	return "/usr/sbin/runc"
}

// fakeRuntime writes a runtime that answers probes as runc does, and starts a box as script says.
// There, "$pid" is the file for the number of PID 1, "$log" the log, and "$@" the arguments.
func fakeRuntime(t testing.TB, script string) string {
	t.Helper()
	testutil.RequireRoot(t)
	return writeRuntime(t, `[ "$1" = --version ] || [ "$1" = features ] && exec `+realRunc(t)+` "$@"
log=$6
for last; do case $before in --pid-file) pid=$last;; --log) log=$last;; esac; before=$last; done
`+script)
}

func writeRuntime(t testing.TB, script string) string {
	t.Helper()
	path := filepath.Join(testutil.ReachableDir(t, "/run"), "runtime")
	if err := os.WriteFile(path, []byte("#!/bin/bash\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func ociEngine(t *testing.T, e engine.Choosing) engine.EngineState {
	t.Helper()
	list, err := e.Engines(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(s engine.EngineState) bool {
		return s.Engine == spec.EngineOCI && s.Isolation == spec.IsolationNamespaces
	})
	if i < 0 || len(list) < 2 || list[0].Engine != spec.EngineNative || !list[0].Available() {
		t.Fatalf("engines: %+v", list)
	}
	return list[i]
}

// TestOCIBoxIsAsNative: to the kernel, PID 1 and commands of a box of runc are what they are in
// one of libcontainer.
func TestOCIBoxIsAsNative(t *testing.T) {
	e := startOCI(t, "")
	if s := ociEngine(t, e); !s.Available() || !strings.HasPrefix(s.Runtime, "runc 1.") {
		t.Errorf("%+v", s)
	}
	looks := map[string]map[string]string{}
	for _, name := range []string{spec.EngineNative, spec.EngineOCI} {
		b := create(t, e, engine.Spec{Engine: name})
		pids := initPIDs(t, b)
		if len(pids) != 1 {
			t.Fatalf("PID 1 is %q", pids)
		}
		looks[name] = lookAt(t, pids[0])
		looks[name]["command"] = run(t, b, shell("grep -v -i -e pid -e tgid -e ^NS -e ctxt -e Vm -e Rss /proc/self/status; ulimit -a; ulimit -H -a; env; ls /proc /dev | grep -v ^[0-9]; unshare -U true 2>&1; cat /proc/sys/user/max_user_namespaces; umask; pwd")).Stdout
	}
	want, got := looks[spec.EngineNative], looks[spec.EngineOCI]
	for _, key := range slices.Sorted(maps.Keys(want)) {
		ours, its := strings.Split(want[key], "\n"), strings.Split(got[key], "\n")
		less := slices.DeleteFunc(slices.Clone(ours), func(l string) bool { return slices.Contains(its, l) })
		more := slices.DeleteFunc(its, func(l string) bool { return slices.Contains(ours, l) })
		if len(more) > 0 || len(less) > 0 { // how many sockets there are depends on the moment
			t.Errorf("%s: a box of runc has %q instead of %q", key, more, less)
		}
	}
}

// lookAt describes process pid by what must not depend on the program that started it.
func lookAt(t *testing.T, pid string) map[string]string {
	t.Helper()
	look := map[string]string{}
	read := func(name string) string {
		text, err := os.ReadFile("/proc/" + pid + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var status []string
	for line := range strings.Lines(read("status")) {
		key, _, _ := strings.Cut(line, ":")
		if slices.Contains([]string{"Umask", "Groups", "SigIgn", "SigBlk", "ShdPnd", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters"}, key) {
			status = append(status, line)
		}
	}
	look["status"] = strings.Join(status, "")
	for _, name := range []string{"limits", "environ", "oom_score_adj", "coredump_filter", "personality", "setgroups"} {
		look[name] = read(name)
	}
	for _, name := range []string{"cwd", "exe"} {
		link, err := os.Readlink("/proc/" + pid + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		look[name] = link
	}
	number := regexp.MustCompile(`[0-9]+|/boxd/[^/]*`)
	fds, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, fd := range fds {
		link, _ := os.Readlink("/proc/" + pid + "/fd/" + fd.Name())
		kinds = append(kinds, number.ReplaceAllString(link, "N"))
	}
	slices.Sort(kinds)
	look["descriptors"] = strings.Join(kinds, "\n")
	// Of a mount: place, options and type. Its device, source and size are the box's own.
	var table []string
	for line := range strings.Lines(read("mountinfo")) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		table = append(table, strings.Join(append(f[4:dash:dash], f[dash+1]), " "))
	}
	look["mounts"] = strings.Join(table, "\n")
	return look
}

// TestOCIUnusable: a runtime that cannot be used is named with the reason, boxes of it are ErrNoEngine,
// and those of libcontainer are not affected.
func TestOCIUnusable(t *testing.T) {
	testutil.Long(t)
	runc := realRunc(t)
	writable := writeRuntime(t, "exec "+runc+` "$@"`)
	if err := os.Chmod(writable, 0o757); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, reason string }{
		{"/absent/runc", "no such file"},
		{"runc", "absolute"},
		{writable, "writable by root only"},
		{writeRuntime(t, "echo runc version 1.0.0-rc93"), "too old"},
		{writeRuntime(t, "echo hello"), "no OCI runtime"},
		{"/usr/bin/false", "exit status 1"},
	} {
		e := startOCI(t, c.path)
		if s := ociEngine(t, e); s.Available() || !strings.Contains(s.Reason, c.reason) || strings.Contains(s.Reason, "\n") {
			t.Errorf("%q: %+v", c.path, s)
		}
		_, err := e.Create(t.Context(), engine.Spec{Engine: spec.EngineOCI})
		if !errors.Is(err, engine.ErrNoEngine) || errors.Is(err, engine.ErrNoLauncher) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%q: %v", c.path, err)
		}
		wantOutput(t, create(t, e, engine.Spec{Engine: spec.EngineNative}), "echo works", "works\n")
	}
}

// TestOCIRuntimeReplaced: a runtime that is installed, upgraded or removed while the launcher runs is
// seen at once.
func TestOCIRuntimeReplaced(t *testing.T) {
	path := writeRuntime(t, "exit 1")
	e := startOCI(t, path)
	good := fakeRuntime(t, "exec "+realRunc(t)+` "$@"`)
	replace := func(with string) {
		t.Helper()
		fresh := path + ".new"
		text, err := os.ReadFile(with)
		if err == nil {
			err = errors.Join(os.WriteFile(fresh, text, 0o755), os.Rename(fresh, path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	oci := engine.Spec{Engine: spec.EngineOCI}
	if _, err := e.Create(t.Context(), oci); !errors.Is(err, engine.ErrNoEngine) {
		t.Error(err)
	}
	replace(good)
	b := create(t, e, oci)
	replace(writeRuntime(t, "echo garbage"))
	if _, err := e.Create(t.Context(), oci); !errors.Is(err, engine.ErrNoEngine) {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Create(t.Context(), oci); !errors.Is(err, engine.ErrNoEngine) {
		t.Error(err)
	}
	wantOutput(t, b, "echo lives on", "lives on\n") // a box does not need its runtime
	remove(t, b)
}

// TestOCIStartFails: whatever a runtime does instead of starting a box, the create fails with a reason,
// nothing of the box is left, and no other process is harmed.
func TestOCIStartFails(t *testing.T) {
	testutil.Long(t)
	runc := realRunc(t)
	sleeper := exec.Command("sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	outsider := sleeper.Process.Pid
	host, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	// The launcher's own mount namespace has no cgroupfs that can be written.
	moveOut := func(controller string) string {
		dir := cmp.Or(host.Mountpoint(controller), host.Mountpoint(""))
		return fmt.Sprintf(`%s "$@" && nsenter -m -t %d sh -c "echo $(cat $pid) > %s/cgroup.procs"`, runc, os.Getpid(), dir)
	}
	for _, c := range []struct{ name, script, reason string }{
		{"says why", `echo '{"level":"error","msg":"out of\nhamsters"}' > "$log"; exit 3`, "out of; hamsters"},
		{"does not say why", "exit 3", "exit status 3, and no reason"},
		{"garbage in its log", `head -c 2000000 /dev/urandom > "$log"; exit 3`, "exit status 3, and no reason"},
		{"is killed", "kill -9 $$", "signal: killed"},
		{"starts nothing", "exit 0", "no such file"},
		{"garbage as PID", `echo -n garbage > "$pid"`, `"garbage"`},
		{"no number at all", `: > "$pid"`, `""`},
		{"PID 1 of the host", `echo -n 1 > "$pid"`, `"1"`},
		{"a directory as PID", `mkdir "$pid"`, "is a directory"},
		{"a pipe as PID", `mkfifo "$pid"`, `""`},
		{"a process that is none", `echo -n 4190000 > "$pid"`, "no such process"},
		{"a process of somebody else", fmt.Sprintf(`echo -n %d > "$pid"`, outsider), "another user namespace"},
		{"a process without namespaces", `sleep 1000 & echo -n $! > "$pid"`, "another user namespace"},
		{"the process above PID 1", runc + ` "$@" && echo -n $$ > "$pid"`, "no such process"},
		{"PID 1, and fails", runc + ` "$@"; exit 9`, "exit status 9"},
		{"PID 1 in other cgroups", moveOut(""), "not in the cgroups of the box"},
		{"PID 1 without a memory limit", moveOut("memory"), "not in the cgroups of the box"},
		{"many processes", "for i in 1 2 3 4 5; do sleep 1000 & setsid sleep 1000 & done; exit 4", "exit status 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := startOCI(t, fakeRuntime(t, c.script))
			_, err := e.Create(t.Context(), engine.Spec{ID: "fails", Engine: spec.EngineOCI})
			if err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("%v, want %q", err, c.reason)
			}
			wantNoStrays(t)
			if err := unix.Kill(outsider, 0); err != nil {
				t.Errorf("a process outside has ended: %v", err)
			}
			// The name, and everything that belongs to it, is free again.
			b := create(t, e, engine.Spec{ID: "fails", Engine: spec.EngineNative})
			remove(t, b)
		})
	}
}

// wantNoStrays waits until this process's launchers, which have no boxes, have no children, dead ones
// included.
func wantNoStrays(t *testing.T) {
	t.Helper()
	var left []string
	waitUntil(t, "the launcher has no children", func() bool {
		left = nil
		for _, launcher := range childrenOf(t, os.Getpid()) {
			args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", launcher))
			if strings.HasPrefix(string(args), "boxd-init\x00launcher\x00") {
				for _, pid := range childrenOf(t, launcher) {
					left = append(left, strconv.Itoa(pid))
				}
			}
		}
		return len(left) == 0
	})
}

func childrenOf(t *testing.T, pid int) (pids []int) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may be gone
		for field := range strings.FieldsSeq(string(text)) {
			n, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, n)
		}
	}
	return pids
}
