package attest

import (
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// namespaces compares the box's namespaces with those of this process.
func (e *experiment) namespaces() error {
	f, err := e.script(scriptNamespaces)
	if err != nil {
		return e.failed(err, NamespaceIsolation)
	}
	var shared, unknown []string
	for _, ns := range namespaces {
		switch f.first(ns) {
		case "":
			unknown = append(unknown, ns)
		case e.control.namespaces[ns]:
			shared = append(shared, ns)
		}
	}
	uid := strings.Fields(f.first("uid"))
	switch {
	case len(shared) > 0:
		e.fail(NamespaceIsolation, "a box shares namespaces with this host: %s", strings.Join(shared, ", "))
	case len(unknown) > 0:
		e.fail(NamespaceIsolation, "a box does not say what its namespaces are: %s", strings.Join(unknown, ", "))
	case len(uid) != 2 || uid[0] == uid[1]:
		e.fail(NamespaceIsolation, "the root of a box is user %q of this host", strings.Join(uid, " "))
	default:
		e.pass(NamespaceIsolation)
	}
	return nil
}

// mounts looks in the box for a file of the host, and on the host for files of the box.
func (e *experiment) mounts() error {
	f, err := e.script(scriptMounts, e.control.file, e.control.name+".box")
	if err == nil && (f.first("end") != "ok" || !strings.HasPrefix(f.first("dir"), "/ ")) {
		err = errEnd
	}
	if err != nil {
		return e.failed(err, MountIsolation)
	}
	switch leaked, has := e.control.leaked(), e.control.has(f["dir"]); {
	case has != "":
		e.fail(MountIsolation, "a box has %s of this host", has)
	case len(f["seen"]) > 0:
		e.fail(MountIsolation, "a box sees %s of this host", e.control.file)
	case leaked != "":
		e.fail(MountIsolation, "a file that a box wrote to its own file system is %s of this host", leaked)
	case len(f["made"]) == 0:
		e.fail(MountIsolation, "a box could not write anywhere, so this proves nothing")
	case len(f["shared"]) > 0:
		e.fail(MountIsolation, "a box shares mounts with this host: %s", f.first("shared"))
	default:
		e.pass(MountIsolation)
	}
	return nil
}

// network makes the box look for listeners of this process, and dial one.
func (e *experiment) network() error {
	err := e.control.listed()
	var f facts
	if err == nil {
		f, err = e.script(scriptNetwork, e.control.port())
	}
	if err == nil && (f.first("end") != "ok" || len(f["dev"]) < 3 || len(f["tcp"]) == 0 || len(f["unix"]) == 0) {
		err = errEnd // dev has two header lines and lo, the others have one header line
	}
	if err != nil {
		return e.failed(err, NetworkIsolation)
	}
	visited, err := e.control.visitor()
	if err != nil {
		return e.failed(fmt.Errorf("not even this server can reach its listener: %w", err), NetworkIsolation)
	}
	switch why := foreignNetwork(f, e.control); {
	case visited || f.first("connected") == "yes":
		e.fail(NetworkIsolation, "a box reached a server on 127.0.0.1 of this host")
	case why != "":
		e.fail(NetworkIsolation, "%s", why)
	default:
		e.pass(NetworkIsolation)
	}
	return nil
}

// foreignNetwork describes what a box sees beyond its own loopback, "" for nothing.
func foreignNetwork(f facts, c *control) string {
	port := fmt.Sprintf(":%04X", c.port())
	for _, line := range f["tcp"] {
		if fields := strings.Fields(line); len(fields) > 2 && strings.HasSuffix(fields[1], port) {
			return "a box sees listeners of this host"
		}
	}
	for _, line := range f["unix"] {
		if strings.Contains(line, "@"+c.name) {
			return "a box sees abstract sockets of this host"
		}
	}
	for i, line := range f["route"] {
		if fields := strings.Fields(line); i > 0 && len(fields) > 0 {
			return "a box has a route through " + fields[0]
		}
	}
	for _, line := range f["ipv6_route"] {
		if fields := strings.Fields(line); len(fields) > 0 && fields[len(fields)-1] != "lo" {
			return "a box has a route through " + fields[len(fields)-1]
		}
	}
	return ""
}

// cgroup checks where the limits come from, and exceeds those of memory, processes and processor
// time.
func (e *experiment) cgroup() error {
	f, err := e.script(scriptCgroup)
	if err != nil {
		return e.failed(err, CgroupV2)
	}
	if why := notUnified(f["cgroup"]); why != "" {
		e.fail(CgroupV2, "%s", why)
		return nil
	}
	hog, _, err := e.command(measureTime, "dd", "if=/dev/zero", "of=/dev/null", "bs="+hogBlock, "count=1")
	if err != nil {
		return e.failed(err, CgroupV2)
	}
	fork, _, err := e.command(measureTime, "sh", "-c", scriptForks, "sh", fmt.Sprint(forks))
	if err != nil {
		return e.failed(err, CgroupV2)
	}
	if err := e.box.Update(e.ctx, engine.Change{Limits: &engine.Limits{CPUs: cpus}}); err != nil {
		return e.failed(err, CgroupV2)
	}
	spin, _, err := e.command(spinTime, "sh", "-c", scriptSpin, "sh", fmt.Sprint(spins))
	if err != nil {
		return e.failed(err, CgroupV2)
	}
	switch throttled := spin.Receipt.Throttled; {
	case hog.Verdict != engine.OOM:
		e.fail(CgroupV2, "a command that wants more than %s of memory ended with verdict %s, not oom", spec.FormatSize(memory), hog.Verdict)
	case fork.Verdict != engine.PIDsLimit:
		e.fail(CgroupV2, "a command that wants more than %d processes ended with verdict %s, not pids-limit", pids, fork.Verdict)
	case throttled == nil || *throttled <= 0:
		e.fail(CgroupV2, "a command that wants more than %g of a processor did not have to wait", cpus)
	default:
		e.pass(CgroupV2)
	}
	return nil
}

// notUnified names the limits that come from cgroup v1, "" for none. The lines are those of
// /proc/self/cgroup (cgroups(7)): "number:controllers:path", where v2 has number 0 and no controllers.
func notUnified(lines []string) string {
	old := map[string]bool{}
	unified := ""
	for _, line := range lines {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 {
			continue
		}
		if fields[0] == "0" && fields[1] == "" {
			unified = fields[2]
		}
		for name := range strings.SplitSeq(fields[1], ",") {
			old[name] = true
		}
	}
	var names []string
	for _, name := range []string{"memory", "pids", "cpu"} {
		if old[name] {
			names = append(names, name)
		}
	}
	switch {
	case len(names) == 1:
		return names[0] + " is limited by cgroup v1 here"
	case len(names) > 1:
		return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1] + " are limited by cgroup v1 here"
	case unified == "" || unified == "/":
		return "a box is in no cgroup of its own"
	}
	return ""
}
