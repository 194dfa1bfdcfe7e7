package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// agentBase is the first host id of the box in these tests.
const agentBase = 0x7fe00000

// agent is PID 1 of a box in its own user namespace. Its descriptors after stdio are
// a slot, a slot of another owner, and the v1 tasks files of the slot and of its
// spawner's home, as many as the argument says.
func agent() int {
	n, _ := strconv.Atoi(os.Args[1])
	runtime.LockOSThread()
	for fd := 5 + n; fd < 5+2*n; fd++ {
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			fmt.Println("entering the spawner's home:", err)
			return 1
		}
	}
	var tasks []*os.File
	for fd := 5; fd < 5+n; fd++ {
		tasks = append(tasks, os.NewFile(uintptr(fd), "tasks"))
	}
	birth := func(dir int) error {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "CGROUPS_TEST_ROLE=sleep", fmt.Sprintf("CGROUPS_TEST_TASKS=%d", n))
		cmd.ExtraFiles, cmd.Stdout, cmd.Stderr = tasks, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: dir}
		return cmd.Start()
	}
	if err := birth(4); !errors.Is(err, unix.EACCES) {
		fmt.Println("birth in a slot of another owner:", err)
		return 1
	}
	if err := birth(3); err != nil {
		fmt.Println("birth in the slot:", err)
		return 1
	}
	unix.Pause()
	return 0
}

// TestBirthFromUserNamespace: the agent has no capability on the host and no
// writable cgroup file system, only descriptors.
func TestBirthFromUserNamespace(t *testing.T) {
	h := testHost(t)
	owner := Owner{UID: agentBase + 65535, GID: agentBase + 65535}
	g, err := h.Create(testID(), owner, Limits{Memory: 256 * mib, PIDs: 40, CPUs: 2})
	check(t, err)
	t.Cleanup(func() {
		check(t, g.Kill())
		check(t, g.Remove(context.Background()))
	})
	b := &testBox{Group: g}
	mine, stats := b.slot(t)
	theirs, _ := b.slot(t)
	check(t, linux.Fchownat(g.v2.box, theirs.path()+"/cgroup.procs", 0, 0))
	home, err := g.HomeTasks()
	check(t, err)
	init, err := openDir(g.v2.box, "init")
	check(t, err)
	defer init.Close()

	c := newChild(t, nil, "agent", strconv.Itoa(len(mine.Tasks)))
	c.cmd.ExtraFiles = append([]*os.File{mine.Dir, theirs.Dir}, slices.Concat(mine.Tasks, home)...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true,
		CgroupFD:    int(init.Fd()),
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: agentBase, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{HostID: agentBase, Size: 65536}},
		Credential:  &syscall.Credential{Uid: 65535, Gid: 65535, NoSetGroups: true},
	}
	runtime.LockOSThread()
	check(t, g.EnterThread())
	serr := c.cmd.Start()
	check(t, g.LeaveThread())
	runtime.UnlockOSThread()
	c.started()
	for _, f := range home {
		f.Close()
	}
	check(t, serr)
	if got := c.line(t); got != "ready" {
		t.Fatalf("agent says %q", got)
	}
	for _, tree := range g.slotTrees() {
		pids, err := readPIDs(tree.box, mine.path()+"/cgroup.procs")
		if err != nil || len(pids) != 1 || slices.Contains(pids, c.cmd.Process.Pid) {
			t.Errorf("%s: processes %v, %v, want the command alone", tree.box.Name(), pids, err)
		}
	}
	if populated, err := stats.Populated(); err != nil || !populated {
		t.Errorf("populated %v, %v", populated, err)
	}
	if use, err := stats.Read(); err != nil {
		t.Error(err)
	} else {
		t.Logf("%s", use)
	}
}

// TestProcsOfSlot: with cgroup.procs of a slot, whoever has it moves processes of the box there, and no others: not
// even a process of the host's root.
func TestProcsOfSlot(t *testing.T) {
	b := newOwnedBox(t, testHost(t), Owner{UID: agentBase + 65535, GID: agentBase + 65535}, Limits{Memory: 256 * mib, PIDs: 40})
	from, _ := b.slot(t)
	to, stats := b.slot(t)
	procs, err := to.OpenProcs()
	check(t, err)
	defer procs.Close()
	inside := b.start(t, from, "sleep")
	if got := inside.line(t); got != "ready" {
		t.Fatalf("the command says %q", got)
	}
	outside := newChild(t, nil, "sleep")
	check(t, outside.cmd.Start())
	outside.started()
	for what, pid := range map[string]int{"another process of the host": outside.cmd.Process.Pid, "itself": 0} {
		if _, err := procs.WriteString(strconv.Itoa(pid)); !errors.Is(err, unix.EACCES) {
			t.Errorf("root moves %s into a slot: %v, want EACCES", what, err)
		}
	}
	if populated, err := stats.Populated(); err != nil || populated {
		t.Fatalf("populated %v, %v", populated, err)
	}
	for _, f := range to.Tasks {
		_, err := f.WriteString(strconv.Itoa(inside.cmd.Process.Pid))
		check(t, err)
	}
	_, err = procs.WriteString(strconv.Itoa(inside.cmd.Process.Pid))
	check(t, err)
	for _, tree := range b.slotTrees() {
		pids, err := readPIDs(tree.box, to.path()+"/cgroup.procs")
		if err != nil || !slices.Equal(pids, []int{inside.cmd.Process.Pid}) {
			t.Errorf("%s: processes %v, %v, want the command", tree.box.Name(), pids, err)
		}
	}
	check(t, to.Kill())
	check(t, to.WaitEmpty(t.Context()))
}
