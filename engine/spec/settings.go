package spec

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// This file declares every setting of a session: the requested values ([Wishes]), the
// values in force ([Settings]), the highest values that a profile allows ([Caps]), and the
// rules ([Table]). The four use the same names, so a setting is one line in each of them,
// and the code that merges, checks, compares, shows and parses settings iterates over the
// table.

// Modes of a workspace and of mounts.
const (
	ReadWrite = "rw"
	ReadOnly  = "ro"
	None      = "none"
)

// When a session pulls its image.
const (
	PullNever   = "never"   // what is not in the store is an error
	PullMissing = "missing" // if the store does not have it
	PullAlways  = "always"  // each new session asks the registry
)

// LiveWishes are the wishes that can also change while a session lives. The tag update
// describes a field in an update, if that differs.
type LiveWishes struct {
	Network     *bool     `json:"network,omitempty" yaml:"network" doc:"Whether the box has a network beyond loopback." update:"false gives the network up, for good. true opens one for commands that start later, unless the session is sensitive or its profile forbids it."`
	Sensitive   *bool     `json:"sensitive,omitempty" yaml:"sensitive" doc:"Whether the session holds sensitive data: then it has no network, for good." update:"Only true: what has been sensitive stays so until the session is removed."`
	CPUs        *float64  `json:"cpus,omitempty" yaml:"cpus" doc:"Processors' worth of time."`
	Memory      *Size     `json:"memory,omitempty" yaml:"memory" doc:"RAM in bytes, or a string such as \"512M\"."`
	PIDs        *int64    `json:"pids,omitempty" yaml:"pids" doc:"Processes and threads at once."`
	IdleTTL     *Duration `json:"idle_ttl,omitempty" yaml:"idle_ttl" doc:"Seconds without use, or a string such as \"5m\", after which the session ends." update:"Seconds."`
	MaxLifetime *Duration `json:"max_lifetime,omitempty" yaml:"max_lifetime" doc:"Seconds after which the session ends, used or not; 0: never." update:"Seconds from the creation; 0: none."`
	Persistent  *bool     `json:"persistent,omitempty" yaml:"persistent" doc:"Never end for idleness."`
	AutoResume  *bool     `json:"auto_resume,omitempty" yaml:"auto_resume" doc:"Whether use resumes a paused session. Otherwise it is refused."`
	Retain      *string   `json:"retain,omitempty" yaml:"retain" doc:"How long the workspace that boxd keeps stays when idle_ttl or max_lifetime end the session: none, forever, or a time such as 7d or 12h."`
}

