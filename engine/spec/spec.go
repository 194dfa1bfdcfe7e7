package spec

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Unlimited switches a limit off. The zero value of every limit means its default.
const Unlimited = -1

// Defaults of the limits that a Spec leaves at zero. They suit unknown code: enough for a
// browser and for common build tools (docs/compatibility.md lists what those used), and too
// little to harm the host.
const (
	DefaultMemory    = 512 << 20 // bytes
	DefaultPIDs      = 256
	DefaultCPUs      = 1.0
	DefaultOpenFiles = 4096
	DefaultTmpSize   = 64 << 20  // bytes, for /tmp, the home directory and /dev/shm each
	DefaultUpperSize = 256 << 20 // bytes, for the writable layer; less than DefaultMemory, since it counts as memory
)

// Bounds of the limits. The smallest dynamically linked program needs MinMemory to start
// and to be killed cleanly.
const (
	MinMemory    = 4 << 20
	MaxMemory    = 1 << 46
	MaxPIDs      = 1 << 22 // PID_MAX_LIMIT of a 64-bit kernel
	MinCPUs      = 0.01    // cpu.max takes at least 1 ms per 100 ms period
	MaxCPUs      = 4096
	MaxOpenFiles = 1 << 20
	MinTmpSize   = 64 << 10
)

// Bounds of a volume, and so of a workspace with a hard limit.
const (
	MinVolumeBytes  = 1 << 20
	MaxVolumeBytes  = 4 << 40 // a file on ext4 is at most 16 TiB
	MinVolumeInodes = 16
	MaxVolumeInodes = 1 << 30
)

// WorkspaceTarget is where the workspace of a box is mounted.
const WorkspaceTarget = "/workspace"

// User is a numeric user and group inside the box. The zero value is the box's
// root, which has no capabilities and maps to an unprivileged id on the host.
type User struct {
	UID int `json:"uid"` // 0 … MaxID
	GID int `json:"gid"` // 0 … MaxID
}

// MaxID is the highest user or group id for commands in a box. A box has 65,536
// ids; the last one belongs to its PID 1.
const MaxID = 65534

// Spec describes a box before it exists. It is a pure value that can be
// serialised; [Spec.Validate] checks it without touching the kernel.
type Spec struct {
	// ID is the box's name, unique within its engine: 1 to 64 of a-z, 0-9 and "-",
	// starting with a letter or digit. Empty: a random one.
	ID string `json:"id,omitempty"`
	// Image is the root file system. Empty or "host": the host's system
	// directories, read-only. With Layers it only tells people where the layers are from:
	// at most 512 bytes, not "host".
	Image string `json:"image,omitempty"`
	// Layers are the IDs of the published layers that make the root, lowest first, at most
	// MaxLayers, each once: of a layer that an image has twice, the highest counts. None: the
	// root is that of the image "host".
	Layers []string `json:"layers,omitempty"`
	// Unpacks makes the box one that writes a layer: its commands of user 0 have the
	// capabilities that the metadata of files takes (CHOWN, FOWNER, DAC_READ_SEARCH), and may make whiteouts.
	// Such a box mounts layers, of which one is not published, or none; nothing else, and nothing later.
	Unpacks bool `json:"unpacks,omitempty"`
	// Engine builds the box: one of Engines. Empty: EngineNative. Isolation is the wall around
	// it: one of Isolations. Empty: IsolationNamespaces. They cannot change later.
	Engine    string `json:"engine,omitempty"`
	Isolation string `json:"isolation,omitempty"`
	// Hostname inside the box. Empty: "box".
	Hostname string `json:"hostname,omitempty"`
	// User runs commands that name no user of their own. Files that it creates in the
	// workspace and the mounts belong to the owner of the host directory.
	User User `json:"user"`
	// WritableRoot puts a private overlay of UpperSize bytes over the root. It is
	// discarded with the box.
	WritableRoot bool `json:"writable_root,omitempty"`
	// UpperSize is the size of that overlay in bytes; 0 is DefaultUpperSize.
	UpperSize int64 `json:"upper_size,omitempty"`
	// TmpSize is the size in bytes of /tmp, of the home directory and of
	// /dev/shm, each; 0 is DefaultTmpSize.
	TmpSize int64 `json:"tmp_size,omitempty"`
	// Mounts are bind mounts of host directories and files. The workspace is
	// the one whose target is WorkspaceTarget.
	Mounts []Mount `json:"mounts,omitempty"`
	// Limits of the box as a whole.
	Limits Limits `json:"limits"`
	// AllowDegraded accepts a host that cannot enforce a requested limit. Without it
	// that is ErrUnenforceable.
	AllowDegraded bool `json:"allow_degraded,omitempty"`
	// Labels are the caller's own notes. A service keeps them with the box, so that the
	// process that adopts the box knows its owner. They mean nothing to an engine, and
	// the box does not see them.
	Labels map[string]string `json:"labels,omitempty"`
	// Zygotes are the interpreters that the box keeps warm, at most MaxZygotes. A box that
	// unpacks has none.
	Zygotes []Zygote `json:"zygotes,omitempty"`
	// Once says that the box is for one command: it has zygotes only if it is one that was built before it was asked for and came
	// with them, and they end when a spare has taken the command over. No other zygote is started.
	Once bool `json:"once,omitempty"`
}

