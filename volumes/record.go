package volumes

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/trash"
)

// Suffixes of names in the data directory, and two other names there.
const (
	recordSuffix = ".volume"
	dirSuffix    = ".dir"
	imageSuffix  = ".img"
	treeSuffix   = ".tree"
	newPrefix    = trash.Prefix
	trashName    = ".old"
)

// volumeRecord is the record of a volume. It is written before the volume appears, removed
// after the volume, and never synced. After a power failure it may be empty or missing; then
// it is reconstructed from the directory's project or from the image.
type volumeRecord struct {
	By      string `json:"by"`
	Bytes   int64  `json:"bytes"`
	Inodes  int64  `json:"inodes"`
	Project uint32 `json:"project,omitempty"`
}

const maxRecord = 64 << 10

// decodeRecord decodes a record and checks every value.
func decodeRecord(text []byte) (volumeRecord, error) {
	var r volumeRecord
	if err := decodeStrictly(text, &r); err != nil {
		return volumeRecord{}, err
	}
	if _, _, err := checkLimits(r.Bytes, r.Inodes); err != nil || r.Inodes == 0 || r.Bytes%block != 0 {
		return volumeRecord{}, fmt.Errorf("limits %d and %d are out of range", r.Bytes, r.Inodes)
	}
	switch {
	case r.By == ByImage && r.Project == 0, r.By == ByProjectQuota && inRange(r.Project):
		return r, nil
	}
	return volumeRecord{}, fmt.Errorf("by %.40q with project %d is not possible", r.By, r.Project)
}

func decodeStrictly(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("more than one value")
	}
	return nil
}

func (s *Store) readFile(name string) ([]byte, error) {
	f, err := openFile(s.dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRecord))
}

// writeFile atomically replaces the file name with value.
func (s *Store) writeFile(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	temp := trash.NewName()
	f, err := linux.CreateAt(s.dir, temp, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = linux.RenameAt(s.dir, temp, s.dir, name)
	}
	if err != nil {
		return errors.Join(err, linux.UnlinkAt(s.dir, temp))
	}
	return nil
}

// load returns the record of volume name, or ErrUnknown. Before that, it repairs what a killed
// process or a lost file may have left: it removes a record without a volume, and writes the
// record of a volume without one. The caller has locked name.
func (s *Store) load(name string) (volumeRecord, error) {
	text, reading := s.readFile(name + recordSuffix)
	r, decoding := decodeRecord(text)
	dir, err := s.exists(name + dirSuffix)
	if err != nil {
		return volumeRecord{}, err
	}
	image, err := s.exists(name + imageSuffix)
	if err != nil {
		return volumeRecord{}, err
	}
	recorded := reading == nil && decoding == nil
	switch {
	case recorded && (r.By == ByImage && image || r.By == ByProjectQuota && dir):
		return r, nil
	case !dir && !image && errors.Is(reading, unix.ENOENT):
		return volumeRecord{}, ErrUnknown
	case !dir && !image:
		if err := s.forget(name, r); err != nil {
			return volumeRecord{}, err
		}
		return volumeRecord{}, ErrUnknown
	case dir && image:
		return volumeRecord{}, fmt.Errorf("both %q and %q exist, and no record says which of them is the volume: remove one", name+dirSuffix, name+imageSuffix)
	}
	adopt := s.adoptProject
	if image {
		adopt = s.adoptImage
	}
	if r, err = adopt(name); err != nil {
		return volumeRecord{}, fmt.Errorf("without its record: %w", err)
	}
	return r, s.writeFile(name+recordSuffix, r)
}

// forget removes the record r of a volume that does not exist.
func (s *Store) forget(name string, r volumeRecord) error {
	if err := linux.UnlinkAt(s.dir, name+recordSuffix); err != nil {
		return err
	}
	if r.Project != 0 && s.noQuota == nil {
		return s.ids.drop(s.dir, r.Project)
	}
	return nil
}

func (s *Store) exists(name string) (bool, error) {
	_, err := linux.StatAt(s.dir, name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

// names returns the names of all volumes, including incomplete ones.
func (s *Store) names() ([]string, error) {
	all, err := linux.ReadNames(s.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range all {
		for _, suffix := range []string{recordSuffix, dirSuffix, imageSuffix} {
			if name, ok := strings.CutSuffix(entry, suffix); ok && checkName(name) == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
