package spec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/docker/go-units"
)

// Size is a number of bytes. In JSON it is a number; in a request a string such as
// "512M" or "1.5GiB" is accepted as well. In configuration and flags it is that string, a
// number, or "unlimited", which is -1 in JSON. A size that must be limited refuses -1 like
// any other number that is too small.
type Size int64

// UnmarshalJSON accepts an integer or a string that [ParseSize] takes; null changes
// nothing. Anything else is a *json.UnmarshalTypeError, to which encoding/json adds the
// name of the field.
func (s *Size) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	n, err := strconv.ParseInt(string(b), 10, 64)
	if b[0] == '"' {
		var text string
		if err = json.Unmarshal(b, &text); err == nil {
			n, err = ParseSize(text)
		}
	}
	if err != nil {
		return &json.UnmarshalTypeError{Value: Quote(string(b)), Type: reflect.TypeFor[Size]()}
	}
	*s = Size(n)
	return nil
}

// UnmarshalText reads what [ParseSize] reads, "unlimited" or "-1".
func (s *Size) UnmarshalText(b []byte) error {
	if text := string(b); text == "unlimited" || text == "-1" {
		*s = Unlimited
		return nil
	}
	n, err := ParseSize(string(b))
	*s = Size(n)
	return err
}

// String formats s as [FormatSize] does.
func (s Size) String() string { return FormatSize(int64(s)) }

// maxParsedSize is the largest size that ParseSize returns. Up to it, every whole number
// of bytes is exact in the float64 with which go-units computes.
const maxParsedSize = 1 << 52

// isSizeSyntax accepts a number of bytes, or a number and a unit as docker writes it:
// 512M, 512MB, 512MiB and 512m are all 512 * 1024 * 1024. Parts of a byte make
// no sense, so only a number with a unit may have a fraction.
func isSizeSyntax(s string) bool {
	whole, rest := cutDigits(s)
	if whole == "" {
		return false
	}
	fraction := false
	if after, ok := strings.CutPrefix(rest, "."); ok {
		var part string
		if part, rest = cutDigits(after); part == "" {
			return false
		}
		fraction = true
	}
	rest = strings.TrimPrefix(rest, " ")
	if rest == "" || rest == "b" || rest == "B" {
		return !fraction
	}
	switch rest[1:] {
	case "", "b", "B", "ib", "iB", "Ib", "IB":
		return strings.IndexByte("kKmMgGtTpP", rest[0]) >= 0
	}
	return false
}

// isCPUsSyntax leaves out exponents, signs, hexadecimal numbers, NaN and Inf,
// which strconv.ParseFloat accepts.
func isCPUsSyntax(s string) bool {
	whole, rest := cutDigits(s)
	after, point := strings.CutPrefix(rest, ".")
	part, rest := cutDigits(after)
	return rest == "" && (whole != "" || point && part != "")
}

// cutDigits splits s after the decimal digits at its beginning.
func cutDigits(s string) (digits, rest string) {
	rest = strings.TrimLeft(s, "0123456789")
	return s[:len(s)-len(rest)], rest
}

// ParseSize reads a size such as "512M", "1.5GiB" or "65536" and returns bytes.
// Units are powers of 1024 and their case does not matter, as in docker. The
// result is 0 … 2^52; anything else is a [FieldError] for the field "size".
func ParseSize(s string) (int64, error) {
	if !isSizeSyntax(s) {
		return 0, refuse("size", Quote(s), `must be a number of bytes or a number with a unit, such as "512M" or "1.5G"`)
	}
	n, err := units.RAMInBytes(s)
	// Above int64 the result of the conversion from float64 depends on the processor: a
	// negative number on amd64, the largest number on arm64. Both are caught here.
	if err != nil || n < 0 || n > maxParsedSize {
		return 0, refuse("size", Quote(s), "must be at most %s", FormatSize(maxParsedSize))
	}
	return n, nil
}

// FormatSize writes n bytes for people, with four significant digits: "64 MiB".
// A negative n is "unlimited".
func FormatSize(n int64) string {
	if n < 0 {
		return "unlimited"
	}
	return units.CustomSize("%.4g %s", float64(n), 1024, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"})
}

// ParseCPUs reads a number of processors' worth of time such as "1.5". Only
// plain decimal notation is accepted; the range is checked by [Limits.Validate].
func ParseCPUs(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !isCPUsSyntax(s) {
		return 0, refuse("cpus", Quote(s), `must be a decimal number of processors, such as "1.5"`)
	}
	return f, nil
}

// SizeValue formats n bytes for the Value of a [FieldError]. It shows a negative number as
// it is, because "unlimited" would hide the number that was given.
func SizeValue(n int64) string {
	if n < 0 {
		return fmt.Sprint(n)
	}
	return FormatSize(n)
}
