package protocol

import "encoding/json"

// String returns the string with this key of the object data. A missing key is a
// KeyError, another type a ValueError.
func String(data json.RawMessage, key string) (string, error) {
	return "", nil
}

// StringOr is String for a key that can be missing or null.
func StringOr(data json.RawMessage, key, other string) (string, error) {
	return other, nil
}

// Value returns the value with this key of the object data as it stands there, nil if
// there is none. Names are compared exactly, and the last of several counts.
func Value(data json.RawMessage, key string) json.RawMessage {
	return nil
}

// Need is Value for a key that must be there; if it is not, that is a KeyError.
func Need(data json.RawMessage, key string) (json.RawMessage, error) {
	return nil, nil
}
