package bench

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/bench/report"
	"golang.org/x/sys/unix"
)

// happening is a trace event of the launcher or of what it has started.
type happening struct {
	at   int64 // ns of CLOCK_MONOTONIC
	what string
}

// birth records what the kernel sees of a birth: processes that are made, programs that are executed.
// It asks the kernel, so the launcher has nothing that is there for a benchmark only.
func (b *bench) birth(ctx context.Context) (err error) {
	const name, what = "create.steps", "processes and programs of a birth, see the waterfall"
	tracing := filepath.Join(b.scratch, "tracing") // the host may have none mounted
	err = os.Mkdir(tracing, 0o700)
	if err == nil {
		err = os.NewSyscallError("mount tracefs", unix.Mount("tracefs", tracing, "tracefs", 0, ""))
	}
	if err != nil {
		b.skip(name, what, err.Error())
		return nil
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("umount", unix.Unmount(tracing, 0))) }()
	instance := filepath.Join(tracing, "instances", b.id())
	if err := os.Mkdir(instance, 0o700); err != nil {
		b.skip(name, what, "the kernel's tracing is not to be had: "+err.Error())
		return nil
	}
	defer func() { err = errors.Join(err, os.Remove(instance)) }()
	set := func(file, value string) {
		if err == nil {
			err = os.WriteFile(filepath.Join(instance, file), []byte(value), 0)
		}
	}
	defer func() {
		if werr := os.WriteFile(filepath.Join(instance, "tracing_on"), []byte("0"), 0); err == nil {
			err = werr
		}
	}()
	set("trace_clock", "mono")
	set("options/event-fork", "1") // also what the launcher's children do
	var threads []string
	for _, pid := range children(os.Getpid()) {
		names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, name := range names {
			threads = append(threads, filepath.Base(name))
		}
	}
	set("set_event_pid", strings.Join(threads, " "))
	set("events/task/task_newtask/enable", "1")
	set("events/sched/sched_process_exec/enable", "1")
	if err != nil {
		return err
	}
	var births [][]happening
	for range max(b.n/8, 10) {
		if err := os.WriteFile(filepath.Join(instance, "trace"), nil, 0); err != nil { // empties it
			return err
		}
		began := monotonic()
		box, err := b.engine.Create(ctx, b.spec())
		if err != nil {
			return err
		}
		made := monotonic()
		err = execTrue(ctx, box)
		ended := monotonic()
		events, rerr := readTrace(filepath.Join(instance, "trace"))
		if err := errors.Join(err, rerr, box.Remove(ctx)); err != nil {
			return err
		}
		events = append(events, happening{made, "Create returns"}, happening{ended, "the command's result"})
		events = slices.DeleteFunc(events, func(h happening) bool { return h.at < began || h.at > ended })
		slices.SortStableFunc(events, func(a, b happening) int { return cmp.Compare(a.at, b.at) })
		for i := range events {
			events[i].at -= began
		}
		births = append(births, events)
	}
	b.report.Birth = usual(births)
	return nil
}

func monotonic() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail
	return t.Nano()
}

// readTrace reads the events of a trace. A line is
// "name-pid [cpu] flags seconds.microseconds: event: fields".
func readTrace(path string) (list []happening, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		before, fields, ok := strings.Cut(s.Text(), ": task_newtask: ")
		if !ok {
			before, fields, ok = strings.Cut(s.Text(), ": sched_process_exec: ")
		}
		words := strings.Fields(before)
		if !ok || len(words) < 3 {
			continue
		}
		seconds, err := strconv.ParseFloat(words[len(words)-1], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", path, s.Text(), err)
		}
		h := happening{at: int64(seconds * 1e9)}
		values := map[string]string{}
		for _, word := range strings.Fields(fields) {
			key, value, _ := strings.Cut(word, "=")
			values[key] = value
		}
		if name, ok := values["filename"]; ok {
			if h.what = "exec of " + filepath.Base(name); strings.HasPrefix(name, "/proc/") || strings.HasPrefix(name, "/dev/fd") {
				h.what = "exec of a program of boxd"
			}
		} else {
			flags, err := strconv.ParseUint(values["clone_flags"], 16, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %q: %w", path, s.Text(), err)
			}
			if flags&unix.CLONE_THREAD != 0 {
				continue
			}
			// boxd's programs run from descriptors: their names are numbers, or "exe".
			comm := values["comm"]
			if _, err := strconv.Atoi(comm); err == nil || comm == "exe" {
				comm = "boxd"
			}
			h.what = "a process of " + comm
		}
		list = append(list, h)
	}
	return list, nil
}

// usual returns the median times of the births that went the most frequent way.
func usual(births [][]happening) (steps []report.Step) {
	way := func(events []happening) string {
		var names []string
		for _, h := range events {
			names = append(names, h.what)
		}
		return strings.Join(names, "\n")
	}
	count := map[string]int{}
	most := ""
	for _, events := range births {
		count[way(events)]++
		if most == "" || count[way(events)] > count[most] {
			most = way(events)
		}
	}
	births = slices.DeleteFunc(births, func(events []happening) bool { return way(events) != most })
	if len(births) == 0 {
		return nil
	}
	for i, h := range births[0] {
		var times []float64
		for _, events := range births {
			times = append(times, float64(events[i].at))
		}
		steps = append(steps, report.Step{What: h.what, At: report.Median(times)})
	}
	return steps
}
