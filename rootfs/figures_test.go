package rootfs

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const hostMeminfo = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\nHugepagesize:       2048 kB\n"

func TestMeminfo(t *testing.T) {
	host := parseMeminfo([]byte(hostMeminfo))
	for _, c := range []struct {
		name             string
		f                Figures
		total, available int64 // KiB
	}{
		{"empty", Figures{Memory: 1 << 30}, 1 << 20, 1 << 20},
		{"used", Figures{Memory: 1 << 30, Used: 256 << 20}, 1 << 20, 768 << 10},
		{"page cache", Figures{Memory: 1 << 30, Used: 256 << 20, File: 256 << 20, Shmem: 56 << 20}, 1 << 20, 968 << 10},
		{"more used than allowed, by a limit that was lowered", Figures{Memory: 1 << 30, Used: 2 << 30}, 1 << 20, 0},
		{"more than the host has left", Figures{Memory: 10 << 30}, 10 << 20, 8000000},
		{"as much as the host has", Figures{Memory: 16000000 << 10}, 16000000, 8000000},
		{"more than the host has", Figures{Memory: 1 << 40}, 16000000, 8000000},
		{"no limit", Figures{Memory: -1}, 16000000, 8000000},
	} {
		text := string(c.f.meminfo(host))
		for _, want := range []string{fmt.Sprintf("MemTotal:       %8d kB\n", c.total), fmt.Sprintf("MemAvailable:   %8d kB\n", c.available), "Hugepagesize:       2048 kB\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, text)
			}
		}
		if again := parseMeminfo([]byte(text)); again.total != c.total<<10 {
			t.Errorf("%s: %d bytes in all", c.name, again.total)
		}
	}
}

func TestStat(t *testing.T) {
	f := Figures{Processors: 2, User: 30 * time.Second, System: 10 * time.Second}
	got := string(f.stat(time.Unix(1000, 0), 100*time.Second))
	want := "cpu  3000 0 1000 16000 0 0 0 0 0 0\ncpu0 1500 0 500 8000 0 0 0 0 0 0\ncpu1 1500 0 500 8000 0 0 0 0 0 0\n" +
		"intr 0\nctxt 0\nbtime 900\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// Four processors' worth of time were used before the limit was lowered to one.
	f.Processors, f.User = 1, 400*time.Second
	if got := string(f.stat(time.Unix(1000, 0), 100*time.Second)); strings.Contains(got, "-") {
		t.Errorf("negative figures:\n%s", got)
	}
}

func TestCPUInfo(t *testing.T) {
	const one, two = "processor\t: 0\nmodel\t: x\n\n", "processor\t: 1\nmodel\t: x\n\n"
	for _, c := range []struct {
		text  string
		first [3]string // with 1, 2 and 3 processors
	}{
		{one + two, [3]string{one, one + two, one + two}},
		{one + two + "Hardware\t: y\n", [3]string{one, one + two + "Hardware\t: y\n", one + two + "Hardware\t: y\n"}},
		{"vendor_id       : IBM/S390\nprocessor 0: version = FF\n", [3]string{
			"vendor_id       : IBM/S390\nprocessor 0: version = FF\n", "vendor_id       : IBM/S390\nprocessor 0: version = FF\n", "vendor_id       : IBM/S390\nprocessor 0: version = FF\n",
		}},
		{"processor\t: 0", [3]string{"processor\t: 0", "processor\t: 0", "processor\t: 0"}},
		{"", [3]string{}},
	} {
		p := parseCPUInfo([]byte(c.text))
		for i, want := range c.first {
			if got := string(p.first(i + 1)); got != want {
				t.Errorf("%q with %d processors: %q, want %q", c.text, i+1, got, want)
			}
		}
	}
}
