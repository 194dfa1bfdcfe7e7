package ledger

import (
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
)

// processKinds are processes and what belongs to them.
var processKinds = []kind{
	{name: "processes", take: processes, held: least(inGroup("work/pids.current")), bareless: "only a box has a group", limit: func() bound { return share(spec.DefaultPIDs) }, why: "pid_max is one pool of the host"},
	{name: "stacks of processes in the kernel", take: processes, held: meminfo("KernelStack"), limit: inMemory, why: "charged"},
	{name: "queued signals", take: queuedSignals, held: slab("sigqueue"), limit: inMemory, why: "RLIMIT_SIGPENDING of the box's user"},
	{name: "POSIX timers", take: posixTimers, held: slab("posix_timers_cache"), limit: inMemory, why: "RLIMIT_SIGPENDING of the box's user"},
	{name: "Landlock rules", take: landlockRules, held: claimed, limit: inMemory, why: "charged"},
}

// processes starts programs that wait for the end of standard input, as this one does.
func processes(h *hoard) error {
	for {
		c := exec.Command("/bin/cat")
		c.Stdin = os.Stdin
		if err := c.Start(); err != nil {
			return err
		}
		if !h.took(30 << 10) {
			return nil
		}
	}
}

// queuedSignals sends real-time signals to this thread, which does not take them.
func queuedSignals(h *hoard) error {
	const signal = 40
	blocked := unix.Sigset_t{Val: [16]uint64{1 << (signal - 1)}}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, nil); err != nil {
		return os.NewSyscallError("pthread_sigmask", err)
	}
	var info [128]byte
	info[0] = signal
	for i := 8; i < 12; i++ {
		info[i] = 0xff // SI_QUEUE
	}
	for {
		if _, err := call("rt_tgsigqueueinfo", unix.SYS_RT_TGSIGQUEUEINFO, uintptr(os.Getpid()), uintptr(unix.Gettid()), signal, pointer(&info[0])); err != nil {
			return err
		}
		if !h.took(80) {
			return nil
		}
	}
}

func posixTimers(h *hoard) error {
	var event [64]byte
	event[12] = 1 // SIGEV_NONE
	for {
		var id int32
		if _, err := call("timer_create", unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, pointer(&event[0]), pointer(&id)); err != nil {
			return err
		}
		if !h.took(384) {
			return nil
		}
	}
}

func landlockRules(h *hoard) error {
	handled := unix.LandlockRulesetAttr{Handled_access_fs: unix.LANDLOCK_ACCESS_FS_READ_FILE}
	for {
		ruleset, err := call("landlock_create_ruleset", unix.SYS_LANDLOCK_CREATE_RULESET, pointer(&handled), 8, 0)
		if err != nil {
			return err
		}
		for _, path := range []string{"/usr", "/tmp", "/etc", "/proc", "/dev", "/home/box", "/bin/cat", "/usr/bin", "/usr/lib", "/usr/share"} {
			fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return os.NewSyscallError("open", err)
			}
			rule := unix.LandlockPathBeneathAttr{Allowed_access: unix.LANDLOCK_ACCESS_FS_READ_FILE, Parent_fd: int32(fd)}
			_, err = call("landlock_add_rule", unix.SYS_LANDLOCK_ADD_RULE, ruleset, unix.LANDLOCK_RULE_PATH_BENEATH, pointer(&rule), 0)
			unix.Close(fd)
			if err != nil {
				return err
			}
			if !h.took(96) {
				return nil
			}
		}
	}
}
