// Package preview serves TCP ports of boxes to browsers and to raw TCP clients.
//
// It knows neither sessions nor boxes: a [Proxy] reaches ports through a function of its
// caller, who also decides who may ask. [Hosts] maps host names to targets, [Links] makes
// and checks signed links, and [Forward] is the client's half of a tunnel.
//
// Boxes run untrusted code, so a page of a box must not act as another page. In host mode
// each port of each session is an origin of its own. In path mode (Visit.Prefix) pages
// share the origin of the API; a Content-Security-Policy makes each of them an opaque
// origin, which has no cookies and no storage, and boxes get no cookies. Browsers do not send
// credentials with what such a page loads, so pages of several files need host mode.
//
// Domains of previews should have nothing else below them, and be on the Public Suffix
// List: pages of a box can set cookies for parent domains.
package preview
