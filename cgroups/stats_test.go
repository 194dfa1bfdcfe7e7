package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeStats writes figures to plain files, in the formats of other kernels. Other files
// are missing.
func fakeStats(t *testing.T, content map[int]string) *SlotStats {
	t.Helper()
	files := make([]*os.File, NumStats)
	for i, text := range content {
		files[i] = fakeFile(t, text)
	}
	s := OpenStats(files)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

func fakeFile(t *testing.T, text string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stat")
	check(t, os.WriteFile(path, []byte(text), 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	return f
}

func rewrite(t *testing.T, s *SlotStats, file int, text string) {
	t.Helper()
	_, err := s.files[file].WriteAt([]byte(text), 0)
	check(t, err)
}

func TestStatsOfNothing(t *testing.T) {
	s := fakeStats(t, nil)
	u, err := s.Read()
	if err != nil || u != (Usage{}) {
		t.Errorf("%s, %v: want nothing", u, err)
	}
	if _, err := s.Populated(); err == nil {
		t.Error("populated is known without cgroup.events")
	}
	if err := s.WaitEmpty(t.Context()); err == nil {
		t.Error("empty is known without cgroup.events")
	}
}

func TestStatsFiles(t *testing.T) {
	s := fakeStats(t, map[int]string{
		StatCPU:          "usage_usec 30\nuser_usec 10\nsystem_usec 20\nnr_periods 0\n",
		StatThrottled:    "throttled_usec 7\n",
		StatMemoryPeak:   "4096\n",
		StatMemoryEvents: "low 0\nmax 5\noom 2\noom_kill 5\noom_group_kill 1\n",
		StatPIDsPeak:     "3\n",
		StatPIDsEvents:   "max 9\n",
		StatIO:           "8:0 rbytes=100 wbytes=200 rios=1 wios=2 dbytes=0 dios=0\n8:16 rbytes=1 wbytes=2\n",
	})
	u, err := s.Read()
	check(t, err)
	for name, c := range map[string]struct {
		got  *int64
		want int64
	}{
		"user": {u.UserUsec, 10}, "system": {u.SystemUsec, 20}, "throttled": {u.ThrottledUsec, 7}, "peak": {u.MemoryPeak, 4096}, "oom": {u.OOMKills, 1},
		"pids": {u.PIDsPeak, 3}, "refused": {u.PIDsRefused, 9}, "read": {u.IORead, 101}, "written": {u.IOWrite, 202}, "box": {u.BoxPIDsRefused, -1},
	} {
		if orMinus(c.got) != c.want {
			t.Errorf("%s: %d, want %d", name, orMinus(c.got), c.want)
		}
	}
}

func TestStatsSpellings(t *testing.T) {
	s := fakeStats(t, map[int]string{
		StatThrottled:    "throttled_time 7000\n",
		StatMemoryEvents: "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		StatIO:           "",
		StatMemoryPeak:   "garbage\n",
	})
	u, err := s.Read()
	if err == nil {
		t.Error("garbage was read as a number")
	}
	if orMinus(u.ThrottledUsec) != 7 || orMinus(u.OOMKills) != 2 || orMinus(u.IORead) != 0 {
		t.Errorf("%s", u)
	}
}

// TestRefusalsCountedAtTheLimit: on cgroup2 since Linux 6.11, a command's refused forks are
// known only if the box had none, or if the command was alone.
func TestRefusalsCountedAtTheLimit(t *testing.T) {
	s := fakeStats(t, map[int]string{StatBoxPIDs: "max 5\n"})
	u, err := s.Read()
	check(t, err)
	if orMinus(u.PIDsRefused) != 0 {
		t.Errorf("no fork was refused: %s", u)
	}
	rewrite(t, s, StatBoxPIDs, "max 8\n")
	u, err = s.Read()
	check(t, err)
	if u.PIDsRefused != nil || orMinus(u.BoxPIDsRefused) != 3 || orMinus(u.Alone().PIDsRefused) != 3 {
		t.Errorf("3 forks of the box were refused: %s", u)
	}
}

// TestThrottlingWithoutLocalFile: before Linux 6.6.
func TestThrottlingWithoutLocalFile(t *testing.T) {
	s := fakeStats(t, map[int]string{StatBoxCPU: "nr_throttled 1\nthrottled_usec 100\n"})
	u, err := s.Read()
	check(t, err)
	if orMinus(u.ThrottledUsec) != 0 {
		t.Errorf("the box was not throttled: %s", u)
	}
	rewrite(t, s, StatBoxCPU, "nr_throttled 2\nthrottled_usec 150\n")
	u, err = s.Read()
	check(t, err)
	if u.ThrottledUsec != nil || orMinus(u.Alone().ThrottledUsec) != 50 {
		t.Errorf("the box was throttled for 50 µs: %s", u)
	}
}

func TestOpenStatsTakesAnyNumber(t *testing.T) {
	s := OpenStats(nil)
	check(t, s.Close())
	extra := fakeFile(t, "1")
	s = OpenStats(append(make([]*os.File, NumStats), extra))
	if err := extra.Close(); err == nil {
		t.Error("a file too many was not closed")
	}
	check(t, s.Close())
	check(t, s.Close())
}

// TestManyDevices: io.stat has a line for each block device, more than a page of
// them on a large host.
func TestManyDevices(t *testing.T) {
	const devices = 300
	var text strings.Builder
	for i := range devices {
		fmt.Fprintf(&text, "8:%d rbytes=100000 wbytes=200000 rios=1 wios=2 dbytes=0 dios=0\n", i)
	}
	s := fakeStats(t, map[int]string{StatIO: text.String()})
	u, err := s.Read()
	check(t, err)
	if orMinus(u.IORead) != devices*100000 || orMinus(u.IOWrite) != devices*200000 {
		t.Errorf("%d read, %d written by %d devices", orMinus(u.IORead), orMinus(u.IOWrite), devices)
	}
	endless := fakeStats(t, map[int]string{StatIO: strings.Repeat(text.String(), 100)})
	if _, err := endless.Read(); !errors.Is(err, unix.EFBIG) {
		t.Errorf("a file that is too long: %v", err)
	}
}
