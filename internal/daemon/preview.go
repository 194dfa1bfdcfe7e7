package daemon

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/preview"
	"golang.org/x/sys/unix"
)

// listenPreviews opens the address of previews.
func (d *daemon) listenPreviews() error {
	c := &d.Config.Preview
	if c.URL == "" {
		return nil
	}
	config, err := loadTLS(c.TLS.Cert, c.TLS.Key, "")
	if err != nil {
		return fmt.Errorf("preview: %w", err)
	}
	l, err := listenTCP(c.Listen, true) // links authenticate
	if err != nil {
		return fmt.Errorf("preview: %w", err)
	}
	d.previews = door{l, config}
	return nil
}

// openPreviews returns the options of previews; nil: they are not configured.
func (d *daemon) openPreviews() (*api.Previews, error) {
	c := &d.Config.Preview
	if c.URL == "" {
		return nil, nil
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, fmt.Errorf("preview.url: %w", err)
	}
	p := &api.Previews{URL: u, MaxTTL: c.MaxTTL.D()}
	for _, name := range c.DropHeaders {
		p.DropHeaders = append(p.DropHeaders, strings.ToLower(name))
	}
	if p.Hosts, err = preview.NewHosts(u.Hostname(), api.DefaultTenant); err != nil {
		return nil, err
	}
	key, err := linkKey(filepath.Join(d.dirs.state, linkKeyName))
	if err != nil {
		return nil, fmt.Errorf("key of preview links: %w", err)
	}
	if p.Links, err = preview.NewLinks(key); err != nil {
		return nil, err
	}
	return p, nil
}

// linkKeyName is the file, in the state directory, with the key of links: 32 random bytes and their
// CRC-32 (IEEE), big-endian.
const linkKeyName = "preview.key"

// linkKey reads the key, and makes it if there is no file. A file that is damaged, or that others
// could have read, is an error: a new key would end all links unseen, and a short one could be guessed.
func linkKey(path string) ([]byte, error) {
	const size = 32
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return makeLinkKey(path, size)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := linux.Fstat(f)
	if err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%q has mode %o and belongs to user %d: must be a file of user %d with mode 600: remove it, which ends all links", path, st.Mode&0o7777, st.Uid, os.Geteuid())
	}
	b, err := io.ReadAll(io.LimitReader(f, size+5))
	if err != nil {
		return nil, err
	}
	if len(b) != size+4 || crc32.ChecksumIEEE(b[:size]) != binary.BigEndian.Uint32(b[size:]) {
		return nil, fmt.Errorf("%q is damaged: restore it, or remove it, which ends all links", path)
	}
	return b[:size], nil
}

// makeLinkKey makes the file whole or not at all.
func makeLinkKey(path string, size int) (key []byte, err error) {
	key = make([]byte, size)
	rand.Read(key) // never fails
	whole := binary.BigEndian.AppendUint32(key[:size:size], crc32.ChecksumIEEE(key))
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Write(whole); err != nil {
		return nil, err
	}
	if err := errors.Join(f.Chmod(0o600), f.Sync()); err != nil {
		return nil, err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return key, dir.Sync()
}
