package test

const module = "github.com/boxd/boxd/"

// row says which packages of this module a package may import, besides base,
// and why no others.
type row struct {
	pkg string
	may []string
	why string
}

// base may be imported by everybody: values and helpers without a policy.
var base = []string{"internal/budget", "internal/cleanup", "internal/diskroom", "internal/drained", "internal/endmark", "internal/fdkind", "internal/headtail", "internal/keyed", "internal/oneline", "internal/pathin", "internal/rpcline", "internal/sse", "internal/version", "internal/yamltree"}

// The order of imports, lowest first. A name that ends in "/..." stands for a
// tree. A package that has no row fails the test: its place has to be decided.
var rows = []row{
	{"internal/cleanup", nil, "helper of all, so it depends on none"},
	{"internal/budget", nil, "counts bytes of tenants, of anything"},
	{"internal/endmark", nil, "the end of a tar stream, of anything"},
	{"internal/rpcline", nil, "lines of JSON-RPC, which both sides of MCP read"},
	{"internal/sse", nil, "server-sent events, of anything"},
	{"internal/drained", nil, "reads a pipe to its end, for the engine and for the part of boxd that has to start fast: it imports nothing that takes time to initialise"},
	{"internal/fdkind", nil, "what a descriptor is, for the part of boxd that has to start fast: it imports nothing that takes time to initialise"},
	{"internal/headtail", nil, "beginning and end of a stream, of anything"},
	{"internal/keyed", nil, "locks by name, of anything"},
	{"internal/oneline", nil, "text, of anything"},
	{"internal/pathin", nil, "compares paths as text, and opens nothing"},
	{"internal/version", nil, "one variable"},
	{"internal/yamltree", nil, "text to a tree, of anything"},
	{"internal/leftover", nil, "a record that launchers write and the doctor reads: neither may import the other"},
	{"internal/testutil", nil, "tests of every package import it, so any import would be a cycle"},
	{"internal/glob", nil, "compares paths with patterns as text, and opens nothing"},
	{"internal/smallmem", nil, "one C constructor, for programs that have nothing else in common"},
	{"internal/sealed", nil, "the part of boxd that has to start fast is linked with it, and launchers"},
	{"internal/installed", nil, "finds programs for package cli and for the part of boxd that has to start fast"},
	{"internal/linux", nil, "the boundary to the kernel holds no policy and knows nothing above it"},
	{"internal/diskroom", []string{"internal/linux"}, "the database, the audit log and the launcher keep room on the disk in the same way, and neither may import the other; internal/linux has fallocate(2)"},

	{"internal/trash", []string{"internal/linux"}, "volumes and layers of images delete what boxes wrote in the same way, and neither may import the other"},

	{"mounts", []string{"internal/linux", "engine/spec"}, "a kernel leaf, over the value of a mount: leaves are understood and tested one by one"},
	{"cgroups", []string{"internal/linux"}, "a kernel leaf: leaves are understood and tested one by one"},
	{"volumes", []string{"internal/linux", "internal/trash"}, "a kernel leaf: leaves are understood and tested one by one"},
	{"layers", []string{"internal/linux", "internal/trash"}, "a kernel leaf, for the privileged launcher: it knows no image, and package images, of the unprivileged daemon, does not import it"},
	{"netns", []string{"internal/linux"}, "a kernel leaf: leaves are understood and tested one by one"},
	{"rootfs", []string{"internal/linux", "mounts"}, "image layers come in as values, so a root can be built without an image store"},

	{"agent/wire", []string{"internal/linux"}, "both sides of a trust boundary read this protocol: it must stay small enough to review"},
	{"agent/zygote", []string{"internal/linux"}, "what PID 1 says to a process of the box, and that process's program: nobody else needs either"},
	{"agent", []string{"internal/linux", "internal/smallmem", "agent/wire", "agent/zygote"}, "PID 1 of a box: what is not linked into it cannot be misused from inside"},

	{"agent/unpack/proto", nil, "both halves of unpacking read this: it must stay small enough to review"},
	{"agent/unpack", []string{"internal/linux", "agent/unpack/proto"}, "reads hostile archives in a box: what is not linked into it cannot be misused by them"},

	{"agent/files/proto", nil, "both halves of a file operation read this: it must stay small enough to review"},
	{"agent/dial", nil, "runs in a box as its user, like agent/files"},
	{"agent/zygote", []string{"internal/linux"}, "both sides of a socket to code of a box's user: it must stay small enough to review"},
	{"agent/files", []string{"internal/glob", "internal/linux", "agent/files/proto"}, "runs in a box as its user: what is not linked into it cannot be misused from inside"},

	{"agent/role", []string{"agent", "agent/dial", "agent/files"}, "wires the programs that run in boxes, it decides nothing"},

	{"engine/spec", nil, "pure values: they build, and can be tested, on every platform"},
	{"engine", []string{"engine/spec"}, "values that callers hand in, and interfaces: no engine, no kernel"},
	{"files", []string{"internal/glob", "engine", "engine/spec", "agent/files/proto"}, "file operations are commands of a box: any engine's, and nothing outside of it"},
	{"engine/native/rpc", []string{"internal/linux", "engine", "agent/wire"}, "the protocol between client and launcher: neither of the two"},
	{"engine/native/command", []string{"engine", "engine/spec", "agent/wire"}, "what a client asks PID 1 for, and the launcher for a box of the pool: values only"},
	{"engine/native/programs", []string{"internal/installed", "internal/linux", "internal/sealed"}, "client, keeper and launcher hand programs to one another in the same way, and the launcher may not import the client"},
	{"engine/enginetest", []string{"engine", "engine/spec"}, "a fake for the tests of whatever uses an engine: it must not know them"},
	{"internal/boxtest", []string{"engine", "engine/spec", "internal/testutil"}, "helpers of tests that run commands in boxes, of any engine"},
	{"engine/conformance", []string{"engine", "engine/spec", "internal/boxtest", "internal/testutil"}, "what every engine promises: it must not depend on one of them"},
	{"engine/choose", []string{"engine", "engine/spec",
		"engine/enginetest"}, // its tests
		"over the interfaces of engine: which engines may be used is policy, and who builds is the service"},
	{"engine/native/seccomp", []string{"internal/linux"}, "a policy and its compiler: usable without a box"},
	{"engine/native/outside", []string{"internal/linux"}, "measures what the kernel holds for a box: what follows from it is the launcher's to decide"},
	{"engine/oci", nil, "an OCI runtime's bundle and command line: what a box is made of comes in as values"},
	{"engine/native", []string{"internal/linux", "internal/sealed", "engine", "engine/spec", "engine/native/command", "engine/native/programs", "engine/native/rpc", "agent/wire", "cgroups"},
		"the client half is linked into unprivileged programs: it builds nothing itself, the launcher does"},
	{"engine/native/launcher", []string{"internal/leftover", "internal/linux", "internal/sealed", "internal/smallmem", "engine", "engine/spec", "engine/native/command", "engine/native/programs", "engine/native/rpc", "engine/native/seccomp", "engine/native/outside", "engine/containerd", "engine/oci",
		"agent", "agent/wire", "cgroups", "layers", "mounts", "netns", "rootfs", "volumes"},
		"the privileged server must not depend on the client that it checks"},

	{"engine/containerd/proto", nil, "the conversation between the launcher and its child: neither of the two"},
	{"engine/containerd/standin", []string{"internal/linux", "agent/wire"}, "runs in place of runc, in a process of a shim's: it knows only what it is given"},
	{"engine/containerd", []string{"internal/linux", "engine", "engine/oci", "engine/containerd/proto", "engine/containerd/standin", "agent/wire"},
		"a leaf below the launcher, which makes what a box is made of: it knows names and descriptors of that; engine/oci says whether a program is root's"},
	{"cmd/boxd-containerd", []string{"internal/linux", "engine/containerd/proto", "engine/containerd/standin", "agent/wire"},
		"speaks to containerd: of boxd it knows the conversation with the launcher"},

	{"internal/confine", []string{"internal/linux", "engine/native/seccomp"}, "what the daemon gives up, apart from it: a test tries to break out of the same"},

	{"policy", []string{"engine", "engine/spec", "egress/rules", "mounts"}, "decides on values alone: what it says can be tested and audited without a kernel"},
	{"egress/rules", []string{"engine/spec"}, "decides on values alone: what a box may reach can be tested and fuzzed without a network"},
	{"egress", []string{"egress/rules", "engine/spec"}, "the proxy of one box, on the ports that engine/spec names: whose box, and which rules, is decided above it"},
	{"audit", nil, "a file format that another program can check: it knows nothing of what is logged"},
	{"session/workspace", []string{"internal/linux"}, "trees that boxes have written: measured and deleted by descriptor, knowing nothing of sessions"},
	{"images", []string{"engine", "engine/spec"}, "fetches, checks and keeps, over the interfaces of engine: what unpacks a layer, in a box, is handed in"},
	{"config", []string{"engine", "engine/spec", "policy", "mounts", "egress/rules"}, "reads and checks values, egress/rules those about the network; who opens and wires is the daemon"},
	{"session/history", []string{"engine"}, "a log of results with counters over it: it knows nothing of sessions"},
	{"session/imageuser", []string{"engine", "engine/spec", "files", "images"}, "a question to a box, which sessions and boxd run make: files to read in it, images for the kind of an error"},
	{"session", []string{"internal/linux", "engine", "engine/spec", "engine/choose", "policy", "audit", "session/workspace", "session/history", "session/imageuser", "images", "egress", "internal/tcprelay",
		"engine/enginetest", "egress/rules"}, // its tests
		"over the interfaces of engine, so that its tests need no kernel, and internal/linux for the names of signals; images for values and errors, egress for the network of boxes and internal/tcprelay for published ports; the edges are above it"},
	{"internal/tcprelay", nil, "bytes between two connections: who may connect, and to what, is decided above it"},

	{"internal/wsconn", nil, "the connection under four protocols that do not know one another"},
	{"relay", []string{"internal/wsconn"}, "knows streams, not sandboxes: both halves of the protocol can be read and fuzzed alone"},
	{"preview", []string{"internal/wsconn"}, "serves a port that it is given a function for: what sessions and boxes are, and who may see them, is decided above it"},

	{"langbot/protocol", nil, "pure values: envelope, models, names and errors can be read and fuzzed alone"},
	{"langbot/fence", []string{"langbot/protocol"}, "one rule, kept on disk: what ends with a generation is told by a function"},
	{"langbot/grants", []string{"langbot/protocol"}, "who is admitted and until when, kept on disk: nothing of sessions"},
	{"langbot/door", []string{"internal/linux", "internal/wsconn", "langbot/protocol"}, "the HTTP edge: who connects and how much, and internal/linux names the user of a TCP client; what an action does is behind an interface"},
	{"langbot/transfer", []string{"langbot/protocol"}, "keeps files for a connection: what they are for is decided above it"},
	{"langbot/skills", []string{"internal/linux", "langbot/protocol", "langbot/transfer"}, "works through a descriptor: which directory it is, and who limits it, is decided above it"},
	{"langbot/linerelay", []string{"engine", "internal/wsconn"}, "streams as lines on a WebSocket: who may attach, and to what, is decided above it"},
	{"langbot/bridge", []string{"internal/linux", "langbot/protocol"}, "a client of the daemon: it carries messages that it does not understand, and internal/linux names the user of a TCP client"},
	{"langbot/attest", []string{"engine", "engine/spec"}, "over the interfaces of engine: what it says of a host, it says of the engine that is used"},
	{"langbot", []string{"internal/linux", "engine", "images", "engine/spec", "mounts", "policy", "session", "audit", "langbot/protocol", "langbot/fence", "langbot/grants", "langbot/door",
		"langbot/transfer", "langbot/skills", "langbot/attest", "langbot/linerelay",
		"engine/enginetest"}, // its tests
		"what the actions of the protocol mean: over sessions, and below nothing but the daemon; internal/linux opens a client's marker file without following symlinks"},

	{"images/install", []string{"internal/linux", "engine", "engine/spec", "images", "agent/unpack/proto"},
		"unpacks a layer in a box, of any engine: it knows no registry, and the store knows no box; internal/linux has the size of a pipe"},

	{"internal/doctor", []string{"internal/leftover", "internal/linux", "internal/sealed", "cgroups", "engine", "engine/spec", "netns", "rootfs"},
		"judges this host; the box it tries is of an engine that it is given; netns says what its kernel has for the whole host only, rootfs how many terminals a box has"},
	{"api/apitypes", []string{"engine", "engine/spec"}, "values on the wire, shared by server and client: nothing of the server may come with them"},
	{"ui", nil, "files of a page: who may load them, and how they are sent, is the API's business"},
	{"api", []string{"ui", "internal/linux", "egress/rules", "engine", "engine/spec", "mounts", "policy", "session", "session/history", "relay", "preview", "files", "audit", "images", "api/apitypes",
		"client", "agent/files"}, // the last two: its tests, which play a client and a box
		"the HTTP edge: who asks, what shape; it decides nothing about boxes"},
	{"internal/flagtext", []string{"engine/spec"}, "text to values, initialised at each boxd run: it imports nothing that takes time to initialise"},
	{"internal/sigwatch", nil, "signals, initialised at each boxd run: it imports nothing that takes time to initialise"},
	{"internal/oneshot", []string{"api/apitypes", "engine/spec"}, "a small client of one route, initialised at each boxd run: it imports nothing that takes time to initialise"},
	{"internal/quickrun", []string{"api/apitypes", "engine/spec", "internal/flagtext", "internal/installed", "internal/oneshot", "internal/sealed", "internal/sigwatch"}, "runs before other packages are initialised: what it imports comes before it"},
	{"client", []string{"api/apitypes", "relay", "preview"}, "linked into other people's programs: types and streams, no server"},
	{"webhook", []string{"session"}, "delivers what an outbox of sessions has: what a message says, and where secrets are, is handed in"},
	{"mcp", []string{"api/apitypes", "client", "engine/spec", "relay",
		"policy"}, // its tests, which compare its scopes with the rules
		"tools for language models, as a client of the API: what a tool may do is decided there"},
	{"mcp/gateway", []string{"api/apitypes", "client", "engine/spec", "mcp", "relay"}, "other people's servers in boxes, as a client of the API; it shares the checks of requests with mcp"},
	{"internal/daemon", []string{"internal/linux", "mounts", "engine", "engine/spec", "engine/native", "internal/confine", "internal/doctor", "policy", "config", "audit", "session", "session/history", "relay", "api", "preview",
		"egress", "egress/rules", "images", "images/install", "langbot", "langbot/attest", "langbot/door", "mcp", "mcp/gateway", "webhook", "api/apitypes"},
		"puts the daemon together: nothing but an entry point needs all of its parts"},
	{"internal/cli", []string{"bench/plan", "internal/flagtext", "internal/installed", "internal/linux", "internal/doctor", "internal/oneshot", "internal/sigwatch", "engine", "engine/spec", "engine/choose", "egress", "egress/rules", "images", "client", "api/apitypes", "relay", "preview", "audit", "config", "policy", "session/imageuser", "langbot/bridge", "internal/tcprelay", "mcp", "mcp/gateway"},
		"commands know the interfaces of engine and the client of the API, not an engine and not the daemon"},
	{"examples/...", []string{"engine", "engine/native"}, "an example uses what other modules can import"},
	{"bench/plan", nil, "what boxd asks boxd-bench to do: linked into boxd, so it has no weight"},
	{"bench/report", nil, "figures, of anything"},
	{"bench/workload", nil, "runs in a box: it needs nothing of boxd"},
	{"bench", []string{"bench/report", "bench/workload", "internal/linux", "api/apitypes", "audit", "cgroups", "client", "engine", "engine/spec", "engine/native", "engine/native/seccomp", "images", "images/install", "langbot/protocol", "relay", "test/daemon", "test/langbot"},
		"measures all parts from outside, the daemon and LangBot's protocol by the clients of the tests"},
	{"cmd/boxd-bench", []string{"bench", "bench/plan", "bench/report", "bench/workload", "engine/native"}, "an entry point wires, it decides nothing"},
	{"packaging/manual", []string{"internal/cli"}, "describes the command line, which is the only thing it knows"},
	{"cmd/boxd", []string{"internal/cli", "internal/daemon", "internal/doctor", "internal/quickrun", "engine", "engine/native", "images", "images/install"}, "an entry point wires, it decides nothing"},
	{"cmd/boxd-agent", []string{"agent/role"}, "an entry point wires, it decides nothing"},
	{"cmd/boxd-unpacker", []string{"agent/role", "agent/unpack"}, "an entry point wires, it decides nothing"},
	{"cmd/boxd-init", []string{"engine/native/launcher"}, "an entry point wires, it decides nothing"},
	{"packaging", []string{"config"}, "no code: files for distributions, and their tests, which read the example configuration"},
	{"test/...", []string{"..."}, "tests across packages"},
	{"test", []string{"engine"}, "looks at the packages from outside, and compares documents with the tables of engine"},
}

