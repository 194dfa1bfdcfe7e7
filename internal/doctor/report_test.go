package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/netns"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write the golden files anew")

// healthy returns the facts of a host that lacks nothing, after change.
func healthy(change func(*Facts)) Facts {
	f := Facts{
		Version: "1.2.3", Release: "6.12.90+deb13-amd64", Machine: "x86_64",
		Features: map[string]error{},
		Sysctls: map[string]string{
			"user/max_user_namespaces": "31000", "kernel/unprivileged_userns_clone": "1",
			poolPIDs: "4194304", poolFiles: "9223372036854775807", poolAIO: "65536", poolPTY: "4096", reservePTY: "1024",
			poolTCP: "131072\t262144\t1048576", poolUDP: "131072\t262144\t1048576",
		},
		Memory: 4 << 30, PageSize: 4096,
		CgroupMode: string(cgroups.Unified),
		Enforcement: []cgroups.Enforcement{
			{Limit: "memory", Enforced: true, By: "cgroup2 memory.max"},
			{Limit: "swap", Enforced: true, By: "cgroup2 memory.swap.max"},
		},
		StateDir: "/var/lib/boxd", Images: ImageFacts{VerityError: errNo, Free: 40 << 30, Size: 50 << 30},
		InitPath: "/usr/libexec/boxd/boxd-init",
		Box:      Trial{Create: 9 * time.Millisecond, Run: 1500 * time.Microsecond},
	}
	for name := range probes {
		f.Features[name] = nil
	}
	change(&f)
	return f
}

var errNo = fmt.Errorf("tried it: %w", errors.ErrUnsupported)

func TestReport(t *testing.T) {
	eperm := os.NewSyscallError("fsopen", unix.EPERM)
	for name, change := range map[string]func(*Facts){
		"healthy": func(*Facts) {},
		"hybrid": func(f *Facts) {
			f.Memory = 24 << 30
			f.Images.LayersByName, f.Images.VerityError = true, nil
			f.Sysctls[poolPIDs], f.Sysctls[poolFiles], f.Sysctls[poolPTY] = "4096", "100000", "1500"
			f.Sysctls[poolTCP] = "287901\t383868\t575802"
			delete(f.Sysctls, poolUDP)
			f.CgroupMode = string(cgroups.Hybrid)
			f.Enforcement = []cgroups.Enforcement{
				{Limit: "memory", Enforced: true, By: "cgroup v1 memory.limit_in_bytes", Note: "weaker than cgroup2"},
				{Limit: "swap", Note: "memory.memsw.limit_in_bytes does not exist", Mend: "boot with swapaccount=1"},
			}
			f.Box.Error, f.Box.Degraded = fmt.Errorf("swap: %w", engine.ErrUnenforceable), true
		},
		"old": func(f *Facts) {
			f.Release, f.Upstream = "5.10.0-33-amd64", "5.10.226"
			f.HostWide = []netns.HostWide{
				{Sysctl: netns.Sysctl{Path: "core/tstamp_allow_data", Value: "0", Since: "6.13"}, Present: "1"},
				{Sysctl: netns.Sysctl{Path: "core/optmem_max", Value: "4096", Since: "6.8"}, Present: "20480"},
			}
			for _, feature := range []string{featureMounts, featureIDMap, featureOverlay, featureMemfd} {
				f.Features[feature] = errNo
			}
			f.WorkspaceError, f.Images = errNo, ImageFacts{LayersError: errNo, VerityError: errNo, Free: 1 << 30, Size: 50 << 30}
			f.CgroupMode, f.Enforcement, f.CgroupError = "", nil, errors.New("mounting cgroup2: no such device")
			f.Box.Error = errors.New("creating box: no such device")
		},
		"unprivileged": func(f *Facts) {
			f.UID, f.Enforcement, f.Box.Error = 1000, nil, errNotRoot
			f.Sysctls["kernel/apparmor_restrict_unprivileged_userns"] = "1"
			for _, feature := range []string{featureUserNS, featureMounts, featureIDMap, featureOverlay} {
				f.Features[feature] = eperm
			}
			f.WorkspaceError, f.Images = eperm, ImageFacts{LayersError: eperm, VerityError: eperm}
		},
		"no-init": func(f *Facts) {
			f.InitPath, f.InitError = "", fmt.Errorf("%w: no boxd-init", engine.ErrNoLauncher)
			f.Box.Error = f.InitError
		},
	} {
		r := NewReport(healthy(change))
		var text bytes.Buffer
		if err := r.WriteText(&text, func(text string, _ Status) string { return text }); err != nil {
			t.Fatal(err)
		}
		wantGolden(t, name+".txt", text.Bytes())
		if name == "hybrid" {
			doc, err := json.MarshalIndent(r, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			wantGolden(t, name+".json", append(doc, '\n'))
		}
		if r.OK != (name == "healthy") {
			t.Errorf("%s: OK is %v", name, r.OK)
		}
	}
}

func wantGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is now\n%s", name, got)
	}
}

func TestUserNamespaces(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     error
		uid     int
		highest string
		status  Status
		mend    string
	}{
		{"fine", nil, 0, "100", OK, ""},
		{"none allowed", unix.ENOSPC, 0, "0", Failed, "set sysctl user.max_user_namespaces to 10000 or more"},
		{"not in the kernel", errNo, 0, "", Failed, "needs a kernel with CONFIG_USER_NS"},
		{"refused to root", unix.EPERM, 0, "100", Failed, "if boxd runs in a container, allow it clone with CLONE_NEWUSER and all ids"},
		{"refused to others", unix.EPERM, 7, "100", Unknown, ""},
	} {
		got := healthy(func(f *Facts) {
			f.Features[featureUserNS], f.UID, f.Sysctls["user/max_user_namespaces"] = c.err, c.uid, c.highest
		}).userNamespaces()
		if got.Status != c.status || got.Mend != c.mend {
			t.Errorf("%s: %+v, want %s, %q", c.name, got, c.status, c.mend)
		}
	}
}

// A leftover is shown with a bounded number of reasons, and does not mean that there are no boxes.
func TestLeftovers(t *testing.T) {
	reasons := map[string]string{}
	for i := range 1000 {
		reasons[fmt.Sprintf("b%03d", i)] = fmt.Sprintf("box \"b%03d\": busy", i)
	}
	f := healthy(func(f *Facts) {
		f.RunDir = "/run/boxd"
		f.Leftovers = []*leftover.Record{{Instance: "run-a", Tries: 3, Reasons: reasons, Next: time.Unix(0, 0)}, {Instance: "run-b", Tries: 1, Reasons: map[string]string{"": "no"}}}
	})
	r := NewReport(f)
	got := r.Checks[len(r.Checks)-2:]
	if !r.OK || got[0].Name != "leftover" || got[0].Status != Degraded || got[1].Name != "leftover" {
		t.Fatalf("%+v", r)
	}
	for _, part := range []string{"run-a", "3 tries", `box "b000": busy`, "980 more"} {
		if !strings.Contains(got[0].Detail, part) || len(got[0].Detail) > 2000 {
			t.Errorf("%q: want %q in it", got[0].Detail, part)
		}
	}
	for _, part := range []string{"1970-01-01T00:00:00Z", "rm /run/boxd/stuck-run-a"} {
		if !strings.Contains(got[0].Mend, part) {
			t.Errorf("%q: want %q in it", got[0].Mend, part)
		}
	}
}