// Wishes are the values that a request asks for. The profile supplies omitted values, and
// overrides those that it locks. Fields with a yaml tag are also keys of a profile.
type Wishes struct {
	Profile         string  `json:"profile,omitempty" doc:"Name of the profile; empty: \"default\"."`
	Image           *string `json:"image,omitempty" yaml:"image" doc:"Root file system: \"host\", the host's system directories, read-only; or an image such as \"python:3.12\". Empty: the profile's."`
	LiveWishes      `yaml:",inline"`
	Engine          *string           `json:"engine,omitempty" doc:"The engine that builds the box: native, oci or containerd. Empty: the first that can, in the order of the profile or of the daemon's configuration."`
	Isolation       *string           `json:"isolation,omitempty" yaml:"isolation" doc:"The wall around the box: namespaces, or gvisor, a kernel of its own in user space. Never weaker than the profile's."`
	Require         *bool             `json:"require,omitempty" yaml:"require" doc:"Refuse a box with a weaker wall than isolation says. false accepts one while no engine offers that isolation, and the session says so in degraded."`
	NetworkRules    *NetworkRules     `json:"network_rules,omitempty" doc:"Narrow what the profile lets a session with a network reach."`
	Publish         []PublishWish     `json:"publish,omitempty" doc:"Ports of the host that lead to ports of the box, from the pool of the daemon's configuration."`
	WritableRoot    *bool             `json:"writable_root,omitempty" yaml:"writable_root" doc:"Lay a private writable layer over the root, thrown away with the box."`
	TmpSize         *Size             `json:"tmp_size,omitempty" yaml:"tmp_size" doc:"Size of /tmp, of the home directory and of /dev/shm, each."`
	UpperSize       *Size             `json:"upper_size,omitempty" yaml:"upper_size" doc:"Size of the writable layer."`
	WorkspaceMode   *string           `json:"workspace_mode,omitempty" yaml:"workspace_mode" doc:"rw, ro or none."`
	Workspace       string            `json:"workspace,omitempty" doc:"Host directory to mount as the workspace; empty: one of boxd's own, which stays with the session."`
	WorkspaceSize   *Size             `json:"workspace_size,omitempty" yaml:"workspace_size" doc:"Hard limit of the workspace, from 1 MiB: who writes more gets ENOSPC. 0: none."`
	WorkspaceInodes *int64            `json:"workspace_inodes,omitempty" yaml:"workspace_inodes" doc:"Files and directories that can be in it, at most one for each KiB of its size; 0: one for each 16 KiB of its size, at least 1024."`
	WorkspaceTarget string            `json:"workspace_target,omitempty" doc:"Where it is mounted; empty: /workspace. Commands start there."`
	Mounts          []MountWish       `json:"mounts,omitempty" doc:"More host directories and files to mount."`
	Volumes         []VolumeWish      `json:"volumes,omitempty" doc:"Volumes of the tenant to attach."`
	User            *User             `json:"user,omitempty" doc:"User that runs commands that name none."`
	Env             map[string]string `json:"env,omitempty" doc:"Environment of all commands of the session."`
	Timeout         *Duration         `json:"timeout,omitempty" yaml:"timeout" doc:"Default timeout of an exec, in seconds."`
	Hostname        string            `json:"hostname,omitempty" doc:"Host name in the box."`
	Name            string            `json:"name,omitempty" doc:"Name for people, up to 128 bytes; it need not be unique."`
	Labels          Labels            `json:"labels,omitempty" doc:"Labels to find and count the session by: up to 64 keys with values."`
}

// NetworkRules narrow, for one session, what its profile lets a box reach. docs/network.md describes
// the entries.
type NetworkRules struct {
	Allow  []string      `json:"allow,omitempty" doc:"Names, addresses and CIDRs that the session reaches, as far as its profile allows them; empty: all that the profile allows."`
	Deny   []string      `json:"deny,omitempty" doc:"Those that it does not reach."`
	Limits NetworkLimits `json:"limits,omitzero" doc:"Lower limits than those of the profile; absent or 0: the profile's."`
}

// NetworkLimits bound what one box uses of the network, over all of its connections.
type NetworkLimits struct {
	// Connections is at most 16384.
	Connections int `json:"connections,omitempty" yaml:"connections" doc:"Connections open at once."`
	// ConnectionRate is at most 100,000.
	ConnectionRate int `json:"connection_rate,omitempty" yaml:"connection_rate" doc:"New connections per second; ten times as many at once. Further ones wait."`
	// Bytes count as long as the box lives.
	Bytes Size `json:"bytes,omitempty" yaml:"bytes" doc:"Bytes in both directions together, as long as the box lives."`
	// Bandwidth is at least 1 KiB.
	Bandwidth Size `json:"bandwidth,omitempty" yaml:"bandwidth" doc:"Bytes per second, both directions together."`
	// Idle is at least one second.
	Idle Duration `json:"idle,omitempty" yaml:"idle" doc:"Seconds, or a string such as \"5m\", without a byte after which a connection ends."`
}

// Equal reports whether two rules are the same; nil is the same as empty rules.
func (r *NetworkRules) Equal(other *NetworkRules) bool {
	var a, b NetworkRules
	if r != nil {
		a = *r
	}
	if other != nil {
		b = *other
	}
	return slices.Equal(a.Allow, b.Allow) && slices.Equal(a.Deny, b.Deny) && a.Limits == b.Limits
}

