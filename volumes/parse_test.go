package volumes

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"testing"
)

// validSuper returns a super block like those of mke2fs.
func validSuper() []byte {
	b := make([]byte, superSize)
	put32 := func(at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	put16 := func(at int, v uint16) { binary.LittleEndian.PutUint16(b[at:], v) }
	put32(0x0, 1040)
	put32(0x4, 2877)
	put32(0xc, 2700)
	put32(0x10, 1029)
	put32(0x18, 2)
	put32(0x20, groupBlocks)
	put32(0x28, 1040)
	put16(0x38, 0xef53)
	put16(0x3a, 1)
	put16(0x58, 256)
	put32(0x60, 0x80)
	return b
}

func TestParseSuper(t *testing.T) {
	sb, err := parseSuper(validSuper())
	want := super{blocks: 2877, freeBlocks: 2700, inodes: 1040, freeInodes: 1029, inodesPerGroup: 1040, inodeSize: 256, clean: true}
	if sb != want || err != nil {
		t.Errorf("%+v, %v", sb, err)
	}
	for name, spoil := range map[string]func(b []byte){
		"magic":           func(b []byte) { b[0x38]++ },
		"block size":      func(b []byte) { b[0x18] = 0 },
		"group size":      func(b []byte) { b[0x21]++ },
		"no inodes":       func(b []byte) { b[0x28], b[0x29] = 0, 0 },
		"32 bits":         func(b []byte) { b[0x60] = 0 },
		"too much free":   func(b []byte) { b[0xe] = 1 },
		"too many free":   func(b []byte) { b[0x12] = 1 },
		"huge":            func(b []byte) { b[0x153] = 0x80 },
		"tiny inodes":     func(b []byte) { b[0x58], b[0x59] = 1, 0 },
		"no inode at all": func(b []byte) { clear(b[0:4]); clear(b[0x10:0x14]) },
	} {
		b := validSuper()
		spoil(b)
		if sb, err := parseSuper(b); err == nil {
			t.Errorf("%s: %+v", name, sb)
		}
	}
	for _, state := range []byte{0, 2, 3} {
		b := validSuper()
		b[0x3a] = state
		if sb, err := parseSuper(b); sb.clean || err != nil {
			t.Errorf("state %d: %+v, %v", state, sb, err)
		}
	}
	if _, err := parseSuper(validSuper()[:1000]); err == nil {
		t.Error("a part is accepted")
	}
}

func FuzzParseSuper(f *testing.F) {
	f.Add(validSuper())
	f.Add(make([]byte, superSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		sb, err := parseSuper(b)
		if err == nil && (sb.blocks <= 0 || sb.freeBlocks > sb.blocks || sb.freeInodes > sb.inodes || sb.inodesPerGroup <= 0 || sb.inodeSize <= 0) {
			t.Errorf("%+v", sb)
		}
	})
}

func TestDecodeRecord(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"by":"image","bytes":4194304,"inodes":1024}`:                             true,
		`{"by":"project-quota","bytes":4194304,"inodes":16,"project":1652031489}`:  true,
		`{"by":"project-quota","bytes":4194304,"inodes":16,"project":1652031489}}`: false,
		`{"by":"project-quota","bytes":4194304,"inodes":16,"project":0}`:           false,
		`{"by":"project-quota","bytes":4194304,"inodes":16,"project":5}`:           false,
		`{"by":"image","bytes":4194304,"inodes":1024,"project":1652031489}`:        false,
		`{"by":"image","bytes":4194303,"inodes":1024}`:                             false,
		`{"by":"image","bytes":-4096,"inodes":1024}`:                               false,
		`{"by":"image","bytes":4194304,"inodes":0}`:                                false,
		`{"by":"image","bytes":4194304,"inodes":1e99}`:                             false,
		`{"by":"other","bytes":4194304,"inodes":1024}`:                             false,
		`{"by":"image","bytes":4194304,"inodes":1024,"more":1}`:                    false,
		``: false, `null`: false, `[]`: false, `{`: false, "\x00": false,
	} {
		if r, err := decodeRecord([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	f.Add([]byte(`{"by":"image","bytes":4194304,"inodes":1024}`))
	f.Add([]byte(`{"by":"project-quota","bytes":4194304,"inodes":16,"project":1652031489}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decodeRecord(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if r2, err := decodeRecord(again); r2 != r || err != nil {
			t.Errorf("%+v became %+v, %v", r, r2, err)
		}
		if _, _, err := checkLimits(r.Bytes, r.Inodes); err != nil {
			t.Error(err)
		}
	})
}

func TestTreeID(t *testing.T) {
	for name, want := range map[string]uint32{
		"1652031489.tree": 1652031489, "1652031489": 0, "01652031489.tree": 0, "5.tree": 0, "+1652031489.tree": 0, ".tree": 0,
		"99999999999.tree": 0, "a.tree": 0, "1652031489.tree.tree": 0,
	} {
		if id, ok := treeID(name); ok != (want != 0) || ok && id != want {
			t.Errorf("%q: %d, %v", name, id, ok)
		}
	}
}

// TestLayout: an image is never too small, and not much too large.
func TestLayout(t *testing.T) {
	for bytes := int64(MinBytes); bytes <= MaxBytes; bytes = bytes*3/2 + 12345 {
		for _, inodes := range []int64{MinInodes, max(1024, bytes>>14), 100_000} {
			blocks, all := layout(bytes, inodes)
			if all != inodes+ownInodes || blocks < bytes/block+all/16 {
				t.Errorf("%d bytes, %d inodes: %d blocks, %d inodes", bytes, inodes, blocks, all)
			}
			if most := bytes/block*11/10 + all*8 + 60_000; blocks > most {
				t.Errorf("%d bytes, %d inodes: %d blocks", bytes, inodes, blocks)
			}
		}
	}
}

func TestBounded(t *testing.T) {
	var b bounded
	for range 10 {
		if n, err := b.Write(bytes.Repeat([]byte("x"), 300)); n != 300 || err != nil {
			t.Error(n, err)
		}
	}
	if b.Len() != 1000 {
		t.Error(b.Len())
	}
}
