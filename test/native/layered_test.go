package native

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine"
)

// putLayer puts a published layer into a data directory, with files that a script makes. Users of
// the host stand for users of a box.
func putLayer(t testing.TB, data, id, script string) {
	t.Helper()
	if err := os.MkdirAll(data+"/images", 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(data, "images", id)
	if err := os.MkdirAll(dir+"/fs", 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("sh", "-ec", "umask 022; cd \"$1\"; chmod 755 .; "+script, "sh", dir+"/fs").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	err := filepath.WalkDir(dir+"/fs", func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err != nil {
			return err
		}
		return unix.Lchown(path, 0x7ffe0000+int(st.Uid), 0x7ffe0000+int(st.Gid))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// programs copies the host's programs that the scripts of these tests need.
const programs = `mkdir -p usr/bin usr/lib usr/lib64; ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64
for p in sh cat ls id touch mkdir stat readlink head env flock; do
	p=$(command -v $p); cp -L "$p" usr/bin/
	ldd "$p" | grep -o '/[^ ]*' | while read -r lib; do mkdir -p "./${lib%/*}"; cp -Ln "$lib" "./$lib"; done
done
`

// TestLayeredRoot: a box whose root is made of layers works as any other, with a hostile image
// too, and after its launcher was killed.
func TestLayeredRoot(t *testing.T) {
	s := startStorage(t, 0)
	low, high, none := strings.Repeat("1", 64), strings.Repeat("2", 64), strings.Repeat("3", 64)
	putLayer(t, s.data, low, programs+`mkdir -p etc var/lib/pg gone; echo pg:x:999:999::/var/lib/pg:/bin/sh >etc/passwd; chown 999:999 var/lib/pg; echo 1 >gone/1
		echo secret >etc/shadow; chmod 600 etc/shadow; mkdir tmp`)
	putLayer(t, s.data, high, `ln -s /host dev; ln -s .. proc; ln -s sys sys; echo x >tmp; mknod gone c 0 0; mkdir -p etc/hosts/a home; ln -s /etc/shadow etc/resolv.conf
		ln -s / link; ln -s /var/lib/pg workspace; ln -s ../../etc home/box; echo file >file`)
	_, work := workspace(t, 0, 0)
	spec := engine.Spec{ID: "layered", Image: "example:1", Layers: []string{low, high}, Mounts: []engine.Mount{work, skill(t, "/data/in/one")}}
	b := createLive(t, s.Service, spec)
	look := `cat /data/in/one/name; ls -d /gone 2>/dev/null; cat /etc/shadow; stat -c '%u %a' /etc/shadow /var/lib/pg / /tmp; readlink /workspace /dev /proc /tmp
		touch /workspace/w /tmp/x ~/x && echo written; touch /x /usr/x /etc/x /var/x 2>/dev/null || echo read-only; head -c 9 /etc/hosts; head -c 3 /dev/zero >/dev/null; id -u </proc/self/status`
	seen := "/data/in/one\nsecret\n0 600\n999 755\n0 755\n0 1777\nwritten\nread-only\n127.0.0.10\n"
	wantOutput(t, b, look, seen)
	if o := run(t, b, engine.Command{Args: []string{"sh", "-c", "id -un; touch /var/lib/pg/x 2>/dev/null || cat /etc/shadow 2>/dev/null || echo refused"}, User: &engine.User{UID: 999, GID: 999}}); o.Stdout != "pg\nrefused\n" {
		t.Errorf("as a user of the image: %+v", o)
	}
	for target, want := range map[string]string{"/link/x": "symlink", "/file/x": "a file", "/link": "symlink"} {
		m := skill(t, "/data/in/two")
		m.Target = target
		if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a mount at %q: %v, want %q", target, err, want)
		}
	}
	killLauncher(t, s.dir)
	wantOutput(t, b, look, seen)
	change(t, b, engine.Change{Attach: []engine.Mount{skill(t, "/later/and/deeper"), skill(t, "/var/lib/pg/inside")}})
	wantOutput(t, b, "cat /later/and/deeper/name /var/lib/pg/inside/name; ls /dev/.host 2>/dev/null || true", "/later/and/deeper\n/var/lib/pg/inside\n")
	for _, id := range []string{low, high} {
		if err := s.RemoveLayer(t.Context(), id); !errors.Is(err, engine.ErrLayerInUse) {
			t.Errorf("removing a layer of a box: %v", err)
		}
	}

	other := createLive(t, s.Service, engine.Spec{Layers: []string{low, high}, WritableRoot: true, UpperSize: 8 * mib})
	wantOutput(t, other, "echo changed >/etc/passwd; mkdir /new; touch /usr/bin/x; cat /etc/passwd; head -c 20000000 /dev/zero >/new/x 2>/dev/null || echo full", "changed\nfull\n")
	wantOutput(t, b, "cat /etc/passwd; ls /usr/bin/x 2>/dev/null || true", "pg:x:999:999::/var/lib/pg:/bin/sh\n")

	// For locks the inode counts, and each box has inodes of its own over the layers.
	third := createLive(t, s.Service, engine.Spec{Layers: []string{low, high}})
	out := newScreen()
	in, end := io.Pipe()
	holder := begin(t, b, engine.Command{Args: []string{"flock", "/bin/cat", "sh", "-c", "echo held; read -r _ || true"}, Stdin: in, Stdout: out})
	out.Await(t, "held\n")
	const try = "flock -n -E 9 /bin/cat id -u || echo $?"
	wantOutput(t, b, try, "9\n")
	for _, beside := range []engine.Box{other, third} {
		wantOutput(t, beside, try, "0\n")
	}
	end.Close()
	if r, err := holder.Wait(); err != nil || r.ExitCode != 0 {
		t.Errorf("the command with the lock: %+v, %v", r, err)
	}
	remove(t, third)

	if _, err := s.Create(t.Context(), engine.Spec{ID: "none", Layers: []string{low, none}}); !errors.Is(err, engine.ErrNoLayer) || !strings.Contains(err.Error(), none) {
		t.Errorf("a layer that does not exist: %v", err)
	}
	remove(t, createLive(t, s.Service, engine.Spec{ID: "none", Layers: []string{low}}))
	remove(t, b)
	remove(t, other)
	for _, id := range []string{low, high} {
		if err := s.RemoveLayer(t.Context(), id); err != nil {
			t.Errorf("removing a layer that no box has: %v", err)
		}
	}
}
