package volumes

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Suffixes of what belongs to a volume in the data directory.
const (
	recordSuffix = ".volume"
	dirSuffix    = ".dir"
	imageSuffix  = ".img"
	treeSuffix   = ".tree"
	newPrefix    = ".new-"
	trashName    = ".old"
)

// volumeRecord is what is known of a volume. It is written before the volume appears and
// removed after it has gone, and never synced: after a loss of power it may be empty or
// missing, and is made again from the directory's project or the image.
type volumeRecord struct {
	By      string `json:"by"`
	Bytes   int64  `json:"bytes"`
	Inodes  int64  `json:"inodes"`
	Project uint32 `json:"project,omitempty"`
}

const maxRecord = 64 << 10

// decodeRecord reads a record and believes nothing.
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

// writeFile puts value in the place of the file name at once.
func (s *Store) writeFile(name string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	temp := newName()
	f, err := linux.CreateAt(s.dir, temp, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = rename(s.dir, temp, s.dir, name, true)
	}
	if err != nil {
		return errors.Join(err, unlink(s.dir, temp))
	}
	return nil
}

// newName is a name for something that is being made.
func newName() string { return newPrefix + strings.ToLower(rand.Text()) }

// load returns the record of volume name, after putting in order what a killed process
// or a lost file may have left: a record alone is forgotten, a volume alone gets its
// record again. ErrUnknown if there is none. The caller has locked name.
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
		return volumeRecord{}, fmt.Errorf("there are %q and %q and no record that says which it is: remove one", name+dirSuffix, name+imageSuffix)
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

// forget removes the record r of a volume that is not there.
func (s *Store) forget(name string, r volumeRecord) error {
	if err := unlink(s.dir, name+recordSuffix); err != nil {
		return err
	}
	if r.Project != 0 && s.quota {
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

// names are those of all volumes, and of what is left of some.
func (s *Store) names() ([]string, error) {
	all, err := entries(s.dir)
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
