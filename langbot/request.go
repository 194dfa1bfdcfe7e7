package langbot

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/policy"
)

// request translates a spec for the session manager. An image that the operator has not mapped is left
// out; clients are told the one that they asked for in any case.
func (k *call) request(asked *protocol.BoxSpec) (policy.Request, error) {
	if asked.Network == "on" && k.s.o.RefuseNetwork {
		return policy.Request{}, protocol.Errorf(protocol.BackendUnavailable,
			"this runtime gives boxes no network: set network to off, or have the operator change langbot.network_on")
	}
	memory, writable := spec.Size(asked.MemoryMB<<20), !asked.ReadOnlyRootfs
	r := policy.Request{NeverPull: true, Wishes: spec.Wishes{
		Profile: k.s.o.Profile, WritableRoot: &writable, WorkspaceTarget: path.Clean(asked.MountPath),
		Mounts:     []spec.MountWish{}, // not nil: the mounts change while the box runs, so none is a wish, too
		LiveWishes: spec.LiveWishes{CPUs: &asked.CPUs, Memory: &memory, PIDs: &asked.PidsLimit, Persistent: &asked.Persistent},
	}}
	if image, ok := k.s.o.ImageNames[asked.Image]; ok {
		r.Image = &image
	}
	switch off := false; {
	case asked.Network != "on":
		r.Network = &off // whatever the profile's default
	case k.s.o.OfferNetwork:
		r.NetworkElse, r.NetworkRules = noNetwork, k.s.o.NetworkRules
	default:
		r.Network, r.Warnings = &off, []string{noNetwork}
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

// keepImage makes r ask for the image that the session of b has: the operator may have mapped its name to
// another one since.
func (k *call) keepImage(b *box, r *policy.Request) {
	if view, err := k.s.sessions.Get(b.key); err == nil {
		r.Image = &view.Resolved.Image
	}
}

// labels say in boxd's own lists and events where a session comes from. Names that cannot be labels,
// which the protocol allows, are left out.
func (k *call) labels(physical string) spec.Labels {
	all := spec.Labels{}
	for key, value := range map[string]string{
		"langbot-instance": k.at.Instance, "langbot-workspace": k.at.Workspace, "langbot-session": k.at.Logical(physical),
	} {
		if label := (spec.Labels{key: value}); label.Validate("labels") == nil {
			all[key] = value
		}
	}
	return all
}

// noNetwork is the warning for a session that asks for a network.
const noNetwork = "network: on was asked for, and this session has no network: commands reach nothing but their own box (langbot.network_on, and the profile's allow_network)"

// maxMB keeps sizes in bytes far below the maximum of an int64.
const maxMB = 1 << 30

// mount translates a mount: of a directory of the host, or of a skill.
func (k *call) mount(field string, m protocol.MountSpec) (spec.MountWish, error) {
	out := spec.MountWish{Target: path.Clean(m.MountPath), ReadOnly: m.Mode == "ro"}
	skill, rest, err := k.skillPath(field, m.HostPath)
	if err != nil {
		return out, err
	}
	switch {
	case skill && k.skillsDir() == "":
		out.Volume, out.Source = skillsVolume(k.at.Namespace()), path.Join("/", rest)
	case skill: // the operator chooses the directory, so the client's roots do not matter
		out.NoLinks = k.ownSkills() // boxes may write there
		out.Source = path.Join(out.NoLinks, rest)
	default:
		out.Source, err = k.hostPath(field, m.HostPath)
	}
	return out, err
}

// hostPath checks a path of the host against the roots that the client itself named in box_init.
// The policy checks those of the operator.
func (k *call) hostPath(field, name string) (string, error) {
	if !strings.HasPrefix(name, "/") {
		return "", protocol.Errorf(protocol.BoxValidation, "%s %q: must be an absolute path of this host, which has no drives", field, name)
	}
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", protocol.Errorf(protocol.BoxValidation, `%s %q: must not contain ".."`, field, name)
	}
	clean := path.Clean(name)
	if roots := k.settings().local.narrowed; roots != nil && rootOf(clean, roots) == "" {
		return "", protocol.Errorf(protocol.BoxValidation, "%s %q: must be in one of box.local.allowed_mount_roots %q", field, name, roots)
	}
	return clean, nil
}

// rootOf returns the longest of roots that contains the cleaned path name; "" if none does.
func rootOf(name string, roots []string) (best string) {
	for _, root := range roots {
		if pathin.In(name, root) && len(root) > len(best) {
			best = root
		}
	}
	return best
}
