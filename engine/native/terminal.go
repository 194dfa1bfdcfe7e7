package native

import (
	"context"
	"os"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// openStdio makes the command's descriptors, unless it has them from an attempt to start it warm.
func (p *process) openStdio() error {
	if p.io.null != nil {
		return nil
	}
	p.io.null = p.box.engine.null
	if p.cmd.TTY != nil {
		return p.openTerminal()
	}
	if err := p.io.input(p.cmd.Stdin); err != nil {
		return err
	}
	flood := func() { p.end(engine.OutputLimit) }
	var err error
	if p.io.stdout, err = p.io.output(1, p.cmd.Stdout, p.cmd.OutputLimit, flood); err != nil {
		return err
	}
	if sameOutput(p.cmd.Stdout, p.cmd.Stderr) {
		p.io.child[2] = p.io.child[1]
		return nil
	}
	p.io.stderr, err = p.io.output(2, p.cmd.Stderr, p.cmd.OutputLimit, flood)
	return err
}

// openTerminal has the launcher open a terminal of the box's own devpts. The box does not
// name the file, so it cannot pass another one.
func (p *process) openTerminal() error {
	files, err := p.box.openPTY(context.Background(), &p.cmd)
	if err != nil {
		return err
	}
	master, err := pollable(files[0])
	if err != nil {
		files[1].Close()
		return err
	}
	slave := files[1]
	p.tty = master
	p.io.child = [3]*os.File{slave, slave, slave}
	p.io.owned = append(p.io.owned, slave)
	p.io.ours = append(p.io.ours, master)
	raw, err := master.SyscallConn()
	if err != nil {
		return err
	}
	in := p.cmd.Stdin
	if in == nil {
		in = strings.NewReader("")
	}
	p.io.feed(master, in, func() { linux.EndTerminalInput(raw, p.done, nil) })
	out := p.cmd.Stdout
	if out == nil {
		out = discard{}
	}
	p.io.stdout = &stream{dst: out, limit: p.cmd.OutputLimit, onLimit: func() { p.end(engine.OutputLimit) }}
	p.io.carry(p.io.stdout, master)
	return nil
}

// discard is io.Discard without its ReadFrom pool, which a terminal does not need.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// pollable takes ownership of f and returns it in non-blocking mode, so that
// closing it ends a Read.
func pollable(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	f.Close()
	if err != nil {
		return nil, os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setting non-blocking", err)
	}
	return os.NewFile(uintptr(fd), "terminal"), nil
}
