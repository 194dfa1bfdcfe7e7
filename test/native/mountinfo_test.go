package native

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

// TestMountTable: each directory is mounted once, and the table names nothing of the launcher's.
func TestMountTable(t *testing.T) {
	e := start(t)
	boxes := map[string]engine.Box{"read-only": create(t, e, engine.Spec{})}
	if b, ok := createWritable(t, e, engine.Spec{}); ok {
		boxes["writable"] = b
	}
	for kind, b := range boxes {
		o := run(t, b, shell("cat /proc/self/mountinfo"))
		seen := map[string]bool{}
		for line := range strings.Lines(o.Stdout) {
			point := strings.Fields(line)[4]
			if seen[point] {
				t.Errorf("%s: %q is mounted twice:\n%s", kind, point, o.Stdout)
			}
			seen[point] = true
		}
		for _, want := range []string{"/", "/dev", "/dev/pts", "/dev/shm", "/proc", "/etc", "/usr"} {
			if !seen[want] {
				t.Errorf("%s: %q is not mounted:\n%s", kind, want, o.Stdout)
			}
		}
		for _, secret := range []string{"/fd/", "/run-", b.ID()} {
			if strings.Contains(o.Stdout, secret) {
				t.Errorf("%s: %q is in the table:\n%s", kind, secret, o.Stdout)
			}
		}
	}
}

// TestProcessors: programs that ask /sys for the processors get the host's number in a box without a limit, and
// nothing else of /sys is there.
func TestProcessors(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{CPUs: engine.Unlimited}})
	wantOutput(t, b, "cd /sys && find . -maxdepth 3 | sort && cd devices/system/cpu && ls -d cpuidle cpufreq cpu0/cpuidle cpu0/cache power 2>/dev/null; touch x 2>/dev/null || echo read-only",
		".\n./devices\n./devices/system\n./devices/system/cpu\nread-only\n")
	host := func(script string) string {
		out, err := exec.Command("sh", "-c", script).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for _, script := range []string{"nproc --all", "lscpu -p=CPU | grep -v '^#'", "cat /sys/devices/system/cpu/online"} {
		wantOutput(t, b, script, host(script))
	}
}
