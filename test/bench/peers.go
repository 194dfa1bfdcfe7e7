package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// peer is a program that isolates one command, called as a user would call it.
type peer struct {
	name string
	args []string
}

// peers run the same command in new namespaces (user, pid, net, ipc, uts, mount) on the
// host's system directories, read-only, with a fresh /proc, /dev and /tmp. Only boxd, runc
// and crun set limits; boxd adds a seccomp policy.
func (b *bench) peers() ([]peer, error) {
	bundle, err := b.makeBundle()
	if err != nil {
		return nil, fmt.Errorf("making OCI bundle: %w", err)
	}
	boxd := []string{"run", "--state-dir", b.stateDir()}
	if b.degraded {
		boxd = append(boxd, "--allow-degraded")
	}
	oci := []string{"--root", filepath.Join(b.scratch, "oci"), "run", "--bundle", bundle, b.id()}
	return []peer{
		{filepath.Join(b.bin, "boxd"), append(boxd, "--", command)},
		{"bwrap", append(bwrapArgs(), command)},
		{"nsjail", append(nsjailArgs(), "--", command)},
		{"crun", oci},
		{"runc", oci},
	}, nil
}

// id names things that peers create on this host.
func (b *bench) id() string { return filepath.Base(b.scratch) }

// processes measures whole processes: start, isolate, run, clean up.
func (b *bench) processes(context.Context) {
	const what = "whole process: "
	peers, err := b.peers()
	if err != nil {
		b.table.fail(what+"peers", err)
		return
	}
	here := []peer{{name: "bare"}}
	samples := []sample{timed(bare)}
	absent := map[string]string{}
	for _, p := range peers {
		if why := p.try(); why != "" {
			absent[p.name] = why
			continue
		}
		here = append(here, p)
		samples = append(samples, timed(p.run))
	}
	s, err := alternate(max(b.n/8, 5), samples...)
	if err != nil {
		b.table.fail(what+"all", err)
		return
	}
	for i, p := range here {
		b.table.times(what+p.title(), s[i], s[0], goal{})
	}
	for _, p := range peers {
		if why, ok := absent[p.name]; ok {
			b.table.skip(what+p.title(), why)
		}
	}
}

func (p peer) title() string {
	if filepath.Base(p.name) == "boxd" {
		return "boxd run"
	}
	return p.name
}

// try returns why p cannot be measured, or "".
func (p peer) try() string {
	if _, err := exec.LookPath(p.name); err != nil {
		return "not installed"
	}
	cmd := exec.Command(p.name, p.args...)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Run(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
		return fmt.Sprintf("does not run here: %v: %s", err, line)
	}
	return ""
}

func (p peer) run() error {
	if err := exec.Command(p.name, p.args...).Run(); err != nil {
		return fmt.Errorf("running %q: %w", p.name, err)
	}
	return nil
}

// systemDirs returns the directories to mount for the host's programs and libraries, and the
// symlinks (of a merged /usr) to create.
func systemDirs() (dirs []string, links map[string]string) {
	links = map[string]string{}
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc"} {
		info, err := os.Lstat(dir)
		if err != nil {
			continue
		}
		if info.Mode().Type() == os.ModeSymlink {
			links[dir], _ = os.Readlink(dir)
			continue
		}
		dirs = append(dirs, dir)
	}
	return dirs, links
}

func bwrapArgs() []string {
	args := []string{"--unshare-all", "--uid", "0", "--gid", "0", "--die-with-parent", "--new-session", "--clearenv"}
	dirs, links := systemDirs()
	for _, dir := range dirs {
		args = append(args, "--ro-bind", dir, dir)
	}
	for link, target := range links {
		args = append(args, "--symlink", target, link)
	}
	return append(args, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp")
}

// nsjailArgs returns arguments without --chroot, with which nsjail creates an empty root, and
// with --disable_clone_newcgroup, with which it leaves cgroups alone.
func nsjailArgs() []string {
	args := []string{"-Mo", "--really_quiet", "--user", "0:65534:1", "--group", "0:65534:1", "--disable_clone_newcgroup"}
	dirs, links := systemDirs()
	for _, dir := range dirs {
		args = append(args, "--bindmount_ro", dir)
	}
	for link, target := range links {
		args = append(args, "--symlink", target+":"+link)
	}
	return append(args, "--bindmount", "/dev/null", "--tmpfsmount", "/tmp")
}
