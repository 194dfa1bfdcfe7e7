package cli

import "testing"

func TestParseForwarding(t *testing.T) {
	for text, want := range map[string]forwarding{
		"8080":             {"127.0.0.1:8080", 8080},
		":8080":            {"127.0.0.1:0", 8080},
		"0:8080":           {"127.0.0.1:0", 8080},
		"8080:80":          {"127.0.0.1:8080", 80},
		"127.0.0.2:81:80":  {"127.0.0.2:81", 80},
		"0.0.0.0:81:80":    {"0.0.0.0:81", 80},
		"localhost:81:80":  {"localhost:81", 80},
		"[::1]:81:80":      {"[::1]:81", 80},
		"[fe80::1%lo]:0:1": {"[fe80::1%lo]:0", 1},
		"65535:65535":      {"127.0.0.1:65535", 65535},
	} {
		if got, err := parseForwarding(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", ":", "0", "80:", "80:0", "80:65536", "65536:80", "-1:80", "80:+1", "::80:80", "::1:80:80", ":80:80", "[::1]:80", "a:80", "80:a", "http:80", "80:80/tcp", "1:2:3:4", " 80", "3128", "80:1080"} {
		if got, err := parseForwarding(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}
