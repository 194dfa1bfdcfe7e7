package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
)

// call is one request to send.
type call struct {
	method string
	path   []string // segments below /v1, not escaped
	query  url.Values
	body   any // written as JSON unless nil
	raw    io.Reader
	accept string
}

// do sends a request and decodes the answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, q call, out any) error {
	resp, err := c.send(ctx, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("reading the answer to %s %s: %w", q.method, strings.Join(q.path, "/"), err)
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("answer to %s %s: %w", q.method, strings.Join(q.path, "/"), err)
	}
	return nil
}

// fetch sends a request and returns the decoded answer.
func fetch[T any](ctx context.Context, c *Client, q call) (answer T, err error) {
	err = c.do(ctx, q, &answer)
	return answer, err
}

// send returns the answer if its status is 2xx; the caller closes its body.
func (c *Client) send(ctx context.Context, q call) (*http.Response, error) {
	address, err := c.url(q.path, q.query)
	if err != nil {
		return nil, err
	}
	body := q.raw
	if q.body != nil {
		b, err := json.Marshal(q.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, address, body)
	if err != nil {
		return nil, err
	}
	if q.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	resp, err := c.roundTrip(req)
	if err == nil && (resp.StatusCode < 200 || resp.StatusCode > 299) {
		return nil, problem(resp)
	}
	return resp, err
}

// roundTrip adds the credentials of c to a request, and returns the answer, whatever its status is.
func (c *Client) roundTrip(req *http.Request) (*http.Response, error) {
	maps.Copy(req.Header, c.header)
	resp, err := c.http.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok { // without the made-up URL of a Unix socket
		err = fmt.Errorf("asking boxd: %w", u.Err)
	}
	return resp, err
}

// url builds the address below /v1. It refuses a segment that a server would interpret,
// such as "..", so that a request cannot reach another resource.
func (c *Client) url(path []string, query url.Values) (string, error) {
	var b strings.Builder
	b.WriteString(c.base)
	b.WriteString("/v1")
	for _, s := range path {
		if s == "" || s == "." || s == ".." {
			return "", fmt.Errorf("id %q: must not be empty, %q or %q", s, ".", "..")
		}
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	if encoded := query.Encode(); encoded != "" {
		b.WriteByte('?')
		b.WriteString(encoded)
	}
	return b.String(), nil
}
