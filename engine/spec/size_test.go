package spec

import (
	"errors"
	"math"
	"testing"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "1": 1, "65536": 65536, "12b": 12, "12 B": 12,
		"512M": 512 << 20, "512m": 512 << 20, "512MB": 512 << 20, "512MiB": 512 << 20, "512 MiB": 512 << 20,
		"1.5G": 3 << 29, "0.5k": 512, "64KiB": 64 << 10, "2T": 2 << 40, "1p": 1 << 50, "4P": 1 << 52,
		"4503599627370496": 1 << 52,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "M", "-1", "-1M", "+1", "1.5", "1.5b", "1e9", "0x10", "NaN", "nanM", "Inf", "infinity", "1..5G", ".5G", "5.G", "1 2M",
		"1M ", " 1M", "1  M", "1E", "1mi", "1bb", "1kbb", "1_000", "5P", "4503599627370497", "9007199254740993", "4097T", "99999999999999999999P", "1M\n", "1M\x00", "١M",
	} {
		got, err := ParseSize(in)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("ParseSize(%q) = %d, %v; want ErrInvalid", in, got, err)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for want, in := range map[string]int64{
		"unlimited": -1, "0 B": 0, "1023 B": 1023, "1 KiB": 1024, "1.5 KiB": 1536, "976.6 KiB": 1000000, "64 MiB": 64 << 20, "64 TiB": 1 << 46, "8 EiB": math.MaxInt64,
	} {
		if got := FormatSize(in); got != want {
			t.Errorf("FormatSize(%d) = %q, want %q", in, got, want)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for in, want := range map[string]float64{"1": 1, "1.5": 1.5, ".5": 0.5, "2.": 2, "0": 0, "4096": 4096} {
		if got, err := ParseCPUs(in); err != nil || got != want {
			t.Errorf("ParseCPUs(%q) = %g, %v; want %g", in, got, err, want)
		}
	}
	for _, in := range []string{"", ".", "-1", "+1", "1e3", "0x1p4", "NaN", "nan", "Inf", "infinity", "1,5", " 1", "1_0"} {
		if got, err := ParseCPUs(in); !errors.Is(err, ErrInvalid) {
			t.Errorf("ParseCPUs(%q) = %g, %v; want ErrInvalid", in, got, err)
		}
	}
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"":         `""`,
		"a\n\x00b": `"a\n\x00b"`,
		"0123456789012345678901234567890123456789012345678901234567890123€uro": `"0123456789012345678901234567890123456789012345678901234567890123"… (70 bytes)`,
		"012345678901234567890123456789012345678901234567890123456789012€uro":  `"012345678901234567890123456789012345678901234567890123456789012"… (69 bytes)`,
	} {
		if got := Quote(in); got != want {
			t.Errorf("Quote(%q) = %s, want %s", in, got, want)
		}
	}
}

// FuzzParseSize: an accepted size is in range, and is parsed to itself when it is written as
// plain bytes.
func FuzzParseSize(f *testing.F) {
	for _, seed := range []string{"0", "512M", "1.5GiB", "64 KiB", "8P", "-1", "NaN", "1e9", "9007199254740993"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			if n != 0 || !errors.Is(err, ErrInvalid) {
				t.Fatalf("ParseSize(%q) = %d, %v", s, n, err)
			}
			return
		}
		if n < 0 || n > maxParsedSize {
			t.Fatalf("ParseSize(%q) = %d, out of range", s, n)
		}
		if _, err := ParseSize(FormatSize(n)); err != nil {
			t.Fatalf("ParseSize(FormatSize(%d)): %v", n, err)
		}
	})
}

// FuzzParseCPUs: an accepted number is finite and not negative.
func FuzzParseCPUs(f *testing.F) {
	for _, seed := range []string{"1", "1.5", ".5", "NaN", "Inf", "1e400", "0x1p4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseCPUs(s); err == nil && !(n >= 0 && n <= math.MaxFloat64) {
			t.Fatalf("ParseCPUs(%q) = %g", s, n)
		}
	})
}
