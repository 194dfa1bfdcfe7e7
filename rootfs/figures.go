package rootfs

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Figures are the limits and the usage that a box's files in /proc show.
type Figures struct {
	Memory     int64 // limit in bytes; 0 or less means none
	Processors int   // 0 means as many as the host has, which is also the maximum

	Used         int64    // bytes of Memory that are charged, including the following
	Anon, Shmem  int64    // memory of processes; tmpfs and shared memory
	File, Mapped int64    // page cache, tmpfs included; its mapped part
	Active       [2]int64 // recently used: memory of processes, of files
	Inactive     [2]int64
	User, System time.Duration // processor time of all commands so far
}

// hostMemory is the content of the host's /proc/meminfo.
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

// meminfo returns /proc/meminfo of the box. Without a limit below the host's memory, it is
// the host's. Figures that the kernel does not count per box are left out. Whatever the
// limit, no more memory is available than the host has left.
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

// stat returns /proc/stat of the box. It divides the work of the box's commands equally among
// the box's processors, which were idle for the rest of the time since the host was started.
// Interrupts, context switches and forks are not counted per box.
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

// processors is the text of the host's /proc/cpuinfo, and the end of each processor in it.
type processors struct {
	text []byte
	ends []int
}

// parseCPUInfo finds the processors in text. On architectures that write other lines after the
// processors, or do not separate them, it finds none, and boxes see the whole text.
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

// first returns /proc/cpuinfo with the first n processors. A shorter text is always the
// beginning of a longer one, so that the file can change while it is read.
func (p processors) first(n int) []byte {
	if n >= len(p.ends) {
		return p.text
	}
	return p.text[:p.ends[n-1]]
}
