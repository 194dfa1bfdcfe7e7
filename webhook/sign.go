package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// secretPrefix marks a secret of HMAC-SHA256.
const secretPrefix = "whsec_"

// Sizes of a secret in bytes, by the specification.
const (
	minSecret = 24
	maxSecret = 64
)

// ParseSecrets returns the keys in text: one or more words of whsec_ and base64. While a secret is
// replaced, the old and the new one both sign. Errors do not contain the text.
func ParseSecrets(text string) (keys [][]byte, err error) {
	for word := range strings.FieldsSeq(text) {
		encoded, ok := strings.CutPrefix(word, secretPrefix)
		key, err := base64.StdEncoding.DecodeString(encoded)
		if !ok || err != nil || len(key) < minSecret || len(key) > maxSecret {
			return nil, fmt.Errorf("a webhook secret must be %q and the base64 of %d to %d bytes: make one with echo \"%s$(openssl rand -base64 32)\"", secretPrefix, minSecret, maxSecret, secretPrefix)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no webhook secret")
	}
	return keys, nil
}

// signature returns the value of the header Webhook-Signature. at is a Unix time in decimal.
func signature(keys [][]byte, id, at string, body []byte) string {
	list := make([]string, len(keys))
	for i, key := range keys {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(id + "." + at + "."))
		h.Write(body)
		list[i] = "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil))
	}
	return strings.Join(list, " ")
}
