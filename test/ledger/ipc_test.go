package ledger

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ipcKinds are System V and POSIX objects, in an ipc namespace of the box's own.
var ipcKinds = []kind{
	{name: "System V shared memory", take: sharedMemory, held: claimed, limit: inMemory, why: "charged, and taken away with the box"},
	{name: "empty System V segments", take: emptySegments, held: slab("shmem_inode_cache"), limit: inMemory, why: "charged, 4096 of them"},
	{name: "System V messages", take: messages, held: claimed, limit: inMemory, why: "charged"},
	{name: "System V semaphores", take: semaphores, held: claimed, limit: inMemory, why: "charged"},
	{name: "undo lists of semaphores", take: undoLists, held: claimed, limit: inMemory, why: "charged"},
	{name: "POSIX message queues", take: messageQueues, held: claimed, limit: inMemory, why: "RLIMIT_MSGQUEUE of the box's user"},
}

// call makes a system call without a wrapper.
func call(name string, number uintptr, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	n, _, err := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if err != 0 {
		return 0, os.NewSyscallError(name, err)
	}
	return n, nil
}

func sharedMemory(h *hoard) error {
	const size = 1 << 20
	for {
		id, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|0o600)
		if err != nil {
			return os.NewSyscallError("shmget", err)
		}
		memory, err := unix.SysvShmAttach(id, 0, 0)
		if err != nil {
			return os.NewSyscallError("shmat", err)
		}
		for i := 0; i < size; i += 4096 {
			memory[i] = 1
		}
		if err := unix.SysvShmDetach(memory); err != nil { // it remains
			return os.NewSyscallError("shmdt", err)
		}
		if !h.took(size) {
			return nil
		}
	}
}

func emptySegments(h *hoard) error {
	for {
		if _, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600); err != nil {
			return os.NewSyscallError("shmget", err)
		}
		if !h.took(1 << 10) {
			return nil
		}
	}
}

func messages(h *hoard) error {
	const size = 8000
	message := make([]byte, 8+size)
	message[0] = 1 // its type
	for {
		id, err := call("msgget", unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o600)
		if err != nil {
			return err
		}
		for range 2 { // msgmnb is 16 KiB
			if _, err := call("msgsnd", unix.SYS_MSGSND, id, pointer(&message[0]), size, unix.IPC_NOWAIT); err != nil {
				return err
			}
			if !h.took(size) {
				return nil
			}
		}
	}
}

func semaphores(h *hoard) error {
	const each = 32_000
	for {
		if _, err := call("semget", unix.SYS_SEMGET, unix.IPC_PRIVATE, each, unix.IPC_CREAT|0o600); err != nil {
			return err
		}
		if !h.tookMany(each, each*64) {
			return nil
		}
	}
}

// undoLists has the process owe large sets one operation each: the list has two bytes for
// every semaphore of the set.
func undoLists(h *hoard) error {
	const each = 32_000
	operation := [3]uint16{0, 1, 0x1000} // number, plus one, SEM_UNDO
	for {
		id, err := call("semget", unix.SYS_SEMGET, unix.IPC_PRIVATE, each, unix.IPC_CREAT|0o600)
		if err != nil {
			return err
		}
		if _, err := call("semop", unix.SYS_SEMOP, id, pointer(&operation[0]), 1); err != nil {
			return err
		}
		if !h.took(each * (64 + 2)) {
			return nil
		}
	}
}

func messageQueues(h *hoard) error {
	attributes := [8]int64{0, 10, 8192} // flags, messages, bytes of each
	message := make([]byte, 8192)
	for i := 0; ; i++ {
		name, err := unix.BytePtrFromString(fmt.Sprint("ledger", i))
		if err != nil {
			return err
		}
		fd, err := call("mq_open", unix.SYS_MQ_OPEN, pointer(name), unix.O_CREAT|unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600, pointer(&attributes[0]))
		if err != nil {
			return err
		}
		for range attributes[1] {
			if _, err := call("mq_timedsend", unix.SYS_MQ_TIMEDSEND, fd, pointer(&message[0]), uintptr(len(message))); err != nil {
				return err
			}
			if !h.took(len(message)) {
				return nil
			}
		}
	}
}