// Update changes a live session. Omitted values stay.
type Update struct {
	Attach []MountWish `json:"attach,omitempty" doc:"Mounts to add."`
	Detach []string    `json:"detach,omitempty" doc:"Targets of mounts and volumes to take away; done first."`
	// AttachVolumes are volumes of the tenant to attach.
	AttachVolumes []VolumeWish  `json:"attach_volumes,omitempty" doc:"Volumes of the tenant to attach."`
	NetworkRules  *NetworkRules `json:"network_rules,omitempty" doc:"Narrow what the profile allows, in place of the session's rules so far. Connections that are not allowed any more end at once."`
	Name          *string       `json:"name,omitempty" doc:"New name for people."`
	// Labels to set; nil removes one.
	Labels map[string]*string `json:"labels,omitempty" doc:"Labels to set; null removes one. Others stay."`
	LiveWishes
}

// MountWish asks for a host directory or file in the box.
type MountWish struct {
	Source   string `json:"source" doc:"Absolute path on the host, beneath an allowed root. In answers also volume:NAME/path, which is boxd's own and cannot be asked for."`
	Target   string `json:"target" doc:"Absolute path in the box."`
	ReadOnly bool   `json:"read_only,omitempty"`

	// Volume and NoLinks are those of [Mount]. Only the daemon's code sets them. Clients
	// cannot, because they are not in the JSON.
	Volume  string `json:"-"`
	NoLinks string `json:"-"`
}

// Sensitive says since when and why a session, a volume or a directory of the host holds
// sensitive data. Nothing takes that back but its removal.
type Sensitive struct {
	Since  time.Time `json:"since"`
	Reason string    `json:"reason"`
}

// VolumeWish asks for a volume of the tenant in the box.
type VolumeWish struct {
	Name     string `json:"name" doc:"Name of the volume."`
	Target   string `json:"target" doc:"Absolute path in the box."`
	Size     Size   `json:"size,omitempty" doc:"Create the volume with this size, from 1 MiB, if it does not exist. An existing one keeps its size."`
	ReadOnly bool   `json:"read_only,omitempty" doc:"Several sessions can have a volume read-only, or one can have it read-write."`
}

// Settings are the values in force for a session, or the defaults of a profile. The doc
// tags describe them in the answer about a profile.
type Settings struct {
	Image           string   `json:"image" doc:"\"host\", or the full reference of an image."`
	Pull            string   `json:"pull,omitempty" doc:"When a session pulls its image: never, missing or always."`
	Engine          string   `json:"engine,omitempty" doc:"The only engine that may build the box; absent: the order decides."`
	Isolation       string   `json:"isolation" doc:"namespaces or gvisor."`
	Require         bool     `json:"require" doc:"No weaker wall than isolation says."`
	Network         bool     `json:"network"`
	Sensitive       bool     `json:"sensitive" doc:"The session has no network, for good."`
	CPUs            float64  `json:"cpus"`
	Memory          Size     `json:"memory" doc:"Bytes."`
	PIDs            int64    `json:"pids"`
	OpenFiles       int64    `json:"open_files"` // per process
	FileSize        Size     `json:"file_size" doc:"Bytes; -1: unlimited."`
	WritableRoot    bool     `json:"writable_root"`
	TmpSize         Size     `json:"tmp_size"`
	UpperSize       Size     `json:"upper_size"`
	WorkspaceMode   string   `json:"workspace_mode"`
	WorkspaceSize   Size     `json:"workspace_size" doc:"Hard limit of the workspace in bytes; 0: none."`
	WorkspaceInodes int64    `json:"workspace_inodes" doc:"Files and directories in it; 0: by the size."`
	MountMode       string   `json:"mount_mode" doc:"The most that extra mounts get: rw, ro or none."`
	Timeout         Duration `json:"timeout" doc:"Seconds."` // of a command that names none
	IdleTTL         Duration `json:"idle_ttl" doc:"Seconds."`
	MaxLifetime     Duration `json:"max_lifetime" doc:"Seconds; 0: none."`
	Persistent      bool     `json:"persistent"`
	AutoResume      bool     `json:"auto_resume" doc:"Use resumes a paused session."`
	Retain          string   `json:"retain" doc:"How long the workspace stays when a TTL ends the session: none, forever, or a time such as 7d."`
}

