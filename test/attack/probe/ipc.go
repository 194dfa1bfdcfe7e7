package main

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

var ipcProbes = []probe{
	{"sysv-shm", "memory of processes of the host", sysvShm, true},
	{"dev-shm", "files in memory of the host", devShm, true},
	{"ipc-list", "what others have", ipcList, false},
}

func sysvShm(b bait) outcome {
	key, err := strconv.Atoi(b[baitShmKey])
	if err != nil {
		return untried("no key given")
	}
	_, err = unix.SysvShmGet(key, 0, 0)
	return failing("finding a segment of the host", err)
}

func devShm(b bait) outcome {
	if b[baitShmFile] == "" {
		return untried("no file given")
	}
	return openOne("/dev/shm/"+b[baitShmFile], unix.O_RDONLY)
}

// ipcList expects only headings.
func ipcList(bait) outcome {
	return each(func(path string) outcome {
		data := make([]byte, 4096)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return failing("opening "+path, err)
		}
		defer unix.Close(fd)
		n, _ := unix.Read(fd, data)
		if lines := strings.Count(string(data[:max(n, 0)]), "\n"); lines > 1 {
			return escaped("%s lists %d objects", path, lines-1)
		}
		return blocked("%s is empty", path)
	}, "/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg")
}
