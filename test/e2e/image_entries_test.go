package e2e

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// manyEntries writes an archive of n empty files in directories of 10,000.
func manyEntries(t *testing.T, n int) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "many.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	b := bufio.NewWriter(f)
	z, err := gzip.NewWriterLevel(b, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for i := range n {
		h := tar.Header{Name: fmt.Sprintf("d%d/%d", i/10_000, i), Mode: 0o644, Format: tar.FormatUSTAR}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close(), b.Flush(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// TestTenMillionEntries: an archive of ten million entries is refused at the limit, in bounded time and memory.
func TestTenMillionEntries(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes minutes: make full runs it")
	}
	c := newImageCLI(t)
	c.ok("image", "import", tarOf(t, rootFS(t, false, nil)), "--name", "good")
	dirs := []string{filepath.Join(c.data, "images"), filepath.Join(c.data, "store")}
	before := tree(t, dirs...)
	path := manyEntries(t, 10_000_000)
	cmd, cancel := c.commandWithin(15*time.Minute, "image", "import", "-q", path, "--name", "many")
	defer cancel()
	began := time.Now()
	out, err := cmd.CombinedOutput()
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	t.Logf("%v, %d MiB of memory: %s", time.Since(began).Round(time.Second), usage.Maxrss>>10, out)
	c.wantRefused(125, result{cmd.ProcessState.ExitCode(), "", string(out)}, "image refused", "more than 2000000 entries")
	if !strings.HasSuffix(string(out), "more than 2000000 entries\n") {
		t.Errorf("%q says more than the reason", out)
	}
	if err == nil || usage.Maxrss > 256<<10 {
		t.Errorf("%v, %d KiB of memory", err, usage.Maxrss)
	}
	// What is in the trash is deleted while other launchers run.
	trash := filepath.Join(c.data, "images", "trash") + "/"
	after := slices.DeleteFunc(tree(t, dirs...), func(path string) bool { return strings.HasPrefix(path, trash) })
	if !slices.Equal(before, after) {
		t.Errorf("left %d files", len(after)-len(before))
	}
}
