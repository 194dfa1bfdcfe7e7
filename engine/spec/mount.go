package spec

// Mount says that a directory or regular file of the host, or of a volume, appears in a box.
// It is a pure value: package mounts opens it.
type Mount struct {
	// Source is the absolute path on the host. Symlinks in it are resolved
	// once, by descriptor.
	Source string `json:"source"`
	// Target is the absolute, cleaned path in the box; never "/" itself.
	Target string `json:"target"`
	// ReadOnly forbids writes through this mount.
	ReadOnly bool `json:"read_only,omitempty"`
	// Within is a directory of the host, as a cleaned absolute path, that the source
	// must be or lie beneath, as it is written and as it resolves: a ".." or a symlink
	// that leads out is refused, and so is an absolute symlink wherever it leads.
	// Empty: anywhere that is not denied.
	Within string `json:"within,omitempty"`
	// NoLinks is a directory of the host, as a cleaned absolute path, that the source must
	// be or lie beneath: from there on boxes may have written, and no symlink and no mount
	// is passed on the way. It lies in Within itself. Empty: symlinks are followed.
	NoLinks string `json:"no_links,omitempty"`
	// Volume is the name of the volume that Source is a cleaned path in: "/" is all of
	// it, and no component is a symlink. Within and NoLinks are empty then. Empty: Source is one of
	// the host.
	Volume string `json:"volume,omitempty"`
	// Users lets every user of the box write, not only the one whom the owner of the source
	// appears as. What others make belongs on disk to ids that neither a box nor a user of
	// the host has, so it is only for a directory that whoever asks keeps for boxes.
	Users bool `json:"users,omitempty"`
}
