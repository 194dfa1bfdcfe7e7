package egress

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/internal/testutil"
)

// serveEnv makes the test binary a proxy in a process of its own, whose memory is measured.
const serveEnv = "BOXD_EGRESS_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(fewFilesEnv) != "" {
		serveFewFiles()
		return
	}
	if os.Getenv(serveEnv) == "" {
		testutil.MainUnprivileged(m)
	}
	p, err := New(Config{Rules: rules.Rules{Allow: []string{"127.0.0.1:1-65535"}, Limits: rules.Limits{Connections: 16384}}, Shared: NewShared(1 << 20)})
	if err != nil {
		panic(err)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		panic(err)
	}
	p.accepts.SetLimit(rate.Inf)
	var wg sync.WaitGroup
	wg.Go(func() {
		io.Copy(io.Discard, os.Stdin)
		begin, cpu := time.Now(), processorTime()
		p.Shut()
		fmt.Println(time.Since(begin), processorTime()-cpu)
	})
	fmt.Println(l.Addr())
	p.Serve(l)
	p.Wait()
	wg.Wait()
}

// processorTime is what this process has used.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
