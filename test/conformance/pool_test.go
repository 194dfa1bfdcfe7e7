package conformance

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/conformance"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
)

// handedOver are cases in which a box of the pool could differ from one that was built on request: in what
// is set at the hand-over, and in what the launcher later finds the box by.
var handedOver = []string{
	"Root", "MemoryLimitOfChild", "PIDsLimitExact", "Unlimited", "SocketMemory", "TmpSizes", "ReceiptMemory", "UpdatePIDs",
	"MountOptions", "NestedLiveMounts", "Events", "InitKilled",
}

// pooled is a service whose pool has boxes when a case asks for one.
type pooled struct {
	service
	hits *atomic.Int64
}

func (p pooled) Connect(ctx context.Context) (conformance.Client, error) {
	client, err := p.Service.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return pooledClient{client, p.hits}, nil
}

type pooledClient struct {
	*native.Service
	hits *atomic.Int64
}

// fillTime bounds the wait for a box of the pool. A case that gets none tests a cold box, as TestNative
// does.
const fillTime = 3 * time.Second

// Create waits for a box of the pool first. Boxes of most cases are of one kind.
func (c pooledClient) Create(ctx context.Context, s engine.Spec) (engine.LiveBox, error) {
	for end := time.Now().Add(fillTime); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(25 * time.Millisecond) {
		state, err := c.Pool(ctx)
		if err != nil || state.Wanted == 0 || state.Ready > 0 {
			break
		}
	}
	return c.Service.Create(ctx, s)
}

func (c pooledClient) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), boxtest.Patience)
	defer cancel()
	state, err := c.Pool(ctx)
	c.hits.Add(state.Hits)
	return errors.Join(err, c.Service.Close())
}

// TestPool runs the suite on boxes of a pool: in short the cases of handedOver.
func TestPool(t *testing.T) {
	only := handedOver
	if testutil.Full() {
		only = nil
	}
	var hits atomic.Int64
	t.Cleanup(func() { // after the clients have been closed
		if hits.Load() < int64(len(handedOver))/2 {
			t.Errorf("%d boxes were taken from the pool", hits.Load())
		}
	})
	conformance.Run(t, conformance.Options{
		Engine: spec.EngineNative, Isolation: spec.IsolationNamespaces, Only: only,
		Open: func(h testing.TB) conformance.Host {
			return pooled{open(native.LauncherOptions{Pool: 8})(h).(service), &hits}
		},
	})
}
