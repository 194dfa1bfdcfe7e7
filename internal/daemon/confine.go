package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/internal/confine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/langbot/attest"
)

// confine leaves a daemon that is taken over what it needs and nothing else: its own
// directories, what it reads again, and the system calls of its list. It comes after the
// launcher was started, which would inherit it, and before anything of clients or boxes is
// read. A kernel without Landlock is no error: the log says so, and boxd doctor.
func (d *daemon) confine() (err error) {
	if d.landlock, err = confine.Daemon(d.paths()); err != nil {
		return fmt.Errorf("confining the daemon: %w", err)
	}
	if d.landlock == 0 {
		d.log.Warn("this kernel has no Landlock (Linux 5.19, lsm=landlock): the daemon can access every file that its user can")
	} else {
		d.log.Info("the daemon is confined to its files", "landlock", d.landlock)
	}
	return nil
}

// paths are what the daemon uses from now on. A file that is read again is named by its
// directory: whoever changes it puts a new one in its place.
func (d *daemon) paths() []linux.LandlockPath {
	c := &d.Config
	paths := []linux.LandlockPath{
		{Path: d.dirs.state, Use: linux.LandlockWrite},
		{Path: readAgain(c.Audit.File), Use: linux.LandlockWrite},
		// Root's, so it can write nothing there; but views of directories, which the launcher
		// opens for it and which are its own to write, hang below.
		{Path: d.dirs.runtime, Use: linux.LandlockWrite},
		{Path: os.DevNull, Use: linux.LandlockWrite},
		{Path: "/etc"}, // users, groups, names of hosts
		{Path: "/usr/share/zoneinfo"},
		{Path: "/proc"},
	}
	// There package attest makes a file that a box must not see.
	for _, dir := range attest.Public {
		paths = append(paths, linux.LandlockPath{Path: dir, Use: linux.LandlockMake})
	}
	for _, file := range []string{d.ConfigFile, c.TokensFile, c.Langbot.TokenFile} {
		if file == "" {
			continue
		}
		paths = append(paths, linux.LandlockPath{Path: readAgain(file)})
		if real, err := filepath.EvalSymlinks(file); err == nil {
			paths = append(paths, linux.LandlockPath{Path: readAgain(real)})
		}
	}
	return paths
}

// readAgain is what has to be open for a file that is replaced: its directory, but not all
// of the host.
func readAgain(file string) string {
	if dir := filepath.Dir(file); dir != "/" {
		return dir
	}
	return file
}
