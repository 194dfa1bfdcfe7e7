package apitypes

import (
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// Status says whether the daemon can serve, and what it runs.
type Status struct {
	Available    bool           `json:"available" doc:"True only if the daemon and its engine can serve."`
	Reason       string         `json:"reason,omitempty" doc:"Why it is not available."`
	Version      string         `json:"version"`
	Uptime       Duration       `json:"uptime" doc:"Seconds."`
	Sessions     map[string]int `json:"sessions" doc:"Sessions by state; of the caller's tenant unless all tenants are asked for."`
	Processes    int            `json:"processes" doc:"Managed processes that are running."`
	Execs        int            `json:"execs" doc:"Execs that are running."`
	Engine       Health         `json:"engine" doc:"Whether a box can be built at all."`
	Engines      []EngineState  `json:"engines,omitempty" doc:"What boxes of sessions can be built with, in the order in which it is tried; absent while the launcher does not answer."`
	Capabilities []Difference   `json:"capabilities,omitempty" doc:"What boxes of other engines and isolations do in another way than those of native with namespaces; a pair that is not listed does everything as they do."`
	Warnings     []string       `json:"warnings,omitempty" doc:"Settings that the operator of the daemon should change. Only callers with access to all tenants get them."`
	Webhooks     []WebhookState `json:"webhooks,omitempty" doc:"Deliveries to the receivers of webhooks; for callers of all tenants."`
	Pool         *Pool          `json:"pool,omitempty" doc:"Boxes that are built before they are asked for; for callers of all tenants, and absent if there is no pool."`
	Audit        *AuditHead     `json:"audit,omitempty" doc:"Head of the audit log's chain; for callers of all tenants."`
	Quota        []QuotaUse     `json:"quota,omitempty" doc:"Limits and what is in use."`
	Previews     bool           `json:"previews,omitempty" doc:"Ports of sessions have host names, so there can be links to them."`
	Langbot      *Health        `json:"langbot,omitempty" doc:"Whether LangBot can use the daemon: what its protocol's /readyz says. Absent: langbot.listen is not configured."`
}

// Health of one part.
type Health struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// Doctor is what the daemon can check of its host, without privilege. It is a part of what boxd doctor checks.
type Doctor struct {
	OK     bool          `json:"ok" doc:"Nothing has failed: a box can be built now."`
	At     time.Time     `json:"at" doc:"When it was checked. The answer is reused for ten seconds."`
	Checks []DoctorCheck `json:"checks" nullable:"false"`
	OnHost []string      `json:"on_host" nullable:"false" doc:"Names of the checks that are not made here: boxd doctor makes them, as root on the host."`
}

// DoctorCheck is the outcome of one check, as boxd doctor prints it.
type DoctorCheck struct {
	Name   string `json:"name"`
	Status string `json:"status" doc:"ok; degraded: boxes can be built, but are weaker in this respect; unknown: it could not be checked; failed: no box can be built; absent: an engine that is not on this host, and that nothing asks for."`
	Detail string `json:"detail,omitempty"`
	Mend   string `json:"mend,omitempty" doc:"What to do about it."`
}

// Pool describes the boxes that are built before they are asked for.
type Pool struct {
	Limit  int              `json:"limit" doc:"The most that there may be."`
	Wanted int              `json:"wanted" doc:"As many as the demand of the last minutes asks for."`
	Ready  int              `json:"ready" doc:"As many as there are."`
	Hits   int64            `json:"hits" doc:"Boxes taken from the pool since the launcher started."`
	Misses map[string]int64 `json:"misses" doc:"Boxes built on request since then, by reason: empty (there was none of the kind), spec (there is never one of the kind), broken (it could not be completed)."`
}

// EngineState says whether boxes can be built with an engine and an isolation.
type EngineState struct {
	Engine    string `json:"engine" doc:"native, oci or containerd."`
	Isolation string `json:"isolation" doc:"namespaces or gvisor."`
	Available bool   `json:"available"`
	Runtime   string `json:"runtime,omitempty" doc:"Program that makes the boxes, with its version."`
	Reason    string `json:"reason,omitempty" doc:"Why it is not available, and what to do."`
}

// Difference is something that boxes of an engine and an isolation do in another way, or not at all.
type Difference struct {
	Engine     string `json:"engine" doc:"oci or containerd."`
	Isolation  string `json:"isolation" doc:"namespaces or gvisor."`
	Capability string `json:"capability" doc:"Name of the capability, as in docs/engines.md."`
	Instead    string `json:"instead" doc:"What holds instead."`
	Reason     string `json:"reason"`
}

// AuditHead is the last line of the audit log's hash chain.
type AuditHead struct {
	Seq    uint64 `json:"seq"`
	Hash   string `json:"hash"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty" doc:"Why entries cannot be written."`
}

// QuotaUse is one limit of a tenant, or of all tenants together.
type QuotaUse struct {
	Name  string  `json:"name" doc:"sessions, processes, execs, memory, cpus, workspace_bytes, volumes, volume_bytes or watches."`
	Scope string  `json:"scope" doc:"tenant or global."`
	Limit float64 `json:"limit" doc:"-1: none."`
	InUse float64 `json:"in_use"`
}

// ErrorRecord is something that went wrong in the daemon.
type ErrorRecord struct {
	Time    time.Time `json:"time"`
	Tenant  string    `json:"tenant,omitempty"`
	Session string    `json:"session,omitempty"`
	Process string    `json:"process,omitempty"`
	Message string    `json:"message"`
}

// ErrorList is the last errors, newest first.
type ErrorList struct {
	Errors []ErrorRecord `json:"errors" nullable:"false"`
}

// Event is something that happened to a session or a process.
type Event struct {
	ID      uint64         `json:"id" doc:"Only grows, over restarts of the daemon too."`
	Time    time.Time      `json:"time"`
	Type    string         `json:"type"`
	Tenant  string         `json:"tenant,omitempty"`
	Session string         `json:"session,omitempty"`
	Box     string         `json:"box,omitempty"`
	Process string         `json:"process,omitempty"`
	Request string         `json:"request,omitempty" doc:"Id of the request that caused it."`
	Labels  Labels         `json:"labels,omitempty" doc:"Labels of the session and, in an event about one, of the process."`
	Details map[string]any `json:"details,omitempty"`
}

// Missed says that a subscriber has missed events.
type Missed struct {
	Missed uint64 `json:"missed" doc:"How many; 0 if that is not known."`
}

// Profile is a set of defaults, caps and locked fields.
type Profile struct {
	Name string `json:"name"`
	spec.Settings
	Engines         []string       `json:"engines,omitempty" doc:"Engines that may build the boxes, in the order in which they are tried; absent: those of the daemon."`
	Zygotes         []spec.Zygote  `json:"zygotes,omitempty" doc:"Interpreters that the boxes keep warm."`
	Images          []string       `json:"images,omitempty" doc:"Patterns of the images that sessions may have; absent: every image."`
	ImageDigests    bool           `json:"image_digests,omitempty" doc:"Images other than \"host\" need a digest."`
	AllowNetwork    bool           `json:"allow_network"`
	NetworkRules    ProfileNetwork `json:"network_rules" doc:"What sessions with a network reach."`
	AllowPublish    bool           `json:"allow_publish" doc:"Sessions may publish ports."`
	AllowPersistent bool           `json:"allow_persistent"`
	Scope           string         `json:"scope,omitempty" doc:"Default of a request that names neither id nor scope."`
	KeepArgv        string         `json:"keep_argv" doc:"What the history keeps of command lines: full, program or none."`
	KeepOutput      Size           `json:"keep_output" doc:"Bytes of each output stream of a command that the history keeps; 0: none."`
	Caps            ProfileCaps    `json:"caps" doc:"The most that a request may ask for; -1 is no cap, for times as well."`
	Locked          []string       `json:"locked" nullable:"false" doc:"Fields of a request that are ignored: the profile's values count."`
	Languages       []Language     `json:"languages" nullable:"false" doc:"Languages of source code, sorted by name."`
}

// ProfileNetwork is what sessions of a profile reach if they have a network.
type ProfileNetwork struct {
	Allow  []string `json:"allow,omitempty" doc:"Names, addresses and CIDRs."`
	Deny   []string `json:"deny,omitempty" doc:"Those that are denied whatever else allows them."`
	Public bool     `json:"public,omitempty" doc:"Every public address."`
	// Limits of 0 connections and of an idle time of 0 are the defaults, 256 and 15 minutes.
	Limits spec.NetworkLimits `json:"limits,omitzero" doc:"The most that one box uses; absent: no limit."`
	Inject []InjectedHeader   `json:"inject,omitempty" doc:"Secrets of the operator that its proxy adds to requests for http://HOST, which it sends by https."`
}

// InjectedHeader is a header with a secret that boxes never see.
type InjectedHeader struct {
	Host   string `json:"host" doc:"Name, with :PORT if https is not at 443."`
	Header string `json:"header"`
}

// Language is a language that sessions of a profile run source code in.
type Language struct {
	Name    string   `json:"name"`
	Command []string `json:"command" nullable:"false" doc:"Command line; {file} is the path of the code, {dir} its directory. Arguments follow."`
	File    string   `json:"file" doc:"Name of the file for the code."`
}

// ProfileCaps are the most that a request may ask for.
type ProfileCaps = spec.Caps

// ProfileList is all profiles, sorted by name.
type ProfileList struct {
	Default  string    `json:"default,omitempty" doc:"The profile of a request of this tenant that names none; absent if all tenants are asked for."`
	Profiles []Profile `json:"profiles" nullable:"false"`
}
