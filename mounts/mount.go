package mounts

// Mount says that a directory or regular file of the host appears in a box.
// It is a pure value: nothing is opened until [Open].
type Mount struct {
	// Source is the absolute path on the host. Symlinks in it are resolved
	// once, by descriptor.
	Source string `json:"source"`
	// Target is the absolute, cleaned path in the box; never "/" itself.
	Target string `json:"target"`
	// ReadOnly forbids writes through this mount.
	ReadOnly bool `json:"read_only,omitempty"`
	// Within is a directory of the host beneath which the source must resolve,
	// symlinks included. Empty: anywhere that Open allows.
	Within string `json:"within,omitempty"`
}
