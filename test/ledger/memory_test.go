package ledger

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memoryKinds are address spaces.
var memoryKinds = []kind{
	{name: "anonymous memory", take: anonymous, held: claimed, limit: inMemory, why: "charged"},
	{name: "locked memory", take: locked, held: claimed, limit: inMemory, why: "charged, 8 MiB a process"},
	{name: "memory files", take: memoryFiles(true), held: claimed, limit: inMemory, why: "charged"},
	{name: "memory files that only a mapping keeps", take: memoryFiles(false), held: claimed, limit: inMemory, why: "charged"},
	{name: "page tables", take: pageTables, held: meminfo("PageTables"), limit: inMemory, why: "charged"},
	{name: "mappings", workers: 4, take: mappings, held: slab("vm_area_struct"), limit: inMemory, why: "charged, 65530 a process"},
	{name: "nodes of trees of mappings", workers: 4, take: mappings, held: slab("maple_node"), limit: inMemory, why: "not charged, 35 bytes a mapping: at most 18 % of the memory limit"},
	{name: "slots of futexes", take: futexSlots, held: claimed, limit: inMemory, why: "charged"},
	{name: "secret memory", take: secretMemory, held: made, limit: func() bound { return share(0) },
		why: "it splits the large pages of the kernel's own map for good"},
	{name: "huge pages", take: hugeMappings, held: hugePages, bareless: "most hosts have none", limit: func() bound { return share(0) }, why: "nr_hugepages is one pool of the host"},
}

// pointer returns an address for a system call. What it points to is moved to the heap, where
// it stays.
func pointer[T any](p *T) uintptr {
	onHeap = p
	return uintptr(unsafe.Pointer(p))
}

var onHeap any

// mapTouched maps memory and writes to each of its pages.
func mapTouched(size int) ([]byte, error) {
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	for i := 0; i < size; i += 4096 {
		memory[i] = 1
	}
	return memory, nil
}

func anonymous(h *hoard) error {
	for {
		if _, err := mapTouched(1 << 20); err != nil || !h.took(1<<20) {
			return err
		}
	}
}

func locked(h *hoard) error {
	for {
		memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return os.NewSyscallError("mmap", err)
		}
		if err := unix.Mlock(memory); err != nil {
			return os.NewSyscallError("mlock", err)
		}
		if !h.took(len(memory)) {
			return nil
		}
	}
}

func memoryFiles(open bool) func(*hoard) error {
	return func(h *hoard) error {
		const size = 1 << 20
		for {
			fd, err := unix.MemfdCreate("ledger", unix.MFD_CLOEXEC)
			if err != nil {
				return os.NewSyscallError("memfd_create", err)
			}
			if err := unix.Fallocate(fd, 0, 0, size); err != nil {
				return os.NewSyscallError("fallocate", err)
			}
			if !open {
				if _, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
					return os.NewSyscallError("mmap", err)
				}
				unix.Close(fd)
			}
			if !h.took(size) {
				return nil
			}
		}
	}
}

// pageTables reads a byte of every 2 MiB: each needs a table, and no memory of its own.
func pageTables(h *hoard) error {
	const size, step = 1 << 36, 2 << 20
	var seen byte
	for {
		memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err != nil {
			return os.NewSyscallError("mmap", err)
		}
		// A huge page of zeros would need none.
		_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE)
		for i := 0; i < size; i += step {
			seen |= memory[i]
			if !h.took(4096 + int(seen)) { // it is zero, which the compiler does not know
				return nil
			}
		}
	}
}

// mappings has every second page of a range protected, so that no two can be one mapping.
func mappings(h *hoard) error {
	const pages = 65_000
	memory, err := unix.Mmap(-1, 0, pages*4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	for i := 0; i < pages; i += 2 {
		if err := unix.Mprotect(memory[i*4096:(i+1)*4096], unix.PROT_READ); err != nil {
			return os.NewSyscallError("mprotect", err)
		}
		if !h.tookMany(2, 2*200) {
			return nil
		}
	}
	return errEnough
}

func futexSlots(h *hoard) error {
	const prFutexHash, setSlots, slots = 78, 1, 65536 // since Linux 6.16
	if err := unix.Prctl(prFutexHash, setSlots, slots, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	h.took(slots * 64)
	return errEnough
}

// secretMemory makes one descriptor and no memory: what the memory does to a host remains.
func secretMemory(h *hoard) error {
	if _, _, err := unix.Syscall(unix.SYS_MEMFD_SECRET, unix.O_CLOEXEC, 0, 0); err != 0 {
		return os.NewSyscallError("memfd_secret", err)
	}
	h.took(0)
	return errEnough
}

// hugeMappings asks for one page in each of three ways.
func hugeMappings(h *hoard) error {
	const size = 2 << 20
	_, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB)
	reason := os.NewSyscallError("mmap", err)
	if err == nil {
		h.took(size)
	}
	if fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_HUGETLB); err == nil {
		if err := unix.Ftruncate(fd, size); err == nil {
			if _, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
				h.took(size)
			}
		}
	}
	const shmHugetlb = 0o4000
	if _, err := unix.SysvShmGet(unix.IPC_PRIVATE, size, unix.IPC_CREAT|shmHugetlb|0o600); err == nil {
		h.took(size)
	}
	return reason
}
