package protocol

import "encoding/json"

// Value returns the value with this key of the object data, verbatim, or nil if there is
// none. Keys are compared exactly, and the last of several counts.
func Value(data json.RawMessage, key string) json.RawMessage {
	var v json.RawMessage
	m := object(data)
	for m.next() {
		if string(m.name) == key {
			v = m.value
		}
	}
	return v
}

// Need is Value for a required key. A missing key is a KeyError.
func Need(data json.RawMessage, key string) (json.RawMessage, error) {
	v := Value(data, key)
	if v == nil {
		return nil, Errorf(KeyError, "'%s'", key)
	}
	return v, nil
}

// String returns the string with this key of the object data. A missing key is a
// KeyError, another type a ValueError.
func String(data json.RawMessage, key string) (string, error) {
	v, err := Need(data, key)
	if err != nil {
		return "", err
	}
	return field{ValueError, key, v}.str()
}

// StringOr is String for a key that may be missing or null.
func StringOr(data json.RawMessage, key, other string) (string, error) {
	v := field{ValueError, key, Value(data, key)}
	if v.raw == nil || v.null() {
		return other, nil
	}
	return v.str()
}
