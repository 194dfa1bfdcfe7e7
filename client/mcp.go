package client

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
)

// MCP sends a request of the Model Context Protocol's streamable HTTP to a server that the daemon runs in boxes, at
// /mcp/SERVER. header is added to the credentials of c. It returns the answer whatever its status is; the caller closes
// its body.
func (c *Client) MCP(ctx context.Context, method, server string, header http.Header, body []byte) (*http.Response, error) {
	if server == "" || server == "." || server == ".." {
		return nil, fmt.Errorf("server %q: must not be empty, %q or %q", server, ".", "..")
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/mcp/"+url.PathEscape(server), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	return c.roundTrip(req)
}
