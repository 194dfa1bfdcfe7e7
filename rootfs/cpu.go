package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cpuDir is what a box sees of /sys: which processors the machine has, for lscpu, nproc --all
// and the run-time systems of Java and others. It is a copy of what never changes while the
// machine is up. The rest of the kernel's directory tells with what the processors are
// busy (cpuidle, cpufreq, thermal_throttle), which other tenants' key strokes can be read from.
const cpuDir = "sys/devices/system/cpu"

// cpuFiles are files of that directory; cpuTopology is copied for each processor.
var cpuFiles = []string{"online", "offline", "possible", "present", "kernel_max", "isolated", "smt/active", "smt/control"}

const cpuTopology = "topology"

// fillCPUs copies the description of the processors below root into the directory dst.
func fillCPUs(root string, dst *filler) error {
	src := filepath.Join(root, cpuDir)
	write := func(name string) {
		text, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return // this kernel or processor has none
		}
		dst.write(name, 0o444, text)
	}
	dst.mkdir("smt", 0o755)
	for _, name := range cpuFiles {
		write(name)
	}
	cpus, err := filepath.Glob(filepath.Join(src, "cpu[0-9]*"))
	if err != nil {
		return err
	}
	for _, path := range cpus {
		cpu := filepath.Base(path)
		if _, err := strconv.Atoi(strings.TrimPrefix(cpu, "cpu")); err != nil {
			continue
		}
		dst.mkdir(cpu, 0o755)
		facts, err := os.ReadDir(filepath.Join(path, cpuTopology))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is offline
		}
		if err != nil {
			return err
		}
		dst.mkdir(cpu+"/"+cpuTopology, 0o755)
		for _, fact := range facts {
			write(filepath.Join(cpu, cpuTopology, fact.Name()))
		}
	}
	return dst.err
}

// cpuState changes when a processor comes or goes.
func cpuState(root string) string {
	online, _ := os.ReadFile(filepath.Join(root, cpuDir, "online"))
	present, _ := os.ReadFile(filepath.Join(root, cpuDir, "present"))
	return strings.TrimSpace(string(online)) + "/" + strings.TrimSpace(string(present))
}
