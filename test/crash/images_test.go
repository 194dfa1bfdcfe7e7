package crash

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/daemon"
)

// TestImages kills while images are imported, used by sessions, removed and collected. Each image that
// exists is whole, whatever was killed; a session keeps the image that it has; and nothing is left of
// layers, blobs, leases, mounts and descriptors.
func TestImages(t *testing.T) {
	testutil.Long(t)
	testutil.RequireRoot(t)
	rounds := number(t, "BOXD_CRASH_ROUNDS", 3)
	if testutil.Full() {
		rounds = number(t, "BOXD_CRASH_ROUNDS", 100)
	}
	if os.Getenv("BOXD_TEST_VM") != "" {
		rounds = min(rounds, 2) // emulation is slow
	}
	_, random := seeded(t, rounds)

	w := &imageWorld{volumeWorld: &volumeWorld{world: newWorld(t, "")}, base: baseLayer(t)}
	w.importImage("kept", 0)
	w.run("standing", "echo mark >/tmp/mark")
	w.check() // takes the box
	w.turnover("left")
	w.turnover("right")
	w.actor(func(int) { w.collect(); pause(w.stop, 20*time.Millisecond) })
	for round := range int(rounds) {
		kill := victims[random.IntN(len(victims))]
		pause(nil, time.Duration(random.Int64N(int64(400*time.Millisecond))))
		w.deaths.Add(1)
		w.kill(kill)
		if kill.daemon {
			if err := w.daemon.Start(); err != nil {
				t.Fatalf("round %d (%v killed): %v", round, kill, err)
			}
			w.phase.Add(1)
		}
		w.quiet.Lock() // everything that was asked for has been answered
		w.deaths.Add(1)
		w.check()
		w.quiet.Unlock()
		if err := w.failure(); err != nil || t.Failed() {
			t.Fatalf("round %d (%v killed): %v\nthe daemon's log ends with:\n%s", round, kill, err, w.daemon.LogTail(40))
		}
	}
	w.endImages()
	t.Logf("%d imports, %d sessions of images; %d requests failed because a launcher was killed, %d were cut off", w.imports.Load(), w.churned.Load(), w.lost.Load(), w.cut.Load())
}

// imageWorld counts sessions of images in churned.
type imageWorld struct {
	*volumeWorld
	base    []byte // the lowest layer of all images
	box     string // of the session "standing"
	deaths  atomic.Int64
	imports atomic.Int64
	lost    atomic.Int64
}

// data is the launcher's directory of layers.
func (w *imageWorld) data() string { return filepath.Join(w.daemon.State(), "volumes", "images") }

// again repeats a request until it is answered with success or with one of codes, which it returns. It
// forgives answers that say that the launcher was killed, if it was.
func (w *imageWorld) again(what string, codes []string, request func() error) string {
	for {
		before := w.deaths.Load()
		code := w.until(what, append([]string{apitypes.CodeBoxLost, apitypes.CodeImageNotPresent, apitypes.CodeEngineUnavailable}, codes...), request)
		if code == "" || code == "failed" || slices.Contains(codes, code) {
			return code
		}
		if w.failure() != nil { // an earlier step has failed, and this one may never succeed
			return "failed"
		}
		if w.deaths.Load() == before && before%2 == 0 {
			w.fail("%s: %s, and no process was killed", what, code)
			return "failed"
		}
		w.lost.Add(1)
		pause(w.stop, 5*time.Millisecond)
	}
}

func (w *imageWorld) importImage(name string, n int) {
	archive := w.archive(n)
	w.again("importing "+name, nil, func() error {
		_, err := w.client.ImportImage(w.ctx, bytes.NewReader(archive), client.ImportOptions{Name: name})
		if err == nil {
			w.imports.Add(1)
		}
		return err
	})
}

func (w *imageWorld) removeImage(name string) {
	w.again("removing image "+name, []string{apitypes.CodeImageNotFound}, func() error { return w.client.RemoveImage(w.ctx, apitypes.ImageName{Reference: name}) })
}