// exampleRows are what the Examples of a public package may import besides: they show
// it at work, in a real box or with a real daemon, as a program that embeds it would.
var exampleRows = []row{
	{"engine", []string{"engine/native"}, "its interfaces need an engine behind them"},
	{"files", []string{"engine/native"}, "a file operation needs a box"},
	{"client", []string{"test/daemon"}, "a client needs a daemon"},
}

// foreign says who may import another module: the packages by, and the tests of
// those in tests.
type foreign struct {
	path      string
	by, tests []string
	why       string
}

// everybody is a pattern for all packages.
var everybody = []string{"..."}

var foreigns = []foreign{
	{"golang.org/x/sys", []string{"internal/linux", "internal/drained", "internal/fdkind", "internal/oneshot", "internal/sealed", "internal/sigwatch", "internal/testutil", "internal/trash", "layers", "internal/cli", "internal/daemon", "mounts", "cgroups", "netns", "rootfs", "volumes",
		"agent/...", "engine/native/...", "engine/oci", "engine/containerd/...", "cmd/boxd-containerd", "egress", "session/workspace", "langbot/transfer", "langbot/skills", "engine/conformance", "bench", "bench/workload", "test/..."}, everybody, "values and policy make no system calls"},
	{"golang.org/x/net", []string{"egress", "egress/rules"}, []string{"test/network"}, "names become ASCII, and an upstream proxy speaks SOCKS5, in one place; a test plays the name server"},
	{"golang.org/x/time", []string{"policy", "egress", "session"}, nil, "requests are limited in one place, bytes of a box's network in another, and reports about its connections in a third"},
	{"github.com/opencontainers/runc", []string{"engine/native/launcher", "cmd/boxd-init"}, nil, "libcontainer is behind one door; its init stage is a role of boxd-init"},
	{"github.com/opencontainers/runtime-spec", []string{"engine/oci"}, []string{"test/containerd"}, "the types of an OCI bundle"},
	{"github.com/opencontainers/cgroups", []string{"engine/native/launcher"}, nil, "belongs to libcontainer; limits are the business of cgroups"},
	{"github.com/sirupsen/logrus", []string{"engine/native/launcher"}, nil, "only to catch what libcontainer logs; ours is log/slog"},
	{"github.com/seccomp/libseccomp-golang", nil, []string{"engine/native/seccomp"}, "a second opinion for tests: the policy is compiled here, without a C library"},
	{"github.com/vishvananda/netlink", []string{"netns"}, []string{"netns"}, "network set-up is in one place"},
	{"github.com/containerd", []string{"cmd/boxd-containerd"}, nil, "the client of containerd is in a program, and a module, of its own"},
	{"google.golang.org", []string{"cmd/boxd-containerd"}, nil, "what the client of containerd speaks"},
	{"github.com/google/go-containerregistry", []string{"images"}, []string{"test/..."}, "registries and the formats of images are spoken in one place"},
	{"go.etcd.io/bbolt", []string{"images", "session", "session/history", "langbot", "langbot/fence", "langbot/grants"}, nil, "one database with one owner"},
	{"github.com/klauspost/compress", []string{"agent/unpack"}, []string{"agent/unpack"}, "archives of images are decompressed in a box, and nowhere else"},
	{"gonum.org/v1/plot", []string{"bench/report"}, nil, "plots, in a program of its own: boxd must start fast"},
	{"github.com/docker/go-units", []string{"engine/spec"}, nil, "sizes are parsed in one place"},
	{"github.com/goccy/go-yaml", []string{"config", "langbot/skills", "internal/yamltree"}, []string{"engine/native/launcher", "test/langbot"},
		"what people write by hand: our configuration, and the heads of their skills; tests compare the launcher's own reader with it, and read recipes"},
	{"github.com/gorilla/websocket", []string{"internal/wsconn", "relay", "preview", "langbot/door", "langbot/linerelay", "langbot/bridge", "test/browser", "test/langbot", "test/e2e"}, []string{"api"}, "a WebSocket is a detail of the relays, of tunnels and of a door"},
	{"github.com/modelcontextprotocol/go-sdk", []string{"mcp"}, []string{"test/mcp"}, "one door speaks MCP; it adds 0.25 ms to the initialisation of packages at each start of boxd"},
	{"github.com/google/jsonschema-go", []string{"mcp"}, nil, "the schemas of tools, as the SDK for MCP has them"},
	{"github.com/coreos/go-systemd", []string{"internal/daemon"}, nil, "the service manager talks to the entry point, not to what it starts"},
	{"github.com/danielgtaylor/huma/v2", []string{"api"}, nil, "describes the API; whoever serves or calls it needs only the description's result"},
	{"github.com/prometheus", []string{"api"}, nil, "metrics leave the process through one door"},
	{"github.com/spf13", []string{"internal/cli", "packaging/manual"}, nil, "flags belong to the command line, and its manual"},
}

