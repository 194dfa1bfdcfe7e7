package apitypes

import "time"

// FileInfo describes a file in a box.
type FileInfo struct {
	Name    string    `json:"name"`
	Path    string    `json:"path"`
	Size    int64     `json:"size"`
	Mode    string    `json:"mode" doc:"Permission bits in octal, such as 0644."`
	Type    string    `json:"type" doc:"file, dir, symlink, fifo, socket or device."`
	ModTime time.Time `json:"mod_time"`
	UID     int       `json:"uid"`
	GID     int       `json:"gid"`
	Target  string    `json:"target,omitempty" doc:"What a symlink points to."`
	RawName []byte    `json:"name_base64,omitempty" doc:"The name, if it is not UTF-8."`
	RawPath []byte    `json:"path_base64,omitempty" doc:"The path, if it is not UTF-8."`
}

// FileList is the entries of a directory.
type FileList struct {
	Files     []FileInfo `json:"files" nullable:"false"`
	Truncated bool       `json:"truncated,omitempty" doc:"There are more than are here."`
}

// MkdirRequest makes a directory.
type MkdirRequest struct {
	Path    string `json:"path"`
	Mode    string `json:"mode,omitempty" doc:"Permission bits in octal; 0755 if absent."`
	Parents bool   `json:"parents,omitempty" doc:"Make missing parents, and do not mind if it exists."`
}

// RenameRequest renames a file, symlink or directory.
type RenameRequest struct {
	Path    string `json:"path"`
	To      string `json:"to" doc:"The new path, absolute or relative to the workspace, in the same file system."`
	Replace bool   `json:"replace,omitempty" doc:"Replace a file or symlink that is there, atomically; a directory replaces only an empty one."`
}

// CopyRequest copies a file, or the content of a directory, from a session of the same tenant.
type CopyRequest struct {
	FromSession string   `json:"from_session,omitempty" doc:"Session to copy from; empty: the same one."`
	From        string   `json:"from" doc:"Path of a file or directory in that session."`
	Path        string   `json:"path" doc:"Path of the copy. A file there is replaced; into a directory, which is made if it is missing, the content of the other one is copied."`
	Glob        []string `json:"glob,omitempty" doc:"Only what matches, of a directory: *.png, src or **/*.csv; a directory stands for everything in it."`
}

// FileTree counts what was unpacked or copied.
type FileTree struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Symlinks    int64 `json:"symlinks"`
	Bytes       int64 `json:"bytes"`
	Skipped     int64 `json:"skipped" doc:"Devices, FIFOs and other entries that were left out."`
}

// LeftOutRecord is the record of a global header, in a tar archive of a directory, that names a
// file which the archive cannot have: its type (fifo, socket or device), a space and its path.
const LeftOutRecord = "BOXD.left_out"

// FileChange is a change in a watched directory.
type FileChange struct {
	Type    string   `json:"type" doc:"ready: changes are reported from now on; created or moved to here, modified (content), attributes (rights, owner or times), removed or moved away; missed: some could not be reported; gone: the directory itself was removed or moved; error: see error."`
	Path    string   `json:"path,omitempty" doc:"Relative to the directory."`
	RawPath []byte   `json:"path_base64,omitempty" doc:"The path, if it is not UTF-8."`
	Dir     bool     `json:"dir,omitempty" doc:"It is a directory."`
	Error   *Problem `json:"error,omitempty" doc:"Why the stream ends."`
}
