package programs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// install makes a directory with programs, of which only the first bytes are looked at.
func install(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{Init, Agent, Unpacker} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("\x7fELF "+name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func beside(t *testing.T, path string) (Files, error) {
	t.Helper()
	init, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer init.Close()
	f, err := Beside(init)
	t.Cleanup(f.Close)
	return f, err
}

// TestBeside: the programs are those in the directory of the file itself, also if it is opened by a symlink.
func TestBeside(t *testing.T) {
	dir := install(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(dir, Init), link); err != nil {
		t.Fatal(err)
	}
	f, err := beside(t, link)
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{Agent, Unpacker} {
		var b [32]byte
		n, _ := f.List()[i].ReadAt(b[:], 0)
		if string(b[:n]) != "\x7fELF "+name {
			t.Errorf("%s has %q", name, b[:n])
		}
	}
}

// TestBesideRefuses: what is not there, is no program, or could be written by others than boxd-init.
func TestBesideRefuses(t *testing.T) {
	for _, c := range []struct {
		change func(agent string) error
		want   string
	}{
		{os.Remove, "no such file"},
		{func(agent string) error { return os.WriteFile(agent, []byte("#!/bin/sh"), 0o755) }, "not a program"},
		{func(agent string) error { return os.Truncate(agent, 3) }, "not a program"},
		{func(agent string) error { return os.Chmod(agent, 0o757) }, "0757"},
		{func(agent string) error { return os.Chmod(agent, 0o775) }, "0775"},
		{func(agent string) error { return os.Rename(agent, agent+".away") }, "no such file"},
		{func(agent string) error { _ = os.Remove(agent); return os.Symlink("/bin/true", agent) }, "symbolic links"},
		{func(agent string) error { _ = os.Remove(agent); return os.Mkdir(agent, 0o755) }, "regular file"},
	} {
		dir := install(t)
		agent := filepath.Join(dir, Agent)
		if err := c.change(agent); err != nil {
			t.Fatal(err)
		}
		if _, err := beside(t, filepath.Join(dir, Init)); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), agent) {
			t.Errorf("want %q and the path in %v", c.want, err)
		}
	}
}

// TestBesideWritable: a boxd-init that its group can write allows the same for the others.
func TestBesideWritable(t *testing.T) {
	dir := install(t)
	for _, name := range []string{Init, Agent, Unpacker} {
		if err := os.Chmod(filepath.Join(dir, name), 0o775); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := beside(t, filepath.Join(dir, Init)); err != nil {
		t.Error(err)
	}
}

// TestBesideReplaced: an open boxd-init whose place another file has taken has no programs beside it.
func TestBesideReplaced(t *testing.T) {
	dir := install(t)
	path := filepath.Join(dir, Init)
	init, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer init.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if f, err := Beside(init); err == nil {
		f.Close()
		t.Error("programs beside a file that is gone")
	}
}

// TestStamp: a program that was overwritten in its place is noticed, in this process and in one that inherits it. One whose
// place another has taken, as by an upgrade, is still the same.
func TestStamp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(agent string) error
		bad    bool
	}{
		"untouched": {func(string) error { return nil }, false},
		"read":      {func(agent string) error { _, err := os.ReadFile(agent); return err }, false},
		"replaced": {func(agent string) error {
			return errors.Join(os.WriteFile(agent+".new", []byte("\x7fELF new"), 0o755), os.Rename(agent+".new", agent))
		}, false},
		"linked":       {func(agent string) error { return os.Link(agent, agent+".old") }, false},
		"removed":      {os.Remove, false},
		"overwritten":  {func(agent string) error { return os.WriteFile(agent, []byte("\x7fELF of another build"), 0o755) }, true},
		"of same size": {func(agent string) error { return os.WriteFile(agent, []byte("\x7fELF boxd-AGENT"), 0o755) }, true},
		"of same time": {func(agent string) error {
			info, err := os.Stat(agent)
			return errors.Join(err, os.WriteFile(agent, []byte("\x7fELF boxd-AGENT"), 0o755), os.Chtimes(agent, time.Time{}, info.ModTime()))
		}, true},
	} {
		dir := install(t)
		agent := filepath.Join(dir, Agent)
		f, err := beside(t, filepath.Join(dir, Init))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond) // a file has coarse times
		if err := c.change(agent); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Dup(int(f.Agent.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		other, err := unix.Dup(int(f.Unpacker.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := Inherited(f.option(fd, other)[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []Files{f, theirs} {
			if err := f.AgentStamp.Check(f.Agent, Agent); (err != nil) != c.bad || c.bad && err.Error() != "boxd-agent was overwritten; restart the launcher" {
				t.Errorf("%s: %v", name, err)
			}
			if err := f.UnpackerStamp.Check(f.Unpacker, Unpacker); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		theirs.Close()
	}
}

func TestInherited(t *testing.T) {
	f, err := beside(t, filepath.Join(install(t), Init))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "3", "3,", ",3", "3,4,5", "0,1", "-1,3", "x,y", "7:1:1:1:1", "7:1:1:1:1,8:1:1:1", "7:1:1:1:1,8:1:1:1:x", "2:1:1:1:1,8:1:1:1:1", fmt.Sprintf("%d:1:1:1:1,1000000:1:1:1:1", f.Agent.Fd())} {
		if _, err := Inherited(bad); err == nil || !strings.Contains(err.Error(), Option) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
