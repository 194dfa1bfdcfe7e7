package api

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestLogMoments(t *testing.T) {
	for _, c := range []struct{ query, refused string }{
		{"since=1h30m&tail=3&timestamps=1", ""},
		{"since=2026-11-22T12:00:00%2B01:00", ""},
		{"", ""},
		{"since=4096", "since"}, {"since=-1h", "since"}, {"since=yesterday", "since"},
		{"tail=-1", "tail"}, {"tail=x", "tail"}, {"timestamps=maybe", "timestamps"},
	} {
		r := httptest.NewRequest("GET", "/?"+c.query, nil)
		o, err := (&call{r: r, values: r.URL.Query()}).logOptions()
		if (err != nil) != (c.refused != "") || err != nil && !strings.HasPrefix(err.Error(), c.refused+" ") {
			t.Errorf("%q: %v, want %q to be refused", c.query, err, c.refused)
		}
		if c.query == "since=1h30m&tail=3&timestamps=1" {
			if ago := time.Since(o.Since); ago < 90*time.Minute || ago > 91*time.Minute || *o.Tail != 3 || !o.Timestamps {
				t.Errorf("%+v", o)
			}
		}
	}
}