// Caps are the highest values that a request may ask for. -1 means no cap, also in JSON.
type Caps struct {
	CPUs          float64  `json:"cpus"`
	Memory        Size     `json:"memory"`
	PIDs          int64    `json:"pids"`
	TmpSize       Size     `json:"tmp_size"`
	UpperSize     Size     `json:"upper_size"`
	Timeout       Duration `json:"timeout"` // a longer one is cut to this
	IdleTTL       Duration `json:"idle_ttl"`
	MaxLifetime   Duration `json:"max_lifetime"`
	WorkspaceSize Size     `json:"workspace_size" doc:"A workspace without a hard limit is above every cap."`
}

// CapWishes change the caps of a profile.
type CapWishes struct {
	CPUs          *float64  `yaml:"cpus"`
	Memory        *Size     `yaml:"memory"`
	PIDs          *int64    `yaml:"pids"`
	TmpSize       *Size     `yaml:"tmp_size"`
	UpperSize     *Size     `yaml:"upper_size"`
	WorkspaceSize *Size     `yaml:"workspace_size"`
	Timeout       *Duration `yaml:"timeout"`
	IdleTTL       *Duration `yaml:"idle_ttl"`
	MaxLifetime   *Duration `yaml:"max_lifetime"`
}

// Bounds of the times of a session. A time above MaxTime is a mistake.
const (
	MinIdleTTL = time.Second
	MaxTime    = 366 * 24 * time.Hour
)

// Setting is a row of [Table].
type Setting struct {
	// Name is the JSON name, in Wishes and in Settings.
	Name string
	// Lock: a profile can lock it.
	Lock bool
	// Positive refuses 0, which to the engine would mean its own default instead of the
	// profile's.
	Positive bool
	// Zero describes the meaning of 0 if that is more than any number, such as "no end".
	// A cap refuses it, and the flag accepts it.
	Zero string
	// Unlimited: the flag accepts "unlimited".
	Unlimited bool
	// Rule checks what package engine does not; nil: nothing.
	Rule func(s *Settings) error
	// Flag and Usage belong to the command line; an empty Flag means that there is none.
	// Box: boxd run has the flag as well. The shell completes Examples.
	Flag, Usage string
	Box         bool
	Examples    []string

	// The field's index in Wishes, Settings and Caps, nil without one. See [Setting.Of].
	inWishes, inSettings, inCaps []int
}

