package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// units copies the units to a directory of the test, replaces our programs by existing ones, and returns
// the paths.
func units(t *testing.T) []string {
	t.Helper()
	sources, err := filepath.Glob("systemd/*")
	if err != nil || len(sources) == 0 {
		t.Fatalf("%q, %v", sources, err)
	}
	programs := regexp.MustCompile(`(?m)^(ExecStart=)/usr/(bin/boxd|libexec/boxd/boxd-init)\b`)
	dir := t.TempDir()
	var copies []string
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Base(source))
		if err := os.WriteFile(path, programs.ReplaceAll(text, []byte("${1}/bin/true")), 0o644); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, path)
	}
	return copies
}

func TestSystemdVerify(t *testing.T) {
	analyze := testutil.RequireProgram(t, "systemd-analyze")
	out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no"}, units(t)...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// The sandboxes may become tighter, not looser.
func TestSystemdSecurity(t *testing.T) {
	analyze := testutil.RequireProgram(t, "systemd-analyze")
	// Exposure is in tenths: 20 is 2.0 of 10.
	thresholds := map[string]string{"boxd.service": "20", "boxd-launcher.service": "82"}
	for _, unit := range units(t) {
		threshold, ok := thresholds[filepath.Base(unit)]
		if !ok {
			continue
		}
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--threshold="+threshold, "--no-pager", unit).CombinedOutput()
		if err != nil {
			t.Errorf("systemd-analyze security: %v\n%.3000s", err, out)
		}
	}
}

// The units rely on settings of each other.
func TestUnitsAgree(t *testing.T) {
	for file, lines := range map[string][]string{
		"systemd/boxd.service":         {"Type=notify", "User=boxd", "Restart=always", "RestartSec=200ms", "RestartPreventExitStatus=78", "StateDirectory=boxd", "ExecStart=/usr/bin/boxd serve"},
		"systemd/boxd.socket":          {"ListenStream=/run/boxd/boxd.sock", "SocketMode=0660", "SocketGroup=boxd", "TriggerLimitBurst=30"},
		"systemd/boxd-launcher.socket": {"ListenStream=/run/boxd/launcher.sock", "SocketMode=0600", "SocketUser=boxd"},
		"systemd/boxd-launcher.service": {"StateDirectory=boxd-volumes", "StateDirectoryMode=0700", "Delegate=yes",
			"ExecStart=/usr/libexec/boxd/boxd-init launcher --service --state-dir /run/boxd --client boxd --client-unit boxd.service --data-dir /var/lib/boxd-volumes --workspaces /var/lib/boxd/workspaces --containerd /usr/libexec/boxd/boxd-containerd", "KillMode=process", "Restart=always", "RestartPreventExitStatus=78"},
		"sysusers.d/boxd.conf": {`u boxd - "boxd daemon" /var/lib/boxd /usr/sbin/nologin`},
		"tmpfiles.d/boxd.conf": {"d /run/boxd 0711 root root -"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines {
			if !strings.Contains("\n"+string(text), "\n"+line+"\n") {
				t.Errorf("%s: no line %q", file, line)
			}
		}
	}
}

// The unit keeps the same capabilities as the launcher, which gives up the others itself.
func TestLauncherUnitCapabilities(t *testing.T) {
	name := regexp.MustCompile(`CAP_[A-Z_]+`)
	listed := func(file, from, to string) []string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), from)
		block, _, ended := strings.Cut(rest, to)
		names := name.FindAllString(block, -1)
		slices.Sort(names)
		if !ended || len(names) == 0 {
			t.Fatalf("%s: no list of capabilities", file)
		}
		return names
	}
	unit := listed("systemd/boxd-launcher.service", "\nCapabilityBoundingSet=", "\n")
	program := listed("../engine/native/launcher/capabilities.c", "uint64_t used =", ";\n")
	if !slices.Equal(unit, program) {
		t.Errorf("the unit keeps %q, the launcher %q", unit, program)
	}
}