func (w *imageWorld) collect() {
	w.again("collecting", nil, func() error { _, err := w.client.CollectImages(w.ctx); return err })
}

// run runs a command in a session of the image, until it has run to its end.
func (w *imageWorld) run(session, line string, image ...string) (out string, box string) {
	w.again("running in "+session, nil, func() error {
		r := apitypes.SessionRequest{ID: session, SessionSpec: apitypes.SessionSpec{Image: &append(image, "kept")[0]}}
		persistent := true
		r.LiveWishes = spec.LiveWishes{Persistent: &persistent}
		s, err := w.client.Ensure(w.ctx, r)
		if err != nil {
			return err
		}
		box = s.Box
		e, err := w.client.Exec(w.ctx, session, apitypes.ExecRequest{Argv: []string{"/bin/sh", "-c", line}})
		if err == nil && e.Status != 0 {
			w.fail("running %q in %s: %s", line, session, describe(e))
		}
		if err == nil {
			out = string(e.Out())
		}
		return err
	})
	return out, box
}

// turnover imports images, each used by a session while it is removed.
func (w *imageWorld) turnover(name string) {
	w.actor(func(n int) { w.pass(name, n) })
}

func (w *imageWorld) pass(name string, n int) {
	image := fmt.Sprintf("%s-%d", name, n)
	w.importImage(image, n)
	if out, _ := w.run(image, content, image); out != fmt.Sprintf("%d\nnew\n", n) && w.failure() == nil {
		w.fail("session of image %s: %q", image, out)
	}
	w.removeImage(image)
	if out, _ := w.run(image, content, image); out != fmt.Sprintf("%d\nnew\n", n) && w.failure() == nil {
		w.fail("session of image %s, which was removed: %q", image, out)
	}
	w.endSession(image)
	w.churned.Add(1)
}

// content is a script that prints what the upper layer of an image says.
const content = "cat /n; cat /d/*"

// check finds out whether everything is whole and nothing is left. Nothing is asked for meanwhile.
func (w *imageWorld) check() {
	list, err := w.client.Images(w.ctx)
	if err != nil {
		w.t.Error(err)
	}
	for _, img := range list {
		if code := w.again("verifying "+img.Name, nil, func() error { return w.client.VerifyImage(w.ctx, apitypes.ImageName{Reference: img.Name}) }); code != "" {
			return
		}
	}
	out, box := w.run("standing", content+"; cat /tmp/mark")
	if out != "0\nnew\nmark\n" || w.box != "" && box != w.box {
		w.t.Errorf("session standing: %q, box %s, was %s", out, box, w.box)
	}
	w.box = box
	w.await("unfinished layers", func() []string { return w.left("new/*/*", "trash/*") })
}

// await waits until nothing is left.
func (w *imageWorld) await(what string, left func() []string) {
	var names []string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); pause(nil, 20*time.Millisecond) {
		if names = left(); len(names) == 0 {
			return
		}
	}
	w.t.Errorf("%s are left: %q", what, names)
}

func (w *imageWorld) left(patterns ...string) (names []string) {
	for _, p := range patterns {
		found, _ := filepath.Glob(filepath.Join(w.data(), p))
		names = append(names, found...)
	}
	return names
}

