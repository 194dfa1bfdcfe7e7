package apitypes

import "time"

// LinkRequest asks for a link to a port of a session.
type LinkRequest struct {
	Port int      `json:"port" doc:"TCP port of the box's loopback, 1 to 65535. Nothing need listen there yet."`
	TTL  Duration `json:"ttl,omitempty" doc:"How long the link is valid, in seconds or as a string such as \"30m\"; absent: an hour. At most 7 days, or less if the daemon's configuration says so."`
}

// Link is a URL that opens a port of a session, without a login, until it expires, or the links of the
// session are revoked, or the session ends or becomes sensitive.
type Link struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}
