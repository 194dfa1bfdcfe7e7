package hostile

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// wrongConfiguration is the exit status after which systemd does not start the launcher again
// (RestartPreventExitStatus= of boxd-launcher.service).
const wrongConfiguration = 78

// TestRootsFile: /etc/boxd/launcher.yaml counts for a launcher that gets no flags. One that
// is not root's alone, or says something unknown, keeps the launcher from serving.
func TestRootsFile(t *testing.T) {
	w := newWorld(t)
	w.etc = w.plan.at("etc")
	file := filepath.Join(w.etc, "boxd/launcher.yaml")
	w.must(os.MkdirAll(filepath.Dir(file), 0o755))
	open := func(s *native.Service, dir string, readOnly bool) error {
		f, err := s.OpenDirectory(t.Context(), engine.Directory{Path: w.plan.at(dir), Within: w.plan.at(dir), ReadOnly: readOnly})
		if err == nil {
			f.Close()
		}
		return err
	}
	wants := func(what string, err error, rule string) {
		t.Helper()
		if rule == "" && err != nil || rule != "" && (err == nil || !strings.Contains(err.Error(), rule)) {
			t.Errorf("%s: %v, want %q", what, err, rule)
		}
	}
	text := "mount_roots: [" + w.plan.at("home") + ", \"" + w.plan.at("clean/theirs") + ":ro\"]\n"
	w.must(os.WriteFile(file, []byte(text), 0o644))
	l := w.start(w.plan.State, w.plan.UID)
	s, err := w.connect(w.plan.State)
	w.must(err)
	wants("a root of the file's", open(s, "home/root", false), "")
	wants("writing in a read-only root", open(s, "clean/theirs", false), "read-only")
	wants("reading in a read-only root", open(s, "clean/theirs", true), "")
	const outside = "outside of the launcher's mount roots: root names them in /etc/boxd/launcher.yaml or with --mount-root"
	wants("another directory", open(s, "bait", true), outside)
	// It is read when the launcher starts, and at no other time.
	w.must(os.WriteFile(file, []byte("mount_roots: [/]\n"), 0o644))
	w.must(l.cmd.Process.Signal(unix.SIGHUP))
	wants("another directory, once the file allows it", open(s, "bait", true), outside)
	s.Close()
	w.stop(l, w.plan.State)

	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{text, 0o664, "must belong to root and be writable by nobody else"},
		{"mount_root: [/]\n", 0o644, `launcher.yaml:1: must be "mount_roots:"`},
		{"mount_roots:\n - /etc:rw\n", 0o644, `mount root "/etc:rw": option "rw"`},
	} {
		w.must(os.WriteFile(file, []byte(c.text), 0o644), os.Chmod(file, c.mode))
		l := w.start(w.plan.State, w.plan.UID)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		for ctx.Err() == nil {
			s, err = native.Connect(ctx, native.ServiceOptions{Socket: w.plan.Socket})
			if err == nil || strings.Contains(err.Error(), c.want) {
				break
			}
			time.Sleep(10 * time.Millisecond) // nothing tells when the launcher listens
		}
		wants(c.text, err, c.want)
		if err == nil {
			s.Close()
		}
		cancel()
		if !testutil.Full() {
			_ = l.cmd.Process.Kill()
		}
		<-l.done // a launcher that says why it refuses its clients ends after 5 s
		if status := l.cmd.ProcessState.ExitCode(); testutil.Full() && status != wrongConfiguration {
			t.Errorf("%q: exit status %d, want %d", c.text, status, wrongConfiguration)
		}
	}

	l = w.start(w.plan.State, w.plan.UID, "--mount-root", "/etc:rw")
	<-l.done
	if status := l.cmd.ProcessState.ExitCode(); status != wrongConfiguration {
		t.Errorf("a wrong option: exit status %d, want %d", status, wrongConfiguration)
	}
}
