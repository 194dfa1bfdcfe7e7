package rootfs

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Figures are the limits and the use of a box that its files of /proc show.
type Figures struct {
	Memory     int64 // limit in bytes; 0 or less: none
	Processors int   // 0: as many as the host has, which is the most

	Used         int64    // bytes of Memory that are charged, all of the following among them
	Anon, Shmem  int64    // of processes; of tmpfs and shared memory
	File, Mapped int64    // page cache, tmpfs included; what of it is mapped
	Active       [2]int64 // used lately: of processes, of files
	Inactive     [2]int64
	User, System time.Duration // processor time of all commands so far
}

// hostMemory is what the text of the host's /proc/meminfo says.
type hostMemory struct {
	text             []byte
	total, available int64 // bytes
	hugePage         int64 // bytes
}

func parseMeminfo(text []byte) hostMemory {
	m := hostMemory{text: text}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "MemTotal":
			m.total = kib << 10
		case "MemAvailable":
			m.available = kib << 10
		case "Hugepagesize":
			m.hugePage = kib << 10
		}
	}
	return m
}

// meminfo is /proc/meminfo of the box: that of the host without a limit below its memory.
// What the kernel does not count for a box is left out. No more is available than the host
// has left, whatever the limit.
func (f Figures) meminfo(host hostMemory) []byte {
	if f.Memory <= 0 || f.Memory >= host.total {
		return host.text
	}
	left := min(max(f.Memory-f.Used, 0), host.available)
	var text bytes.Buffer
	for _, line := range []struct {
		name  string
		bytes int64
	}{
		{"MemTotal", f.Memory},
		{"MemFree", left},
		{"MemAvailable", min(left+max(f.File-f.Shmem, 0), f.Memory, host.available)},
		{"Buffers", 0},
		{"Cached", f.File},
		{"SwapCached", 0},
		{"Active", f.Active[0] + f.Active[1]},
		{"Inactive", f.Inactive[0] + f.Inactive[1]},
		{"Active(anon)", f.Active[0]},
		{"Inactive(anon)", f.Inactive[0]},
		{"Active(file)", f.Active[1]},
		{"Inactive(file)", f.Inactive[1]},
		{"SwapTotal", 0}, // a box with a memory limit does not swap
		{"SwapFree", 0},
		{"AnonPages", f.Anon},
		{"Mapped", f.Mapped},
		{"Shmem", f.Shmem},
		{"Hugepagesize", host.hugePage},
	} {
		fmt.Fprintf(&text, "%-16s%8d kB\n", line.name+":", line.bytes>>10)
	}
	return text.Bytes()
}

// stat is /proc/stat of the box. Its processors have done what the commands of the box have
// done, in equal parts, and were idle for the rest of the time since the host was started. Interrupts,
// context switches and forks are not counted for a box.
func (f Figures) stat(now time.Time, up time.Duration) []byte {
	n := time.Duration(f.Processors)
	var text bytes.Buffer
	line := func(name string, user, system, idle time.Duration) {
		const tick = time.Second / 100 // USER_HZ, proc_stat(5)
		fmt.Fprintf(&text, "%s %d 0 %d %d 0 0 0 0 0 0\n", name, user/tick, system/tick, max(idle, 0)/tick)
	}
	line("cpu ", f.User, f.System, n*up-f.User-f.System)
	for i := range f.Processors {
		line("cpu"+strconv.Itoa(i), f.User/n, f.System/n, up-(f.User+f.System)/n)
	}
	fmt.Fprintf(&text, "intr 0\nctxt 0\nbtime %d\nprocesses 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0 0 0 0 0 0 0 0 0 0 0\n",
		now.Add(-up).Unix())
	return text.Bytes()
}

// processors is the text of the host's /proc/cpuinfo, and where in it each processor ends.
type processors struct {
	text []byte
	ends []int
}

// parseCPUInfo finds the processors. Some architectures write other lines after them or do not
// separate them; they have none here, and boxes there see the whole text.
func parseCPUInfo(text []byte) processors {
	p := processors{text: text}
	for at := 0; bytes.HasPrefix(text[at:], []byte("processor\t")); {
		end := bytes.Index(text[at:], []byte("\n\n"))
		if end < 0 {
			return processors{text: text}
		}
		at += end + 2
		p.ends = append(p.ends, at)
	}
	return p
}

// first is /proc/cpuinfo with the first n processors: the longer one begins as the shorter
// one does, so that it can change under a reader.
func (p processors) first(n int) []byte {
	if n >= len(p.ends) {
		return p.text
	}
	return p.text[:p.ends[n-1]]
}
