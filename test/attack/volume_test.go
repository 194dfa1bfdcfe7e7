package attack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// TestVolumeProbes tries from inside of a volume what would take its limit away: in one
// that the service has made and, where this host can, in a limited directory.
func TestVolumeProbes(t *testing.T) {
	testutil.RequireRoot(t)
	program := buildProbe(t)
	s := startService(t)
	if err := s.MakeVolume(t.Context(), engine.Volume{Name: "probed", Bytes: 8 << 20}); err != nil {
		t.Fatal(err)
	}
	all := map[string]engine.Mount{"volume": {Source: "/", Volume: "probed", Target: engine.WorkspaceTarget}}
	host := t.TempDir()
	err := s.LimitDirectory(t.Context(), engine.Directory{Path: host, Within: host}, 8<<20, 1000)
	if err == nil {
		all["directory"] = engine.Mount{Source: host, Target: engine.WorkspaceTarget}
	} else if !errors.Is(err, engine.ErrUnenforceable) {
		t.Fatal(err)
	}
	for name, m := range all {
		for _, user := range []engine.User{{}, {UID: 1000, GID: 1000}} {
			b := createLive(t, s, engine.Spec{
				User:   user,
				Mounts: []engine.Mount{m, {Source: filepath.Dir(program), Target: probeTarget, ReadOnly: true}},
			})
			for _, probe := range probes(t, program, "volume") {
				t.Run(fmt.Sprintf("%s/user %d/%s", name, user.UID, probe), func(t *testing.T) {
					wantBlocked(t, b, probe, []string{"dir=" + engine.WorkspaceTarget})
				})
			}
			wantStillLimited(t, b)
		}
	}
}

// wantStillLimited: after all that was tried 8 MiB are the most.
func wantStillLimited(t *testing.T, b engine.Box) {
	t.Helper()
	script := `mkdir -p /workspace/deep/er; cat /dev/zero > /workspace/deep/er/f 2>/dev/null; du -sk /workspace | cut -f1; rm -r /workspace/deep`
	var out strings.Builder
	r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"sh", "-c", script}, Stdout: &out})
	var used int
	if _, serr := fmt.Sscan(out.String(), &used); err != nil || serr != nil || used > 8<<10 || used < 4<<10 {
		t.Errorf("%q KiB could be written, %+v, %v", out.String(), r, errors.Join(err, serr))
	}
}

// dataDir is a place for volumes.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxd-test-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "volumes")
}
