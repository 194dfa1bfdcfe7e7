package launcher

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// proveKernelMemory finds out whether this host counts the memory of sockets. A launcher for one box, which starts
// for each command, makes the proof once per boot: the kernel's answer does not change before the next one.
func (l *Launcher) proveKernelMemory(oneBox bool) {
	var proof string
	if oneBox {
		proof = kernelProof()
	}
	lock := filepath.Join(l.instance.state, "lock")
	noted := proof != "" && hasProof(lock, proof)
	if noted {
		l.cgroups.TrustKernelMemory()
	}
	err := l.cgroups.CheckKernelMemory(proofName(l.instance.dir)) // the first box gets the error
	if err == nil && proof != "" && !noted {
		noteProof(lock, proof)
	}
}

// kernelProof is what a launcher of this build writes after the running kernel has passed the proof. It is empty if
// the boot or the build has no name.
func kernelProof() string {
	var u unix.Utsname
	boot, err := linux.BootID()
	if err != nil || boot == "" || unix.Uname(&u) != nil || version.Version == version.Unstamped {
		return ""
	}
	return fmt.Sprintf("sockets counted: boot %s, Linux %s %s, boxd %s\n",
		boot, unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]), version.Version)
}

// hasProof reports whether the file at path holds proof and nothing else. It rejects a file that anybody but root could
// have written.
func hasProof(path, proof string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&0o022 != 0 || st.Nlink != 1 || st.Size != int64(len(proof)) {
		return false
	}
	got := make([]byte, len(proof))
	_, err = io.ReadFull(f, got)
	return err == nil && string(got) == proof
}

// noteProof writes proof to the file at path, which exists. If that fails, or if another launcher writes at the same
// time, the next one may make the proof again.
func noteProof(path, proof string) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(proof), 0)
	}
}
