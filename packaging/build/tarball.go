package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/files"
)

// tarball writes the files of a package below the directory name, for distributions that know neither
// .deb nor .rpm. They belong to root, who extracts it.
func tarball(w io.Writer, info *nfpm.Info, name string) error {
	if err := nfpm.PrepareForPackager(info, "tar"); err != nil {
		return err
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, c := range info.Contents {
		header := &tar.Header{Name: path.Join(name, c.Destination), Mode: int64(c.Mode().Perm()), ModTime: c.ModTime(), Uname: "root", Gname: "root", Format: tar.FormatPAX}
		switch c.Type {
		case files.TypeDir, files.TypeImplicitDir:
			header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
			if err := t.WriteHeader(header); err != nil {
				return err
			}
			continue
		case files.TypeSymlink:
			header.Typeflag, header.Linkname = tar.TypeSymlink, c.Source
			if err := t.WriteHeader(header); err != nil {
				return err
			}
			continue
		}
		f, err := os.Open(c.Source)
		if err != nil {
			return err
		}
		header.Typeflag, header.Size = tar.TypeReg, c.Size()
		err = t.WriteHeader(header)
		if err == nil {
			_, err = io.Copy(t, f)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}