// Table lists all settings, in the order in which a request is checked.
var Table = []*Setting{
	{Name: "image", Lock: true, Examples: []string{HostImage}, Flag: "image", Usage: "root file system of the session: `IMAGE` \"host\", or a reference such as python:3.12",
		Rule: func(s *Settings) error {
			_, err := CheckImage("image", s.Image)
			return err
		}},
	{Name: "pull", Rule: func(s *Settings) error {
		if s.Pull != PullNever && s.Pull != PullMissing && s.Pull != PullAlways {
			return refuse("pull", Quote(s.Pull), `must be "never", "missing" or "always"`)
		}
		return nil
	}},
	{Name: "engine", Lock: true, Box: true, Examples: Engines, Flag: "engine", Usage: "engine that builds the box: `ENGINE` native, oci or containerd (default: the first that can)",
		Rule: func(s *Settings) error { return CheckWord("engine", s.Engine, Engines) }},
	{Name: "isolation", Lock: true, Box: true, Examples: Isolations, Flag: "isolation", Usage: "wall around the box: `WALL` namespaces or gvisor",
		Rule: func(s *Settings) error {
			if !slices.Contains(Isolations, s.Isolation) { // empty is no answer: how strong would that be?
				return refuse("isolation", Quote(s.Isolation), "must be one of %s", strings.Join(Isolations, ", "))
			}
			return nil
		}},
	{Name: "require", Lock: true, Flag: "require", Usage: "refuse a weaker wall than --isolation; --require=false accepts one"},
	{Name: "network", Lock: true, Flag: "network", Usage: "give the session a network beyond loopback, if its profile may have one"},
	{Name: "sensitive", Lock: true, Flag: "sensitive", Usage: "mark the session as holding sensitive data: no network, for good"},
	{Name: "cpus", Lock: true, Positive: true, Unlimited: true, Box: true, Examples: []string{"0.5", "1", "2", "4", "unlimited"},
		Flag: "cpus", Usage: "processors' worth of time: `N` such as 1.5, or \"unlimited\""},
	{Name: "memory", Lock: true, Positive: true, Unlimited: true, Box: true, Examples: []string{"64M", "256M", "512M", "1G", "4G", "unlimited"},
		Flag: "memory", Usage: "memory of all commands together, swap off: `SIZE` such as 64M or 1.5G, or \"unlimited\""},
	{Name: "pids", Lock: true, Positive: true, Unlimited: true, Box: true, Examples: []string{"32", "128", "512", "unlimited"},
		Flag: "pids", Usage: "processes and threads at once: `N`, or \"unlimited\""},
	{Name: "open_files", Positive: true},
	{Name: "file_size"},
	{Name: "writable_root", Lock: true, Box: true, Flag: "rw-rootfs", Usage: "make the root writable; changes vanish with the box"},
	{Name: "tmp_size", Lock: true, Positive: true, Box: true, Examples: []string{"16M", "64M", "256M"},
		Flag: "tmp-size", Usage: "room in /tmp, the home directory and /dev/shm, each: `SIZE`"},
	{Name: "upper_size", Lock: true, Positive: true, Box: true, Examples: []string{"256M", "512M", "2G"},
		Flag: "upper-size", Usage: "room for changes to the root, with --rw-rootfs: `SIZE`"},
	{Name: "workspace_mode", Lock: true, Rule: func(s *Settings) error { return checkMode("workspace_mode", s.WorkspaceMode) }},
	{Name: "mount_mode", Rule: func(s *Settings) error { return checkMode("mount_mode", s.MountMode) }},
	{Name: "timeout", Lock: true, Rule: func(s *Settings) error {
		if s.Timeout <= 0 {
			return refuse("timeout", s.Timeout.String(), "must be above 0")
		}
		return nil
	}},
	{Name: "idle_ttl", Lock: true, Examples: []string{"5m", "30m", "2h"}, Flag: "idle-ttl", Usage: "end the session after `DURATION` without use",
		Rule: func(s *Settings) error {
			if s.IdleTTL.D() < MinIdleTTL || s.IdleTTL.D() > MaxTime {
				return refuse("idle_ttl", s.IdleTTL.String(), "must be %s to %s; persistent is for sessions that do not end when idle", MinIdleTTL, MaxTime)
			}
			return nil
		}},
	{Name: "max_lifetime", Lock: true, Zero: "no end", Examples: []string{"1h", "24h"}, Flag: "max-lifetime", Usage: "end the session after `DURATION`, used or not; 0 is never",
		Rule: func(s *Settings) error {
			if s.MaxLifetime < 0 || s.MaxLifetime.D() > MaxTime {
				return refuse("max_lifetime", s.MaxLifetime.String(), "must be at most %s, or 0 for no end", MaxTime)
			}
			return nil
		}},
	{Name: "persistent", Lock: true, Flag: "persistent", Usage: "never end the session for idleness"},
	{Name: "auto_resume", Lock: true, Flag: "auto-resume", Usage: "let use resume the session when it is paused"},
	{Name: "retain", Lock: true, Examples: []string{None, "24h", "7d", RetainForever},
		Flag: "retain", Usage: "keep the workspace for `TIME` such as 7d when a TTL ends the session; \"none\" or \"forever\"",
		Rule: func(s *Settings) error {
			_, err := ParseRetain(s.Retain)
			return err
		}},
	{Name: "workspace_size", Lock: true, Zero: "no hard limit", Examples: []string{"64M", "256M", "1G"},
		Flag: "workspace-size", Usage: "hard limit of the workspace: `SIZE` from 1M, what is beyond does not fit; 0 is none",
		Rule: func(s *Settings) error {
			if s.WorkspaceSize != 0 && (s.WorkspaceSize < MinVolumeBytes || s.WorkspaceSize > MaxVolumeBytes) {
				return refuse("workspace_size", s.WorkspaceSize.String(), "must be %s to %s, or 0 for no hard limit", FormatSize(MinVolumeBytes), FormatSize(MaxVolumeBytes))
			}
			return nil
		}},
	{Name: "workspace_inodes", Lock: true, Zero: "by the size", Flag: "workspace-inodes", Usage: "files and directories in it, with --workspace-size: `N` (default: one for each 16K)",
		Rule: CheckInodes},
}

