package preview

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"
)

// BenchmarkFirstByte compares requests through the proxy with requests to the same server,
// in turn.
func BenchmarkFirstByte(b *testing.B) {
	f := newFixture(b, config{box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "x") })})
	direct := &http.Client{Transport: &http.Transport{}}
	defer direct.CloseIdleConnections()
	one := func(c *http.Client, url string) time.Duration {
		began := time.Now()
		res, err := c.Get(url)
		if err != nil {
			b.Fatal(err)
		}
		io.ReadFull(res.Body, make([]byte, 1))
		took := time.Since(began)
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return took
	}
	var through, without []time.Duration
	for b.Loop() {
		through = append(through, one(f.front.Client(), f.front.URL))
		without = append(without, one(direct, "http://"+f.box.Addr().String()))
	}
	p50 := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2]) / 1e3 }
	b.ReportMetric(p50(through), "µs-p50")
	b.ReportMetric(p50(without), "µs-p50-direct")
}

const bulk = 256 << 20

// BenchmarkDownload and the same without the proxy.
func BenchmarkDownload(b *testing.B) {
	buf := make([]byte, 1<<20)
	for _, length := range []bool{true, false} {
		f := newFixture(b, config{box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if length {
				w.Header().Set("Content-Length", fmt.Sprint(bulk))
			}
			for n := 0; n < bulk; n += len(buf) {
				w.Write(buf)
			}
		})})
		for _, url := range []string{f.front.URL, "http://" + f.box.Addr().String()} {
			b.Run(fmt.Sprintf("length=%v/proxy=%v", length, url == f.front.URL), func(b *testing.B) {
				b.SetBytes(bulk)
				for b.Loop() {
					res, err := http.Get(url)
					if err != nil {
						b.Fatal(err)
					}
					drain(b, res.Body)
					res.Body.Close()
				}
			})
		}
		http.DefaultClient.CloseIdleConnections()
	}
}

func drain(b *testing.B, r io.Reader) {
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, make([]byte, 256<<10))
	if n != bulk || err != nil {
		b.Fatal(n, err)
	}
}

// BenchmarkTunnel: through a forwarded listener, and without.
func BenchmarkTunnel(b *testing.B) {
	buf := make([]byte, 1<<20)
	f := newFixture(b, config{tcp: func(c net.Conn) {
		var way [1]byte
		io.ReadFull(c, way[:])
		if way[0] == 'd' {
			for n := 0; n < bulk; n += len(buf) {
				c.Write(buf)
			}
			return
		}
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
		fmt.Fprint(c, n)
	}})
	forwarded := f.forward(nil)
	for _, way := range []string{"down", "up"} {
		for _, addr := range []string{forwarded, f.box.Addr().String()} {
			b.Run(fmt.Sprintf("%s/tunnel=%v", way, addr == forwarded), func(b *testing.B) {
				b.SetBytes(bulk)
				for b.Loop() {
					c := dialTCP(b, addr)
					io.WriteString(c, way[:1])
					if way == "down" {
						drain(b, c)
					} else {
						for n := 0; n < bulk; n += len(buf) {
							c.Write(buf)
						}
						c.CloseWrite()
						if s, _ := io.ReadAll(c); string(s) != fmt.Sprint(bulk) {
							b.Fatalf("%q", s)
						}
					}
					c.Close()
				}
			})
		}
	}
}
