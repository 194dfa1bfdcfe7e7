package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/internal/confine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/langbot/attest"
)

// confine restricts this process to its own directories, the files that it reads again, and the
// system calls of a list, in case an attacker takes it over. It comes after the launcher was
// started, which would inherit the restrictions, and before anything of clients or boxes is read. A
// kernel without Landlock is no error; the log and boxd doctor mention it.
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

// paths returns the files that the daemon uses from now on. For a file that is read again it has
// the directory, because editors replace files.
func (d *daemon) paths() []linux.LandlockPath {
	c := &d.Config
	paths := []linux.LandlockPath{
		{Path: d.dirs.state, Use: linux.LandlockWrite},
		{Path: readAgain(c.Audit.File), Use: linux.LandlockWrite},
		// The directory is root's, so the daemon cannot write in it. But the launcher mounts
		// directories below it that the daemon may write to.
		{Path: d.dirs.runtime, Use: linux.LandlockWrite},
		{Path: os.DevNull, Use: linux.LandlockWrite},
		{Path: "/etc"}, // users, groups, names of hosts
		{Path: "/usr/share/zoneinfo"},
		{Path: "/proc"},
	}
	// Package attest creates a file there that a box must not see.
	for _, dir := range attest.Public {
		paths = append(paths, linux.LandlockPath{Path: dir, Use: linux.LandlockMake})
	}
	// Go reads SSL_CERT_FILE when the first server of an injected secret is verified.
	files := append(d.imageFiles(), d.ConfigFile, c.TokensFile, c.Langbot.TokenFile, os.Getenv("SSL_CERT_FILE"))
	for _, source := range c.NetworkSources() {
		files = append(files, source.File)
	}
	for _, source := range c.WebhookSources() {
		files = append(files, source.File)
	}
	for _, file := range files {
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

// readAgain returns the directory of a file that may be replaced, or the file itself if that would
// be the root directory.
func readAgain(file string) string {
	if dir := filepath.Dir(file); dir != "/" {
		return dir
	}
	return file
}
