package client

import (
	"context"
	"io"

	"github.com/boxd/boxd/api/apitypes"
)

// Code runs source code in a session and returns its result, including the output, like
// [Client.Exec].
func (c *Client) Code(ctx context.Context, session string, r apitypes.CodeRequest) (*apitypes.ExecResult, error) {
	res := new(apitypes.ExecResult)
	if err := c.do(ctx, call{method: "POST", path: []string{"sessions", session, "code"}, body: r}, res); err != nil {
		return nil, err
	}
	return res, nil
}

// CodeStream runs source code like [Client.Code], but writes its output to stdout and stderr
// while it runs, like [Client.ExecStream].
func (c *Client) CodeStream(ctx context.Context, session string, r apitypes.CodeRequest, stdout, stderr io.Writer) (*apitypes.ExecResult, error) {
	return c.stream(ctx, call{method: "POST", path: []string{"sessions", session, "code"}, body: r}, stdout, stderr)
}
