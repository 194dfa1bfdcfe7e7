package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// peer is a program that isolates one command, called as a user would call it.
type peer struct {
	name  string // of its row
	args  []string
	omits string // what it does not do and boxd does
	// run replaces the start of a process for a peer that is a service.
	run  func() error
	stop func()
	why  string // why it is not measured
}

const omitsAll = "limits of memory, processes and processor time; a seccomp policy; more than one user; a receipt"

// peers run the same command in new namespaces (user, pid, net, ipc, uts, mount) on the
// host's system directories, read-only, with a fresh /proc, /dev and /tmp.
func (b *bench) peers() ([]*peer, error) {
	bundle, err := b.makeBundle()
	if err != nil {
		return nil, fmt.Errorf("making OCI bundle: %w", err)
	}
	boxd := []string{b.boxd, "run", "--state-dir", b.stateDir()}
	if b.degraded {
		boxd = append(boxd, "--allow-degraded")
	}
	oci := func(name string, flags ...string) []string {
		return append(append([]string{name, "--root", filepath.Join(b.scratch, "oci-"+name)}, flags...), "run", "--bundle", bundle, b.id())
	}
	return []*peer{
		{name: "boxd", args: append(boxd, "--", command)},
		{name: "bwrap", args: append(bwrapArgs(), command), omits: omitsAll},
		{name: "nsjail", args: append(nsjailArgs(), "--", command), omits: omitsAll},
		{name: "crun", args: oci("crun"), omits: "a seccomp policy, loopback, a receipt"},
		{name: "runc", args: oci("runc"), omits: "a seccomp policy, loopback, a receipt"},
		{name: "runsc", args: oci("runsc", "--network=none", "--platform=systrap"), omits: "a seccomp policy, which its own kernel replaces; a receipt"},
		{name: "podman", args: containerArgs("podman", filepath.Join(bundle, "rootfs")), omits: "a user namespace; a receipt"},
		{name: "docker", args: containerArgs("docker", ""), omits: "a user namespace; a receipt; its image must have been pulled"},
		b.goJudge(),
	}, nil
}

// id names things that peers create on this host.
func (b *bench) id() string { return filepath.Base(b.scratch) }

// processes measures whole processes: start, isolate, run, clean up.
func (b *bench) processes(ctx context.Context) {
	all, err := b.peers()
	if err != nil {
		b.fail("process.peers", err)
		return
	}
	var here []*peer
	samples := []sample{timed(bare)}
	for _, p := range all {
		if p.stop != nil {
			defer p.stop()
		}
		if p.try(); p.why == "" {
			here = append(here, p)
			samples = append(samples, timed(p.once))
		}
	}
	s, err := b.alternate(max(b.n/8, 5), samples...)
	if err != nil {
		b.fail("process", err)
		return
	}
	b.times("process.bare", "whole process: bare", s[0], s[0], "", goal{})
	for i, p := range here {
		var g goal
		if p.name == "boxd" {
			g = goal{"≤ 20 × bare", ratio(s[i+1], s[0]) <= 20}
		}
		row := b.times("process."+p.name, "whole process: "+p.title(), s[i+1], s[0], "", g)
		row.Args, row.Omits = b.shown(p.args), p.omits
	}
	for _, p := range all {
		if p.why != "" {
			b.skip("process."+p.name, "whole process: "+p.title(), p.why).Args = b.shown(p.args)
		}
	}
	b.poolProcess(ctx)
}

// poolProcess measures boxd run by a daemon whose pool has a box each time.
func (b *bench) poolProcess(ctx context.Context) {
	const name, what = "process.boxd-pool", "whole process: boxd run by a daemon, from the pool"
	if err := os.Setenv("BOXD_POOL", "1"); err != nil {
		b.fail(name, err)
		return
	}
	defer os.Unsetenv("BOXD_POOL")
	b.withDaemon(func(d *served) error {
		p := &peer{name: "boxd-pool", args: []string{b.boxd, "run", "--socket", d.Socket(), "--", command}}
		for range 2 { // so that such boxes are in demand
			if err := p.once(); err != nil {
				return err
			}
		}
		s, err := b.alternate(max(b.n/8, 5), timed(bare), func() (time.Duration, error) { return d.fromPool(ctx, p.once) })
		if err != nil {
			return err
		}
		row := b.times(name, what, s[1], s[0], "", goal{"≤ 8 × bare", ratio(s[1], s[0]) <= 8})
		row.Args = []string{"boxd", "run", "--socket", "DIR/state/boxd.sock", "--", command}
		return nil
	})
}