// Limits bound what all commands of a box use together. Zero means the default,
// Unlimited means none.
type Limits struct {
	Memory int64   `json:"memory,omitempty"` // bytes of RAM; swap is off, see Pausable.Reclaim
	PIDs   int64   `json:"pids,omitempty"`   // processes and threads at once
	CPUs   float64 `json:"cpus,omitempty"`   // cores' worth of time
	// Per process, through rlimits:
	OpenFiles int64 `json:"open_files,omitempty"` // RLIMIT_NOFILE, the hard limit; the soft one is 1024 at most
	FileSize  int64 `json:"file_size,omitempty"`  // RLIMIT_FSIZE in bytes; 0 is unlimited
}

// Change describes changes to a running box. Nil and empty fields change nothing.
type Change struct {
	// Limits replaces memory, pids and cpus limits; zero fields change nothing.
	// Per-process limits apply to commands that are started afterwards.
	Limits *Limits
	// Attach adds mounts, and Detach removes mounts by target. Detach is done
	// first.
	Attach []Mount
	Detach []string
}

// maxImage is the length of Image in bytes.
const maxImage = 512

// HostImage is the image that every host has: its own system directories.
const HostImage = "host"

// MaxLayers is how many layers a root can have: overlayfs takes 500 (OVL_MAX_STACK).
const MaxLayers = 500

// IsLayerID reports whether a published layer can have the ID id: 64 hexadecimal digits in
// lower case.
func IsLayerID(id string) bool { return len(id) == 64 && only(id, "0123456789abcdef") }

// IsLayerName reports whether an unpublished layer can be called name: as a volume, but not
// like the ID of a published layer.
func IsLayerName(name string) bool { return IsVolumeName(name) && !IsLayerID(name) }

// DefaultHostname is the hostname of a box whose Spec has none.
const DefaultHostname = "box"

// WithDefaults returns s with defaults in place of empty and zero fields. The ID stays
// empty: the engine chooses it. The result shares no memory with s, and applying it twice
// changes nothing.
func (s Spec) WithDefaults() Spec {
	if len(s.Layers) == 0 {
		s.Image = cmp.Or(s.Image, HostImage)
	}
	s.Layers = slices.Clone(s.Layers)
	s.Engine = cmp.Or(s.Engine, defaultEngine)
	s.Isolation = cmp.Or(s.Isolation, IsolationNamespaces)
	s.Hostname = cmp.Or(s.Hostname, DefaultHostname)
	s.TmpSize = cmp.Or(s.TmpSize, DefaultTmpSize)
	if s.WritableRoot {
		s.UpperSize = cmp.Or(s.UpperSize, DefaultUpperSize)
	}
	s.Mounts = slices.Clone(s.Mounts)
	s.Labels = maps.Clone(s.Labels)
	s.Zygotes = slices.Clone(s.Zygotes)
	for i, z := range s.Zygotes {
		s.Zygotes[i] = z.WithDefaults()
	}
	s.Limits = s.Limits.WithDefaults()
	return s
}

// WithDefaults returns l with defaults in place of zero limits. That of FileSize is
// Unlimited.
func (l Limits) WithDefaults() Limits {
	l.Memory = cmp.Or(l.Memory, DefaultMemory)
	l.PIDs = cmp.Or(l.PIDs, DefaultPIDs)
	l.CPUs = cmp.Or(l.CPUs, DefaultCPUs)
	l.OpenFiles = cmp.Or(l.OpenFiles, DefaultOpenFiles)
	l.FileSize = cmp.Or(l.FileSize, Unlimited)
	return l
}

// Processors returns how many processors a box sees on a host with host processors: enough for
// the time that it may use, and no more than there are.
func (l Limits) Processors(host int) int {
	if l.CPUs <= 0 {
		return host
	}
	const steps = 100_000 // per processor, the kernel's resolution, see package cgroups
	return max(1, min(int(math.Ceil(math.Round(l.CPUs*steps)/steps)), host))
}

