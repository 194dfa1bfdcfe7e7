package mounts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// openVerdict returns "" if source may be mounted, otherwise the error message.
func openVerdict(source string, deny []string) string {
	s, err := Open(spec.Mount{Source: source, Target: "/t"}, deny)
	if err != nil {
		return err.Error()
	}
	s.Close()
	return ""
}

// checkVerdicts compares; an empty want means that the source may be mounted.
func checkVerdicts(t *testing.T, deny []string, table [][2]string) {
	t.Helper()
	for _, row := range table {
		got := openVerdict(row[0], deny)
		if row[1] == "" && got != "" || !strings.Contains(got, row[1]) {
			t.Errorf("%s: %q, want %q", row[0], got, row[1])
		}
	}
}

func TestDefaultDeny(t *testing.T) {
	testutil.RequireRoot(t) // to look into /root
	checkVerdicts(t, DefaultDeny, [][2]string{
		{"/", `is "/", which is never mounted: use a directory outside of it`},
		{"/usr/..", `is "/"`},
		{"/etc", `is "/etc"`},
		{"/etc/passwd", `lies in "/etc"`},
		{"/usr/../etc/passwd", `lies in "/etc"`},
		{"/proc", `is "/proc"`},
		{"/proc/sys/kernel", `lies in "/proc"`},
		{"/sys", `is "/sys"`},
		{"/sys/fs/cgroup", `lies in "/sys"`},
		{"/dev", `is "/dev"`},
		{"/dev/shm", `lies in "/dev"`},
		{"/root", `is "/root"`},
		{"/run", `is "/run"`},
		{"/var/run", `is "/run"`},
		{"/usr", ""},
		{"/usr/bin", ""},
		{"/tmp", ""},
		{"/home", ""},
	})
}

// denyTree is a tree with boxd's state in it.
func denyTree(t *testing.T) (base string) {
	t.Helper()
	base = t.TempDir()
	for _, dir := range []string{"var/state/boxes/x", "var/other", "var/statex", "mnt", "mnt2"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"var/state/file", "var/other/socket", "var/other/file"} {
		if err := os.WriteFile(filepath.Join(base, file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	links := map[string]string{"to-state": "var/state", "to-var": "var", "to-file": "var/state/file"}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(base, name)); err != nil {
			t.Fatal(err)
		}
	}
	return base
}

func TestDenyRelations(t *testing.T) {
	base := denyTree(t)
	deny := []string{"/", base + "/var/state", base + "/not/there", base + "/var/other/socket"}
	checkVerdicts(t, deny, [][2]string{
		{base + "/var/state", "is \"" + base + "/var/state\""},
		{base + "/var/state/boxes/x", "lies in"},
		{base + "/var/state/file", "lies in"},
		{base + "/to-state", "is \""},
		{base + "/to-state/boxes", "lies in"},
		{base + "/to-file", "lies in"},
		{base + "/var", "contains"},
		{base + "/to-var", "contains"},
		{base, "contains"},
		{filepath.Dir(base), "contains"},
		{base + "/var/other", "contains"},
		{base + "/var/other/socket", "is \""},
		{base + "/var/other/file", ""},
		{base + "/var/statex", ""},
		{base + "/mnt", ""},
	})
}

// A denied tree is still denied if it is mounted somewhere else.
func TestDenyAliases(t *testing.T) {
	testutil.RequireRoot(t)
	base := denyTree(t)
	mnt := base + "/mnt"
	deny := append(slices.Clone(DefaultDeny), base+"/var/state")
	for _, c := range []struct {
		bind  string
		table [][2]string
	}{
		{"/etc", [][2]string{{mnt, `is "/etc"`}, {mnt + "/passwd", `lies in "/etc"`}}},
		{"/etc/security", [][2]string{{mnt, `lies in "/etc"`}}},
		{"/etc/passwd", [][2]string{{base + "/mnt-file", `lies in "/etc"`}}},
		{"/", [][2]string{{mnt, `is "/"`}, {mnt + "/etc", `is "/etc"`}, {mnt + "/root", `is "/root"`}, {mnt + "/usr/bin", ""}, {mnt + "/usr", ""}}},
		{"/dev", [][2]string{{mnt, `is "/dev"`}, {mnt + "/null", "is a device"}}},
		{"/sys/kernel", [][2]string{{mnt, `lies in "/sys"`}}},
		{base + "/var", [][2]string{{mnt, "contains"}, {mnt + "/state", "is \""}, {mnt + "/state/file", "lies in"}, {mnt + "/statex", ""}, {mnt + "/other", ""}}},
		{base + "/var/state/boxes", [][2]string{{mnt, "lies in"}, {mnt + "/x", "lies in"}}},
		{base + "/var/other", [][2]string{{mnt, ""}, {mnt + "/file", ""}}},
	} {
		t.Run(c.bind, func(t *testing.T) {
			inPrivateNamespace(t, func() error {
				point := c.table[0][0]
				if strings.HasSuffix(point, "-file") {
					if err := os.WriteFile(point, nil, 0o644); err != nil {
						return err
					}
				}
				if err := unix.Mount(c.bind, point, "", unix.MS_BIND, ""); err != nil {
					return fmt.Errorf("bind mount of %s: %w", c.bind, err)
				}
				checkVerdicts(t, deny, c.table)
				return nil
			})
		})
	}
}

// A denied tree contains what is mounted in it, whatever the file system; and a directory
// that is mounted on its own child is not the root.
func TestDenyAcrossMounts(t *testing.T) {
	testutil.RequireRoot(t)
	base := denyTree(t)
	deny := []string{base + "/var/state"}
	inPrivateNamespace(t, func() error {
		if err := unix.Mount("tmpfs", base+"/var/state/boxes/x", "tmpfs", 0, ""); err != nil {
			return err
		}
		if err := unix.Mount(base+"/var/state/boxes", base+"/var/state/boxes", "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if err := os.Mkdir(base+"/var/state/boxes/y", 0o755); err != nil {
			return err
		}
		if err := unix.Mount(base+"/var/state/boxes", base+"/var/state/boxes/y", "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", base+"/var/state/boxes/y/x", "tmpfs", 0, ""); err != nil {
			return err
		}
		checkVerdicts(t, deny, [][2]string{
			{base + "/var/state/boxes/y", "lies in"},
			{base + "/var/state/boxes/y/x", "lies in"},
			{base + "/mnt", ""},
		})
		return nil
	})
}

func TestDenyControlFileSystems(t *testing.T) {
	testutil.RequireRoot(t)
	mnt := t.TempDir()
	for _, fsType := range []string{"proc", "sysfs", "devpts", "mqueue", "devtmpfs"} {
		inPrivateNamespace(t, func() error {
			if err := unix.Mount(fsType, mnt, fsType, 0, ""); err != nil {
				return fmt.Errorf("mounting %s: %w", fsType, err)
			}
			checkVerdicts(t, []string{"/etc"}, [][2]string{{mnt, "lies on a " + fsType + " file system, which is never mounted"}})
			return nil
		})
	}
}
