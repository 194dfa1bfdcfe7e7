package unpack

import (
	"archive/tar"
	"testing"

	"github.com/boxd/boxd/agent/unpack/proto"
)

// TestWriteBundle: an archive of images is told from a root file system by what its top directory has.
func TestWriteBundle(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries []entry
		bundle  bool
	}{
		{"OCI layout", []entry{file("oci-layout", "{}"), file("index.json", "{}"), directory("blobs")}, true},
		{"docker save", []entry{file("repositories", "{}"), file("manifest.json", "[]")}, true},
		{"a manifest", []entry{file("manifest.json", "[]")}, false},
		{"below", []entry{directory("d"), file("d/oci-layout", "{}")}, false},
		{"a directory", []entry{directory("oci-layout")}, false},
		{"a symlink", []entry{file("f", ""), symlink("oci-layout", "f")}, false},
		{"deleted", []entry{file("oci-layout", "{}"), file(".wh.oci-layout", ""), file("oci-layout", "")}, true},
		{"a whiteout", []entry{file(".wh.oci-layout", "")}, false},
	} {
		if _, result, err := unpackTo(t, archive(t, c.entries...), allLimits, ""); err != nil || result.Bundle != c.bundle {
			t.Errorf("%s: %+v, %v", c.name, result, err)
		}
	}
}

// TestWriteEmptyRoot: a layer may be empty, but not a root file system.
func TestWriteEmptyRoot(t *testing.T) {
	root := allLimits
	root.Root = true
	for _, c := range []struct {
		name    string
		entries []entry
		empty   bool
	}{
		{"no entries", nil, true},
		{"its top directory", []entry{directory("./")}, true},
		{"a device", []entry{{name: "null", kind: tar.TypeChar}}, true},
		{"an empty file", []entry{file("f", "")}, false},
		{"a hidden directory", []entry{directory(".d")}, false},
	} {
		text := archive(t, c.entries...)
		if _, _, err := unpackTo(t, text, allLimits, ""); err != nil {
			t.Errorf("%s, of a layer: %v", c.name, err)
		}
		if _, _, err := unpackTo(t, text, root, ""); c.empty {
			checkError(t, err, proto.Refused, "the archive has no files: a root file system needs some")
		} else if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