// never are modules and packages that may not even be linked in indirectly.
var never = []struct{ pkg, dep, why string }{
	{"engine/spec", "golang.org/x/sys", "values make no system calls"},
	{"engine", module + "internal/linux", "a program on another platform can use its values, and the client"},
	{"client", module + "internal/linux", "a client can run on another platform than the daemon"},
	{"cmd/boxd", "github.com/opencontainers/runc", "it re-executes its own binary for every box: in the big one each start costs 4 to 5 ms more"},
	{"cmd/boxd", "github.com/seccomp/libseccomp-golang", "boxd is pure Go: it needs no library at run time"},
	{"cmd/boxd", "runtime/cgo", "boxd is pure Go: it needs no library at run time"},
	{"cmd/boxd", module + "engine/enginetest", "makes boxes that isolate nothing"},
	{"cmd/boxd", module + "engine/native/launcher", "what faces people and networks is not what has root"},
	{"engine/native", "runtime/cgo", "a program that embeds boxd needs no C compiler"},
	{"engine/native", "github.com/opencontainers/runc", "a program that embeds boxd is not re-executed by libcontainer"},
	{"engine/native", module + "engine/native/launcher", "the client half is linked into unprivileged programs"},
	{"cmd/boxd", "gonum.org/v1/plot", "what draws must not slow each start of a command"},
	{"cmd/boxd", "google.golang.org/grpc", "the client of containerd costs each start of a command more than 10 ms"},
	{"cmd/boxd-init", "github.com/containerd/containerd/v2", "the launcher stays small: it has root"},
	{"cmd/boxd-init", "github.com/containerd/cgroups/v3", "the launcher stays small: it has root"},
	{"cmd/boxd-init", "google.golang.org/grpc", "the launcher stays small: it has root"},
	{"engine/native", "google.golang.org/grpc", "a program that embeds boxd does not get forty modules of others with it"},
	{"cmd/boxd-init", "github.com/seccomp/libseccomp-golang", "the agent installs a program of our own: building boxd needs no C library but the system's"},
	{"cmd/boxd-init", "net/http", "the launcher stays small: it has root"},
	{"cmd/boxd-init", "github.com/spf13/cobra", "the launcher stays small: it has root"},
	{"cmd/boxd-init", "github.com/klauspost/compress", "it is executed twice for each box, and nothing of it unpacks archives"},
	{"cmd/boxd-init", module + "agent/files", "what builds boxes is not what runs in them"},
	{"cmd/boxd-agent", "github.com/opencontainers", "PID 1 of every box starts with it, and keeps its memory"},
	{"cmd/boxd-agent", "github.com/klauspost/compress", "PID 1 of every box starts with it, and keeps its memory"},
	{"cmd/boxd-agent", "github.com/vishvananda/netlink", "PID 1 of every box starts with it, and keeps its memory"},
	{"cmd/boxd-agent", module + "engine", "PID 1 of every box starts with it, and what is not linked into it cannot be misused from inside"},
	{"cmd/boxd-unpacker", "github.com/opencontainers", "what reads hostile archives in a box cannot build one"},
	{"agent", "net/http", "the agent is in every box: private memory of an idle box is 2 MB at most"},
}
