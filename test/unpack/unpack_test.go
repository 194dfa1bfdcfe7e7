// Package unpack compares what boxd makes of the layers of an image with what other programs make of them.
package unpack

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/agent/unpack"
	"github.com/boxd/boxd/agent/unpack/proto"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// rootVar names the directory that is / of the test binary while it plays the builtin.
const rootVar = "BOXD_TEST_UNPACK_ROOT"

func TestMain(m *testing.M) {
	if root := os.Getenv(rootVar); root != "" {
		os.Exit(builtin(root))
	}
	testutil.Main(m)
}

// builtin is unpack.Main as a box runs it: with three capabilities and nothing but its layer in sight.
func builtin(root string) int {
	runtime.LockOSThread()
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/"), unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), dropCapabilities()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	return unpack.Main(os.Args[1:])
}

func dropCapabilities() error {
	const keep = 1<<unix.CAP_CHOWN | 1<<unix.CAP_FOWNER | 1<<unix.CAP_DAC_READ_SEARCH
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	return unix.Capset(&header, &data[0])
}

// command runs the builtin with root as its /.
func command(t *testing.T, root string, stdin []byte, args ...string) []byte {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = []string{rootVar + "=" + root}
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("unpack %q: %v: %s", args, err, &stderr)
	}
	return out
}

// mounted writes the layers of an image as boxes do, and mounts an overlay of them, read-only.
func mounted(t *testing.T, blobs [][]byte) string {
	t.Helper()
	base := t.TempDir()
	mkdir(t, filepath.Join(base, "below"))
	mkdir(t, filepath.Join(base, "empty")) // an overlay without upper needs two directories
	lowers := []string{filepath.Join(base, "empty")}
	for i, blob := range blobs {
		stream := command(t, base, blob, "inflate", strconv.Itoa(1<<30))
		mkdir(t, filepath.Join(base, "layer"))
		if result := write(t, base, stream, 0); result.Inherits && i > 0 {
			if err := os.RemoveAll(filepath.Join(base, "layer")); err != nil {
				t.Fatal(err)
			}
			mkdir(t, filepath.Join(base, "layer"))
			write(t, base, stream, i)
		}
		var sum proto.Sum
		if err := json.Unmarshal(command(t, base, nil, "sum"), &sum); err != nil || len(sum.SHA256) != 64 {
			t.Fatalf("sum %+v: %v", sum, err)
		}
		layer := filepath.Join(base, "below", strconv.Itoa(i))
		if err := os.Rename(filepath.Join(base, "layer"), layer); err != nil {
			t.Fatal(err)
		}
		opaque, err := os.ReadFile(filepath.Join(layer, "opaque"))
		if err != nil {
			t.Fatal(err)
		}
		for name := range strings.SplitSeq(strings.TrimSuffix(string(opaque), "\x00"), "\x00") {
			if name == "" {
				continue
			}
			if err := unix.Lsetxattr(filepath.Join(layer, "fs", name), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
				t.Fatalf("opaque %q: %v", name, err)
			}
		}
		lowers = append(lowers, filepath.Join(layer, "fs"))
	}
	slices.Reverse(lowers)
	merged := filepath.Join(base, "merged")
	mkdir(t, merged)
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_RDONLY, "lowerdir="+strings.Join(lowers, ":")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return merged
}

func write(t *testing.T, base string, stream []byte, below int) (result proto.Result) {
	t.Helper()
	limits, err := json.Marshal(proto.Limits{Bytes: 1 << 30, Entries: 1 << 20, Below: below})
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(command(t, base, stream, "write", string(limits)), &result); err != nil {
		t.Fatal(err)
	}
	return result
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// listing describes each file below top that boxd keeps: no devices, no setuid bits, no attributes but user.*.
// Of the directories in loose it leaves out the time.
func listing(t *testing.T, top string, loose map[string]bool) map[string]string {
	t.Helper()
	all := make(map[string]string)
	links := make(map[uint64][]string)
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(top, p)
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		kind := st.Mode & unix.S_IFMT
		if kind == unix.S_IFCHR || kind == unix.S_IFBLK {
			return nil
		}
		line := fmt.Sprintf("%o %d:%d", st.Mode&^(unix.S_ISUID|unix.S_ISGID), st.Uid, st.Gid)
		if !loose[name] {
			line += fmt.Sprintf(" %d.%d", st.Mtim.Sec, st.Mtim.Nsec)
		}
		if kind != unix.S_IFDIR && st.Nlink > 1 {
			links[st.Ino] = append(links[st.Ino], name)
		}
		switch kind {
		case unix.S_IFREG:
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d bytes %x", len(content), sha256.Sum256(content))
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		list := make([]byte, 4096)
		n, err := unix.Llistxattr(p, list)
		if err != nil {
			return err
		}
		for attribute := range strings.SplitSeq(string(list[:n]), "\x00") {
			if strings.HasPrefix(attribute, "user.") {
				value := make([]byte, 4096)
				n, err := unix.Lgetxattr(p, attribute, value)
				if err != nil {
					return err
				}
				line += fmt.Sprintf(" %s=%q", attribute, value[:n])
			}
		}
		all[name] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range links {
		if len(names) == 1 { // the others are hidden
			continue
		}
		for _, name := range names {
			all[name] += fmt.Sprintf(" same file as %q", names[0])
		}
	}
	return all
}

// looseDirs are the directories whose time is not the archives' to say, because a layer changes their content without
// containing them: for the others that is the time of unpacking.
func looseDirs(t *testing.T, streams [][]byte) map[string]bool {
	t.Helper()
	loose := map[string]bool{".": true}
	for _, stream := range streams {
		var dirs, parents []string
		for r := tar.NewReader(bytes.NewReader(stream)); ; {
			h, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			name := path.Clean("/" + h.Name)[1:]
			if h.Typeflag == tar.TypeDir {
				dirs = append(dirs, name)
			}
			for p := path.Dir(name); ; p = path.Dir(p) {
				parents = append(parents, p)
				if p == "." {
					break
				}
			}
		}
		for _, p := range parents {
			loose[p] = true
		}
		for _, d := range dirs {
			delete(loose, d)
		}
	}
	return loose
}

// compare fails for each difference between what we have and what another program has. The files in known must
// differ.
func compare(t *testing.T, program string, ours, theirs map[string]string, known ...string) {
	t.Helper()
	names := maps.Clone(ours)
	maps.Copy(names, theirs)
	count := 0
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if (ours[name] == theirs[name]) != slices.Contains(known, name) {
			continue
		}
		if count++; count <= 10 {
			t.Errorf("%q: here\n\t%q\n%s\n\t%q", name, ours[name], program, theirs[name])
		}
	}
	if count > 10 {
		t.Errorf("%d differences", count)
	}
}
