package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/preview"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/session"
	"github.com/boxd/boxd/session/history"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics are the daemon's metrics for Prometheus. Each belongs to one Server.
type Metrics struct {
	registry      *prometheus.Registry
	execSeconds   prometheus.Histogram
	requests      *prometheus.CounterVec
	warmExecs     prometheus.Counter
	quotaRefusals *prometheus.CounterVec
	rateRefusals  *prometheus.CounterVec
	relay         relay.Counters
	preview       preview.Counters
	handler       http.Handler
}

// execBuckets reach from a command that does nothing to the longest timeout.
var execBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// NewMetrics returns metrics in a registry of their own.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		execSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "boxd_exec_duration_seconds", Help: "Time from the call of an exec to its result.", Buckets: execBuckets}),
		warmExecs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "boxd_warm_execs_total", Help: "Commands of execs that a warm interpreter took over."}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxd_http_requests_total", Help: "Requests by route and status; 499: the client did not wait."}, []string{"route", "status"}),
		quotaRefusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxd_quota_refusals_total", Help: "Requests refused because a quota is used up."}, []string{"quota", "scope"}),
		rateRefusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "boxd_rate_refusals_total", Help: "Requests refused because a tenant or token has begun too much per second."}, []string{"limit", "scope"}),
	}
	m.registry.MustRegister(m.execSeconds, m.warmExecs, m.requests, m.quotaRefusals, m.rateRefusals,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return m
}

// ObserveExec counts one command; it is meant for session.Options.Observe.
func (m *Metrics) ObserveExec(o session.ExecObservation) {
	m.execSeconds.Observe(o.Duration.Seconds())
	if o.Warm {
		m.warmExecs.Inc()
	}
}

func (c *call) metrics() error {
	c.s.metrics.handler.ServeHTTP(c.w, c.r)
	return nil
}

// collector reads the counters of other packages when Prometheus asks.
type collector struct {
	s        *Server
	labelled *prometheus.Desc // sessions by tenant, profile and Options.MetricLabels
	used     []usageFigure
}

// usageFigure is a sum over everything that has run, told apart as sessions are.
type usageFigure struct {
	desc  *prometheus.Desc
	value func(*history.Counters) float64
}

func newCollector(s *Server) *collector {
	names := []string{"tenant", "profile"}
	for _, key := range s.opt.MetricLabels {
		names = append(names, spec.MetricLabel(key))
	}
	figure := func(name, help string, value func(*history.Counters) float64) usageFigure {
		return usageFigure{describe("usage_"+name+"_total", help, names...), value}
	}
	return &collector{s, describe("tenant_sessions", "Sessions by tenant, profile and the labels of http.metric_labels.", names...), []usageFigure{
		figure("execs", "Commands that have ended, told apart as tenant_sessions; continues across restarts, as do the following.", func(c *history.Counters) float64 { return float64(c.Execs) }),
		figure("processes", "Managed processes that have ended.", func(c *history.Counters) float64 { return float64(c.Processes) }),
		figure("cpu_seconds", "Processor time of commands and managed processes that have ended.", func(c *history.Counters) float64 { return c.CPU.Seconds() }),
		figure("wall_seconds", "Time between their starts and ends.", func(c *history.Counters) float64 { return c.Wall.Seconds() }),
		figure("written_bytes", "Bytes that they wrote to block devices.", func(c *history.Counters) float64 { return float64(c.Written) }),
		figure("session_seconds", "Time for which sessions have had a box.", func(c *history.Counters) float64 { return float64(c.Lived) / 1000 }),
		figure("memory_gib_seconds", "Memory of their boxes multiplied with time.", (*history.Counters).GiBSeconds),
	}}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("boxd_"+name, help, labels, nil)
}

var (
	descSessions   = describe("sessions", "Sessions by state.", "state")
	descVerdicts   = describe("execs_total", "Commands that ended, by verdict.", "verdict")
	descRelayBytes = describe("relay_bytes_total", "Bytes relayed, by stream.", "stream")
	descNetwork    = describe("network_connections_total", "Connections of boxes that have ended (allowed) or were refused (denied).", "verdict")
	descPoolBoxes  = describe("pool_boxes", "Boxes that are built before they are asked for: there now (ready), as the demand of the last minutes asks for (wanted), and at most (limit).", "state")
	descPool       = describe("pool_requests_total", "Boxes asked for since the launcher started: taken from the pool (hit), or built because it had none of the kind (empty), has never one of the kind (spec), or had one that could not be completed (broken).", "result")
	descPreviews   = describe("preview_requests_total", "Requests, WebSockets and tunnels to ports of boxes that have ended, by outcome.", "outcome")
)

