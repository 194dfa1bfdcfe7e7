package history

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// FuzzReplay damages a journal of three files anywhere. Opening continues with what is left: every
// entry before the first damage of its file is listed, none is listed twice, and the usage is that of the list.
func FuzzReplay(f *testing.F) {
	var files [][]byte
	at := map[uint64][2]int{} // file and end of each frame, by number
	for i := range 3 {
		var file []byte
		for n := 3*i + 1; n <= 3*i+3; n++ {
			e := entry("t", "a", n)
			if n%2 == 0 {
				e.Process, e.Key = "p", string(rune('a'+n))
			}
			body, err := encode(&e)
			if err != nil {
				f.Fatal(err)
			}
			file = append(file, frame(uint64(n), body)...)
			at[uint64(n)] = [2]int{i, len(file)}
		}
		files = append(files, file)
	}
	f.Add(uint8(0), uint16(0), []byte{}, false)
	f.Add(uint8(1), uint16(20), []byte("x"), true)
	f.Add(uint8(2), uint16(2000), files[0], false)
	f.Add(uint8(1), uint16(len(files[1])), files[0], false)
	f.Fuzz(func(t *testing.T, which uint8, offset uint16, damage []byte, cut bool) {
		dir := t.TempDir()
		damaged, from := int(which)%len(files), 0
		for i, file := range files {
			file = slices.Clone(file)
			if i == damaged {
				from = min(int(offset), len(file))
				end := min(len(file), from+len(damage))
				if cut {
					end = len(file)
				}
				file = slices.Concat(file[:from], damage, file[end:])
			}
			name := filepath.Join(dir, segmentPrefix+"0000000000000000000"+string(rune('1'+3*i)))
			if err := os.WriteFile(name, file, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var before []uint64
		for opening := range 2 {
			s, err := Open(Options{Dir: dir, Report: func(err error) { t.Error(err) }})
			if err != nil {
				t.Fatal(err)
			}
			list, _, err := s.List(Query{Tenant: "t", Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			var seen []uint64
			var cpu time.Duration
			for _, e := range list {
				seen = append(seen, e.Seq)
				if e.Result.Receipt.User != nil {
					cpu += *e.Result.Receipt.User
				}
			}
			if sorted := slices.Sorted(slices.Values(seen)); len(slices.Compact(sorted)) != len(seen) {
				t.Errorf("entries %v", seen)
			}
			for n, place := range at {
				if (place[0] != damaged || place[1] <= from) && !slices.Contains(seen, n) {
					t.Errorf("entry %d is not damaged and not there: %v", n, seen)
				}
			}
			usage, err := s.Usage(UsageQuery{Tenant: "t"})
			if err != nil {
				t.Fatal(err)
			}
			var sum Counters
			for _, u := range usage {
				sum.Add(u.Counters)
			}
			if sum.Execs+sum.Processes != int64(len(list)) || sum.CPU != cpu {
				t.Errorf("%d entries with %v, counted are %+v", len(list), cpu, sum)
			}
			if opening == 1 && !slices.Equal(seen, before) {
				t.Errorf("entries %v after the next opening, %v before", seen, before)
			}
			before = seen
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
