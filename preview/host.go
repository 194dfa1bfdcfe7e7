package preview

import (
	"fmt"
	"strconv"
	"strings"
)

// Target is a port of a session.
type Target struct {
	Tenant, Session string
	Port            int // 1 to 65535
}

// Hosts maps host names to targets and back. The name of a target is
// {port}-{session}.{domain}, or {port}-{session}.{tenant}.{domain} for another tenant than
// the default one. Every target has at most one name, so it has one origin.
type Hosts struct {
	domain, tenant string
}

// NewHosts returns the names below a domain such as "preview.example.com". The names of
// the tenant leave the tenant out. A certificate for them needs *.{domain}, and
// *.{tenant}.{domain} for each other tenant.
func NewHosts(domain, tenant string) (Hosts, error) {
	for label := range strings.SplitSeq(domain, ".") {
		if !isLabel(label) {
			return Hosts{}, fmt.Errorf("preview domain %q: must be labels of a-z, 0-9 and \"-\" with dots between them", domain)
		}
	}
	if len(domain) > 120 { // leaves room for two labels of 63 in 253 bytes (RFC 1035, 2.3.4)
		return Hosts{}, fmt.Errorf("preview domain %q: must have at most 120 bytes", domain)
	}
	return Hosts{domain, tenant}, nil
}

// isLabel reports whether s is a label of lower-case letters, digits and inner hyphens (RFC
// 1123, 2.1), but none that IDNA reserves (RFC 5891, 4.2.3.1), except for A-labels in the
// operator's own domain.
func isLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// isReserved reports whether browsers may show the label as something else.
func isReserved(label string) bool { return len(label) > 3 && label[2:4] == "--" }

// Format returns the host name of a target. Sessions and tenants need not be DNS labels;
// those that are not have no name.
func (h Hosts) Format(t Target) (string, error) {
	if err := checkPort(t.Port); err != nil {
		return "", err
	}
	label := strconv.Itoa(t.Port) + "-" + t.Session
	if !isLabel(t.Session) || !isLabel(label) {
		return "", fmt.Errorf("host name of session %q: must be at most %d of a-z, 0-9 and inner \"-\": use the path of the port instead",
			t.Session, 62-len(strconv.Itoa(t.Port)))
	}
	if t.Tenant == h.tenant {
		return label + "." + h.domain, nil
	}
	if !isLabel(t.Tenant) || isReserved(t.Tenant) {
		return "", fmt.Errorf("host name of tenant %q: must be at most 63 of a-z, 0-9 and inner \"-\": use the path of the port instead", t.Tenant)
	}
	return label + "." + t.Tenant + "." + h.domain, nil
}

// Parse returns the target of the Host header of a request: case, one trailing dot and a
// port of the server do not matter. It reports false for any name that Format does not
// make.
func (h Hosts) Parse(host string) (Target, bool) {
	name, port, hasPort := strings.Cut(host, ":")
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || n == 0) {
		return Target{}, false
	}
	name = asciiLower(strings.TrimSuffix(name, "."))
	rest, ok := strings.CutSuffix(name, "."+h.domain)
	if !ok {
		return Target{}, false
	}
	first, tenant, hasTenant := strings.Cut(rest, ".")
	if !hasTenant {
		tenant = h.tenant
	}
	digits, session, _ := strings.Cut(first, "-")
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return Target{}, false
	}
	t := Target{tenant, session, int(n)}
	canonical, err := h.Format(t)
	return t, err == nil && canonical == name
}

// Has reports whether a Host header is that of the domain, or of anything below it.
func (h Hosts) Has(host string) bool {
	name, _, _ := strings.Cut(host, ":")
	name = asciiLower(strings.TrimSuffix(name, "."))
	return name == h.domain || strings.HasSuffix(name, "."+h.domain)
}

// asciiLower does not touch other letters: U+212A, the Kelvin sign, is no "k" in a host.
func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

func checkPort(port int) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("port %d: must be 1 to 65535", port)
	}
	return nil
}
