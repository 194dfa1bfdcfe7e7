package rootfs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

func TestChildren(t *testing.T) {
	all, err := linux.ParseMountInfo(strings.NewReader(strings.Join([]string{
		`10 1 8:1 / / rw - ext4 x rw`,
		`20 10 8:1 /usr /run/host/usr ro - ext4 x rw`,
		`21 20 8:2 / /run/host/usr/local ro - ext4 y rw`,
		`22 21 8:3 / /run/host/usr/local/lib ro - ext4 z rw`,
		`23 20 8:4 / /run/host/usr/a\040b\134c ro - ext4 z rw`,
	}, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id   uint64
		want []string
	}{
		{20, []string{"local", `a b\c`}},
		{21, []string{"lib"}},
		{22, nil},
	} {
		if got, err := children(all, c.id); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("below %d: %q, %v, want %q", c.id, got, err, c.want)
		}
	}
	if got, err := children(all, 99); err == nil {
		t.Errorf("below a mount that is not there: %q", got)
	}
}

// TestHostWithSubmounts: the host has another file system within /usr.
func TestHostWithSubmounts(t *testing.T) {
	testutil.Long(t)
	dir := stateDir(t)
	root := copySystem(t)
	m, err := linux.NewMount("tmpfs", 0, linux.Option{Key: "size", Value: "1m"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	local := filepath.Join(root, "usr/local")
	if err := linux.MoveMount(m, nil, local); err != nil {
		t.Fatal(err)
	}
	defer linux.Unmount(local, unix.MNT_DETACH)
	if err := os.WriteFile(local+"/x", []byte("submount\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h, err := buildHost(filepath.Join(dir, "host"), "", root, false)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for name, o := range map[string]Options{"read-only": options(testBase), "writable": writable(t, testBase)} {
		r := testBox(t, h, dir, name, o)
		if got := sh(t, r, testBase, "cat /usr/local/x; touch /usr/local/y 2>/dev/null || echo read-only"); got != "submount\nread-only" {
			t.Errorf("%s: %q", name, got)
		}
	}
}
