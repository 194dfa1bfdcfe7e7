package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// volumeFull: when a volume is full, the kernel and the verdict tell the writer, and nothing else notices: not the
// other volume, not the other box.
func (e *suite) volumeFull(t testing.TB) {
	s := e.private(t)
	work := s.makeVolume(t, "work", 8*boxtest.MiB, 1024, engine.WorkspaceTarget)
	side := s.makeVolume(t, "side", 8*boxtest.MiB, 1024, "/side")
	b := s.create(t, engine.Spec{Mounts: []engine.Mount{work, side}})
	other := s.create(t, engine.Spec{Mounts: []engine.Mount{s.makeVolume(t, "other", 8*boxtest.MiB, 1024, engine.WorkspaceTarget)}})
	for range 2 {
		boxtest.WantVolumeFull(t, boxtest.Run(t, b, engine.Command{Args: []string{"sh", "-c", boxtest.FillBytes, "/workspace"}}), "/workspace 8 MiB")
		boxtest.Want(t, boxtest.Run(t, b, boxtest.Shell("exit 3")), engine.Exited, 3) // full before it began
		st, ok := s.volume(t, "work")
		if !ok || st.Bytes != 8*boxtest.MiB || st.UsedBytes < 6*boxtest.MiB || st.UsedBytes > 8*boxtest.MiB {
			t.Errorf("state of a full volume: %+v", st)
		}
		boxtest.WantOutput(t, b, "echo x > /side/x && cat /side/x", "x\n")
		boxtest.WantOutput(t, other, "head -c 4M /dev/zero > /workspace/f && stat -c %s /workspace/f", "4194304\n")
		boxtest.WantOutput(t, b, "rm /workspace/file && head -c 4M /dev/zero > /workspace/file && stat -c %s /workspace/file; rm /workspace/file", "4194304\n")

		boxtest.WantVolumeFull(t, boxtest.Run(t, b, boxtest.Python(boxtest.FillFiles, "/side")), "/side 8 MiB")
		boxtest.WantOutput(t, other, "touch /workspace/g", "")
		boxtest.WantOutput(t, b, "cd /side && find . -type f -delete && touch y", "")
		s.KillLauncher(t) // and the next round with the next launcher
	}
}

// volumeFullAfterAdoption: another client, and another launcher, still know which
// mounts of a box can be filled.
func (e *suite) volumeFullAfterAdoption(t testing.TB) {
	s := e.private(t)
	work := s.makeVolume(t, "work", 4*boxtest.MiB, 0, engine.WorkspaceTarget)
	work.Source = "/sub"
	dir, err := s.client.OpenDirectory(t.Context(), engine.Directory{Volume: "work", Path: "/sub", Make: true})
	if err != nil {
		t.Fatal(err)
	}
	dir.Close()
	b := s.create(t, engine.Spec{ID: "live", Mounts: []engine.Mount{work}})
	late := s.makeVolume(t, "late", 4*boxtest.MiB, 0, "/late")
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{late}}); err != nil {
		t.Fatal(err)
	}
	for _, again := range []func(){func() {}, func() { s.KillLauncher(t) }} {
		s.disconnect(t)
		again()
		s.connect(t)
		b = s.adopt(t, "live")
		if m := b.Spec().Mounts; len(m) != 2 || !slices.Contains(m, work) || !slices.Contains(m, late) {
			t.Errorf("mounts after adoption: %+v", m)
		}
		for _, at := range []string{"/workspace", "/late"} {
			boxtest.WantVolumeFull(t, boxtest.Run(t, b, engine.Command{Args: []string{"sh", "-c", boxtest.FillBytes, at}}), at+" 4 MiB")
			boxtest.WantOutput(t, b, "rm "+at+"/file", "")
		}
	}
}

// volumeStays: the next box finds the content of a volume, whatever ended in between.
func (e *suite) volumeStays(t testing.TB) {
	s := e.private(t)
	m := s.makeVolume(t, "keep", 8*boxtest.MiB, 0, "/data")
	for round, between := range []func(){
		func() {},
		func() { s.KillLauncher(t) },
		func() { s.disconnect(t); s.Restart(t); s.connect(t) },
	} {
		b := s.create(t, engine.Spec{Mounts: []engine.Mount{m}})
		boxtest.WantOutput(t, b, "cat /data/n 2>/dev/null | wc -l; echo >> /data/n", fmt.Sprintln(round))
		boxtest.Remove(t, b)
		between()
	}
	if err := s.client.MakeVolume(t.Context(), engine.Volume{Name: "keep", Bytes: 32 * boxtest.MiB}); err != nil {
		t.Fatal(err)
	}
	b := s.create(t, engine.Spec{Mounts: []engine.Mount{m}})
	boxtest.WantOutput(t, b, "wc -l < /data/n; head -c 20M /dev/zero > /data/f && stat -c %s /data/f", "3\n20971520\n")
	boxtest.Remove(t, b)
	if st, ok := s.volume(t, "keep"); !ok || st.Bytes != 32*boxtest.MiB {
		t.Errorf("after growing: %+v", st)
	}
	for range 2 { // an unknown one is no error
		if err := s.client.RemoveVolume(t.Context(), "keep"); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := s.volume(t, "keep"); ok {
		t.Error("the volume is still there")
	}
	m = s.makeVolume(t, "keep", 8*boxtest.MiB, 0, "/data")
	b = s.create(t, engine.Spec{Mounts: []engine.Mount{m}})
	boxtest.WantOutput(t, b, "ls /data | grep -v lost+found; stat -c %u:%g:%a /data", "0:0:700\n")
}

// volumeInUse: a volume that a box has is not removed, also by a launcher that has
// not made the box.
func (e *suite) volumeInUse(t testing.TB) {
	s := e.private(t)
	m := s.makeVolume(t, "used", 4*boxtest.MiB, 0, "/data")
	b := s.create(t, engine.Spec{ID: "holder", Mounts: []engine.Mount{m}})
	boxtest.WantOutput(t, b, "echo 1 > /data/f", "")
	refused := func() {
		t.Helper()
		err := s.client.RemoveVolume(t.Context(), "used")
		if !errors.Is(err, engine.ErrInvalid) || !strings.Contains(err.Error(), `"holder"`) {
			t.Errorf("removing a volume in use: %v", err)
		}
		boxtest.WantOutput(t, b, "cat /data/f", "1\n")
	}
	refused()
	if _, err := s.tryCreate(t.Context(), engine.Spec{ID: "holder"}); err == nil {
		t.Error("a second box of that name was made")
	}
	refused()
	s.KillLauncher(t)
	refused()
	for range 2 {
		if err := b.Update(t.Context(), engine.Change{Detach: []string{"/data"}}); err != nil {
			t.Fatal(err)
		}
		if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); err != nil {
			t.Fatal(err)
		}
		refused()
	}
	bad := m
	bad.Source, bad.Target = "/nothing", "/x"
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{bad}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a source that is not there: %v", err)
	}
	p := boxtest.Begin(t, b, boxtest.Shell("exec 3< /data/f; read x; cat <&3")) // holds a file of it
	if err := b.Update(t.Context(), engine.Change{Detach: []string{"/data"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.client.RemoveVolume(t.Context(), "used"); err != nil {
		t.Errorf("after detaching: %v", err)
	}
	_ = boxtest.Wait(t, p)
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a volume that is gone: %v", err)
	}
	if _, err := s.tryCreate(t.Context(), engine.Spec{Mounts: []engine.Mount{m}}); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a box with a volume that is gone: %v", err)
	}
}
