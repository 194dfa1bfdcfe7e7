package testutil

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// listDescriptors returns the open descriptors of this process, without the standard three, which
// belong to go test.
func listDescriptors() map[string]string {
	list := map[string]string{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil || e.Name() <= "2" && len(e.Name()) == 1 {
			continue // already closed: the descriptor that read the directory
		}
		what := e.Name() + " -> " + target
		list[what] = what
	}
	return list
}

// lasting are functions of goroutines that the runtime and the standard library start once and never
// end.
var lasting = []string{
	"os/signal.loop(",
	"os/signal.signal_recv(",
	"runtime.ensureSigM",
	"runtime.runFinalizers(",
	"runtime.runCleanups(",
	"testing.(*M).Run(",
}

// listGoroutines returns every goroutine but the calling one.
func listGoroutines() map[string]string {
	list := map[string]string{}
	for i, stack := range allStacks() {
		header, body, _ := strings.Cut(stack, ":\n")
		id, _, _ := strings.Cut(header, " [") // "goroutine 7 [select]"
		if i == 0 || slices.ContainsFunc(lasting, func(f string) bool { return strings.Contains(stack, f) }) {
			continue // the calling goroutine comes first
		}
		list[id] = header + "\n\t" + strings.ReplaceAll(strings.TrimSpace(body), "\n", "\n\t")
	}
	return list
}

// allStacks returns the stack traces of all goroutines.
func allStacks() []string {
	for size := 64 << 10; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return strings.Split(string(buf[:n]), "\n\n")
		}
	}
}