// Apply returns l with the fields of change that are not zero.
func (l Limits) Apply(change Limits) Limits {
	l.Memory = cmp.Or(change.Memory, l.Memory)
	l.PIDs = cmp.Or(change.PIDs, l.PIDs)
	l.CPUs = cmp.Or(change.CPUs, l.CPUs)
	l.OpenFiles = cmp.Or(change.OpenFiles, l.OpenFiles)
	l.FileSize = cmp.Or(change.FileSize, l.FileSize)
	return l
}

// minOpenFiles leaves room for three streams and for the files that a dynamic loader and an
// interpreter hold open while they start.
const minOpenFiles = 16

// Validate checks s without touching the kernel. The first rule that is broken,
// in the order of the fields, is returned as a *[FieldError].
func (s Spec) Validate() error {
	if s.ID != "" && (len(s.ID) > 64 || !only(s.ID, lowerDigits+"-") || s.ID[0] == '-') {
		return refuse("id", Quote(s.ID), `must be 1 to 64 of a-z, 0-9 and "-", starting with a letter or digit`)
	}
	if err := s.validateImage(); err != nil {
		return err
	}
	if err := cmp.Or(CheckWord("engine", s.Engine, Engines), CheckWord("isolation", s.Isolation, Isolations)); err != nil {
		return err
	}
	if !Offers(s.Engine, s.Isolation) {
		return refuse("isolation", Quote(s.Isolation), "needs the engine %q", EngineOCI)
	}
	if !isHostname(s.Hostname) {
		return refuse("hostname", Quote(s.Hostname), `must be at most 64 letters, digits, "-" and ".", as RFC 1123 has it`)
	}
	if err := s.User.Validate("user"); err != nil {
		return err
	}
	if s.Unpacks && s.WritableRoot {
		return refuse("writable_root", "true", "must be false for a box that unpacks: its user 0 may read all files that seem to be its own")
	}
	if s.Unpacks && len(s.Zygotes) > 0 {
		return refuse("zygotes", fmt.Sprint(len(s.Zygotes)), "must be none for a box that unpacks")
	}
	if s.UpperSize != 0 && !s.WritableRoot {
		return refuse("upper_size", FormatSize(s.UpperSize), "needs a writable root")
	}
	return cmp.Or(
		CheckSize("upper_size", s.UpperSize, MinTmpSize),
		CheckSize("tmp_size", s.TmpSize, MinTmpSize),
		validateMounts("mounts", s.Mounts, s.MaxMounts()),
		s.validateLayerMounts(),
		s.Limits.Validate(),
		ValidateZygotes("zygotes", s.Zygotes),
	)
}

func (s Spec) validateImage() error {
	switch {
	case len(s.Layers) == 0 && s.Image != "" && s.Image != HostImage:
		return refuse("image", Quote(s.Image), `unknown image; the one there is: "host"`)
	case len(s.Layers) == 0:
		return nil
	case s.Image == HostImage:
		return refuse("image", Quote(s.Image), "has no layers: name the image that the layers are from")
	case len(s.Image) > maxImage || !utf8.ValidString(s.Image) || strings.ContainsFunc(s.Image, func(r rune) bool { return !unicode.IsPrint(r) }):
		return refuse("image", Quote(s.Image), "must be at most %d bytes of printable text", maxImage)
	case s.Unpacks:
		return refuse("layers", fmt.Sprint(len(s.Layers)), "must be none: a box that unpacks has the image %q", HostImage)
	case len(s.Layers) > MaxLayers:
		return refuse("layers", fmt.Sprint(len(s.Layers)), "must be at most %d", MaxLayers)
	}
	seen := make(map[string]bool, len(s.Layers))
	for i, id := range s.Layers {
		if !IsLayerID(id) {
			return refuse(fmt.Sprintf("layers[%d]", i), Quote(id), layerIDRule)
		}
		if seen[id] {
			return refuse(fmt.Sprintf("layers[%d]", i), Quote(id), "is a layer of this root already: name it once, where it is highest")
		}
		seen[id] = true
	}
	return nil
}

// MaxMounts is how many mounts the box can have: one that unpacks has all layers of an image.
func (s Spec) MaxMounts() int {
	if s.Unpacks {
		return MaxLayers
	}
	return MaxMounts
}

// validateLayerMounts checks that the mounts are layers if the box unpacks, and otherwise are none.
func (s Spec) validateLayerMounts() error {
	unpublished := 0
	for i, m := range s.Mounts {
		field := fmt.Sprintf("mounts[%d].layer", i)
		switch {
		case m.Layer == "" && s.Unpacks:
			return refuse(field, `""`, "must be a layer: a box that unpacks mounts nothing else")
		case m.Layer != "" && !s.Unpacks:
			return refuse(field, Quote(m.Layer), "needs a box that unpacks")
		case m.Layer != "" && !IsLayerID(m.Layer):
			unpublished++
		}
		if unpublished > 1 {
			return refuse(field, Quote(m.Layer), "is the second layer that is not published: a box writes one")
		}
	}
	return nil
}

