package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestQuantiles(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		q, want float64
	}{{nil, 0.5, 0}, {[]float64{7}, 0.5, 7}, {[]float64{3, 1, 2}, 0.5, 2}, {[]float64{3, 1, 2}, 1, 3}, {[]float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 0.9, 10}} {
		if got := Quantile(c.samples, c.q); got != c.want {
			t.Errorf("Quantile(%v, %v) = %v, want %v", c.samples, c.q, got, c.want)
		}
	}
	for _, c := range []struct {
		samples []float64
		want    float64
	}{{nil, 0}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}} {
		if got := Median(c.samples); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.samples, got, c.want)
		}
	}
}

// normal returns n samples around a centre, the same ones for the same seed.
func normal(seed uint64, n int, centre, spread float64) (list []float64) {
	random := rand.New(rand.NewPCG(seed, 0))
	for range n {
		list = append(list, centre+spread*random.NormFloat64())
	}
	return list
}

// TestIntervalCovers: the interval has the true median in it about as often as it says. A binomial
// with p = 0.95 is below 180 of 200 once in a thousand runs; these are always the same.
func TestIntervalCovers(t *testing.T) {
	covered := 0
	for seed := range uint64(200) {
		r := Row{Unit: Nanoseconds, Samples: normal(seed, 60, 100, 10)}
		r.summarize()
		if r.Lo <= 100 && 100 <= r.Hi {
			covered++
		}
		if r.Lo > r.P50 || r.P50 > r.Hi {
			t.Fatalf("the median %v is not between %v and %v", r.P50, r.Lo, r.Hi)
		}
	}
	if covered < 180 {
		t.Errorf("%d of 200 intervals have the median in them", covered)
	}
}

// TestPairedInterval: noise that hits both of a pair widens the intervals of times, and not that of
// their ratio.
func TestPairedInterval(t *testing.T) {
	noise := normal(1, 200, 0, 30)
	var r Row
	for i, n := range noise {
		noisy := 100 + n*n/10
		r.BareSamples = append(r.BareSamples, noisy)
		r.Samples = append(r.Samples, 2*noisy+float64(i%3))
	}
	r.Unit = Nanoseconds
	r.summarize()
	if r.RatioLo > 2.02 || r.RatioHi < 2 || r.RatioHi-r.RatioLo > 0.1 {
		t.Errorf("ratio %v, interval %v to %v", r.Ratio, r.RatioLo, r.RatioHi)
	}
	if width := (r.Hi - r.Lo) / r.P50; width < 0.1 {
		t.Errorf("the times have an interval of %v only: the test does not show anything", width)
	}
}

// TestRates: the p90 of a rate is what 90 % of the samples reach.
func TestRates(t *testing.T) {
	r := Row{Unit: PerSecond, Samples: []float64{10, 20, 30, 40, 50, 60, 70, 80, 90, 100}}
	r.summarize()
	if r.P90 != 20 {
		t.Errorf("p90 is %v", r.P90)
	}
}

func sample() *Report {
	r := &Report{Format: Format, Command: []string{"boxd", "bench"}, Host: Host{Version: "v", Kernel: "6", Processors: 2}, Noise: Noise{Warnings: []string{"a <b> & c"}}}
	bare := normal(1, 50, 100, 5)
	r.Add(Row{Section: "exec", Name: "exec.warm", What: "a | b", Unit: Nanoseconds, Samples: normal(2, 50, 200, 10), BareSamples: bare, Target: "≤ 1 × bare"})
	r.Add(Row{Section: "exec", Name: "rate", What: "rate", Unit: PerSecond, Samples: normal(3, 50, 1000, 10), BareSamples: normal(4, 50, 2000, 10)})
	r.Add(Row{Section: "memory", Name: "memory", What: "one", Unit: Bytes, Samples: []float64{1 << 20}})
	r.Add(Row{Section: "process", Name: "nsjail", What: "a peer", Skipped: "not installed", Args: []string{"nsjail", "<x>"}})
	for _, n := range []string{"1", "2", "4"} {
		r.Add(Row{Section: "scale", Name: "scale.clients." + n, What: "c", Unit: PerSecond, Samples: normal(5, 9, 1000, 10), BareSamples: normal(6, 9, 1000, 10)})
	}
	r.Birth = []Step{{"a process <1>", 1e6}, {"exec", 2e6}, {"result", 9e6}}
	return r
}

func TestJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	var b bytes.Buffer
	if err := sample().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := r.WriteJSON(&again); err != nil || !bytes.Equal(again.Bytes(), b.Bytes()) {
		t.Errorf("read and written again it differs (%v)", err)
	}
	for content, want := range map[string]string{"": "not a report", "[]": "not a report", `{"format": 99}`: "format 99", "{}": "format 0"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", content, err)
		}
	}
	if _, err := Read(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	sample().WriteTable(&b)
	for _, want := range []string{"**Noisy:** a <b> & c", "| exec.warm ", "≤ 1 × bare", "nsjail: skipped: not installed", "| 1.00 MiB", "2.02", `a \| b`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// TestPage: the page is well formed, names nothing of another host, and escapes what it shows.
func TestPage(t *testing.T) {
	r := sample()
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"<b> & c", "<x>", "<script", "src=", "<link", "url("} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	pictures, err := r.Pictures()
	if err != nil || len(pictures) != 3 {
		t.Fatalf("%d pictures, %v", len(pictures), err)
	}
	for _, p := range pictures {
		d := xml.NewDecoder(strings.NewReader(string(p.SVG)))
		for {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", p.Name, err)
			}
		}
		if !strings.Contains(page, string(p.SVG)) {
			t.Errorf("%s is not on the page", p.Name)
		}
	}
}

func TestCompare(t *testing.T) {
	slower := sample()
	for i := range slower.Rows[0].Samples {
		slower.Rows[0].Samples[i] *= 1.2
	}
	for i := range slower.Rows[1].Samples {
		slower.Rows[1].Samples[i] *= 1.2 // a rate: better
	}
	of := func(a, b *Report, threshold float64) map[string]Change {
		m := map[string]Change{}
		for _, c := range Compare(a, b, threshold) {
			m[c.Name] = c
		}
		return m
	}
	same := of(sample(), sample(), 0.05)
	for name, c := range same {
		if c.Worse || c.Sure || c.Trouble != "" {
			t.Errorf("a report and itself: %s: %+v", name, c)
		}
	}
	if _, ok := same["nsjail"]; ok || len(same) != 6 {
		t.Errorf("compared are %v", same)
	}
	if c := of(sample(), slower, 0.05)["exec.warm"]; !c.Worse || !c.Sure || c.Factor < 1.15 || c.Factor > 1.25 {
		t.Errorf("slower by 20 %%: %+v", c)
	}
	if c := of(sample(), slower, 0.3)["exec.warm"]; c.Worse || !c.Sure {
		t.Errorf("slower by 20 %%, threshold 30 %%: %+v", c)
	}
	if c := of(slower, sample(), 0.05)["exec.warm"]; c.Worse || !c.Sure {
		t.Errorf("faster: %+v", c)
	}
	if c := of(sample(), slower, 0.05)["rate"]; c.Worse || !c.Sure {
		t.Errorf("a higher rate: %+v", c)
	}
	if c := of(slower, sample(), 0.05)["rate"]; !c.Worse {
		t.Errorf("a lower rate: %+v", c)
	}
	// A host that is twice as slow makes the same ratios.
	other := sample()
	for _, row := range other.Rows {
		for i := range row.BareSamples {
			row.BareSamples[i] *= 2
			row.Samples[i] *= 2
		}
	}
	if c := of(sample(), other, 0.05)["exec.warm"]; c.Sure || c.Worse {
		t.Errorf("a slower host: %+v", c)
	}
	failed, gone := sample(), sample()
	failed.Rows[0].Failed, failed.Rows[0].Samples = "broken", nil
	if c := of(sample(), failed, 0.05)["exec.warm"]; !c.Worse {
		t.Errorf("failed: %+v", c)
	}
	big := sample()
	big.Row("memory").Samples[0] *= 10
	if c := of(sample(), big, 0.05)["memory"]; !c.Worse {
		t.Errorf("ten times as much, of one sample: %+v", c)
	}
	section := sample()
	section.Rows[0].Name, section.Rows[0].Failed, section.Rows[0].Samples = "exec", "broken", nil
	if c := of(sample(), section, 0.05)["exec.warm"]; !c.Worse {
		t.Errorf("its section failed: %+v", c)
	}
	gone.Rows = gone.Rows[1:]
	if c := of(sample(), gone, 0.05)["exec.warm"]; c.Worse || c.Trouble == "" {
		t.Errorf("gone: %+v", c)
	}
	var b bytes.Buffer
	Print(&b, sample(), slower, Compare(sample(), slower, 0.05))
	if !strings.Contains(b.String(), "WORSE") || !strings.Contains(b.String(), "Noisy: a <b> & c") {
		t.Error(b.String())
	}
}
