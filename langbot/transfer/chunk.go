package transfer

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"
	"sync"

	"github.com/boxd/boxd/langbot/protocol"
)

// maxEncoded is the length of a chunk of MaxChunk bytes in base64.
const maxEncoded = (MaxChunk + 2) / 3 * 4

// chunk is one request: the next bytes of a file, or with index 0 its first. The request's
// file_length and chunk_size are ignored.
type chunk struct {
	key   string
	index int64
	bytes []byte
}

func parseChunk(data json.RawMessage) (chunk, error) {
	var c chunk
	var err error
	if c.key, err = protocol.String(data, "file_key"); err != nil {
		return c, err
	}
	if err := checkKey(c.key); err != nil {
		return c, err
	}
	encoded, err := protocol.String(data, "chunk_base64")
	if err != nil {
		return c, err
	}
	if c.index, err = integer(data, "chunk_index"); err != nil {
		return c, err
	}
	amount, err := integer(data, "chunk_amount")
	if err != nil {
		return c, err
	}
	if c.index < 0 || c.index >= amount {
		return c, refuse("chunk_index %d must be from 0 to chunk_amount (%d) - 1", c.index, amount)
	}
	if len(encoded) > maxEncoded {
		return c, refuse("chunk_base64 has %d characters: %d are the most", len(encoded), maxEncoded)
	}
	// The decoder skips line ends; the protocol does not allow them.
	c.bytes, err = base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return c, refuse("chunk_base64 is not valid base64: the standard alphabet with padding is expected")
	}
	if len(c.bytes) > MaxChunk {
		return c, refuse("chunk_base64 has %d bytes: %d are the most", len(c.bytes), MaxChunk)
	}
	return c, nil
}

// keys is compiled at its first use: it takes a millisecond, which each start of boxd would pay.
var keys = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}\z`) })

func checkKey(key string) error {
	if !keys().MatchString(key) || strings.Contains(key, "..") {
		return refuse(`file_key must be 1 to 255 of A-Z a-z 0-9 . _ -, starting with a letter or digit, without ".."`)
	}
	return nil
}

// integer reads a JSON number; truth values and strings of digits are refused.
func integer(data json.RawMessage, key string) (int64, error) {
	raw, err := protocol.Need(data, key)
	if err != nil {
		return 0, err
	}
	var n *int64
	if json.Unmarshal(raw, &n) != nil || n == nil {
		return 0, refuse("%s must be an integer", key)
	}
	return *n, nil
}