var (
	descBoxes       = describe("boxes", "Boxes of sessions, by what built them.", "engine", "isolation")
	descBoxesBuilt  = describe("boxes_built_total", "Boxes built.", "engine", "isolation")
	descBoxesFailed = describe("boxes_failed_total", "Boxes that could not be built, because the engine failed or was known not to work; another one may have built them.", "engine", "isolation")
)

// figure is one number that the daemon reports.
type figure struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*readings) float64
}

// readings are all counters at the time of a collection.
type readings struct {
	stats   session.Stats
	relay   *relay.Counters
	preview *preview.Counters
	pool    engine.PoolState
	healthy bool
	audit   bool
}

var figures = []figure{
	{describe("sessions_created_total", "Sessions made."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Created) }},
	{describe("sessions_reused_total", "Uses of a session that was there."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Reused) }},
	{describe("sessions_reaped_total", "Sessions ended by their TTL or lifetime."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Expired) }},
	{describe("sessions_removed_total", "Sessions ended by request."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Removed) }},
	{describe("boxes_recreated_total", "Boxes built for lost ones."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Recreated) }},
	{describe("boxes_lost_total", "Boxes whose first process was gone."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.BoxesLost) }},
	{describe("boxes_adopted_total", "Boxes taken over at the start."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Adopted) }},
	{describe("boxes_discarded_total", "Boxes without an owner removed at the start."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Discarded) }},
	{describe("sessions_paused", "Sessions that are paused."), prometheus.GaugeValue, func(r *readings) float64 { return float64(r.stats.Paused) }},
	{describe("execs_running", "Commands that run."), prometheus.GaugeValue, func(r *readings) float64 { return float64(r.stats.ExecsRunning) }},
	{describe("processes_running", "Managed processes that run."), prometheus.GaugeValue, func(r *readings) float64 { return float64(r.stats.ProcessesRunning) }},
	{describe("processes_started_total", "Managed processes started."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.ProcessesStarted) }},
	{describe("event_subscribers", "Subscribers of events."), prometheus.GaugeValue, func(r *readings) float64 { return float64(r.stats.Subscribers) }},
	{describe("events_missed_total", "Events that slow subscribers did not get."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.EventsMissed) }},
	{describe("relay_connections", "Relay connections that are open."), prometheus.GaugeValue, func(r *readings) float64 { return float64(r.relay.Connections.Load()) }},
	{describe("relay_attached_total", "Relay connections made."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.relay.Attached.Load()) }},
	{describe("relay_refused_total", "Relay connections refused."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.relay.Refused.Load()) }},
	{describe("relay_lost_bytes_total", "Bytes that relay clients were told are gone."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.relay.LostBytes.Load()) }},
	{describe("network_connections_open", "Connections of boxes that are open."), prometheus.GaugeValue, func(r *readings) float64 { return float64(r.stats.Network.Open) }},
	{describe("network_in_bytes_total", "Bytes that boxes received over connections that have ended."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Network.In) }},
	{describe("network_out_bytes_total", "Bytes that boxes sent over connections that have ended."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Network.Out) }},
	{describe("published_connections_total", "Connections through published ports to programs of boxes."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.Callers) }},
	{describe("published_refused_total", "Connections to published ports that were reset: nothing listened in the box, or there were too many."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.CallersRefused) }},
	{describe("published_in_bytes_total", "Bytes that boxes received over published ports, in connections that have ended."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.CallersIn) }},
	{describe("published_out_bytes_total", "Bytes that boxes sent over published ports, in connections that have ended."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.stats.CallersOut) }},
	{describe("preview_requests_open", "Requests, WebSockets and tunnels to ports of boxes that are open."), prometheus.GaugeValue, func(r *readings) float64 { return float64(r.preview.Open.Load()) }},
	{describe("preview_in_bytes_total", "Bytes that boxes received over them, with HTTP headers."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.preview.In.Load()) }},
	{describe("preview_out_bytes_total", "Bytes that boxes sent over them, with HTTP headers."), prometheus.CounterValue, func(r *readings) float64 { return float64(r.preview.Out.Load()) }},
	{describe("launcher_up", "1 if the engine could make a box now."), prometheus.GaugeValue, func(r *readings) float64 { return gauge(r.healthy) }},
	{describe("audit_up", "1 if the audit log can be written."), prometheus.GaugeValue, func(r *readings) float64 { return gauge(r.audit) }},
}