func checkMode(field, mode string) error {
	if mode != ReadWrite && mode != ReadOnly && mode != None {
		return refuse(field, Quote(mode), `must be "rw", "ro" or "none"`)
	}
	return nil
}

// CheckInodes checks WorkspaceInodes against WorkspaceSize. Errors are of type *[FieldError].
func CheckInodes(s *Settings) error {
	// The size does not include the metadata of each inode, so it bounds their number.
	const bytesPerInode = 1 << 10
	n, most := s.WorkspaceInodes, int64(s.WorkspaceSize/bytesPerInode)
	switch {
	case n == 0:
		return nil
	case n < MinVolumeInodes || n > MaxVolumeInodes:
		return refuse("workspace_inodes", fmt.Sprint(n), "must be %d to %d, or 0 for a number that follows from workspace_size", MinVolumeInodes, int64(MaxVolumeInodes))
	case s.WorkspaceSize == 0:
		return refuse("workspace_inodes", fmt.Sprint(n), "needs a workspace_size, which is the other half of a hard limit: set both, or neither")
	case n > most:
		return refuse("workspace_inodes", fmt.Sprint(n), "must be at most %d, one for each KiB of workspace_size: ask for fewer, or for more space", most)
	}
	return nil
}

// Validate checks what package engine does not. It returns the first broken rule, in the
// order of the table, as a *[FieldError].
func (s *Settings) Validate() error {
	for _, t := range Table {
		if t.Rule != nil {
			if err := t.Rule(s); err != nil {
				return err
			}
		}
	}
	for _, t := range Table {
		if t.Positive && t.Of(s).IsZero() {
			return refuse(t.Name, "0", "must be above 0; leave it out for the default of the profile")
		}
	}
	return nil
}

// Spec returns the part of a box's spec that follows from s.
func (s Settings) Spec() Spec {
	b := Spec{
		WritableRoot: s.WritableRoot, TmpSize: int64(s.TmpSize),
		Limits: Limits{Memory: int64(s.Memory), PIDs: s.PIDs, CPUs: s.CPUs, OpenFiles: s.OpenFiles, FileSize: int64(s.FileSize)},
	}
	if s.WritableRoot {
		b.UpperSize = int64(s.UpperSize)
	}
	return b
}

// Take is the inverse of [Settings.Spec]: it takes over the settings that b contains.
func (s *Settings) Take(b Spec) {
	s.WritableRoot, s.TmpSize, s.UpperSize = b.WritableRoot, Size(b.TmpSize), Size(b.UpperSize)
	l := b.Limits
	s.Memory, s.PIDs, s.CPUs, s.OpenFiles, s.FileSize = Size(l.Memory), l.PIDs, l.CPUs, l.OpenFiles, Size(l.FileSize)
}

// Merge applies w to s. Settings in locked keep their values; Merge returns those of them for
// which w asks for another value, sorted.
func (s *Settings) Merge(w *Wishes, locked []string) (overridden []string) {
	for _, t := range Table {
		asked, have := t.Asked(w), t.Of(s)
		switch {
		case !asked.IsValid() || asked.Equal(have):
		case slices.Contains(locked, t.Name):
			overridden = append(overridden, t.Name)
		default:
			have.Set(asked)
		}
	}
	slices.Sort(overridden)
	return overridden
}

