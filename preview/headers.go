package preview

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// sandbox makes every document of path mode an opaque origin: the origin that it is served
// from is the API's.
const sandbox = "sandbox allow-scripts allow-forms allow-popups allow-downloads allow-modals"

// Visit says which port a request is for, and what it looks like to the client.
type Visit struct {
	Target Target
	// Prefix is the escaped path below which the target is served, such as
	// "/v1/sessions/lab/ports/3000", without ";" (it becomes the path of cookies), and
	// selects path mode; "": the whole host is its own.
	Prefix string
	// Origin is the client's view of scheme and host, such as "https://3000-lab.example.com";
	// "": as of the connection, which is right unless another proxy ends TLS.
	Origin string
	// Apart, of a-z, keeps visits from sharing connections to the box with visits of another Apart, so
	// that the connections of one kind of visits can be ended.
	Apart string
}

func (v Visit) origin(r *http.Request) string {
	switch {
	case v.Origin != "":
		return v.Origin
	case r.TLS != nil:
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

func (v Visit) secure(r *http.Request) bool { return strings.HasPrefix(v.origin(r), "https:") }

// inside is the host as the box knows it. Servers for development refuse other hosts.
func (v Visit) inside() string { return "localhost:" + strconv.Itoa(v.Target.Port) }

// trim returns the path of a request without the prefix, escaped: "" if it is not below it.
func (v Visit) trim(escaped string) string {
	rest, ok := strings.CutPrefix(escaped, v.Prefix)
	if !ok || !strings.HasPrefix(rest, "/") {
		return ""
	}
	return rest
}

func isUpgrade(r *http.Request) bool { return r.Header.Get("Upgrade") != "" }

func wantsHTML(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// ownHeaders are prefixes of headers between the client and boxd, or between proxies.
var ownHeaders = []string{"x-boxd-", "boxd-", "proxy-", "x-forwarded", "x-original-", "via"}

// identityHeaders are prefixes of request headers in which proxies for single sign-on pass on who
// the user is, or the user's tokens: nginx with auth_request, oauth2-proxy, Authelia, authentik,
// Apache, Cloudflare Access, AWS load balancers, Google IAP, Azure, Pomerium, Vouch, Tailscale,
// Kong, APISIX, and servers that check client certificates.
var identityHeaders = []string{"x-auth-", "x-authentik-", "x-authenticated-", "x-webauth-", "x-remote-", "remote-",
	"x-user-id", "x-user-name", "x-user-email", "x-user-groups", "x-user-roles", "x-userinfo", "x-username",
	"cf-access-", "x-amzn-oidc-", "x-goog-iap-", "x-goog-authenticated-", "x-ms-client-principal", "x-ms-token-", "x-pomerium-", "x-vouch-", "x-sso-",
	"x-okta-", "x-oidc-", "x-jwt-", "x-id-token", "x-access-token", "x-refresh-token", "x-token-subject", "x-consumer-", "x-credential-",
	"tailscale-", "x-tailscale-", "x-client-cert", "x-client-dn", "x-client-verify", "x-ssl-", "ssl-client-", "client-cert", "x-envoy-"}

func hasPrefix(name string, prefixes []string) bool {
	name = plainName(name)
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// plainName is lower case. CGI and its successors read "_" as "-".
func plainName(name string) string { return strings.ReplaceAll(strings.ToLower(name), "_", "-") }

// isPrivate reports whether a header is between the client and boxd.
func isPrivate(name string) bool {
	if hasPrefix(name, ownHeaders) {
		return true
	}
	name = plainName(name)
	return name == "forwarded" || name == "x-real-ip" || name == "proxy" // CGI's HTTP_PROXY
}

// rewrite makes the request to the box. The reverse proxy has removed hop-by-hop headers.
func (p *Proxy) rewrite(pr *httputil.ProxyRequest) {
	x := pr.In.Context().Value(exchangeKey{}).(*exchange)
	v, out, h := x.visit, pr.Out, pr.Out.Header
	for name := range h {
		if isPrivate(name) || hasPrefix(name, identityHeaders) || slices.Contains(p.o.DropHeaders, plainName(name)) {
			delete(h, name)
		}
	}
	if v.Prefix != "" || p.o.OwnAuthorization == nil || p.o.OwnAuthorization(pr.In) {
		h.Del("Authorization")
	}
	// Other upgrades, such as h2c, would carry requests that nobody filters.
	if u := h.Get("Upgrade"); u != "" && !strings.EqualFold(u, "websocket") {
		h.Del("Upgrade")
		h.Del("Connection")
	}
	// In path mode they are those of the API's host.
	if c := withoutOwnCookies(h["Cookie"]); c != "" && v.Prefix == "" {
		h.Set("Cookie", c)
	} else {
		h.Del("Cookie")
	}
	origin, inside := x.origin, "http://"+v.inside()
	if h.Get("Origin") == origin {
		h.Set("Origin", inside)
	}
	if ref, err := url.Parse(h.Get("Referer")); err != nil {
		h.Del("Referer")
	} else if ref.Scheme+"://"+ref.Host == origin && v.trim(ref.EscapedPath()) != "" {
		_, query, _ := cutLink(ref.RawQuery)
		h.Set("Referer", inside+v.trim(ref.EscapedPath())+withMark("?", query))
	} else if v.Prefix != "" || strings.Contains(ref.RawQuery, linkParam) {
		h.Del("Referer") // in path mode it can be a URL of the API
	}
	scheme, host, _ := strings.Cut(origin, "://")
	h.Set("X-Forwarded-Proto", scheme)
	h.Set("X-Forwarded-Host", host)
	if v.Prefix != "" {
		h.Set("X-Forwarded-Prefix", v.Prefix)
	}
	escaped := v.trim(pr.In.URL.EscapedPath())
	path, _ := url.PathUnescape(escaped) // EscapedPath is valid
	_, query, _ := cutLink(pr.In.URL.RawQuery)
	// The host is the key of the pool of connections.
	out.URL = &url.URL{Scheme: "http", Host: x.entry.key(v.Target.Port) + v.Apart, Path: path, RawPath: escaped, RawQuery: query, ForceQuery: pr.In.URL.ForceQuery}
	out.Host = v.inside()
	out.Trailer = pr.In.Trailer // the server fills it while the body is read
}

// modify makes the answer to the client.
func (p *Proxy) modify(res *http.Response) error {
	x := res.Request.Context().Value(exchangeKey{}).(*exchange)
	x.outcome = &p.o.Counters.Answered
	v, h := x.visit, res.Header
	x.dropPrivate(h)
	x.dropPrivate(res.Trailer)
	res.Trailer.Del("Set-Cookie")
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &boxBody{res.Body, x, res}
	}
	for _, name := range []string{"Location", "Content-Location"} {
		if l := h.Get(name); l != "" {
			h.Set(name, v.outside(l, x.origin))
		}
	}
	var cookies []string
	for _, c := range h["Set-Cookie"] {
		if c, ok := outsideCookie(c); ok && v.Prefix == "" { // in path mode it would be set for the API's host
			cookies = append(cookies, c)
		}
	}
	delete(h, "Set-Cookie")
	if len(cookies) > 0 {
		h["Set-Cookie"] = cookies
	}
	h["Cache-Control"] = []string{privately(h["Cache-Control"])}
	if v.Prefix != "" {
		h.Add("Content-Security-Policy", sandbox)
	}
	return nil
}

// privately returns a Cache-Control header that keeps proxies from showing the answer to others.
func privately(lines []string) string {
	kept := []string{"private"}
	for _, line := range lines {
		for d := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(d)), "=")
			if name != "" && name != "private" && name != "public" && name != "s-maxage" {
				kept = append(kept, strings.TrimSpace(d))
			}
		}
	}
	return strings.Join(kept, ", ")
}

