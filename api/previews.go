package api

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/preview"
	"github.com/boxd/boxd/session"
)

// Previews show ports of sessions to the holders of links, on listeners and host names that the API
// is not served on.
type Previews struct {
	Hosts preview.Hosts
	Links *preview.Links
	// URL has the scheme and the port of the URLs that clients see.
	URL *url.URL
	// MaxTTL is the longest lifetime of a link; 0: preview.MaxLinkTTL.
	MaxTTL time.Duration
	// DropHeaders are names, in lower case, of headers of requests that boxes do not get.
	DropHeaders []string
}

// origin returns what browsers take for the origin of a target.
func (p *Previews) origin(t preview.Target) (string, error) {
	host, err := p.Hosts.Format(t)
	if port := p.URL.Port(); port != "" {
		host += ":" + port
	}
	return p.URL.Scheme + "://" + host, err
}

// actorLink is the actor of visits by link in the audit log.
const actorLink = "link"

// maxStreams bounds the requests of one HTTP/2 connection: browsers assume that many.
const maxStreams = 128

// ServePreviews is Serve for the host names of previews. It needs Options.Previews.
func (s *Server) ServePreviews(l net.Listener, config *tls.Config) error {
	srv, err := s.newHTTP(config, http.HandlerFunc(s.servePreview))
	if err != nil {
		return l.Close()
	}
	// HTTP/2 without TLS is what a proxy in front of this listener may speak.
	srv.Protocols.SetHTTP2(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	srv.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: 30 * time.Second, WriteByteTimeout: preview.DefaultStall}
	srv.ConnContext = nil // a connection identifies no caller
	return serveOn(srv, l, config)
}

// servePreview answers a request for the host name of a target, if it has a link or the cookie of one.
// The answer does not tell whether there is such a session.
func (s *Server) servePreview(w http.ResponseWriter, r *http.Request) {
	p := s.opt.Previews
	answer := func(status int, title, text string) {
		s.metrics.preview.Refused.Add(1)
		preview.WritePage(w, r, status, title, text)
	}
	target, ok := p.Hosts.Parse(r.Host)
	if !ok {
		answer(http.StatusMisdirectedRequest, "No such preview", "The host name must be one of a link that boxd has made.")
		return
	}
	refuse := func() {
		answer(http.StatusForbidden, "This page is private", "Open it with a link that has not expired. An operator makes one with “boxd link”.")
	}
	key := session.Key{Tenant: target.Tenant, ID: target.Session}
	origin, err := p.origin(target)
	number := uint64(0)
	if err == nil {
		number, err = s.opt.Sessions.LinkNumber(key)
	}
	if err != nil || number == 0 {
		refuse()
		return
	}
	v := preview.Visit{Target: target, Origin: origin, Apart: "l"}
	admission, expires := p.Links.Admit(w, r, v, number)
	switch admission {
	case preview.Refused:
		refuse()
		return
	case preview.Answered:
		return
	}
	full := func() {
		answer(http.StatusServiceUnavailable, "Too many requests", "Retry.")
	}
	if !s.previewShare.takePlace(key.Tenant) {
		full()
		return
	}
	defer s.previewShare.freePlace(key.Tenant)
	select {
	case s.previewing <- struct{}{}:
		defer func() { <-s.previewing }()
	default:
		full()
		return
	}
	ctx, release, err := s.opt.Sessions.Visit(r.Context(), session.Caller{Tenant: key.Tenant, Actor: actorLink, Request: requestID("")}, key,
		session.Visit{Action: "preview", Port: target.Port, Link: number, Expires: expires})
	if err != nil {
		refuse()
		return
	}
	defer release()
	s.ports.ServeHTTP(w, r.WithContext(ctx), v)
}

// ownAuthorization reports whether a request has a token of this daemon. Others are for the server
// in the box.
func (s *Server) ownAuthorization(r *http.Request) bool {
	return slices.ContainsFunc(r.Header["Authorization"], func(header string) bool {
		_, token, _ := strings.Cut(header, " ")
		_, known := s.opt.Auth.Tokens.lookup(strings.TrimSpace(token))
		return known
	})
}

// previews returns the options of previews, or an error that says that there are none.
func (c *call) previews() (*Previews, error) {
	if c.s.opt.Previews == nil {
		return nil, refuse(apitypes.CodePreviewsDisabled, "", "this daemon has no host names for previews: set preview.url, or use boxd forward")
	}
	return c.s.opt.Previews, nil
}

// makeLink makes a link to a port of a session.
func (c *call) makeLink(key session.Key) error {
	var q apitypes.LinkRequest
	if err := c.decode(&q); err != nil {
		return err
	}
	p, err := c.previews()
	if err != nil {
		return err
	}
	most := preview.MaxLinkTTL
	if p.MaxTTL > 0 {
		most = min(most, p.MaxTTL)
	}
	if q.TTL == 0 {
		q.TTL = apitypes.Duration(min(preview.DefaultLinkTTL, most))
	}
	if err := spec.CheckBoxPort("port", q.Port); err != nil {
		return err
	}
	if q.TTL.D() < time.Second || q.TTL.D() > most {
		return &engine.FieldError{Field: "ttl", Value: q.TTL.String(), Rule: fmt.Sprintf("must be 1s to %s", most)}
	}
	target := preview.Target{Tenant: key.Tenant, Session: key.ID, Port: q.Port}
	origin, err := p.origin(target)
	if err != nil {
		return &engine.FieldError{Field: "id", Value: spec.Quote(key.ID), Rule: err.Error()}
	}
	expires := time.Now().Add(q.TTL.D()).Truncate(time.Second)
	if q.TTL.D() < 2*time.Second {
		expires = expires.Add(time.Second)
	}
	number, err := c.s.opt.Sessions.MakeLink(c.caller(), key, q.Port, expires)
	if err != nil {
		return err
	}
	query, err := p.Links.Query(target, number, expires)
	if err != nil {
		return err
	}
	return c.reply(http.StatusCreated, apitypes.Link{URL: origin + "/?" + query, ExpiresAt: expires.UTC()})
}

// revokeLinks makes all links to a session invalid.
func (c *call) revokeLinks(key session.Key) error {
	if err := c.s.opt.Sessions.RevokeLinks(c.caller(), key); err != nil {
		return err
	}
	return c.empty()
}

// forPreviews refuses requests for host names of previews: pages of boxes could send them.
func (s *Server) forPreviews(r *http.Request) error {
	if p := s.opt.Previews; p != nil && p.Hosts.Has(r.Host) {
		return refuse(apitypes.CodeForbidden, "", "host %s: is for previews, and the API is not served there", spec.Quote(r.Host))
	}
	return nil
}
