package budget

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever asks for more than there is waits for what others give back, each tenant for its own part first.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(10, 6)
		take := func(tenant string, n int64, wantOK, wantOwn bool) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if ok, own := b.Take(ctx, tenant, n); ok != wantOK || own != wantOwn {
				t.Errorf("%d of %s: %v, %v", n, tenant, ok, own)
			}
		}
		take("a", 6, true, false)
		take("a", 1, false, true)
		take("b", 5, false, false)
		take("b", 4, true, false)
		take("c", 1, false, false)
		time.AfterFunc(time.Second/2, func() { b.Give("a", 6) })
		take("c", 6, true, false)
		b.Give("b", 4)
		if b.Try("c", 1) || b.Try("b", 5) || !b.Try("b", 4) || b.all != 10 {
			t.Errorf("%d, %v after attempts that do not wait", b.all, b.tenants)
		}
		b.Give("b", 4)
		b.Give("c", 6)
		if b.all != 0 || len(b.tenants) != 0 {
			t.Errorf("%d, %v are left", b.all, b.tenants)
		}
	})
}
