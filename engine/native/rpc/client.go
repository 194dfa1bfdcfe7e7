package rpc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/internal/linux"
)

// SocketName, in the state directory of a launcher service, is its socket, unless systemd
// passes one.
const SocketName = "launcher.sock"

// ClientFile, in the state directory of a launcher service, holds the [Client].
const ClientFile = "client"

// SpareFile, in the state directory of a launcher service, occupies SpareSize bytes of disk,
// so that the launcher can be started on a disk that has become full.
const (
	SpareFile = "spare"
	SpareSize = 256 << 10
)

// Client is the process that root has named as the client of a launcher service. A user id
// is not enough to identify it, because any program may run as that user. Only root can
// write the file, and a restarted launcher reads it as well.
type Client struct {
	BootID string
	PID    int
	Start  uint64 // as linux.StartTime
}

// NameClient makes process pid the client of the launcher service of stateDir, which
// must exist. A client that is still alive is not replaced.
func NameClient(stateDir string, pid int) error {
	path := filepath.Join(stateDir, ClientFile)
	if now, err := ReadClient(stateDir); err == nil && now.PID != pid && now.alive() {
		return fmt.Errorf("launcher client: process %d has the launcher of %q: stop it first, or choose another runtime directory", now.PID, stateDir)
	}
	c := Client{PID: pid}
	var err, berr error
	c.Start, err = linux.StartTime(pid)
	c.BootID, berr = linux.BootID()
	if err := errors.Join(err, berr); err != nil {
		return fmt.Errorf("launcher client: %w", err)
	}
	text, err := json.Marshal(c)
	if err == nil {
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if diskroom.IsFull(err) {
		diskroom.GiveSpare(filepath.Join(stateDir, SpareFile))
		defer diskroom.KeepSpare(filepath.Join(stateDir, SpareFile), SpareSize)
		err = os.WriteFile(path+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if diskroom.IsFull(err) {
		return fmt.Errorf("launcher client: %w: free space in %s", err, stateDir)
	}
	if err != nil {
		return fmt.Errorf("launcher client: %w", err)
	}
	return nil
}

// ReadClient returns the client that was named, or the zero Client.
func ReadClient(stateDir string) (c Client, err error) {
	text, err := os.ReadFile(filepath.Join(stateDir, ClientFile))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	return c, err
}

// Is reports whether c is process pid. The caller makes sure that no other process gets the
// number meanwhile.
func (c Client) Is(pid int) bool {
	boot, err := linux.BootID()
	if err != nil || c.PID != pid || c.BootID != boot {
		return false
	}
	start, err := linux.StartTime(pid)
	return err == nil && start == c.Start
}

func (c Client) alive() bool {
	if c.PID <= 1 {
		return false
	}
	pidfd, err := linux.PidfdOpen(c.PID)
	if err != nil {
		return false
	}
	defer pidfd.Close()
	ended, err := linux.HasExited(pidfd, 0)
	return err == nil && !ended && c.Is(c.PID)
}
