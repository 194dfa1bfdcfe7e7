package test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/boxd/boxd/"

// row says which packages of this module a package may import, besides base,
// and why no others.
type row struct {
	pkg string
	may []string
	why string
}

// base may be imported by everybody: values and helpers without a policy.
var base = []string{"internal/cleanup", "internal/version"}

// The order of imports, lowest first. A name that ends in "/..." stands for a
// tree. A package that has no row fails the test: its place has to be decided.
var rows = []row{
	{"internal/cleanup", nil, "helper of all, so it depends on none"},
	{"internal/version", nil, "one variable"},
	{"internal/testutil", nil, "tests of every package import it, so any import would be a cycle"},
	{"internal/linux", nil, "the boundary to the kernel holds no policy and knows nothing above it"},

	{"mounts", []string{"internal/linux"}, "a kernel leaf: leaves are understood and tested one by one"},
	{"cgroups", []string{"internal/linux"}, "a kernel leaf: leaves are understood and tested one by one"},
	{"cgroups/stats", []string{"internal/linux", "cgroups"}, "apart from cgroups because its library costs every process that links it 2.4 ms and 8 MB"},
	{"netns", []string{"internal/linux"}, "a kernel leaf: leaves are understood and tested one by one"},
	{"images", []string{"internal/linux"}, "a kernel leaf: leaves are understood and tested one by one"},
	{"rootfs", []string{"internal/linux", "mounts"}, "image layers come in as values, so a root can be built without an image store"},

	{"agent/wire", []string{"internal/linux"}, "both sides of a trust boundary read this protocol: it must stay small enough to review"},
	{"agent", []string{"internal/linux", "agent/wire"}, "PID 1 of a box: what is not linked into it cannot be misused from inside"},

	{"engine", []string{"mounts"}, "values that callers hand in: no engine, no kernel"},
	{"engine/native/rpc", []string{"internal/linux", "engine", "mounts", "agent/wire"}, "the protocol between client and launcher: neither of the two"},
	{"engine/native/seccomp", []string{"internal/linux"}, "a policy and its compiler: usable without a box"},
	{"engine/native", []string{"internal/linux", "engine", "engine/native/rpc", "agent/wire", "cgroups", "mounts",
		"rootfs"}, // for the paths in it, such as the home directory
		"the client half is linked into unprivileged programs: it builds nothing itself, the launcher does"},
	{"engine/native/launcher", []string{"internal/linux", "engine", "engine/native/rpc", "engine/native/seccomp",
		"agent", "agent/wire", "cgroups", "mounts", "netns", "rootfs"},
		"the privileged server must not depend on the client that it checks"},

	{"internal/cli", []string{"internal/linux", "engine", "engine/native", "mounts", "cgroups"}, "commands use the engine as an embedding program does"},
	{"examples/...", []string{"engine", "engine/native", "mounts"}, "an example uses what other modules can import"},
	{"cmd/boxd", []string{"internal/cli", "engine", "engine/native"}, "an entry point wires, it decides nothing"},
	{"cmd/boxd-init", []string{"engine/native/launcher", "agent"}, "an entry point wires, it decides nothing"},
	{"test/...", []string{"..."}, "tests across packages"},
	{"test", nil, "looks at the packages from outside"},
}

// foreign says who may import another module.
type foreign struct {
	path string
	by   []string
	why  string
}

var foreigns = []foreign{
	{"golang.org/x/sys", []string{"internal/linux", "internal/testutil", "internal/cli", "mounts", "cgroups", "netns", "images", "rootfs",
		"agent/...", "engine/native/...", "test/..."}, "values and policy make no system calls"},
	{"github.com/opencontainers/runc", []string{"engine/native/launcher", "cmd/boxd-init"}, "libcontainer is behind one door; its init stage is a role of boxd-init"},
	{"github.com/opencontainers/cgroups", []string{"engine/native/launcher"}, "belongs to libcontainer; limits are the business of cgroups"},
	{"github.com/opencontainers/runtime-spec", []string{"engine/native/launcher", "engine/native/seccomp"}, "belongs to libcontainer's configuration"},
	{"github.com/sirupsen/logrus", []string{"engine/native/launcher"}, "only to catch what libcontainer logs; ours is log/slog"},
	{"github.com/seccomp/libseccomp-golang", []string{"engine/native/seccomp"}, "needs a C library"},
	{"github.com/vishvananda/netlink", []string{"netns"}, "network set-up is in one place"},
	{"github.com/containerd/cgroups/v3", []string{"cgroups/stats"}, "costs every process that links it 2.4 ms and 8 MB at its start"},
	{"github.com/cyphar/filepath-securejoin", []string{"mounts", "rootfs", "engine/native/launcher"}, "untrusted paths are resolved where they are mounted"},
	{"github.com/docker/go-units", []string{"engine"}, "sizes are parsed in one place"},
	{"github.com/spf13", []string{"internal/cli"}, "flags belong to the command line"},
}

