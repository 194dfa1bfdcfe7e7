package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/boxd/boxd/api/apitypes"
)

// Error is an error answer of the daemon. Its fields are those of [apitypes.Problem]:
// decide by Code, a stable word such as apitypes.CodeSessionNotFound; show Detail to
// people. An answer that did not come from a daemon has the code "unexpected".
type Error struct{ apitypes.Problem }

// Error returns the detail, and for a fault of the daemon (status 5xx) the request's ID,
// which its log lines contain.
func (e *Error) Error() string {
	text := e.Detail
	if text == "" {
		text = e.Title
	}
	if e.Status >= 500 && e.Instance != "" {
		return fmt.Sprintf("%s (request %s)", text, e.Instance)
	}
	return text
}

// IsCode reports whether err is, or wraps, an [*Error] with one of the codes.
func IsCode(err error, codes ...string) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.Contains(codes, e.Code)
}

// maxProblem bounds how much of an error's body is read.
const maxProblem = 1 << 20

// problem reads the error from resp, and closes its body.
func problem(resp *http.Response) error {
	defer resp.Body.Close()
	e := &Error{}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil || json.Unmarshal(body, &e.Problem) != nil || e.Code == "" {
		// Not from a daemon: a proxy, or another server at that address.
		e.Problem = apitypes.Problem{Title: http.StatusText(resp.StatusCode), Detail: "unexpected answer " + resp.Status, Code: "unexpected"}
	}
	e.Status = resp.StatusCode
	return e
}