// Validate checks that each limit is zero, Unlimited or within its bounds.
// OpenFiles cannot be Unlimited: the kernel refuses an RLIMIT_NOFILE above
// fs.nr_open, which is MaxOpenFiles unless it was changed (setrlimit(2)).
func (l Limits) Validate() error {
	if l.Memory != Unlimited {
		if err := CheckSize("memory", l.Memory, MinMemory); err != nil {
			return err
		}
	}
	if l.PIDs != Unlimited {
		if err := CheckCount("pids", l.PIDs, 1, MaxPIDs); err != nil {
			return err
		}
	}
	// Written so that NaN, for which every comparison is false, is refused.
	if ok := l.CPUs == 0 || l.CPUs == Unlimited || (l.CPUs >= MinCPUs && l.CPUs <= MaxCPUs); !ok {
		return refuse("cpus", fmt.Sprint(l.CPUs), "must be %g to %d", MinCPUs, MaxCPUs)
	}
	if err := CheckCount("open_files", l.OpenFiles, minOpenFiles, MaxOpenFiles); err != nil {
		return err
	}
	if l.FileSize == Unlimited {
		return nil
	}
	return CheckSize("file_size", l.FileSize, 1)
}

// Validate checks that all fields of c that are set are within their ranges.
func (c Change) Validate() error {
	if c.Limits != nil {
		if err := c.Limits.Validate(); err != nil {
			return err
		}
	}
	for i, target := range c.Detach {
		field := fmt.Sprintf("detach[%d]", i)
		if err := CheckPath(field, target); err != nil {
			return err
		}
		if target != path.Clean(target) || target == "/" {
			return refuse(field, Quote(target), `must be the target of a mount: a cleaned path other than "/"`)
		}
	}
	for i, m := range c.Attach {
		if m.Layer != "" {
			return refuse(fmt.Sprintf("attach[%d].layer", i), Quote(m.Layer), "must be a mount of a new box")
		}
	}
	return validateMounts("attach", c.Attach, MaxMounts)
}

// Validate checks both ids of u. field is its name in errors.
func (u User) Validate(field string) error {
	if u.UID < 0 || u.UID > MaxID {
		return refuse(field+".uid", fmt.Sprint(u.UID), "must be 0 to %d", MaxID)
	}
	if u.GID < 0 || u.GID > MaxID {
		return refuse(field+".gid", fmt.Sprint(u.GID), "must be 0 to %d", MaxID)
	}
	return nil
}

const (
	lowerDigits = "abcdefghijklmnopqrstuvwxyz0123456789"
	alnum       = lowerDigits + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// only reports whether s consists of bytes of set.
func only(s, set string) bool {
	return strings.Trim(s, set) == "" // Trim stops at any other byte
}

// maxHostname is __NEW_UTS_LEN of <linux/utsname.h>; RFC 1123 would allow 255.
const maxHostname = 64

// isHostname applies RFC 1123 section 2.1: labels of 1 to 63 letters, digits and
// hyphens, separated by dots, with no hyphen at either end. Empty means the default.
func isHostname(name string) bool {
	if name == "" {
		return true
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || !only(label, alnum+"-") || strings.Trim(label, "-") != label {
			return false
		}
	}
	return len(name) <= maxHostname
}

// CheckSize checks a number of bytes. It accepts 0, which means the default, but not
// Unlimited.
func CheckSize(field string, n, lowest int64) error {
	if n != 0 && (n < lowest || n > MaxMemory) {
		return refuse(field, SizeValue(n), "must be %s to %s", FormatSize(lowest), FormatSize(MaxMemory))
	}
	return nil
}

// CheckCount checks a number. It accepts 0, which means the default.
func CheckCount(field string, n, lowest, highest int64) error {
	if n != 0 && (n < lowest || n > highest) {
		return refuse(field, fmt.Sprint(n), "must be %d to %d", lowest, highest)
	}
	return nil
}

// maxPath is PATH_MAX without the NUL that the kernel counts (path_resolution(7)).
const maxPath = 4095

// CheckPath checks an absolute path in a box or on the host. Paths of mounts have more
// rules, see [CheckTarget].
func CheckPath(field, p string) error {
	switch {
	case strings.ContainsRune(p, 0):
		return refuse(field, Quote(p), "must not contain a NUL byte")
	case len(p) > maxPath:
		return refuse(field, Quote(p), "must be at most %d bytes long", maxPath)
	case !strings.HasPrefix(p, "/"):
		return refuse(field, Quote(p), `must be an absolute path, starting with "/"`)
	}
	return nil
}
