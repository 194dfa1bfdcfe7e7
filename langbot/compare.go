package langbot

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/langbot/protocol"
)

// compared are the fields in which an existing session must match a request, in the order of
// the protocol. Their values are written as the reference server writes them.
var compared = []struct {
	name  string
	value func(*protocol.BoxSpec) string
}{
	{"network", func(s *protocol.BoxSpec) string { return s.Network }},
	{"image", func(s *protocol.BoxSpec) string { return s.Image }},
	{"host_path", func(s *protocol.BoxSpec) string {
		if s.HostPath == nil {
			return "None"
		}
		return *s.HostPath
	}},
	{"host_path_mode", func(s *protocol.BoxSpec) string { return s.HostPathMode }},
	{"mount_path", func(s *protocol.BoxSpec) string { return s.MountPath }},
	{"persistent", func(s *protocol.BoxSpec) string { return truth(s.Persistent) }},
	{"cpus", func(s *protocol.BoxSpec) string { return decimal(s.CPUs) }},
	{"memory_mb", func(s *protocol.BoxSpec) string { return fmt.Sprint(s.MemoryMB) }},
	{"pids_limit", func(s *protocol.BoxSpec) string { return fmt.Sprint(s.PidsLimit) }},
	{"read_only_rootfs", func(s *protocol.BoxSpec) string { return truth(s.ReadOnlyRootfs) }},
	{"workspace_quota_mb", func(s *protocol.BoxSpec) string { return fmt.Sprint(s.WorkspaceQuotaMB) }},
}

// conflict names the first field in which have differs from want.
func conflict(at protocol.Context, physical string, have, want *protocol.BoxSpec) error {
	for _, field := range compared {
		if is := field.value(have); is != field.value(want) {
			return protocol.Errorf(protocol.SessionConflict, "Box session %s already exists with %s=%s", at.Logical(physical), field.name, is)
		}
	}
	return nil
}

func truth(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

// decimal writes a number with a decimal point, even if it is whole.
func decimal(f float64) string {
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// extra lists the mounts that a spec really asks for, sorted, each once.
func extra(spec *protocol.BoxSpec) []protocol.MountSpec {
	list := slices.DeleteFunc(slices.Clone(spec.ExtraMounts), func(m protocol.MountSpec) bool { return m.Mode == "none" })
	slices.SortFunc(list, func(a, b protocol.MountSpec) int {
		return cmp.Or(strings.Compare(a.MountPath, b.MountPath), strings.Compare(a.HostPath, b.HostPath), strings.Compare(a.Mode, b.Mode))
	})
	return slices.Compact(list)
}

// hasMounts reports whether the box is known to have the mounts of a spec. Server.mu is held.
func (b *box) hasMounts(want *protocol.BoxSpec) bool {
	return !b.unsure && slices.Equal(extra(&b.spec), extra(want))
}
