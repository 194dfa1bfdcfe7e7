package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNamedVolumes: a volume outlives sessions, several read it or one writes, live and across
// the death of the daemon, and the kernel keeps it within its size.
func TestNamedVolumes(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.says(0, "", "volumes", "create", "data", "--size", "8M")
	d.wantRefused(125, d.run("volumes", "create", "data", "--size", "9M"), "8 MiB", "resize it")
	d.says(0, "", "exec", "w", "--volume", "data:/data", "--user", "1234:1234", "--", "sh", "-c", "umask 0; echo kept > /data/file")
	d.wantRefused(125, d.run("exec", "r", "--volume", "data:/data:ro", "--", "true"), `session "w" has it read-write`)
	full := d.run("exec", "w", "--", "sh", "-c", "head -c 64M /dev/zero > /data/more")
	if full.status == 0 || !strings.Contains(full.stderr, "disk-quota") && !strings.Contains(full.stderr, "No space left") {
		t.Errorf("filling the volume: %v", full)
	}
	d.says(0, "", "exec", "w", "--", "rm", "/data/more")
	d.wantRefused(125, d.run("volumes", "rm", "data"), `"w"`)
	if got := d.run("volumes", "resize", "data", "--size", "16M"); got.status != 0 { // an image, and no CAP_SYS_RESOURCE
		d.wantRefused(125, got, "size 16 MiB", "a mounted image cannot grow", "detach it")
		d.says(0, "", "volumes", "detach", "w", "data")
		d.says(0, "", "volumes", "resize", "data", "--size", "16M")
		d.says(0, "", "volumes", "attach", "w", "data:/data")
	}
	d.says(0, "", "exec", "w", "--", "sh", "-c", "head -c 10M /dev/zero > /data/more && rm /data/more")
	d.kill()
	d.start()
	d.wantRefused(125, d.run("volumes", "attach", "w", "data:/more"), "attached already")
	d.says(0, "", "volumes", "detach", "w", "data")
	if got := d.run("exec", "w", "--", "cat", "/data/file"); got.status == 0 {
		t.Errorf("a detached volume: %v", got)
	}
	// Two readers, one of them live.
	d.says(0, "kept\n", "exec", "r", "--volume", "data:/data:ro", "--", "cat", "/data/file")
	d.says(0, "", "volumes", "attach", "w", "data:/elsewhere:ro")
	d.says(0, "kept\n", "exec", "w", "--", "cat", "/elsewhere/file")
	if got := d.run("exec", "w", "--", "sh", "-c", "echo no > /elsewhere/file"); got.status == 0 {
		t.Errorf("writing to a volume that is read-only: %v", got)
	}
	d.says(0, "data 16777216 ready\n", "volumes", "ls", "--format", "{{.name}} {{.size}} {{.state}}")
	d.says(0, "", "sessions", "rm", "w", "r")
	d.kill()
	d.start()
	d.says(0, "kept\n", "exec", "x", "--volume", "data:/data:ro", "--", "cat", "/data/file")
	d.says(0, "", "sessions", "rm", "x")
	exported := d.run("volumes", "export", "data")
	if exported.status != 0 || exported.stderr != "" {
		t.Fatalf("%v", exported)
	}
	d.says(0, "", "volumes", "create", "copy", "--size", "8M")
	d.stdin = strings.NewReader(exported.stdout)
	d.says(0, "", "volumes", "import", "copy")
	d.says(0, "kept\n", "exec", "x", "--volume", "copy:/data:ro", "--", "cat", "/data/file")
	d.wantRefused(125, d.run("volumes", "import", "copy"), `session "x" has it read-only`)
	d.wantRefused(125, d.run("volumes", "export", "none"), "must be a volume of the tenant")
	d.says(0, "x\n", "sessions", "ls", "-q")
	d.says(0, "", "sessions", "rm", "x")
	// A snapshot is on its own, and one whose source is written to is refused.
	if snap := d.run("volumes", "snapshot", "data", "snap"); strings.Contains(snap.stderr, "is a directory with project quota") {
		d.says(0, "", "volumes", "rm", "data", "copy")
		return // only images are copied
	} else if snap.status != 0 {
		t.Fatalf("%v", snap)
	}
	d.says(0, "kept\n", "exec", "x", "--volume", "snap:/data", "--", "sh", "-c", "cat /data/file; echo other > /data/file")
	d.wantRefused(125, d.run("volumes", "snapshot", "snap", "more"), `session "x" has it read-write`)
	d.wantRefused(125, d.run("volumes", "snapshot", "data", "copy"), `was not made from "data"`)
	d.says(0, "", "volumes", "snapshot", "data", "snap") // it is there
	d.says(0, "kept\n", "exec", "y", "--volume", "data:/data:ro", "--", "cat", "/data/file")
	d.says(0, "", "volumes", "snapshot", "data", "large", "--size", "64M")
	d.says(0, "", "sessions", "rm", "x", "y")
	d.says(0, "kept\n", "exec", "x", "--volume", "large:/data", "--", "sh", "-c", "cat /data/file; head -c 40M /dev/zero > /data/more")
	d.says(0, "", "sessions", "rm", "x")
	// A process that still has a file of a detached volume open keeps it from being copied.
	d.says(0, "", "exec", "x", "--volume", "large:/data", "--", "true")
	d.says(0, "", "start", "x", "--id", "writer", "--", "sh", "-c", "exec 3> /data/log; while :; do echo x >&3; done")
	d.says(0, "", "volumes", "detach", "x", "large")
	d.wantRefused(125, d.run("volumes", "snapshot", "large", "torn"), `from "large"`, "written to while it was copied")
	d.says(0, "", "sessions", "rm", "x")
	// The data of a volume goes.
	d.stop()
	images, err := filepath.Glob(filepath.Join(d.dir, "volumes", "v-*"))
	if err != nil || len(images) == 0 {
		t.Fatal(err)
	}
	for _, image := range images {
		if err := os.Rename(image, filepath.Join(d.dir, filepath.Base(image))); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	d.wantRefused(125, d.run("exec", "x", "--volume", "snap:/data", "--", "true"), `volume "snap": its data is gone`)
	d.wantRefused(125, d.run("volumes", "resize", "snap", "--size", "64M"), `volume "snap": its data is gone`)
	d.says(0, "lost\nlost\nlost\nlost\n", "volumes", "ls", "--format", "{{.state}}")
	d.stop()
	for _, image := range images {
		if err := os.Rename(filepath.Join(d.dir, filepath.Base(image)), image); err != nil {
			t.Fatal(err)
		}
	}
	d.start()
	d.says(0, "other\n", "exec", "x", "--volume", "snap:/data", "--", "cat", "/data/file")
	d.says(0, "", "sessions", "rm", "x")
	d.says(0, "", "volumes", "rm", "data", "copy", "snap", "large")
	if left, err := filepath.Glob(filepath.Join(d.dir, "volumes", "v-*")); err != nil || len(left) > 0 {
		t.Errorf("left of the volume: %q, %v", left, err)
	}
}