// shown are arguments without what differs from run to run, or from host to host.
func (b *bench) shown(args []string) (list []string) {
	short := strings.NewReplacer(b.scratch, "DIR", b.id(), "ID", b.boxd, "boxd")
	for _, arg := range args {
		list = append(list, short.Replace(arg))
	}
	return list
}

func (p *peer) title() string {
	switch p.name {
	case "boxd":
		return "boxd run"
	case "go-judge":
		return "a request to go-judge"
	}
	return p.name
}

// try finds out whether p can be measured; if not, p.why says why.
func (p *peer) try() {
	if p.why != "" {
		return
	}
	if _, err := exec.LookPath(p.args[0]); err != nil {
		p.why = "not installed"
		return
	}
	if err := p.once(); err != nil {
		p.why = fmt.Sprintf("does not run here: %v", err)
	}
}

func (p *peer) once() error {
	if p.run != nil {
		return p.run()
	}
	var out bytes.Buffer
	cmd := exec.Command(p.args[0], p.args[1:]...)
	// Pipes: crun gives its standard streams to the container's user, also if they are the host's /dev/null.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(""), io.Discard, &out
	if err := cmd.Run(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
		return fmt.Errorf("%w: %s", err, line)
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
	args := []string{"bwrap", "--unshare-all", "--uid", "0", "--gid", "0", "--die-with-parent", "--new-session", "--clearenv"}
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
	args := []string{"nsjail", "-Mo", "--really_quiet", "--user", "0:65534:1", "--group", "0:65534:1", "--disable_clone_newcgroup"}
	dirs, links := systemDirs()
	for _, dir := range dirs {
		args = append(args, "--bindmount_ro", dir)
	}
	for link, target := range links {
		args = append(args, "--symlink", target+":"+link)
	}
	return append(args, "--bindmount", "/dev/null", "--tmpfsmount", "/tmp")
}

// containerArgs are those of podman and docker. podman takes a directory as root, docker needs an
// image: any small one, in which the host's directories are mounted.
func containerArgs(program, root string) []string {
	args := []string{program, "run", "--rm", "--network", "none", "--read-only", "--memory", "512m", "--pids-limit", "128", "--cpus", "1", "--security-opt", "no-new-privileges", "--cap-drop", "ALL"}
	dirs, _ := systemDirs()
	for _, dir := range dirs {
		if dir != "/etc" { // they write files there
			args = append(args, "-v", dir+":"+dir+":ro")
		}
	}
	if root != "" {
		return append(args, "--rootfs", root, command)
	}
	return append(args, "busybox", command)
}

// goJudge is a service with containers that it uses again for one command after another. Its row is
// a request over a kept connection: it starts no process of its own.
func (b *bench) goJudge() *peer {
	p := &peer{name: "go-judge", omits: "a start of a process: it is a service, whose containers serve one command after another; a seccomp policy"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		p.why = err.Error()
		return p
	}
	address := l.Addr().String()
	l.Close()
	p.args = []string{"go-judge", "-http-addr", address, "-silent", "-dir", filepath.Join(b.scratch, "go-judge")}
	if _, err := exec.LookPath(p.args[0]); err != nil {
		p.why = "not installed"
		return p
	}
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		p.why = err.Error()
		return p
	}
	p.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	const request = `{"cmd":[{"args":["` + command + `"],"env":["PATH=/usr/bin:/bin"],"files":[null,{"name":"stdout","max":1024},{"name":"stderr","max":1024}],"cpuLimit":10000000000,"memoryLimit":536870912,"procLimit":128}]}`
	p.run = func() error {
		resp, err := http.Post("http://"+address+"/run", "application/json", strings.NewReader(request))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if err == nil && !bytes.Contains(answer, []byte(`"status":"Accepted"`)) {
			err = fmt.Errorf("go-judge answers %.300s", answer)
		}
		return err
	}
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) { // it tells nobody when it listens
		err := p.run()
		if err == nil {
			return p
		}
		var refused *net.OpError
		if !errors.As(err, &refused) || time.Since(began) > 5*time.Second {
			p.why = fmt.Sprintf("does not run here: %v", err)
			return p
		}
	}
}
