package config

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// maxLinkTTL is preview.MaxLinkTTL.
const maxLinkTTL = 7 * 24 * time.Hour

var headerSyntax = onUse(`^[A-Za-z0-9-]{1,64}$`)

// validatePreview checks the section preview.
func (c *Config) validatePreview() error {
	p := &c.Preview
	if d := p.MaxTTL.D(); d < time.Second || d > maxLinkTTL {
		return refuse("preview.max_ttl", p.MaxTTL.String(), fmt.Sprintf("must be 1s to %s", maxLinkTTL))
	}
	for i, name := range p.DropHeaders {
		if !headerSyntax().MatchString(name) {
			return refuse(fmt.Sprintf("preview.drop_headers[%d]", i), spec.Quote(name), "must be the name of a header, such as X-My-User")
		}
	}
	if p.URL == "" {
		switch {
		case p.Listen != "":
			return refuse("preview.listen", spec.Quote(p.Listen), "needs preview.url, the URL of the domain of previews")
		case p.TLS != (PreviewTLS{}):
			return refuse("preview.tls", spec.Quote(p.TLS.Cert+p.TLS.Key), "has no use without preview.url")
		}
		return nil
	}
	u, err := url.Parse(p.URL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" {
		return refuse("preview.url", spec.Quote(p.URL), "must be https://DOMAIN or https://DOMAIN:PORT, such as https://preview.example.com")
	}
	local := u.Hostname() == "localhost" || strings.HasSuffix(u.Hostname(), ".localhost")
	switch {
	case u.Scheme == "http" && !local:
		// To plain HTTP, browsers do not state which site a request comes from, so that the page of a
		// box could use the cookies of another one.
		return refuse("preview.url", spec.Quote(p.URL), "must begin with https://, or have a domain of localhost, such as http://preview.localhost:8090: boxes could use each other's previews")
	case p.Listen == "":
		return refuse("preview.url", spec.Quote(p.URL), "needs preview.listen, an address such as 127.0.0.1:8090")
	case (p.TLS.Cert == "") != (p.TLS.Key == ""):
		return refuse("preview.tls", spec.Quote(p.TLS.Cert+p.TLS.Key), "needs both cert and key")
	case p.TLS.Cert != "" && u.Scheme != "https":
		return refuse("preview.tls.cert", spec.Quote(p.TLS.Cert), "needs a preview.url that begins with https://")
	}
	_, port, err := splitAddress("preview.listen", p.Listen, "127.0.0.1:8090")
	if err == nil && port != "0" && (p.Listen == c.Listen || p.Listen == c.Langbot.Listen) {
		err = refuse("preview.listen", spec.Quote(p.Listen), "is the address of another listener: each needs a port of its own")
	}
	return err
}
