package config

import (
	"errors"
	"testing"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

func TestPreview(t *testing.T) {
	const url, listen = "https://preview.example.com", "127.0.0.1:8090"
	for _, c := range []struct {
		name  string
		p     Preview
		field string // "": valid
	}{
		{"none", Preview{}, ""},
		{"behind a proxy", Preview{URL: url, Listen: listen}, ""},
		{"with a port", Preview{URL: url + ":8443", Listen: "0.0.0.0:8443", TLS: PreviewTLS{"/c", "/k"}}, ""},
		{"of this host", Preview{URL: "http://preview.localhost:8090", Listen: listen}, ""},
		{"plain HTTP", Preview{URL: "http://preview.example.com", Listen: listen}, "preview.url"},
		{"like localhost", Preview{URL: "http://notlocalhost", Listen: listen}, "preview.url"},
		{"a path", Preview{URL: url + "/x", Listen: listen}, "preview.url"},
		{"a slash", Preview{URL: url + "/", Listen: listen}, "preview.url"},
		{"a user", Preview{URL: "https://me@preview.example.com", Listen: listen}, "preview.url"},
		{"no scheme", Preview{URL: "preview.example.com", Listen: listen}, "preview.url"},
		{"another scheme", Preview{URL: "ftp://preview.example.com", Listen: listen}, "preview.url"},
		{"no listener", Preview{URL: url}, "preview.url"},
		{"no URL", Preview{Listen: listen}, "preview.listen"},
		{"a bad listener", Preview{URL: url, Listen: "8090"}, "preview.listen"},
		{"that of the API", Preview{URL: url, Listen: "127.0.0.1:8420"}, "preview.listen"},
		{"a certificate alone", Preview{URL: url, Listen: listen, TLS: PreviewTLS{Cert: "/c"}}, "preview.tls"},
		{"a certificate without URL", Preview{TLS: PreviewTLS{"/c", "/k"}}, "preview.tls"},
		{"a certificate for plain HTTP", Preview{URL: "http://localhost:8090", Listen: listen, TLS: PreviewTLS{"/c", "/k"}}, "preview.tls.cert"},
		{"a relative path", Preview{URL: url, Listen: listen, TLS: PreviewTLS{"c", "/k"}}, "preview.tls.cert"},
		{"long links", Preview{MaxTTL: spec.Duration(8 * 24 * time.Hour)}, "preview.max_ttl"},
		{"no links", Preview{MaxTTL: -1}, "preview.max_ttl"},
		{"a header", Preview{DropHeaders: []string{"X-My-User"}}, ""},
		{"no header", Preview{DropHeaders: []string{"X-A", "a b"}}, "preview.drop_headers[1]"},
	} {
		config := Default()
		config.Listen = "127.0.0.1:8420"
		if c.p.MaxTTL == 0 {
			c.p.MaxTTL = config.Preview.MaxTTL
		}
		config.Preview = c.p
		err := config.Validate()
		var field *spec.FieldError
		if (err == nil) != (c.field == "") || err != nil && (!errors.As(err, &field) || field.Field != c.field) {
			t.Errorf("%s: %v, want %q", c.name, err, c.field)
		}
	}
}
