// Command probe tries one attack from inside a box and prints how it ended:
//
//	blocked: <errno or reason>
//	ESCAPED: <what was possible>
//	untried: <why it could not be tried>
//
// with exit status 0, 1 and 2. It is a static program without cgo that needs nothing from the
// box in which it runs.
//
//	probe list [outside]    names, one per line; outside: probes that are harmless on a
//	                        bare host, where they must escape for root
//	probe list KIND         probes that need a process beside them: see companions
//	probe NAME [KEY=VALUE]… one probe. The values describe the bait on the host: see the
//	                        keys of bait
package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

// probe is one attack.
type probe struct {
	name string
	why  string // what an escape would mean, or the incident behind the probe
	try  func(bait) outcome
	// outside means that the probe is harmless on a bare host and must escape there for root,
	// which shows that the probe works.
	outside bool
}

// bait describes things on the host for a box to reach for. A missing key is not set up.
type bait map[string]string

// The keys of a bait.
const (
	baitPort     = "port"     // TCP port of a listener on 127.0.0.1 and ::1 of the host
	baitAddress  = "address"  // an address of the host that is not loopback
	baitAbstract = "abstract" // name of an abstract socket that the host listens on
	baitShmKey   = "shmkey"   // key of a System V segment of the host, decimal
	baitShmFile  = "shmfile"  // name of a file in /dev/shm of the host
	baitMarker   = "marker"   // absolute path of a readable file of the host
	baitDir      = "dir"      // a directory that the box may write; default: the working directory
	baitPID      = "pid"      // a process of the box that the test has started
	baitRoot     = "root"     // "ro" or "rw": whether the root of the box is writable
)

// tables has all probes that need nothing beside them, by topic.
var tables = [][]probe{processProbes, procfsProbes, identityProbes, namespaceProbes,
	networkProbes, callProbes, abiProbes, fileProbes, setidProbes, ipcProbes, limitProbes,
	kernelMemoryProbes}

// companions are probes that need something beside them in the box, which the test creates, by the
// kind of that thing.
var companions = map[string][]probe{
	"builtin":  builtinProbes,
	"managed":  managedProbes,
	"stranger": strangerProbes,
	"volume":   volumeProbes,
}

func main() {
	// Some attacks change or read the state of a thread.
	runtime.LockOSThread()
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: probe list [outside|KIND] | probe NAME [KEY=VALUE]…")
		os.Exit(2)
	}
	if name, ok := strings.CutPrefix(os.Args[1], "child:"); ok {
		playChild(name)
	}
	if os.Args[1] == "list" {
		list(strings.Join(os.Args[2:], " "))
		return
	}
	o := run(os.Args[1], parseBait(os.Args[2:]))
	fmt.Println(o)
	os.Exit(int(o.kind))
}

func list(kind string) {
	probes, needs := companions[kind]
	if !needs {
		probes = slices.Concat(tables...)
	}
	for _, p := range probes {
		if kind != "outside" || p.outside {
			fmt.Println(p.name)
		}
	}
}

func run(name string, b bait) outcome {
	all := slices.Concat(tables...)
	for _, probes := range companions {
		all = append(all, probes...)
	}
	for _, p := range all {
		if p.name == name {
			return p.try(b)
		}
	}
	return untried("no probe is called " + name)
}

func parseBait(args []string) bait {
	b := bait{}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		b[key] = value
	}
	return b
}
