package zygote

import (
	"archive/zip"
	"bytes"
	"testing"
)

// zipOf returns an archive of files, given as names and contents.
func zipOf(files ...string) string {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		f, err := w.Create(files[i])
		if err != nil {
			panic(err)
		}
		f.Write([]byte(files[i+1]))
	}
	w.Close()
	return b.String()
}

// A command shows the same whether a new interpreter or a spare runs it.
func TestSameAsANewInterpreter(t *testing.T) {
	control := mustLoad(t)
	for _, s := range scripts {
		t.Run(s.name, func(t *testing.T) { s.compare(t, control) })
	}
}
