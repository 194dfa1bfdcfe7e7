package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/boxd/boxd/api/apitypes"
)

// Error is an error that the daemon answered with. Code is the word to decide by;
// docs/api.md has the list.
type Error struct{ apitypes.Problem }

// Error is the detail, with the field it is about and the id of the request.
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

// IsCode says whether err is an [Error] with one of codes.
func IsCode(err error, codes ...string) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, c := range codes {
		if e.Code == c {
			return true
		}
	}
	return false
}

// maxProblem bounds how much of an error's body is read.
const maxProblem = 1 << 20

// problem reads the error that resp is, and closes its body.
func problem(resp *http.Response) error {
	defer resp.Body.Close()
	e := &Error{}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxProblem))
	if err != nil || json.Unmarshal(body, &e.Problem) != nil || e.Code == "" {
		// Not the daemon's own: a proxy, or something else that listens there.
		e.Problem = apitypes.Problem{Title: http.StatusText(resp.StatusCode), Detail: "unexpected answer " + resp.Status, Code: "unexpected"}
	}
	e.Status = resp.StatusCode
	return e
}
