// Package proto defines the commands of the builtin "unpack", with which a box turns the
// compressed archive of an image layer into a directory. The commands are:
//
//	inflate        stdin: an archive, compressed by gzip or zstd or not at all; stdout: the tar stream
//	write          stdin: the tar stream; it writes the layer to Dir, which is empty; stdout: a Result
//	sum            reads the layer in Dir; stdout: a Sum
//
// The argument after "write" is a Limits as JSON; after "inflate" the maximum number of bytes that it may
// write. A command that fails exits with a status other than 0, and its last line on stderr says why.
//
// inflate and write are two processes, of two users of the box, and the caller relays the tar stream between
// them. So the caller computes the diff ID of exactly the bytes that write reads, and a decompressor that is
// subverted by its input cannot touch the layer.
package proto

// Where the box mounts the layer that is written, and the layers below it. The layer's files are in Dir/fs and
// the list of its opaque directories is Dir/opaque, see engine.Layers.
const (
	Dir   = "/layer"
	Below = "/below" // Below/0 is the lowest layer, read-only
)

// User that runs inflate; the user of write and sum is 0.
const InflateUser = 1

// Exit statuses of a command that fails. Any other status but 0 says that the command itself or the box
// failed. A command whose reader or writer has gone away ends with a signal or with Failed: the reason is
// then that of the other command.
const (
	Failed  = 1  // the kernel refused an operation, or the arguments are wrong
	Corrupt = 65 // the archive is damaged
	NoSpace = 73 // the disk, or the quota of the layer, is full
	Refused = 77 // the archive breaks a rule: it is too large, or has what no layer may have
)

// MaxID is the highest user and group ID of a layer's files. PID 1 of a box has the next one.
const MaxID = 65534

// MaxOpaque is the highest size of the file Dir/opaque in bytes.
const MaxOpaque = 16 << 20

// Limits bound what write accepts. Zero is not "no limit": every number must be set.
type Limits struct {
	Bytes   int64 `json:"bytes"`   // of all files together
	Entries int64 `json:"entries"` // of the archive, and directories that it does not contain
	// Below is how many layers are mounted below Below.
	Below int `json:"below"`
	// Root says that the archive is a root file system, which no digest describes. Without its end mark it is
	// damaged, because it may have been cut off, and with an empty top directory it is refused.
	Root bool `json:"root,omitempty"`
}

// Result says what write has written.
type Result struct {
	Bytes   int64 `json:"bytes"`   // of all files together, also of those that later entries replace
	Entries int64 `json:"entries"` // of the archive
	// Inherits says that the archive has entries in directories that it does not contain
	// itself, or that it hides everything below it. The layer then has the mode, owner and
	// times that these directories have in the layers below, and so belongs to this stack
	// of layers only. With Limits.Below 0 such directories are root's, of mode 0755. The
	// top directory does not count: one that is not in the archive is always like that.
	Inherits bool `json:"inherits,omitempty"`
	// Bundle says that the top directory has the documents of an archive of images, and so is
	// no root file system: oci-layout, or manifest.json and repositories.
	Bundle bool `json:"bundle,omitempty"`
	// Skipped counts what the layer does not have although the archive has it, by kind:
	// "device", "setuid" (a setuid or setgid bit), "capability", "xattr".
	Skipped map[string]int64 `json:"skipped,omitempty"`
}

// Sum identifies the content of a layer with all metadata that a box can see.
type Sum struct {
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
	Files  int64  `json:"files"`
	Bytes  int64  `json:"bytes"`
}
