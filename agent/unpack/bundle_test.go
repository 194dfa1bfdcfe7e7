package unpack

import "testing"

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
