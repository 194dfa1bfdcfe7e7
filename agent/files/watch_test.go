package files

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/boxd/boxd/agent/files/proto"
	"golang.org/x/sys/unix"
)

// event returns an event of inotify(7).
func event(wd int32, mask uint32, name string) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(wd))
	b = binary.NativeEndian.AppendUint32(b, mask)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(name)))
	return append(b, name...)
}

// TestEndOfWatch: a watch ends when its directory is not there any more, for whatever reason, and not when one
// below it is not.
func TestEndOfWatch(t *testing.T) {
	for _, c := range []struct {
		wd    int32
		mask  uint32
		ended bool
	}{
		{1, unix.IN_DELETE_SELF, true},
		{1, unix.IN_MOVE_SELF, true},
		{1, unix.IN_UNMOUNT, true}, // of its file system, such as a volume that was detached
		{1, unix.IN_IGNORED, true},
		{2, unix.IN_DELETE_SELF, false},
		{2, unix.IN_UNMOUNT, false},
		{2, unix.IN_IGNORED, false},
		{3, unix.IN_IGNORED, false},
	} {
		w := &watcher{recursive: true, paths: map[int32]string{1: "", 2: "below"}}
		ended, err := w.events(slices.Concat(event(2, unix.IN_MODIFY, "a\x00\x00\x00"), event(c.wd, c.mask, "")))
		if err != nil || ended != c.ended {
			t.Errorf("%+v: %v, %v", c, ended, err)
		}
		want := []string{proto.Modified}
		if c.ended {
			want = append(want, proto.Gone)
		}
		var got []string
		for _, change := range w.batch {
			got = append(got, change.Type)
		}
		if !slices.Equal(got, want) || string(w.batch[0].Path) != "below/a" {
			t.Errorf("%+v: %+v", c, w.batch)
		}
	}
}
