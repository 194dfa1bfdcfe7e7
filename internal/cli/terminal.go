package cli

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/boxd/boxd/engine"
	"golang.org/x/sys/unix"
)

// terminal is the terminal that boxd was started in. keyboard is nil if stdin is not a terminal,
// screen is nil if neither stdin nor stdout is.
type terminal struct {
	keyboard, screen *os.File
	saved            *unix.Termios // the mode of keyboard before makeRaw
}

func (a *App) openTerminal() *terminal {
	t := &terminal{keyboard: asTerminal(a.Stdin), screen: asTerminal(a.Stdout)}
	if t.screen == nil {
		t.screen = t.keyboard
	}
	return t
}

// asTerminal returns stream if it is a terminal, else nil.
func asTerminal(stream any) *os.File {
	f, ok := stream.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return f
}

// size returns the size of the terminal, or else that of a VT100, 24 by 80.
func (t *terminal) size() engine.WindowSize {
	if t.screen != nil {
		if ws, err := unix.IoctlGetWinsize(int(t.screen.Fd()), unix.TIOCGWINSZ); err == nil && ws.Row > 0 && ws.Col > 0 {
			return engine.WindowSize{Rows: ws.Row, Cols: ws.Col}
		}
	}
	return engine.WindowSize{Rows: 24, Cols: 80}
}

// addTERM adds the kind of the terminal to env, unless env has one.
func (t *terminal) addTERM(env []string, lookup func(string) (string, bool)) []string {
	if slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TERM=") }) {
		return env
	}
	kind, _ := lookup("TERM")
	if kind == "" || strings.ContainsRune(kind, 0) {
		kind = "xterm"
	}
	return append(slices.Clip(env), "TERM="+kind)
}

// makeRaw has every key passed on to the command, ^C included, like cfmakeraw(3): the terminal in
// the box does echo, line editing and signals. If stdin is not a terminal, makeRaw does nothing.
// The caller calls restore.
func (t *terminal) makeRaw() error {
	if t.keyboard == nil {
		return nil
	}
	fd := int(t.keyboard.Fd())
	saved, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return fmt.Errorf("reading terminal mode: %w", err)
	}
	raw := *saved
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag &^= unix.CSIZE | unix.PARENB
	raw.Cflag |= unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return fmt.Errorf("setting terminal mode: %w", err)
	}
	t.saved = saved
	return nil
}

// restore undoes makeRaw. Callers defer it, so that it also runs if boxd panics. signalWatch turns
// signals that would end boxd into ordinary returns.
func (t *terminal) restore() {
	if t.saved == nil {
		return
	}
	// TCSETSW waits until all output was written, so that none is mangled.
	_ = unix.IoctlSetTermios(int(t.keyboard.Fd()), unix.TCSETSW, t.saved)
	t.saved = nil
}

// follow passes the window size to resize, now and after each change, until stop is called. When
// follow returns, the first size is set.
func (t *terminal) follow(resize func(engine.WindowSize) error) (stop func()) {
	if t.screen == nil {
		return func() {}
	}
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	// The size may have changed between the start of the command and Notify.
	last := t.size()
	_ = resize(last) // on an error, the command has ended, or its box
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-changes:
			case <-quit:
				return
			}
			if size := t.size(); size != last {
				last = size
				_ = resize(size)
			}
		}
	}()
	return func() {
		signal.Stop(changes)
		close(quit)
		<-done
	}
}