// proxyOrders are prefixes of headers in which the servers in front of boxd, such as nginx and
// Apache, would see an order to send a file of theirs instead, or to cache.
var proxyOrders = []string{"x-accel-", "x-sendfile", "x-lighttpd-", "x-reproxy-", "surrogate-", "cdn-cache-", "cloudflare-cdn-", "x-litespeed-"}

// dropPrivate removes from an answer the headers that speak for more than the document, or
// for boxd.
func (x *exchange) dropPrivate(h http.Header) {
	shared := x.visit.Prefix != "" // the origin is the API's
	for name := range h {
		_, own := x.own[name]
		drop := own || isPrivate(name) || hasPrefix(name, proxyOrders)
		switch name {
		case "Strict-Transport-Security", "Alt-Svc", "Public-Key-Pins", "Public-Key-Pins-Report-Only", "Service-Worker-Allowed",
			"Clear-Site-Data": // its cookies are those of the whole site, with all previews
			drop = true
		case "Nel", "Report-To", "Accept-Ch", "Critical-Ch", "Origin-Agent-Cluster", "Www-Authenticate":
			drop = drop || shared
		}
		if drop {
			delete(h, name)
		}
	}
}

// outside translates a location of the box into one of the client.
func (v Visit) outside(location, origin string) string {
	u, err := url.Parse(location)
	if err != nil {
		return location
	}
	switch {
	case u.Host == "" && u.Scheme != "": // mailto:
		return location
	case u.Host == "" && !strings.HasPrefix(u.Path, "/"): // relative
		return location
	case u.Host != "" && !v.isInside(u) && !strings.EqualFold("//"+u.Host, origin[strings.Index(origin, "//"):]):
		return location
	}
	path := u.EscapedPath()
	if path == "" {
		path = "/"
	}
	if v.trim(path) == "" {
		path = v.Prefix + path
	}
	if u.Host != "" || strings.HasPrefix(path, "//") {
		path = origin + path
	}
	return path + withMark("?", u.RawQuery) + withMark("#", u.EscapedFragment())
}

