package langbot

import (
	"fmt"
	"path"
	"strings"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
)

// request is what asked wants the session manager for. The image is not part of it: there
// is one, the host's, and clients are told what they asked for.
func (k *call) request(asked *protocol.BoxSpec) (policy.Request, error) {
	if asked.Network == "on" && k.s.o.RefuseNetwork {
		return policy.Request{}, protocol.Errorf(protocol.BackendUnavailable,
			"this runtime cannot give a box a network yet: set network to off, or have the operator set langbot.network_on to offline, which gives such boxes none")
	}
	memory, writable := spec.Size(asked.MemoryMB<<20), !asked.ReadOnlyRootfs
	r := policy.Request{Wishes: spec.Wishes{
		Profile: k.s.o.Profile, WritableRoot: &writable, WorkspaceTarget: path.Clean(asked.MountPath),
		Mounts:     []spec.MountWish{}, // which are changed live, so none is a wish too
		LiveWishes: spec.LiveWishes{CPUs: &asked.CPUs, Memory: &memory, PIDs: &asked.PidsLimit, Persistent: &asked.Persistent},
	}}
	if asked.Network == "on" {
		r.Warnings = []string{noNetwork}
	}
	if asked.MemoryMB > maxMB || asked.WorkspaceQuotaMB > maxMB {
		return r, protocol.Errorf(protocol.BoxValidation, "memory_mb and workspace_quota_mb must be at most %d", maxMB)
	}
	if asked.HostPath != nil && asked.HostPathMode != "none" {
		host, err := k.hostPath("host_path", *asked.HostPath)
		if err != nil {
			return r, err
		}
		mode := asked.HostPathMode
		r.Workspace, r.WorkspaceMode, r.MakeWorkspace = host, &mode, mode == spec.ReadWrite
	}
	if asked.WorkspaceQuotaMB > 0 {
		size := spec.Size(asked.WorkspaceQuotaMB << 20)
		r.WorkspaceSize = &size
	}
	for i, m := range extra(asked) {
		mount, err := k.mount(fmt.Sprintf("extra_mounts[%d].host_path", i), m)
		if err != nil {
			return r, err
		}
		r.Mounts = append(r.Mounts, mount)
	}
	return r, nil
}

// noNetwork warns of a session that asks for a network.
const noNetwork = "network: on was asked for, and boxes have no network yet: commands reach nothing but their own box (langbot.network_on)"

// maxMB keeps sizes in bytes far from the end of an int64.
const maxMB = 1 << 30

// mount is a directory of the host, or a skill.
func (k *call) mount(field string, m protocol.MountSpec) (spec.MountWish, error) {
	out := spec.MountWish{Target: path.Clean(m.MountPath), ReadOnly: m.Mode == "ro"}
	skill, rest, err := k.skillPath(field, m.HostPath)
	if err != nil {
		return out, err
	}
	switch {
	case skill && k.skillsDir() == "":
		out.Volume, out.Source = skillsVolume(k.at.Namespace()), path.Join("/", rest)
	case skill: // where they are is the operator's choice, whatever the client's roots
		out.NoLinks = k.ownSkills() // in which boxes write
		out.Source = path.Join(out.NoLinks, rest)
	default:
		out.Source, err = k.hostPath(field, m.HostPath)
	}
	return out, err
}

// hostPath checks a path of the host against the roots that the client itself has named
// in box_init; the operator's are the policy's business.
func (k *call) hostPath(field, name string) (string, error) {
	if !strings.HasPrefix(name, "/") {
		return "", protocol.Errorf(protocol.BoxValidation, "%s %q: must be an absolute path of this host, which has no drives", field, name)
	}
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", protocol.Errorf(protocol.BoxValidation, `%s %q: must not contain ".."`, field, name)
		}
	}
	clean := path.Clean(name)
	if roots := k.settings().local.narrowed; roots != nil && rootOf(clean, roots) == "" {
		return "", protocol.Errorf(protocol.BoxValidation, "%s %q: must be in one of box.local.allowed_mount_roots %q", field, name, roots)
	}
	return clean, nil
}

// rootOf is the longest of roots that the cleaned path name is or lies in; empty if there
// is none.
func rootOf(name string, roots []string) (best string) {
	for _, root := range roots {
		if pathin.In(name, root) && len(root) > len(best) {
			best = root
		}
	}
	return best
}