func gauge(ok bool) float64 {
	if ok {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range figures {
		ch <- f.desc
	}
	for _, d := range []*prometheus.Desc{descSessions, descVerdicts, descRelayBytes, descNetwork, descPreviews, descBoxes, descBoxesBuilt, descBoxesFailed, descPoolBoxes, descPool, c.labelled} {
		ch <- d
	}
	for _, f := range c.used {
		ch <- f.desc
	}
	for _, f := range webhookFigures {
		ch <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(c.s.base, time.Second)
	defer cancel()
	r := &readings{
		stats: c.s.opt.Sessions.Stats(), relay: &c.s.metrics.relay, preview: &c.s.metrics.preview,
		healthy: c.s.engineHealth(ctx) == nil,
		pool:    c.s.pool(ctx),
		audit:   c.s.opt.Audit == nil || c.s.opt.Audit.Healthy() == nil,
	}
	for _, f := range figures {
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(r))
	}
	for _, state := range []session.State{session.Creating, session.Running, session.Stopping, session.Stopped, session.Failed} {
		ch <- prometheus.MustNewConstMetric(descSessions, prometheus.GaugeValue, float64(r.stats.States[state]), string(state))
	}
	for verdict, n := range r.stats.Verdicts {
		ch <- prometheus.MustNewConstMetric(descVerdicts, prometheus.CounterValue, float64(n), string(verdict))
	}
	for verdict, n := range map[string]uint64{"allowed": r.stats.Network.Allowed, "denied": r.stats.Network.Denied} {
		ch <- prometheus.MustNewConstMetric(descNetwork, prometheus.CounterValue, float64(n), verdict)
	}
	for pair, n := range r.stats.Boxes {
		ch <- prometheus.MustNewConstMetric(descBoxes, prometheus.GaugeValue, float64(n), pair.Engine, pair.Isolation)
	}
	for pair, n := range r.stats.Engines {
		ch <- prometheus.MustNewConstMetric(descBoxesBuilt, prometheus.CounterValue, float64(n.Built), pair.Engine, pair.Isolation)
		ch <- prometheus.MustNewConstMetric(descBoxesFailed, prometheus.CounterValue, float64(n.Failed), pair.Engine, pair.Isolation)
	}
	if r.pool.Limit > 0 {
		for state, n := range map[string]int{"ready": r.pool.Ready, "wanted": r.pool.Wanted, "limit": r.pool.Limit} {
			ch <- prometheus.MustNewConstMetric(descPoolBoxes, prometheus.GaugeValue, float64(n), state)
		}
		ch <- prometheus.MustNewConstMetric(descPool, prometheus.CounterValue, float64(r.pool.Hits), "hit")
		for _, reason := range []string{engine.PoolEmpty, engine.PoolSpec, engine.PoolBroken} {
			ch <- prometheus.MustNewConstMetric(descPool, prometheus.CounterValue, float64(r.pool.Misses[reason]), reason)
		}
	}
	p := r.preview
	for outcome, n := range map[string]int64{"answered": p.Answered.Load(), "refused": p.Refused.Load(), "failed": p.Failed.Load(), "abandoned": p.Abandoned.Load()} {
		ch <- prometheus.MustNewConstMetric(descPreviews, prometheus.CounterValue, float64(n), outcome)
	}
	c.collectSessions(ch)
	c.collectUsage(ch)
	c.collectWebhooks(ch)
	for stream, n := range map[string]int64{"stdin": r.relay.StdinBytes.Load(), "stdout": r.relay.StdoutBytes.Load(), "stderr": r.relay.StderrBytes.Load()} {
		ch <- prometheus.MustNewConstMetric(descRelayBytes, prometheus.CounterValue, float64(n), stream)
	}
}

// collectSessions counts the sessions of each tenant, profile and value of the labels that are told apart.
func (c *collector) collectSessions(ch chan<- prometheus.Metric) {
	counts := map[string]float64{} // by the values, separated by NUL
	for _, v := range c.s.opt.Sessions.List("") {
		counts[c.values(v.Tenant, v.Resolved.Profile, v.Resolved.Labels)]++
	}
	for k, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.labelled, prometheus.GaugeValue, n, strings.Split(k, "\x00")...)
	}
}

// collectUsage adds up what has run by the same values.
func (c *collector) collectUsage(ch chan<- prometheus.Metric) {
	sums := map[string]*history.Counters{}
	for _, t := range c.s.opt.Sessions.UsageTotals() {
		k := c.values(t.Tenant, t.Profile, t.Labels)
		if sums[k] == nil {
			sums[k] = &history.Counters{}
		}
		sums[k].Add(t.Counters)
	}
	for k, sum := range sums {
		for _, f := range c.used {
			ch <- prometheus.MustNewConstMetric(f.desc, prometheus.CounterValue, f.value(sum), strings.Split(k, "\x00")...)
		}
	}
}

// values are those of the labels of a metric, separated by NUL.
func (c *collector) values(tenant, profile string, labels map[string]string) string {
	k := tenant + "\x00" + profile
	for _, key := range c.s.opt.MetricLabels {
		k += "\x00" + strings.ReplaceAll(labels[key], "\x00", "")
	}
	return k
}
