package api

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
)

// pieces notes the largest write.
type pieces struct {
	*httptest.ResponseRecorder
	largest int
}

func (p *pieces) Write(b []byte) (int, error) {
	p.largest = max(p.largest, len(b))
	return p.ResponseRecorder.Write(b)
}

// A deadline for the whole of a large answer would cut slow clients, however much
// they take.
func TestLargeAnswers(t *testing.T) {
	for _, size := range []int{0, 1, maxPiece, maxPiece + 1, 1 << 20} {
		p := &pieces{ResponseRecorder: httptest.NewRecorder()}
		w := &response{ResponseWriter: p}
		if n, err := w.Write(make([]byte, size)); n != size || err != nil || p.Body.Len() != size || p.largest > maxPiece {
			t.Errorf("%d bytes: %d, %v, the largest piece has %d", size, n, err, p.largest)
		}
	}
}

// The refusals of a relay are problems with the status that their code has elsewhere.
func TestRelayRefusals(t *testing.T) {
	for status, code := range map[int]string{
		400: apitypes.CodeRelayRequest, 403: apitypes.CodeForbidden, 409: apitypes.CodeWriterTaken, 410: apitypes.CodeOutputGone,
		416: apitypes.CodeNoOffset, 429: apitypes.CodeTooManyConnections, 500: apitypes.CodeInternal, 503: apitypes.CodeShuttingDown, 507: apitypes.CodeStorage,
	} {
		rec := httptest.NewRecorder()
		rec.Header().Set(RequestHeader, "r")
		refuseRelay(rec, nil, status, "why")
		if p := checkProblem(t, rec.Result(), rec.Body.Bytes()); p.Code != code || p.Status != status || rec.Code != status {
			t.Errorf("%d %s: %+v", status, http.StatusText(status), p)
		}
	}
}
