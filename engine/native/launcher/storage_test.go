package launcher

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/volumes"
)

func newTestStorage() *storage {
	return &storage{holders: map[string]map[string]int{}, removing: map[string]bool{}, opened: map[string]int{}}
}

func (s *storage) wantHolders(t *testing.T, volume string, boxes ...string) {
	t.Helper()
	if len(s.holders[volume]) != len(boxes) {
		t.Errorf("volume %q: holders %v, want %q", volume, s.holders[volume], boxes)
	}
	for _, b := range boxes {
		if s.holders[volume][b] < 1 {
			t.Errorf("volume %q: holders %v, want %q", volume, s.holders[volume], boxes)
		}
	}
}

// A volume is held once per mount, and is free when the last mount is gone.
func TestHold(t *testing.T) {
	s := newTestStorage()
	for _, h := range [][2]string{{"v", "a"}, {"v", "a"}, {"v", "b"}, {"w", "a"}, {"", "a"}} {
		if err := s.hold(h[0], h[1]); err != nil {
			t.Fatal(err)
		}
	}
	s.wantHolders(t, "v", "a", "b")
	s.drop("v", "a")
	s.wantHolders(t, "v", "a", "b")
	s.drop("v", "a")
	s.wantHolders(t, "v", "b")
	s.drop("", "a")
	s.dropAll("a")
	s.wantHolders(t, "w")
	s.drop("v", "b")
	s.drop("v", "b") // once too often is no harm
	s.wantHolders(t, "v")
	if len(s.holders) != 0 {
		t.Errorf("left: %v", s.holders)
	}
}

func TestHoldWhileRemoved(t *testing.T) {
	s := newTestStorage()
	s.removing["v"] = true
	if err := s.hold("v", "a"); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("holding what is just being removed: %v", err)
	}
	s.wantHolders(t, "v")
}

// A launcher without a data directory refuses requests for volumes, and ignores the rest.
func TestNoStorage(t *testing.T) {
	var s *storage
	if err := s.hold("", "a"); err != nil {
		t.Errorf("a mount of the host: %v", err)
	}
	for what, err := range map[string]error{"hold": s.hold("v", "a"), "ready": s.ready()} {
		if !errors.Is(err, engine.ErrUnenforceable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.holdAdopted("v", "a")
	s.drop("v", "a")
	s.dropAll("a")
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// The errors of package volumes that clients can distinguish.
func TestVolumeError(t *testing.T) {
	for _, c := range []struct {
		err   error
		is    error
		field string
	}{
		{fmt.Errorf("x: %w", volumes.ErrUnknown), engine.ErrInvalid, "mount volume"},
		{fmt.Errorf("x: %w", volumes.ErrShrink), engine.ErrInvalid, "volume.bytes"},
		{fmt.Errorf("x: %w", volumes.ErrBusy), engine.ErrInvalid, "volume"},
		{fmt.Errorf("x: %w", volumes.ErrNoQuota), engine.ErrUnenforceable, ""},
		{errors.Join(volumes.ErrNoLoop, volumes.ErrNoQuota), engine.ErrUnenforceable, ""},
		{fmt.Errorf("x: %w", &volumes.Error{Field: "volume bytes", Value: "1", Rule: "must be more"}), engine.ErrInvalid, "volume.bytes"},
		{fmt.Errorf("x: %w", &volumes.Error{Field: "volume inodes", Value: "1", Rule: "must be more"}), engine.ErrInvalid, "volume.inodes"},
	} {
		err := volumeError("v", c.err)
		var field *engine.FieldError
		if !errors.Is(err, c.is) || c.field != "" && (!errors.As(err, &field) || field.Field != c.field) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
	own := &volumes.Error{Field: "data directory", Value: "/x", Rule: "is bad"} // not the client's doing
	if err := volumeError("v", own); errors.Is(err, engine.ErrInvalid) || err == nil {
		t.Errorf("%v", err)
	}
	if err := volumeError("v", nil); err != nil {
		t.Error(err)
	}
}

// Of several mounts of one volume only one is watched. Mounts that are read-only or pending
// are not.
func TestLimited(t *testing.T) {
	at := func(target, volume string, id mounts.MountID, limit int64) mounted {
		return mounted{Mount: engine.Mount{Target: target, Volume: volume}, ID: id, Limit: limit}
	}
	b := &box{mounted: map[string]mounted{}}
	for _, m := range []mounted{
		at("/b", "v", 1, 5), at("/a", "v", 2, 5), at("/c", "w", 3, 5), at("/d", "", 4, 5), at("/e", "", 5, engine.Unlimited),
		at("/f", "", 6, 0), at("/g", "x", pending, 5),
	} {
		b.mounted[m.Target] = m
	}
	var got []string
	for _, m := range b.limited() {
		got = append(got, m.Target)
	}
	if strings.Join(got, " ") != "/a /c /d /e" {
		t.Errorf("%q", got)
	}
}
