package badluck

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/test/daemon"
)

// TestImportFillsDisk: an import that fills the disk of the layers, in bytes or in files, ends with one
// clear line and leaves nothing, and images that are there stay whole.
func TestImportFillsDisk(t *testing.T) {
	// The other disk that the daemon looks at, which is this host's, may be rather full itself.
	var host unix.Statfs_t
	if err := unix.Statfs(os.TempDir(), &host); err != nil {
		t.Fatal(err)
	}
	percent := min(20, 50*host.Bavail/host.Blocks)
	for _, minFree := range []string{"0", fmt.Sprint(percent)} {
		t.Run("min_free "+minFree, func(t *testing.T) {
			dir := newDir(t)
			data := filepath.Join(dir, "state", "volumes")
			if err := os.MkdirAll(data, 0o711); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(mountImage(t, 40<<20)(data), os.Chmod(data, 0o700)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(data, 0); err != nil {
					t.Error(err)
				}
			})
			t.Setenv("BOXD_SESSIONS_MIN_FREE", minFree)
			_, cl := daemon.ForTest(t, daemon.Config{Dir: dir, Runtime: filepath.Join(dir, "run")})
			if _, err := cl.ImportImage(timeLimit(t), rootOf(10, 1<<10), client.ImportOptions{Name: "small"}); err != nil {
				t.Fatal(err)
			}
			before := freeOf(t, data)
			for what, archive := range map[string]io.Reader{"bytes": rootOf(80, 1<<20), "files": rootOf(30000, 0)} {
				_, err := cl.ImportImage(timeLimit(t), archive, client.ImportOptions{Name: "large"})
				// The guard looks every 100 ms, so the disk may be full before.
				guarded := minFree != "0" && err != nil && strings.Contains(err.Error(), "(min_free)")
				if !client.IsCode(err, apitypes.CodeStorage) || strings.Contains(err.Error(), "\n") || !guarded && !strings.Contains(err.Error(), "no space left on device") {
					t.Errorf("%s: %v, must be one line about the disk", what, err)
				}
				waitFor(t, "the deletion of the layer", func() bool {
					left, _ := filepath.Glob(data + "/images/new/*/*")
					trash, _ := filepath.Glob(data + "/images/trash/*")
					return len(left)+len(trash) == 0 && freeOf(t, data) == before
				})
				if layers, _ := filepath.Glob(data + "/images/[0-9a-f]*"); len(layers) != 1 {
					t.Errorf("%s: layers %q, must be one", what, layers)
				}
				if err := cl.VerifyImage(timeLimit(t), apitypes.ImageName{Reference: "small"}); err != nil {
					t.Errorf("%s: the other image: %v", what, err)
				}
			}
			blobs, _ := filepath.Glob(filepath.Join(dir, "state/images/*/*"))
			if list, err := cl.Images(timeLimit(t)); err != nil || len(list) != 1 || len(blobs) > 3 {
				t.Errorf("images %+v, %v; files %q", list, err, blobs)
			}
		})
	}
}

// room is what is free on a disk.
type room struct{ blocks, files uint64 }

func freeOf(t *testing.T, dir string) room {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return room{st.Bfree, st.Ffree}
}

// rootOf returns an archive of n files of size bytes.
func rootOf(n int, size int64) io.Reader {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		var err error
		for i := 0; i < n && err == nil; i++ {
			err = t.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i%10, i), Mode: 0o644, Size: size})
			_, werr := t.Write(make([]byte, size))
			err = errors.Join(err, werr)
		}
		w.CloseWithError(errors.Join(err, t.Close()))
	}()
	return r
}
