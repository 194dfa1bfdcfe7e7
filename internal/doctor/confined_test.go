package doctor

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

const (
	confinedVariable = "BOXD_TEST_DOCTOR"
	filterVariable   = "BOXD_TEST_DOCTOR_FILTER"
)

// beConfined runs the doctor in the surroundings that TestConfined sets up. TestMain calls it.
func beConfined() error {
	if os.Getenv(filterVariable) != "" {
		if err := refuseFsopen(); err != nil {
			return err
		}
	}
	f := Gather(context.Background(), Host{InitError: engine.ErrNoLauncher, StateDir: "/"})
	r := NewReport(f)
	r.Explain(f)
	out, err := os.OpenFile(os.Getenv(confinedVariable), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer out.Close()
	return json.NewEncoder(out).Encode(r)
}

// refuseFsopen installs a filter like those of container runtimes, for one system call.
func refuseFsopen() error {
	var program []byte
	for _, f := range []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 0, Jf: 1, K: unix.SYS_FSOPEN},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	} {
		program = binary.NativeEndian.AppendUint16(program, f.Code)
		program = append(program, f.Jt, f.Jf)
		program = binary.NativeEndian.AppendUint32(program, f.K)
	}
	return linux.SeccompAllThreads(program)
}

// TestConfined runs the doctor like containers do. Each of them withholds one thing, and the doctor
// must say which.
func TestConfined(t *testing.T) {
	testutil.RequireRoot(t)
	for _, program := range []string{"unshare", "setpriv"} {
		testutil.RequireProgram(t, program)
	}
	for _, c := range []struct {
		name    string
		within  []string // the command that starts the helper
		env     string
		around  string // part of the surroundings
		check   string
		because string
	}{
		{"no capability", []string{"setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"}, "", "without CAP_SYS_ADMIN", featureMounts, "root here has no CAP_SYS_ADMIN"},
		{"a user", []string{"setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"}, "", "without CAP_SYS_ADMIN", "privilege", "this is user 65533"},
		{"user namespace", []string{"unshare", "--user", "--map-root-user"}, "", "in a user namespace of its own", featureIDMap, "root of a user namespace only"},
		{"read-only cgroups", []string{"unshare", "--mount", "sh", "-c",
			`for m in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/self/mounts); do mount -o remount,bind,ro "$m" || exit; done; exec "$@"`, "sh"}, "", "is read-only", "memory limit", "is mounted read-only"},
		{"covered /proc", []string{"unshare", "--mount", "sh", "-c", `mount --bind /dev/null /proc/interrupts && exec "$@"`, "sh"}, "", "parts of /proc are covered", "", ""},
		{"filter", []string{"setpriv", "--no-new-privs"}, filterVariable + "=1", "system calls are filtered", featureMounts, "a seccomp filter"},
	} {
		out, err := os.CreateTemp("", "boxd-doctor-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(out.Name())
		defer out.Close()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if err := out.Chmod(0o666); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(c.within[0], append(slices.Clone(c.within[1:]), "/proc/self/fd/3")...)
		program, err := os.Open(self) // the user cannot enter its directory
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		cmd.ExtraFiles = []*os.File{program}
		cmd.Env = append(os.Environ(), confinedVariable+"="+out.Name(), c.env)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v, %s", c.name, err, text)
			continue
		}
		var r Report
		if err := json.NewDecoder(out).Decode(&r); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if !strings.Contains(r.Surroundings, c.around) {
			t.Errorf("%s: surroundings %q, want %q", c.name, r.Surroundings, c.around)
		}
		i := slices.IndexFunc(r.Checks, func(one Check) bool { return one.Name == c.check })
		if c.check == "" {
			continue // nothing is refused before a box is built
		}
		if i < 0 || !strings.Contains(r.Checks[i].Cause, c.because) || r.Checks[i].Command == "" {
			t.Errorf("%s: %s: want it because %q: %+v", c.name, c.check, c.because, r.Checks)
		}
	}
}