// endImages ends everything, and checks that nothing is left.
func (w *imageWorld) endImages() {
	close(w.stop)
	w.actors.Wait()
	// The launcher holds nothing of sessions and layers that are gone. But libcontainer looks up, by
	// os.FindProcess, a process that another one may have reaped: if that has not happened yet, it
	// fails to wait for it, and the pidfd stays until Go's garbage collector comes by. So passes go
	// on while there are more descriptors. A real leak grows with each pass, and fails the test.
	held := map[string]int{}
	last := func(n int) {
		w.pass("last", n)
		w.collect()
		w.await("boxes", func() []string { return w.left("../../run/run-*/boxes/*")[1:] }) // without "standing"
	}
	for n := range 3 {
		last(n)
		for file, n := range w.descriptors() {
			if least, seen := held[file]; !seen || n < least {
				held[file] = n
			}
		}
	}
	var more []string
	for n := 0; n < 3 || len(more) > 0 && n < 40 && !w.t.Failed(); n++ {
		last(n)
		more = nil
		for file, n := range w.descriptors() {
			if n >= held[file]+3 { // once in each pass
				more = append(more, fmt.Sprintf("%d more of %s", n-held[file], file))
			}
		}
	}
	if len(more) > 0 {
		w.t.Errorf("descriptors are left: %q", more)
	}
	w.endSession("standing")
	list, err := w.client.Images(w.ctx)
	if err != nil {
		w.t.Error(err)
	}
	for _, img := range list {
		w.removeImage(img.Name)
	}
	w.await("layers and blobs", func() []string {
		w.collect() // a lease that no session has would keep some
		blobs, _ := filepath.Glob(filepath.Join(w.daemon.State(), "images/blobs/sha256/*"))
		return append(w.left("[0-9a-f]*", "new/*/*", "trash/*"), blobs...)
	})
	for _, pid := range w.daemon.Find(daemon.Launcher) {
		table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		if err != nil {
			w.t.Error(err)
		}
		for line := range strings.Lines(string(table)) {
			at := strings.Fields(line)[4] // proc_pid_mountinfo(5)
			if strings.Contains(line, "idmapped") || strings.HasPrefix(at, w.data()) || strings.Contains(at, "/private/") && !strings.Contains(at, "/private/host") {
				w.t.Errorf("a mount of the launcher is left: %s", line)
			}
		}
	}
	w.shut()
	if names := w.left("new/*", "trash/*"); len(names) > 0 {
		w.t.Errorf("left: %q", names)
	}
}

// descriptors counts the open files of the launcher and the daemon by their names without numbers.
func (w *imageWorld) descriptors() map[string]int {
	all := map[string]int{}
	for _, pid := range append(w.daemon.Find(daemon.Launcher), w.daemon.PID()) {
		found, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range found {
			if to, err := os.Readlink(fd); err == nil {
				all[regexp.MustCompile(`[0-9]+`).ReplaceAllString(to, "N")]++
			}
		}
	}
	return all
}

// baseLayer is an archive with the host's sh and cat, and a directory that the other layer hides.
func baseLayer(t *testing.T) []byte {
	files := map[string]string{"d/old": "old\n"}
	for _, program := range []string{"sh", "cat"} {
		path, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		linked, err := exec.CommandContext(context.Background(), "ldd", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, from := range append(regexp.MustCompile(`/\S+`).FindAllString(string(linked), -1), path) {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if from == path {
				from = "/bin/" + program
			}
			files[from[1:]] = string(text)
		}
	}
	return archiveOf(files)
}

// archiveOf returns a tar archive of files that everybody may read and execute.
func archiveOf(files map[string]string) []byte {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for name, text := range files {
		err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))})
		_, werr := t.Write([]byte(text))
		if err := errors.Join(err, werr); err != nil {
			panic(err)
		}
	}
	_ = t.Close()
	return b.Bytes()
}

// archive returns image n as "docker save" writes it: the layers are named after their digests, and only n
// has the upper one.
func (w *imageWorld) archive(n int) []byte {
	files := map[string]string{"n": fmt.Sprintln(n), "d/.wh..wh..opq": "", "d/new": "new\n"}
	for i := range 100 {
		files[fmt.Sprintf("tree/%d/%d/f", i/10, i)] = strings.Repeat(fmt.Sprintln(n, i), 500)
	}
	all := map[string]string{}
	var ids, names []string
	for _, layer := range [][]byte{w.base, archiveOf(files)} {
		id := fmt.Sprintf("%x", sha256.Sum256(layer))
		ids, names = append(ids, "sha256:"+id), append(names, id+".tar")
		all[id+".tar"] = string(layer)
	}
	config, _ := json.Marshal(map[string]any{"architecture": runtime.GOARCH, "os": "linux", "rootfs": map[string]any{"type": "layers", "diff_ids": ids}})
	manifest, _ := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{"x:1"}, "Layers": names}})
	all["config.json"], all["manifest.json"] = string(config), string(manifest)
	return archiveOf(all)
}
