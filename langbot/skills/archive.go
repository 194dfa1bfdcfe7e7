package skills

import (
	"archive/zip"
	"cmp"
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/boxd/boxd/internal/pathin"
)

// Bounds of an archive.
const (
	maxZipSize     = 20 << 20 // bytes of the file
	maxZipEntries  = 512
	maxZipFile     = 16 << 20 // bytes of an entry, unpacked
	maxZipUnpacked = 64 << 20
	maxZipRatio    = 100 // of sizes unpacked to packed, of each entry and of all
)

// archive is an uploaded zip file that passed all checks that are possible without unpacking it.
type archive struct {
	file    *os.File
	entries []zipEntry
	files   map[string]int  // index in entries, by name
	dirs    map[string]bool // all directories, including the parents of files
	base    string          // the directory that counts as the root
}

type zipEntry struct {
	f    *zip.File
	name string
	dir  bool
	mode fs.FileMode
}

// openArchive checks the archive in f, which must stay open as long as the archive is used.
func openArchive(f *os.File, size int64) (*archive, error) {
	switch {
	case size == 0:
		return nil, refuse("Uploaded file is empty")
	case size > maxZipSize:
		return nil, refuse("Uploaded file exceeds the compressed size limit of %d bytes", maxZipSize)
	}
	records, err := walkZip(f, size, maxZipEntries)
	if err != nil {
		return nil, err
	}
	if err := checkOverlaps(records); err != nil {
		return nil, err
	}
	r, err := zip.NewReader(f, size)
	if err != nil || len(r.File) != len(records) {
		return nil, errZip
	}
	a := &archive{file: f, files: make(map[string]int), dirs: map[string]bool{".": true}, base: "."}
	var packed, unpacked int64
	for i, rec := range records {
		if at, err := r.File[i].DataOffset(); err != nil || at != rec.data || r.File[i].Name != rec.name {
			return nil, badZip("it can be read in two ways")
		}
		if err := a.add(r.File[i], rec); err != nil {
			return nil, err
		}
		packed += rec.packed
		unpacked += rec.size
	}
	if unpacked > maxZipUnpacked {
		return nil, refuse("Uploaded archive exceeds the total uncompressed size limit of %d bytes", maxZipUnpacked)
	}
	if unpacked > packed*maxZipRatio {
		return nil, refuse("Uploaded archive exceeds a compression ratio of %d", maxZipRatio)
	}
	return a, a.checkConflicts()
}

// checkOverlaps refuses archives in which a byte belongs to two entries.
func checkOverlaps(records []zipRecord) error {
	sorted := slices.Clone(records)
	slices.SortFunc(sorted, func(a, b zipRecord) int { return cmp.Compare(a.header, b.header) })
	for i := 1; i < len(sorted); i++ {
		if prev := sorted[i-1]; prev.data+prev.packed > sorted[i].header {
			return badZip("its entries overlap")
		}
	}
	return nil
}

// add checks one entry and adds it to the archive.
func (a *archive) add(f *zip.File, rec zipRecord) error {
	name, slash, err := zipName(rec.name, rec.flags&flagUTF8 != 0)
	if err != nil {
		return err
	}
	mode := f.Mode()
	e := zipEntry{f: f, name: name, dir: slash, mode: fileMode}
	if mode&0o111 != 0 {
		e.mode = execMode
	}
	switch {
	case rec.flags&flagEncrypted != 0:
		return refuse("Uploaded archive is encrypted: %s", quote(name))
	case rec.method != zip.Store && rec.method != zip.Deflate:
		return refuse("Uploaded archive uses compression method %d, only store and deflate are supported: %s", rec.method, quote(name))
	case mode.Type() != 0 && mode.Type() != fs.ModeDir:
		return refuse("Uploaded archive contains a symbolic link or special file: %s", quote(name))
	case mode.IsDir() != slash, slash && rec.size != 0:
		return refuse("Uploaded archive contains a name that is both a file and a directory: %s", quote(name))
	case rec.size > maxZipFile:
		return refuse("Uploaded archive entry exceeds the uncompressed size limit of %d bytes: %s", maxZipFile, quote(name))
	case rec.method == zip.Store && rec.size != rec.packed:
		return badZip("the sizes of an entry contradict each other: " + quote(name))
	case rec.size > rec.packed*maxZipRatio:
		return refuse("Uploaded archive contains a file that exceeds a compression ratio of %d: %s", maxZipRatio, quote(name))
	}
	if _, ok := a.files[name]; ok || slash && a.dirs[name] {
		return refuse("Uploaded archive contains a path twice: %s", quote(name))
	}
	a.entries = append(a.entries, e)
	if slash {
		a.dirs[name] = true
	} else {
		a.files[name] = len(a.entries) - 1
	}
	return nil
}

// checkConflicts completes the directories, and refuses names that are both a file and a
// directory. Names that only some file systems consider equal are found while unpacking: a new
// file must not exist yet.
func (a *archive) checkConflicts() error {
	for _, e := range a.entries {
		for dir := path.Dir(e.name); dir != "."; dir = path.Dir(dir) {
			a.dirs[dir] = true
		}
	}
	for name := range a.files {
		if a.dirs[name] {
			return refuse("Uploaded archive contains a name that is both a file and a directory: %s", quote(name))
		}
	}
	return nil
}

// strip enters the top directory if it contains everything else.
func (a *archive) strip() {
	top := ""
	for _, e := range a.entries {
		first, _, _ := strings.Cut(e.name, "/")
		if top != "" && first != top {
			return
		}
		top = first
	}
	if a.dirs[top] {
		a.base = top
	}
}

// enter makes a directory below the root the new root.
func (a *archive) enter(subdir string) error {
	clean := path.Clean(subdir)
	if clean == ".." || strings.HasPrefix(clean, "../") || path.IsAbs(clean) {
		return refuse("source_subdir must stay within the uploaded archive")
	}
	if !a.dirs[path.Join(a.base, clean)] {
		return refuse("source_subdir does not exist in the uploaded archive: %s", quote(subdir))
	}
	a.base = path.Join(a.base, clean)
	return nil
}

// discover looks for skills in and below the root, as the function [discover] does in a tree.
func (a *archive) discover() []place {
	var found []place
	var dirs []string // relative to the root, which is ""
	for dir := range a.dirs {
		switch rel, ok := pathin.Rel(dir, a.base); {
		case rel == ".":
			dirs = append(dirs, "")
		case ok && strings.Count(rel, "/") < scanDepth:
			dirs = append(dirs, rel)
		}
	}
	slices.Sort(dirs) // so that parents come first
	for _, dir := range dirs {
		dir = path.Join(a.base, dir)
		inside := slices.ContainsFunc(found, func(p place) bool { return pathin.In(dir, p.dir) })
		if entry := a.entry(dir); entry != "" && !inside {
			found = append(found, place{dir, entry})
		}
	}
	return found
}

func (a *archive) entry(dir string) string {
	for _, name := range entryFiles {
		if _, ok := a.files[path.Join(dir, name)]; ok {
			return name
		}
	}
	return ""
}

// unpack calls makeDir for each directory and write for each file, in the order of the archive. It
// reads all contents, even if write does not.
func (a *archive) unpack(ctx context.Context, makeDir func(zipEntry) error, write func(zipEntry, io.Reader) error) error {
	for _, e := range a.entries {
		if e.dir {
			if err := makeDir(e); err != nil {
				return err
			}
			continue
		}
		r, err := e.open(ctx)
		if err != nil {
			return err
		}
		err = write(e, r)
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		r.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
