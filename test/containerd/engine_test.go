package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/containerd"
	"github.com/boxd/boxd/engine/oci"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// world is what a launcher has ready when a box is to be born, made by hand: a state directory,
// and a root that exists only in a mount namespace of its own.
type world struct {
	state       string
	hosts       *cgroups.Host
	ns, network *os.File
}

const rootDir = "/mnt" // in the mount namespace

func newWorld(t *testing.T) *world {
	t.Helper()
	busybox := testutil.RequireProgram(t, "busybox")
	w := &world{state: testutil.ReachableDir(t, "")}
	var err error
	if w.hosts, err = cgroups.Detect(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.hosts.Close() })
	tree, err := w.hosts.ReadOnlyTree()
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	err = linux.OnThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return err
		}
		if err := linux.MoveMount(tree, nil, "/sys/fs/cgroup"); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", rootDir, "tmpfs", 0, "mode=0755"); err != nil {
			return err
		}
		for _, dir := range []string{"proc", "dev", "bin"} {
			if err := os.Mkdir(filepath.Join(rootDir, dir), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(rootDir, "bin/busybox"), program, 0o755); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var nerr error
		w.ns, err = os.Open("/proc/thread-self/ns/mnt")
		w.network, nerr = os.Open("/proc/thread-self/ns/net")
		return errors.Join(err, nerr)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { linux.CloseAll([]*os.File{w.ns, w.network}) })
	return w
}

func (w *world) options(t *testing.T, d *Daemon) containerd.Options {
	t.Helper()
	return containerd.Options{
		Program: testutil.BuildContainerd(t), Address: d.Address, Runtime: containerd.DefaultRuntime, StateDir: w.state,
		Runc: func() (string, error) { return oci.Find("runc") },
	}
}

// birth makes what belongs to one box. The test calls remove after its processes were killed.
func (w *world) birth(t *testing.T, name string, args ...string) (b containerd.Birth, g *cgroups.Group, remove func()) {
	t.Helper()
	name = fmt.Sprintf("ctrd%d.%s", os.Getpid(), name)
	g, err := w.hosts.Create(name, cgroups.Owner{}, cgroups.Limits{Memory: 64 << 20, PIDs: 50, AllowDegraded: true})
	if err != nil {
		t.Fatal(err)
	}
	box := filepath.Join(w.state, name)
	if err := os.Mkdir(box, 0o700); err != nil {
		t.Fatal(err)
	}
	config := oci.Config(oci.Box{Root: rootDir, Dev: "/dev", IDs: 1, Args: args, Env: []string{"PATH=/bin"}, Hostname: name})
	// Not those of a launcher: with root as the host's, the box needs no ids.
	config.Linux.UIDMappings, config.Linux.GIDMappings = nil, nil
	config.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	home, err := g.InitDir()
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := g.InitTasks()
	if err != nil {
		t.Fatal(err)
	}
	runc, err := oci.Find("runc")
	if err != nil {
		t.Fatal(err)
	}
	b = containerd.Birth{Container: containerd.ContainerID(name), Box: box, Runc: runc, Spec: text, MountNS: w.ns, NetworkNS: w.network, Cgroup: home, Tasks: tasks}
	return b, g, func() {
		home.Close()
		linux.CloseAll(tasks)
		if err := errors.Join(g.Kill(), g.Remove(context.Background()), os.Remove(box)); err != nil {
			t.Error(err)
		}
		g.Close()
	}
}

// compareStats compares what containerd reports with the files of the cgroups in which PID 1 is.
func compareStats(t *testing.T, w *world, e *containerd.Engine, container string, pid int) {
	t.Helper()
	awaitWithin(t, "PID 1 runs its program", func() bool {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		return len(name) > 0 && !strings.HasPrefix(string(name), "runc")
	})
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	read := func(controller, v1, v2 string) int64 {
		name := v1
		if w.hosts.Mode() == cgroups.Unified {
			controller, name = "", v2
		}
		for line := range strings.Lines(string(text)) {
			if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); fields[1] == controller {
				number, err := os.ReadFile(filepath.Join(w.hosts.Mountpoint(controller), fields[2], name))
				if err != nil {
					t.Fatal(err)
				}
				n, _ := strconv.ParseInt(strings.TrimSpace(string(number)), 10, 64)
				return n
			}
		}
		t.Fatalf("no %q in %s", controller, text)
		return 0
	}
	s, err := e.Stats(t.Context(), container)
	awaitWithin(t, "containerd reports what the cgroups have", func() bool { // it executes another program meanwhile
		if err != nil {
			t.Fatal(err)
		}
		memory, pids := read("memory", "memory.usage_in_bytes", "memory.current"), read("pids", "pids.current", "pids.current")
		same := s.Memory >= memory/2 && s.Memory <= 2*memory && memory > 0 && s.PIDs == pids
		if !same {
			t.Logf("containerd reports %d bytes and %d processes, the cgroups %d and %d", s.Memory, s.PIDs, memory, pids)
			s, err = e.Stats(t.Context(), container)
		}
		return same
	})
	if (s.CPU == nil) != (w.hosts.Mode() != cgroups.Unified) {
		t.Errorf("CPU time %v", s.CPU)
	}
}

func TestContainer(t *testing.T) {
	d, w := Start(t), newWorld(t)
	e := containerd.New(w.options(t, d))
	defer e.Close()
	version, err := e.State(t.Context())
	if err != nil || version == "" {
		t.Fatalf("%q, %v", version, err)
	}
	b, g, remove := w.birth(t, "a", "/bin/busybox", "sh", "-c", "read -r line <&3; exec sleep 1000 <&3")
	ours, theirs, err := linux.SocketPair()
	if err != nil {
		t.Fatal(err)
	}
	b.Files = []*os.File{theirs}
	pid, err := e.Create(t.Context(), b)
	theirs.Close()
	if err == nil {
		err = e.Run(t.Context(), b.Container)
	}
	if err != nil {
		remove()
		t.Fatal(err)
	}
	if in, err := g.HasInit(pid); !in || err != nil {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		t.Errorf("PID 1 is not in its cgroup: %v\n%s", err, text)
	}
	// PID 1 has inherited descriptor 3: it ends the connection only when it ends.
	if _, err := ours.WriteString("go on\n"); err != nil {
		t.Error(err)
	}
	compareStats(t, w, e, b.Container, pid)
	if out, _ := exec.Command("grep", "-l", w.state, "/proc/self/mountinfo").Output(); len(out) > 0 {
		t.Error("a mount of the box is visible on the host")
	}
	if list := d.List(); len(list) != 2 {
		t.Errorf("containerd has %q", list)
	}
	remove()
	ours.Close()
	e.Forget(t.Context(), b.Container)
	d.AwaitEmpty()
	if left, err := os.ReadDir(w.state); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}
