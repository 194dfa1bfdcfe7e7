package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/internal/linux"
)

// A box has a /sys/devices/system/cpu with as many processors as its limit amounts to, and nothing
// else in /sys. Each processor appears as a separate core, all in one package: the box must not
// learn which cores of the host do the work.
const (
	processorsDir    = "processors" // in visibleDir
	processorsTarget = "sys/devices/system/cpu"
)

// maxTopology is the largest number of processors for which a topology is shown. It costs a create
// some 50 µs per processor. With more, lscpu(1) does not show the numbers of cores and sockets.
const maxTopology = 16

// cpuFile is a file below processorsTarget, as described in
// Documentation/ABI/stable/sysfs-devices-system-cpu.
type cpuFile struct{ path, content string }

func cpuDir(i int) string { return "cpu" + strconv.Itoa(i) }

// cpuFiles returns the files for n processors: first those of each, then those that list them.
func cpuFiles(n int) (files []cpuFile) {
	all := "0"
	if n > 1 {
		all += "-" + strconv.Itoa(n-1)
	}
	for i := range n {
		if n > maxTopology {
			break
		}
		dir, self, mask := cpuDir(i)+"/topology/", strconv.Itoa(i), cpuMask(i, i+1)
		files = append(files,
			cpuFile{dir + "core_id", self}, cpuFile{dir + "physical_package_id", "0"},
			cpuFile{dir + "thread_siblings", mask}, cpuFile{dir + "thread_siblings_list", self}, cpuFile{dir + "core_cpus_list", self},
			cpuFile{dir + "core_siblings", cpuMask(0, n)}, cpuFile{dir + "core_siblings_list", all})
	}
	return append(files, cpuFile{"kernel_max", strconv.Itoa(max(n, 256) - 1)}, cpuFile{"offline", ""},
		cpuFile{"possible", all}, cpuFile{"present", all}, cpuFile{"online", all})
}

// cpuMask returns the processors from first to end-1 in the mask format of cpuset(7).
func cpuMask(first, end int) string {
	words := make([]uint32, (end+31)/32)
	for i := first; i < end; i++ {
		words[i/32] |= 1 << (i % 32)
	}
	last := len(words) - 1
	var text strings.Builder
	fmt.Fprintf(&text, "%x", words[last])
	for _, w := range slices.Backward(words[:last]) {
		fmt.Fprintf(&text, ",%08x", w)
	}
	return text.String()
}

// makeProcessors creates the files of n processors in the empty directory top.
func makeProcessors(top string, n int) error {
	for i := range n {
		err := os.Mkdir(top+cpuDir(i), 0o755)
		if err == nil && n <= maxTopology {
			err = os.Mkdir(top+cpuDir(i)+"/topology", 0o755)
		}
		if err != nil {
			return err
		}
	}
	first := map[string]string{} // paths by content
	for _, f := range cpuFiles(n) {
		path, err := top+f.path, error(nil)
		if same, ok := first[f.content]; ok {
			err = os.Link(same, path)
		} else {
			err = os.WriteFile(path, []byte(f.content+"\n"), 0o444)
			first[f.content] = path
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// showProcessors makes the files in visible show n processors. It replaces files and never changes
// them, so a reader gets either the old or the new one.
func showProcessors(visible *os.File, n int) (err error) {
	top := linux.FdPath(visible) + "/"
	old, fresh := top+processorsDir+"/", top+"new/"
	files := cpuFiles(n)
	if online, err := os.ReadFile(old + "online"); err == nil && string(online) == files[len(files)-1].content+"\n" {
		return nil
	}
	// It exists if a launcher was killed during this function.
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(fresh)) }()
	if err := makeProcessors(fresh, n); err != nil {
		return err
	}
	for i := range n {
		for _, dir := range []string{cpuDir(i), cpuDir(i) + "/topology"} {
			// An existing directory stays. One that has moved with its parent no longer exists here.
			err := os.Rename(fresh+dir, old+dir)
			if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if n > maxTopology && i < maxTopology {
			if err := os.RemoveAll(old + cpuDir(i) + "/topology"); err != nil {
				return err
			}
		}
	}
	for _, f := range files {
		if err := os.Rename(fresh+f.path, old+f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // ErrNotExist: it was moved with its directory
		}
	}
	for i := n; ; i++ {
		dir := old + cpuDir(i)
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
}

// processorPages is how many pages of a tmpfs the old and the new files of n processors take.
func processorPages(n int) int64 { return 2 * int64(2*min(n, maxTopology)+8) }

// processorInodes is how many inodes these files take.
func processorInodes(n int) int64 { return processorPages(n) + 2*int64(n) + 4 }