// never are modules and packages that may not even be linked in indirectly.
var never = []struct{ pkg, dep, why string }{
	{"cmd/boxd", "github.com/opencontainers/runc", "it re-executes its own binary for every box: in the big one each start costs 4 to 5 ms more"},
	{"cmd/boxd", "github.com/seccomp/libseccomp-golang", "boxd is pure Go: it needs no library at run time"},
	{"cmd/boxd", "runtime/cgo", "boxd is pure Go: it needs no library at run time"},
	{"cmd/boxd", module + "engine/native/launcher", "what faces people and networks is not what has root"},
	{"engine/native", "runtime/cgo", "a program that embeds boxd needs no C compiler"},
	{"cmd/boxd-init", "github.com/containerd/cgroups/v3", "2.4 ms and 8 MB more for each start of a box"},
	{"cmd/boxd-init", "net/http", "the launcher stays small: it has root"},
	{"cmd/boxd-init", "github.com/spf13/cobra", "the launcher stays small: it has root"},
	{"agent", "net/http", "the agent is in every box: private memory of an idle box is 2 MB at most"},
}

// listed is what "go list -json" says about a package.
type listed struct {
	ImportPath    string
	Imports, Deps []string
}

// name is the path below the module.
func (p listed) name() string { return strings.TrimPrefix(p.ImportPath, module) }

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		r, ok := find(p.name())
		if !ok {
			t.Errorf("package %q has no row in %q: decide what it may import, and why", p.name(), "test/imports_test.go")
			continue
		}
		for _, imp := range p.Imports {
			checkImport(t, r, p.name(), imp)
		}
		for _, n := range never {
			if n.pkg == p.name() {
				checkNever(t, p, n.dep, n.why)
			}
		}
	}
}

func checkImport(t *testing.T, r row, name, imp string) {
	if own, ok := strings.CutPrefix(imp, module); ok {
		switch {
		case own == "internal/testutil" && !strings.HasPrefix(name, "test/"):
			t.Errorf("%s imports %s: that is for _test.go files", name, own)
		case !slices.Contains(base, own) && !matchAny(r.may, own):
			t.Errorf("%s imports %s: not in its row (%s)", name, own, r.why)
		}
		return
	}
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		return // the standard library
	}
	for _, f := range foreigns {
		if match(f.path+"/...", imp) {
			if !matchAny(f.by, name) {
				t.Errorf("%s imports %s: only %s may (%s)", name, imp, strings.Join(f.by, ", "), f.why)
			}
			return
		}
	}
	t.Errorf("%s imports %s: no row in foreigns says who may, and why", name, imp)
}

func checkNever(t *testing.T, p listed, dep, why string) {
	for _, d := range p.Deps {
		if match(dep+"/...", d) {
			t.Errorf("%s links %s: %s", p.name(), d, why)
			return
		}
	}
}

// find returns the row of a package; an exact one goes before a tree.
func find(name string) (row, bool) {
	for _, exact := range []bool{true, false} {
		for _, r := range rows {
			if exact && r.pkg == name || !exact && match(r.pkg, name) {
				return r, true
			}
		}
	}
	return row{}, false
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, name) })
}

// match understands "a", "a/..." (a and all below) and "..." (all).
func match(pattern, name string) bool {
	tree, ok := strings.CutSuffix(pattern, "...")
	if !ok {
		return pattern == name
	}
	return strings.HasPrefix(name+"/", tree)
}

// packages lists the module as the Makefile builds it.
func packages(t *testing.T) []listed {
	t.Helper()
	flags, err := exec.Command("make", "-s", "-C", "..", "--no-print-directory", "print-goflags").Output()
	if err != nil {
		t.Fatalf("asking the Makefile for its build tags: %v", err)
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS="+strings.TrimSpace(string(flags)))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}

func TestMatch(t *testing.T) {
	cases := []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true},
		{"a", "a/b", false},
		{"a/...", "a", true},
		{"a/...", "a/b", true},
		{"a/...", "ab", false},
		{"...", "a/b", true},
	}
	for _, c := range cases {
		if got := match(c.pattern, c.name); got != c.want {
			t.Errorf("match(%q, %q) = %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
}