// isInside reports whether a URL with a host is one of the box's port.
func (v Visit) isInside(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		port = "80"
	}
	host := strings.ToLower(u.Hostname())
	ip := net.ParseIP(host)
	return port == strconv.Itoa(v.Target.Port) && u.Scheme != "https" &&
		(host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified()))
}

func withMark(mark, s string) string {
	if s == "" {
		return ""
	}
	return mark + s
}

// isOwnCookie reports whether boxd uses a cookie of this name.
func isOwnCookie(name string) bool {
	name = strings.ToLower(strings.TrimSpace(name))
	name = strings.TrimPrefix(strings.TrimPrefix(name, "__host-"), "__secure-")
	return strings.HasPrefix(name, ownPrefix)
}

// withoutOwnCookies joins the cookies of a request, except those of boxd. It keeps the others
// as they are, valid or not.
func withoutOwnCookies(lines []string) string {
	var kept []string
	for _, line := range lines {
		for c := range strings.SplitSeq(line, ";") {
			name, _, _ := strings.Cut(c, "=")
			if c = strings.TrimSpace(c); c != "" && !isOwnCookie(name) {
				kept = append(kept, c)
			}
		}
	}
	return strings.Join(kept, "; ")
}

// outsideCookie translates a Set-Cookie header, and reports whether the client may have it. A
// cookie without a name can pass for any: browsers send its value alone.
func outsideCookie(line string) (string, bool) {
	parts := strings.Split(line, ";")
	name, _, ok := strings.Cut(parts[0], "=")
	if !ok || strings.TrimSpace(name) == "" || isOwnCookie(name) {
		return "", false
	}
	kept := parts[:1]
	for _, attr := range parts[1:] {
		key, _, _ := strings.Cut(attr, "=")
		if strings.ToLower(strings.TrimSpace(key)) != "domain" { // none: of this host only
			kept = append(kept, attr)
		}
	}
	return strings.Join(kept, ";"), true
}