// Differ names the settings in which s and other differ, sorted.
func (s *Settings) Differ(other *Settings) (names []string) {
	for _, t := range Table {
		if !t.Of(s).Equal(t.Of(other)) {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names
}

// NetworkRulesName is the name of [Wishes].NetworkRules, which a profile can lock although it is no
// row of the table: it has no value in force of its own.
const NetworkRulesName = "network_rules"

// Lockable returns the names of what a profile can lock, sorted.
func Lockable() (names []string) {
	names = append(names, NetworkRulesName)
	for _, t := range Table {
		if t.Lock {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names
}

// locate finds the fields of all settings: each has the same JSON name in all structs.
var locate = sync.OnceFunc(func() {
	places := func(t reflect.Type) map[string][]int {
		all := map[string][]int{}
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			all[name] = f.Index
		}
		return all
	}
	wishes, settings, caps := places(reflect.TypeFor[Wishes]()), places(reflect.TypeFor[Settings]()), places(reflect.TypeFor[Caps]())
	for _, t := range Table {
		t.inWishes, t.inSettings, t.inCaps = wishes[t.Name], settings[t.Name], caps[t.Name]
	}
})

// Of returns the field of the setting in the Wishes, Settings or Caps to which in points. It
// is invalid if there is none.
func (t *Setting) Of(in any) reflect.Value {
	locate()
	var index []int
	switch in.(type) {
	case *Wishes:
		index = t.inWishes
	case *Settings:
		index = t.inSettings
	case *Caps:
		index = t.inCaps
	}
	if index == nil {
		return reflect.Value{}
	}
	return reflect.ValueOf(in).Elem().FieldByIndex(index)
}

// Asked returns the value that w asks for, invalid without one.
func (t *Setting) Asked(w *Wishes) reflect.Value {
	if field := t.Of(w); field.IsValid() {
		return field.Elem()
	}
	return reflect.Value{}
}

// Above reports whether the value of the setting in s is above its cap in c. Unlimited is
// above every cap, and so is a NaN.
func (t *Setting) Above(s *Settings, c *Caps) bool {
	limit := t.Of(c)
	if !limit.IsValid() {
		return false
	}
	v := t.Of(s)
	if t.Zero != "" && v.IsZero() {
		return limit.Int() >= 0
	}
	if limit.CanFloat() {
		f, most := v.Float(), limit.Float()
		return f != f || most >= 0 && !(f >= 0 && f <= most)
	}
	return limit.Int() >= 0 && (v.Int() < 0 || v.Int() > limit.Int())
}

// Text formats a value of the setting for people.
func (t *Setting) Text(v reflect.Value) string {
	switch v := v.Interface().(type) {
	case fmt.Stringer:
		return v.String()
	case string:
		return Quote(v)
	}
	if v.CanInt() && v.Int() < 0 || v.CanFloat() && v.Float() < 0 {
		return "unlimited"
	}
	return fmt.Sprint(v.Interface())
}

// CopyFields sets the fields of the struct that dst points to from the fields of src with
// the same names: values from values of the same type, and from pointers that are not nil.
// It ignores other fields of src.
func CopyFields(dst, src any) {
	to, from := reflect.ValueOf(dst).Elem(), reflect.ValueOf(src)
	for _, pair := range pairsOf(to.Type(), from.Type()) {
		v, target := from.FieldByIndex(pair.from), to.FieldByIndex(pair.to)
		if v.Type() != target.Type() {
			v = v.Elem()
		}
		if v.IsValid() {
			target.Set(v)
		}
	}
}

// fieldPair is the index of a field in two structs. The field of from has the type of the one in
// to, or is a pointer to it.
type fieldPair struct{ to, from []int }

// pairs has the []fieldPair of each [2]reflect.Type, because reflection takes longer to find them than
// a session to be read.
var pairs sync.Map

func pairsOf(to, from reflect.Type) []fieldPair {
	key := [2]reflect.Type{to, from}
	if known, ok := pairs.Load(key); ok {
		return known.([]fieldPair)
	}
	var list []fieldPair
	for _, f := range reflect.VisibleFields(from) {
		target, ok := to.FieldByName(f.Name)
		if !ok || f.Anonymous || !f.IsExported() {
			continue
		}
		if f.Type == target.Type || f.Type.Kind() == reflect.Pointer && f.Type.Elem() == target.Type {
			list = append(list, fieldPair{target.Index, f.Index})
		}
	}
	pairs.Store(key, list)
	return list
}
