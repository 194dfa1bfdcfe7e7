package hostile

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/native/rpc"
	"golang.org/x/sys/unix"
)

// quoted is s as JSON.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// prepare lays traps in the directories that are the client's.
func (a *attacker) prepare() {
	link := func(target, name string) {
		if err := os.Symlink(target, a.at(name)); err != nil {
			panic(err)
		}
	}
	for _, dir := range []string{"clean/theirs/dir/deep", "home/own"} {
		if err := os.MkdirAll(a.at(dir), 0o755); err != nil {
			panic(err)
		}
	}
	for _, in := range []string{"clean/theirs/", "home/", "home/root/", "workspaces/tenant/"} {
		link(a.at("bait"), in+"absolute")
		link("../../bait", in+"relative")
		link("../../../bait", in+"farther")
		link("../bait", in+"beside") // in clean: bait in the same root
		link(".", in+"self")
		link("/proc/self/root"+a.at("bait"), in+"magic")
		link(fmt.Sprintf("/proc/%d/root%s", os.Getpid(), a.at("bait")), in+"mine")
		link("/", in+"top")
		link("/etc", in+"etc")
		link("absolute", in+"twice")
		link("loop", in+"loop")
	}
	// Directories of the client that no other user can enter.
	if err := os.Mkdir(a.at("home/closed"), 0o700); err != nil {
		panic(err)
	}
}

// sources are what the client asks for and must not get in full.
func (a *attacker) sources() []string {
	list := []string{
		"/", "//", "/.", "/..", "/etc", "/etc/shadow", "/root", "/dev", "/dev/shm", "/proc", "/proc/1/root", "/proc/self/root", "/proc/self/cwd", "/sys", "/sys/fs/cgroup",
		"/run", "/boot", "/proc/1/root" + a.at("bait"), "/proc/self/root" + a.at("bait"), fmt.Sprintf("/proc/%d/root%s", os.Getpid(), a.at("bait")),
		a.State, a.State + "/lock", a.Data, a.Data + "/..", a.OtherState, filepath.Dir(a.State), a.at("volumes-of-other"), a.at("other"), a.at("other/secret"),
		a.Base, a.Base + "/", a.at("bait"), a.at("bait/"), a.at("bait/."), a.at("bait/secret"), a.at("bait/program"), a.at("bait/closed"), a.at("bait/missing"),
		a.at("private"), a.at("private/secret"), a.at("private/theirs"), a.at("private/theirs/secret"), a.at("private/missing"),
		a.at("shared/../bait"), a.Base + "/shared/../bait", a.Base + "/shared/../../" + filepath.Base(a.Base) + "/bait", a.Base + "//shared//..//bait/secret",
		a.at("home"), a.at("home/own"), a.at("home/root"), a.at("home/root/secret"), a.at("home/root/closed"), a.at("home/second"), a.at("home/second/secret"), a.at("home/closed"), a.Base + "/home/root/../../bait",
		a.at("clean"), a.at("clean/bait"), a.at("clean/bait/secret"), a.at("clean/bait/public"), a.at("clean/bait/closed"), a.Base + "/clean/theirs/../bait", a.Base + "/clean/theirs/dir/../../bait/secret",
		a.at("clean/theirs/bait"), a.at("clean/theirs/bait/program"), a.at("clean/theirs/planted-by-root"), a.at("clean/theirs/group"), a.at("clean/theirs/mnt"), a.at("clean/theirs/mnt/secret"),
		a.at("ro"), a.at("ro/dir"), a.at("ro/dir/file"),
		a.at("workspaces/bait"), a.at("workspaces/bait/secret"), a.at("workspaces/tenant/linked"), a.at("workspaces/tenant/alices"), a.at("workspaces/tenant/alices/secret"),
		a.Base + "/workspaces/../bait", "", "bait", "/\x00", a.at("bait") + "\x00", a.at("bait") + "\n", a.at("\xff\xfe"), "/" + strings.Repeat("x/", 2500), "/" + strings.Repeat("x", 300),
	}
	for _, in := range []string{"clean/theirs/", "home/", "home/root/", "workspaces/tenant/"} {
		for _, name := range []string{"absolute", "relative", "farther", "beside", "magic", "mine", "top", "etc", "twice", "loop", "self/absolute", "top" + a.at("bait"), "etc/shadow", "beside/secret", "relative/secret"} {
			list = append(list, a.at(in+name))
		}
	}
	return list
}

// reach asks for each source in every way in which a request names one. What is granted
// is searched: descriptors at once, mounts from inside of the box in the end.
func (a *attacker) reach() {
	n := 0
	target := func() string { n++; return fmt.Sprintf("/m/%d", n) }
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	// A box can have 64 mounts. Each mount that was granted is inspected once, in a box of its own.
	built := map[string]bool{}
	granted := func(m engine.Mount) {
		said := a.ask(rpc.TypeUpdate, text(rpc.Update{ID: a.own, Change: engine.Change{Detach: []string{m.Target}}}))
		key := fmt.Sprint(m.Source, m.ReadOnly)
		if said == "" && !built[key] && len(built) < 60 {
			built[key] = true
			a.create(text(rpc.Create{Spec: engine.Spec{Mounts: []engine.Mount{m}}}))
		}
	}
	missing := map[string]string{}
	sources := a.sources()
	if a.Phase == "again" {
		sources = slices.DeleteFunc(sources, func(s string) bool { return !strings.HasPrefix(s, a.at("home")) })
	}
	for _, source := range sources {
		withins := []string{"", "/", source, filepath.Dir(source), a.at("clean")}
		slices.Sort(withins)
		for _, within := range slices.Compact(withins) {
			for _, readOnly := range []bool{false, true} {
				m := engine.Mount{Source: source, Target: target(), ReadOnly: readOnly, Within: within}
				if a.ask(rpc.TypeUpdate, text(rpc.Update{ID: a.own, Change: engine.Change{Attach: []engine.Mount{m}}})) == "" {
					granted(m)
				}
				for _, make := range []bool{false, true} {
					if make && !strings.HasPrefix(source, a.Base) {
						continue // a launcher that is broken shall make nothing elsewhere on this host
					}
					if !make && strings.HasPrefix(source, a.Base) { // nor give anything else away
						a.ask(rpc.TypeOpenDirectory, text(rpc.OpenDirectory{Directory: engine.Directory{Path: source, Within: within, ReadOnly: readOnly, Reclaim: true}}))
					}
					d := engine.Directory{Path: source, Within: within, ReadOnly: readOnly, Make: make}
					said := a.ask(rpc.TypeOpenDirectory, text(rpc.OpenDirectory{Directory: d}))
					if within == "/" && !readOnly && !make {
						missing[source] = said
					}
					if make {
						d.Path += "/new/er"
						a.ask(rpc.TypeOpenDirectory, text(rpc.OpenDirectory{Directory: d}))
					}
				}
			}
			// Only the client's own workspaces are for every user of a box.
			m := engine.Mount{Source: source, Target: target(), Within: within, Users: true}
			if a.ask(rpc.TypeUpdate, text(rpc.Update{ID: a.own, Change: engine.Change{Attach: []engine.Mount{m}}})) == "" {
				if !strings.HasPrefix(filepath.Clean(source)+"/", a.at("workspaces/")) {
					a.wrong("%q was mounted for every user of a box", source)
				}
				granted(m)
			}
			m = engine.Mount{Source: source, Target: target(), Within: within, NoLinks: within}
			if a.ask(rpc.TypeUpdate, text(rpc.Update{ID: a.own, Again: true, Change: engine.Change{Attach: []engine.Mount{m}}})) == "" {
				granted(m)
			}
			a.ask(rpc.TypeLimitDirectory, text(rpc.LimitDirectory{Directory: engine.Directory{Path: source, Within: within}, Bytes: 1 << 20}))
			a.ask(rpc.TypeLimitDirectory, text(rpc.LimitDirectory{Directory: engine.Directory{Path: source, Within: within}}))
		}
	}
	if a.Phase == "again" {
		return
	}
	// Outside of the roots, a missing path looks like an existing one.
	for _, pair := range [][2]string{{"bait/secret", "bait/missing"}, {"private/secret", "private/missing"}} {
		is, isNot := missing[a.at(pair[0])], missing[a.at(pair[1])]
		if is == "" || strings.ReplaceAll(is, pair[0], pair[1]) != isNot {
			a.wrong("%q says that %s is there, %q that %s is not", is, pair[0], isNot, pair[1])
		}
	}
	// A box is built, and taken apart again, for each of these.
	for _, m := range []engine.Mount{
		{Source: a.at("bait"), Target: "/data"}, {Source: a.at("bait"), Target: "/data", Within: a.at("bait")}, {Source: a.at("bait/secret"), Target: "/data", ReadOnly: true},
		{Source: a.at("private/theirs"), Target: "/data"}, {Source: a.at("clean/bait"), Target: "/data"}, {Source: a.at("clean/theirs/beside"), Target: "/data", Within: a.at("clean")},
		{Source: a.at("home/root/absolute"), Target: "/data"}, {Source: a.at("ro"), Target: "/data"}, {Source: a.at("workspaces/bait"), Target: "/data", Within: a.at("workspaces")},
		{Source: "/", Target: "/data"}, {Source: "/etc", Target: "/data", Within: "/"}, {Source: "/root", Target: "/data", ReadOnly: true},
		// Granted, but what does not belong to the client must stay out of reach.
		{Source: a.at("clean/theirs"), Target: "/data"}, {Source: a.at("workspaces/tenant"), Target: "/data"}, {Source: a.at("ro/dir"), Target: "/data", ReadOnly: true},
	} {
		a.create(text(rpc.Create{Spec: engine.Spec{Mounts: []engine.Mount{m}}}))
		// The same with another user of the box, to whom other files could belong.
		a.create(text(rpc.Create{Spec: engine.Spec{User: engine.User{UID: a.UID % 65535, GID: 0}, WritableRoot: m.ReadOnly, Mounts: []engine.Mount{m}}}))
	}
}

// boxes tries ids, numbers and names in every request about a box.
func (a *attacker) boxes() {
	ids := []string{"", ".", "..", "/", "../" + a.OtherBox, a.OtherBox, a.OtherState, "own/../" + a.OtherBox, "run-x/boxes/own", "OWN", "own\x00", "own\n", " own", strings.Repeat("x", 1<<20), "0", "null"}
	for _, id := range ids {
		id := quoted(id)
		for typ, body := range map[byte]string{
			rpc.TypeRemove: `{"ID":%s}`, rpc.TypeUpdate: `{"ID":%s,"Change":{"Limits":{"memory":8388608}}}`, rpc.TypeSlots: `{"ID":%s,"Count":1}`,
			rpc.TypeKill: `{"ID":%s,"Slot":"1","Signal":9}`, rpc.TypePTY: `{"ID":%s,"User":{"UID":0,"GID":0}}`, rpc.TypeConnect: `{"ID":%s}`,
			rpc.TypeAdopt: `{"ID":%s}`, rpc.TypeUsage: `{"ID":%s}`, rpc.TypeKeep: `{"ID":%s,"Slot":"1","Key":"k"}`, rpc.TypeOpen: `{"ID":%s,"Slots":["1"]}`,
			rpc.TypeOutside: `{"ID":%s,"Slot":"1","Age":9223372036854775807}`, rpc.TypeDiag: `{"ID":%s}`,
			rpc.TypeSockets: `{"ID":%s,"IPv4":1}`, rpc.TypePause: `{"ID":%s,"Resume":true}`, rpc.TypeReclaim: `{"ID":%s}`,
		} {
			if said := a.ask(typ, fmt.Sprintf(body, id)); said == "" && typ != rpc.TypeRemove {
				a.wrong("request %d about box %.40s was granted", typ, id)
			}
		}
		a.create(fmt.Sprintf(`{"Spec":{"id":%s,"mounts":[{"source":%s,"target":"/x"}]}}`, id, quoted(a.at("bait"))))
	}
	own := `"ID":` + quoted(a.own)
	huge := []string{"-1", "-9223372036854775808", "9223372036854775807", "9223372036854775808", "1e300", "1e999", "0.5", `"1"`, "null", "[]", "{}"}
	for _, n := range huge {
		for _, r := range []struct {
			typ  byte
			body string
		}{
			{rpc.TypeSlots, `{%[2]s,"Count":%[1]s}`}, {rpc.TypeKill, `{%[2]s,"Slot":"1","Signal":%[1]s}`}, {rpc.TypePTY, `{%[2]s,"User":{"UID":%[1]s,"GID":0}}`},
			{rpc.TypePTY, `{%[2]s,"User":{"UID":0,"GID":%[1]s}}`}, {rpc.TypePTY, `{%[2]s,"Size":{"Rows":%[1]s,"Cols":%[1]s}}`}, {rpc.TypeKeep, `{%[2]s,"Slot":"1","Key":"k","Memory":%[1]s}`},
			{rpc.TypeUpdate, `{%[2]s,"Change":{"Limits":{"memory":%[1]s}}}`}, {rpc.TypeUpdate, `{%[2]s,"Change":{"Limits":{"pids":%[1]s}}}`}, {rpc.TypeUpdate, `{%[2]s,"Change":{"Limits":{"cpus":%[1]s}}}`},
			{rpc.TypeUpdate, `{%[2]s,"Change":{"Limits":{"open_files":%[1]s,"file_size":%[1]s}}}`},
			{rpc.TypeMakeVolume, `{"Volume":{"name":"n","bytes":%[1]s}}`}, {rpc.TypeMakeVolume, `{"Volume":{"name":"n","bytes":1048576,"inodes":%[1]s}}`}, {rpc.TypeVolumes, `{"After":%[1]s}`},
			{rpc.TypeCopyVolume, `{"From":"none","Volume":{"name":"n","bytes":%[1]s,"inodes":%[1]s}}`}, {rpc.TypeCopyVolume, `{"From":%[1]s,"Volume":{"name":"n"}}`}, {rpc.TypeDiag, `{"ID":%[1]s}`},
			{rpc.TypeSockets, `{%[2]s,"IPv4":%[1]s}`}, {rpc.TypeSockets, `{%[2]s,"IPv4":%[1]s,"IPv6":%[1]s}`}, {rpc.TypeSockets, `{%[2]s,"Listen":%[1]s}`}, {rpc.TypeSockets, `{%[2]s,"Listen":[%[1]s]}`},
			{rpc.TypeRemoveVolume, `{"Name":%[1]s}`}, {rpc.TypeUsage, `{"ID":%[1]s}`}, {rpc.TypePause, `{"ID":%[1]s,"Resume":%[1]s}`}, {rpc.TypePause, `{%[2]s,"Resume":%[1]s}`}, {rpc.TypeReclaim, `{"ID":%[1]s}`}, {rpc.TypeReclaim, `{%[2]s,"Ask":%[1]s}`}, {rpc.TypePool, `%[1]s`}, {rpc.TypeList, `%[1]s`}, {rpc.TypePing, `%[1]s`}, {rpc.TypeEngines, `%[1]s`},
			{rpc.TypeMakeLayer, `{"Name":%[1]s}`}, {rpc.TypeAbandonLayer, `{"Name":%[1]s}`}, {rpc.TypePublishLayer, `{"Name":%[1]s,"ID":%[1]s}`}, {rpc.TypeRemoveLayer, `{"ID":%[1]s}`}, {rpc.TypeLayers, `{"After":%[1]s}`},
			{rpc.TypeOutside, `{%[2]s,"Slot":"1","Age":%[1]s}`}, {rpc.TypeWhere, `{"Request":%[1]s}`}, {rpc.TypeWhere, `{"Request":1,"ID":%[1]s}`},
		} {
			a.ask(r.typ, fmt.Sprintf(r.body, n, own))
		}
		if n == "null" || n == "0.5" || n == `{}` {
			continue // may well be granted
		}
		for _, spec := range []string{`"tmp_size":%s`, `"upper_size":%s,"writable_root":true`, `"user":{"uid":%s}`, `"limits":{"memory":%s}`, `"limits":{"pids":%s,"memory":1}`} {
			if id := a.create(fmt.Sprintf(`{"Spec":{`+spec+`}}`, n)); id != "" {
				a.ask(rpc.TypeRemove, `{"ID":`+quoted(id)+`}`)
			}
		}
	}
	for _, name := range []string{"", ".", "..", "../init", "../../" + a.OtherBox + "/work", "init", "work", "cgroup.procs", "1/../../init", "\x00", strings.Repeat("1", 5000)} {
		slot := quoted(name)
		for _, body := range []string{`{%s,"Slot":%s,"Signal":9}`, `{%s,"Slot":%s,"Signal":0}`} {
			if said := a.ask(rpc.TypeKill, fmt.Sprintf(body, own, slot)); said == "" {
				a.wrong("killing command %s was granted", slot)
			}
		}
		a.ask(rpc.TypeKeep, fmt.Sprintf(`{%s,"Slot":%s,"Key":"../../key"}`, own, slot))
		a.ask(rpc.TypeSlots, fmt.Sprintf(`{%s,"Used":[%s],"Background":[%s]}`, own, slot, slot))
		a.ask(rpc.TypeSlots, fmt.Sprintf(`{%s,"Background":[%s]}`, own, slot))
		a.ask(rpc.TypeOpen, fmt.Sprintf(`{%s,"Slots":[%s,%s]}`, own, slot, slot))
		a.ask(rpc.TypeUpdate, fmt.Sprintf(`{%s,"Change":{"Detach":[%s]}}`, own, slot))
		a.ask(rpc.TypeOutside, fmt.Sprintf(`{%s,"Slot":%s,"Age":-1}`, own, slot))
	}
	a.where()
	for _, target := range []string{"/", "/proc", "/proc/self/root", "/dev/null", "/sys", "/etc", "/etc/passwd", "/usr", "/usr/bin/sh", "/tmp/../etc", "/x\x00", ""} {
		a.ask(rpc.TypeUpdate, fmt.Sprintf(`{%s,"Change":{"Attach":[{"source":%s,"target":%s}]}}`, own, quoted(a.at("shared")), quoted(target)))
		a.ask(rpc.TypeUpdate, fmt.Sprintf(`{%s,"Change":{"Detach":[%s]}}`, own, quoted(target)))
	}
	if said := a.ask(rpc.TypeUsage, `{`+own+`}`); said != "" {
		a.wrong("the client's own box: %s", said)
	}
	// Another instance is not even spoken to.
	if sock, err := net.Dial("unix", a.OtherSocket); err == nil {
		sock.Close()
		a.wrong("the client can connect to another user's launcher")
	}
}

// where asks what requests are at that the client has not sent: those of other connections, of
// other instances and of the launcher itself have such numbers.
func (a *attacker) where() {
	for _, request := range []uint32{0, a.id + 100, a.id + 100000, 1 << 31, 1<<32 - 1} {
		if said, reply := a.askFor(rpc.TypeWhere, fmt.Sprintf(`{"Request":%d}`, request)); said != "" || reply != `{"Text":"it has just been answered"}` {
			a.wrong("a request that the client has not sent is at %q, %q", reply, said)
		}
	}
	// A request of its own is named, and nothing of others with it: this very one is under way.
	var at rpc.At
	_, reply := a.askFor(rpc.TypeWhere, fmt.Sprintf(`{"Request":%d}`, a.id+1))
	if err := json.Unmarshal([]byte(reply), &at); err != nil || !strings.HasPrefix(at.Text, "asking after a request has taken ") || strings.Contains(at.Text, a.OtherBox) {
		a.wrong("the client's own request is at %q, %v", reply, err)
	}
}

// storage tries to get out of a volume that it may write.
func (a *attacker) storage() {
	for _, name := range []string{"", ".", "..", "../" + a.OtherVolume, a.OtherVolume, "/etc", "v/../../bait", "V", "v\x00", strings.Repeat("v", 65)} {
		n := quoted(name)
		for typ, body := range map[byte]string{
			rpc.TypeOpenDirectory: `{"Directory":{"Volume":%s,"Path":"/","Make":true}}`, rpc.TypeCreate: `{"Spec":{"mounts":[{"source":"/","target":"/x","volume":%s}]}}`,
			rpc.TypeLimitDirectory: `{"Directory":{"Volume":%s,"Path":"/"},"Bytes":1048576}`, rpc.TypeCopyVolume: `{"From":%s,"Volume":{"name":"copy"}}`,
		} {
			if typ == rpc.TypeOpenDirectory && name == "" {
				continue // a directory of the host
			}
			if said := a.ask(typ, fmt.Sprintf(body, n)); said == "" && name != "" {
				a.wrong("request %d of volume %.40s was granted", typ, n)
			}
		}
		a.ask(rpc.TypeRemoveVolume, `{"Name":`+n+`}`)
	}
	if said := a.ask(rpc.TypeMakeVolume, `{"Volume":{"name":"v","bytes":8388608}}`); said != "" {
		a.wrong("a volume: %s", said)
		return
	}
	if said := a.ask(rpc.TypeOpenDirectory, `{"Directory":{"Volume":"v","Path":"/"}}`); said != "" {
		a.wrong("a volume: %s", said)
	}
	// A box of the client's puts links there; search looks at it in the end.
	id := a.create(`{"Spec":{"id":"volume","mounts":[{"source":"/","target":"/v","volume":"v"}]}}`)
	a.inVolume(id)
	for _, path := range []string{"/out", "/out/secret", "/etc", "/etc/shadow", "/..", "/../..", "/dir/../..", "/proc", "/up", "/up/bait"} {
		p := quoted(path)
		for _, body := range []string{
			`{"Directory":{"Volume":"v","Path":%s}}`, `{"Directory":{"Volume":"v","Path":%s,"Make":true}}`, `{"Directory":{"Volume":"v","Path":%s,"ReadOnly":true}}`,
		} {
			a.ask(rpc.TypeOpenDirectory, fmt.Sprintf(body, p))
		}
		a.ask(rpc.TypeUpdate, fmt.Sprintf(`{"ID":%s,"Change":{"Attach":[{"source":%s,"target":"/w","volume":"v"}]}}`, quoted(a.own), p))
		a.ask(rpc.TypeUpdate, fmt.Sprintf(`{"ID":%s,"Change":{"Detach":["/w"]}}`, quoted(a.own)))
	}
}

// layers tries to get out of a layer that it may write, and to write one that it may not.
func (a *attacker) layers() {
	id := strings.Repeat("d", 64)
	for _, name := range []string{"", ".", "..", "../" + id, "new", "/etc", "n/../../bait", "N", "n\x00", ".new-n", strings.Repeat("n", 65), id, strings.ToUpper(id), "../../../bait"} {
		n := quoted(name)
		for typ, body := range map[byte]string{
			rpc.TypeMakeLayer: `{"Name":%s}`, rpc.TypeAbandonLayer: `{"Name":%s}`, rpc.TypePublishLayer: `{"Name":%s,"ID":"` + id + `"}`,
			rpc.TypeCreate: `{"Spec":{"unpacks":true,"mounts":[{"layer":%s,"source":"/","target":"/layer"}]}}`,
		} {
			if said := a.ask(typ, fmt.Sprintf(body, n)); said == "" && name != "new" {
				a.wrong("request %d of layer %.40s was granted", typ, n)
			}
		}
		for typ, body := range map[byte]string{rpc.TypeRemoveLayer: `{"ID":%s}`, rpc.TypePublishLayer: `{"Name":"n","ID":%s}`} {
			if said := a.ask(typ, fmt.Sprintf(body, n)); said == "" && name != id {
				a.wrong("request %d of layer %.40s was granted", typ, n)
			}
		}
	}
	if said := a.ask(rpc.TypeMakeLayer, `{"Name":"n"}`); said != "" {
		a.wrong("a layer: %s", said)
	}
	bait := quoted(a.at("bait"))
	for _, mounts := range []string{
		`{"layer":"n","source":` + bait + `,"target":"/layer"}`, `{"source":` + bait + `,"target":"/layer"}`, `{"layer":"n","source":"/../../bait","target":"/layer"}`,
		`{"layer":"n","source":"/","target":"/layer","volume":"v"}`, `{"layer":"n","source":"/","target":"/layer","within":"/"}`, `{"layer":"n","source":"/","target":"/layer","users":true}`,
		`{"layer":"n","source":"/","target":"/layer","read_only":true}`, `{"layer":"` + id + `","source":"/","target":"/layer"}`,
		`{"layer":"n","source":"/","target":"/layer"},{"source":` + bait + `,"target":"/bait"}`, `{"layer":"n","source":"/","target":"/layer"},{"layer":"m","source":"/","target":"/m"}`,
	} {
		if a.create(`{"Spec":{"unpacks":true,"mounts":[`+mounts+`]}}`) != "" {
			a.wrong("a box that unpacks with %s was granted", mounts)
		}
	}
	box := a.create(`{"Spec":{"id":"unpacks","unpacks":true,"mounts":[{"layer":"n","source":"/","target":"/layer"}]}}`)
	for _, m := range []string{`{"source":` + bait + `,"target":"/bait"}`, `{"source":` + quoted(a.at("home/own")) + `,"target":"/own"}`, `{"layer":"n","source":"/","target":"/again"}`, `{"layer":"` + id + `","source":"/","target":"/again","read_only":true}`} {
		if said := a.ask(rpc.TypeUpdate, `{"ID":`+quoted(box)+`,"Change":{"Attach":[`+m+`]}}`); said == "" {
			a.wrong("a box that unpacks got %s", m)
		}
		if said := a.ask(rpc.TypeUpdate, `{"ID":`+quoted(a.own)+`,"Change":{"Attach":[`+m+`]}}`); said == "" && strings.Contains(m, "layer") {
			a.wrong("a box that does not unpack got %s", m)
		}
	}
	for typ, body := range map[byte]string{rpc.TypePublishLayer: `{"Name":"n","ID":"` + id + `"}`, rpc.TypeAbandonLayer: `{"Name":"n"}`} {
		if said := a.ask(typ, body); said == "" {
			a.wrong("request %d of a layer that a box writes was granted", typ)
		}
	}
	a.ask(rpc.TypeRemove, `{"ID":`+quoted(box)+`}`)
}

// inVolume makes links in the volume, from the box that has it, over another connection.
func (a *attacker) inVolume(id string) {
	a.conn.Close()
	defer a.dial()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: a.Socket})
	if err != nil {
		panic(err)
	}
	defer s.Close()
	b, err := s.Adopt(ctx, id, engine.Spec{})
	if err != nil {
		a.wrong("adopting %q: %v", id, err)
		return
	}
	script := fmt.Sprintf("cd /v && ln -s %s out && ln -s /etc etc && ln -s /proc proc && ln -s ../.. up && mkdir dir", a.at("bait"))
	if r, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", script}}); err != nil || r.ExitCode != 0 {
		a.wrong("links in a volume: %+v, %v", r, err)
	}
}

// frames breaks the rules of the connection, and sends descriptors that were not asked for.
func (a *attacker) frames() {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	dir, err := os.OpenFile(a.at("home"), unix.O_PATH, 0)
	if err != nil {
		panic(err)
	}
	defer func() { r.Close(); w.Close(); dir.Close() }()
	fds := []int{0, 1, 2, int(r.Fd()), int(w.Fd()), int(dir.Fd())}
	list := fmt.Sprintf(`{"ID":%s}`, quoted(a.own))
	for typ := range 256 {
		for _, some := range [][]int{fds, slices.Repeat(fds[:1], 250)} {
			_ = a.conn.SendFDs(byte(typ), 7, []byte(list), some[:min(len(some), wire.MaxFDs)]...)
			a.conn.Close()
			a.dial()
			if !slices.Contains(a.Requests, byte(typ)) {
				break
			}
		}
	}
	for _, bytes := range [][]byte{
		{}, {0}, []byte("GET / HTTP/1.1\r\n\r\n"), slices.Repeat([]byte{0xff}, wire.HeaderSize), slices.Repeat([]byte{0}, 1<<16), {1, 0, 0, 0, rpc.TypeCreate},
		{0xff, 0xff, 0xff, 0x7f, rpc.TypeList, 0, 0, 0, 1, 0, 0, 0}, {2, 0, 0, 0, rpc.TypeList, 255, 0, 0, 1, 0, 0, 0, '{', '}'}, {2, 0, 0, 0, rpc.TypeList, 0, 9, 9, 1, 0, 0, 0, '{', '}'},
	} {
		a.conn.Close()
		sock, err := net.Dial("unix", a.Socket)
		if err != nil {
			panic(err)
		}
		_, _ = sock.Write(bytes)
		sock.Close()
		a.dial()
	}
	// Many requests whose answers are not read.
	for range 500 {
		a.send(rpc.TypeList, `{}`)
	}
	a.conn.Close()
	a.dial()
}

// frame is a request as the client sends it.
type frame struct {
	typ  byte
	body string
}

// corpus are the valid requests that fuzz changes: one of each type at least, but for unfuzzed.
func (a *attacker) corpus() []frame {
	own, bait, clean := quoted(a.own), quoted(a.at("bait")), quoted(a.at("clean/theirs"))
	return []frame{
		{rpc.TypeUpdate, `{"ID":` + own + `,"Change":{"Attach":[{"source":` + bait + `,"target":"/f/1","within":"/"}],"Detach":["/f/1"]}}`},
		{rpc.TypeUpdate, `{"ID":` + own + `,"Change":{"Attach":[{"source":` + clean + `,"target":"/f/2","within":` + clean + `,"no_links":` + clean + `,"read_only":false}]}}`},
		{rpc.TypeUpdate, `{"ID":` + own + `,"Again":true,"Change":{"Limits":{"memory":67108864,"pids":100,"cpus":1}}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":` + bait + `,"Within":` + quoted(a.Base) + `,"Make":true,"ReadOnly":false,"Volume":""}}`},
		{rpc.TypeOpenDirectory, `{"Directory":{"Path":` + clean + `,"Within":` + clean + `,"Make":false,"ReadOnly":true}}`},
		{rpc.TypeLimitDirectory, `{"Directory":{"Path":` + bait + `,"Within":"/"},"Bytes":1048576,"Inodes":100}`},
		{rpc.TypeSlots, `{"ID":` + own + `,"Count":1,"Used":["1"],"Background":["2"]}`},
		{rpc.TypeKill, `{"ID":` + own + `,"Slot":"1","Signal":15}`},
		{rpc.TypePTY, `{"ID":` + own + `,"User":{"UID":0,"GID":0},"Size":{"Rows":24,"Cols":80}}`},
		{rpc.TypeConnect, `{"ID":` + own + `}`}, {rpc.TypeDiag, `{"ID":` + own + `}`}, {rpc.TypeSockets, `{"ID":` + own + `,"Listen":["127.0.0.1:3128","[::1]:3128"],"IPv4":1,"IPv6":1}`}, {rpc.TypeAdopt, `{"ID":` + own + `}`}, {rpc.TypeUsage, `{"ID":` + own + `}`},
		{rpc.TypeOutside, `{"ID":` + own + `,"Slot":"1","Age":1000000000}`}, {rpc.TypeWhere, `{"Request":1}`}, {rpc.TypeRemove, `{"ID":"gone"}`},
		{rpc.TypePause, `{"ID":` + own + `,"Resume":true}`}, {rpc.TypePause, `{"ID":` + own + `}`}, {rpc.TypeReclaim, `{"ID":` + own + `,"Ask":true}`}, {rpc.TypeReclaim, `{"ID":` + own + `}`}, {rpc.TypePool, `{}`},
		{rpc.TypeList, `{}`}, {rpc.TypePing, `{}`}, {rpc.TypeEngines, `{}`}, {rpc.TypeKeep, `{"ID":` + own + `,"Slot":"1","Key":"k","Memory":8388608}`},
		{rpc.TypeOpen, `{"ID":` + own + `,"Slots":["1","2"]}`}, {rpc.TypeVolumes, `{"After":"a"}`}, {rpc.TypeRemoveVolume, `{"Name":"n"}`},
		{rpc.TypeCopyVolume, `{"From":"none","Volume":{"name":"n","bytes":8388608}}`},
		{rpc.TypeMakeLayer, `{"Name":"n"}`}, {rpc.TypeAbandonLayer, `{"Name":"n"}`}, {rpc.TypePublishLayer, `{"Name":"n","ID":` + quoted(strings.Repeat("d", 64)) + `}`},
		{rpc.TypeRemoveLayer, `{"ID":` + quoted(strings.Repeat("d", 64)) + `}`}, {rpc.TypeLayers, `{"After":"a"}`},
		{rpc.TypeCreate, `{"Spec":{"id":"fuzz","unpacks":true,"mounts":[{"layer":"n","source":"/","target":"/layer"}]}}`},
		{rpc.TypeCreate, `{"Spec":{"id":"fuzz","user":{"uid":0},"limits":{"memory":67108864},"mounts":[{"source":` + bait + `,"target":"/f"}]}}`},
	}
}

// unfuzzed are requests that random bytes must not make: they would end the attack, or take long.
var unfuzzed = []byte{rpc.TypeStop, rpc.TypeMakeVolume}

// fuzz sends random frames and valid ones that were changed.
func (a *attacker) fuzz() {
	random := rand.New(rand.NewPCG(a.Seed, 1))
	valid := a.corpus()
	own, bait, clean := quoted(a.own), quoted(a.at("bait")), quoted(a.at("clean/theirs"))
	tokens := []string{"-1", "9e99", "null", "true", `"../.."`, "{}", "[]", `"/etc"`, `"\u0000"`, bait, clean, own, quoted(a.OtherBox), "18446744073709551616", `"Within":"/"`, `"NoLinks":"/"`, `,`, `"`, strings.Repeat("[", 500)}
	mutate := func(s string) string {
		b := []byte(s)
		for range 1 + random.IntN(4) {
			at := random.IntN(len(b) + 1)
			end := min(len(b), at+random.IntN(12))
			switch random.IntN(5) {
			case 0:
				if at < len(b) {
					b[at] ^= 1 << random.IntN(8)
				}
			case 1:
				b = slices.Delete(b, at, end)
			case 2:
				b = slices.Insert(b, at, slices.Clone(b[at:end])...)
			default:
				b = slices.Replace(b, at, end, []byte(tokens[random.IntN(len(tokens))])...)
			}
		}
		return string(b)
	}
	for done := 0; done < a.Fuzz; {
		const batch = 32
		for range batch {
			v := valid[random.IntN(len(valid))]
			typ, body := v.typ, mutate(v.body)
			switch random.IntN(10) {
			case 0:
				if typ = byte(random.IntN(256)); slices.Contains(unfuzzed, typ) {
					typ = rpc.TypePing // these have their own places
				}
			case 1:
				noise := make([]byte, random.IntN(200))
				for i := range noise {
					noise[i] = byte(random.Uint32())
				}
				body = string(noise)
			}
			if typ == rpc.TypeRemove {
				body = strings.ReplaceAll(body, a.own, "gone")
			}
			a.send(typ, body)
		}
		for range batch {
			a.take("a fuzzed frame")
		}
		done += batch
	}
	for _, body := range []string{"", "[]", `{"Volume":7}`, "\xff", `{"Volume":`} {
		a.ask(rpc.TypeMakeVolume, body)
	}
	if said := a.ask(rpc.TypePause, `{"ID":`+own+`,"Resume":true}`); said != "" { // a frame may have paused it
		a.wrong("resuming the own box: %s", said)
	}
}

// races swaps what a name leads to while it is asked for.
func (a *attacker) races(ctx context.Context, s *native.Service) {
	b, err := s.Create(ctx, engine.Spec{ID: "races"})
	if err != nil {
		panic(err)
	}
	for i, c := range []struct{ dir, other, ask, within string }{
		{"clean/theirs/flip", "../../bait", "", ""},
		{"clean/theirs/flip", "../bait", "", "clean"},
		{"clean/theirs/flip", "../bait", "/closed", "clean/theirs"},
		{"clean/theirs/flip", "bait", "", "clean/theirs"},
		{"workspaces/tenant/flip", "../bait", "", "workspaces"},
		{"workspaces/tenant/flip", a.at("bait"), "/new", "workspaces"},
		{"home/root", a.at("bait"), "", ""},
		{"home/root", a.at("bait"), "/closed", "home/root"},
		{"home/root", a.at("private"), "/theirs", ""},
	} {
		a.race(ctx, s, b, i, c.dir, c.other, c.ask, c.within)
	}
	if err := b.Remove(ctx); err != nil {
		a.wrong("removing the box of the races: %v", err)
	}
}

// race exchanges the directory dir with a symlink to other while ask in it is asked for.
func (a *attacker) race(ctx context.Context, s *native.Service, b engine.LiveBox, number int, dir, other, ask, within string) {
	name, spare := a.at(dir), a.at(dir)+".spare"
	for _, sub := range []string{"", "/closed", "/theirs"} {
		if err := os.Mkdir(name+sub, 0o755); err != nil && !os.IsExist(err) {
			panic(err)
		}
	}
	if err := os.Symlink(other, spare); err != nil {
		panic(err)
	}
	exchange := func() { _ = unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, spare, unix.RENAME_EXCHANGE) }
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		random := rand.New(rand.NewPCG(a.Seed, 2+uint64(number)))
		for {
			select {
			case <-stop:
				return
			default:
				exchange()
				time.Sleep(time.Duration(random.IntN(100)) * time.Microsecond) // else the name is hardly ever still
			}
		}
	})
	if within != "" {
		within = a.at(within)
	}
	target := fmt.Sprintf("/race/%d", number)
	for try := range a.Tries {
		m := engine.Mount{Source: name + ask, Target: target, Within: within, ReadOnly: try%4 == 3}
		if try%8 == 0 && b.Update(ctx, engine.Change{Attach: []engine.Mount{m}}) == nil { // to look into the box takes long
			a.Races++
			a.peek(ctx, b, target, fmt.Sprintf("race %d, %+v", number, m))
			if err := b.Update(ctx, engine.Change{Detach: []string{target}}); err != nil {
				a.wrong("race %d: detaching: %v", number, err)
				break
			}
		}
		d := engine.Directory{Path: name + ask, Within: within, ReadOnly: try%4 == 3, Make: try%2 == 1}
		if d.Within == "" {
			d.Within = name
		}
		if f, err := s.OpenDirectory(ctx, d); err == nil {
			a.Races++
			a.searchFile(fmt.Sprintf("race %d, %+v", number, d), f)
			f.Close()
		}
	}
	close(stop)
	swapping.Wait()
	// Back to a directory under the name.
	if st, err := os.Lstat(name); err == nil && st.Mode()&os.ModeSymlink != 0 {
		exchange()
	}
	_ = os.Remove(spare)
}

// peek reads and writes bait behind a mount of a box, as fast as possible.
func (a *attacker) peek(ctx context.Context, b engine.LiveBox, target, how string) {
	var out strings.Builder
	script := `cd "$1" || exit; read -r line < secret && echo "$line"; read -r line < closed/secret && echo "$line"; echo planted > planted; echo planted >> program`
	_, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", script, "peek", target}, Stdout: &out, Dir: "/"})
	if err != nil {
		a.wrong("%s: %v", how, err)
	}
	a.loot(how, out.String())
}

// legitimate does what root has allowed, so that a launcher that refuses everything fails.
func (a *attacker) legitimate(ctx context.Context, s *native.Service) {
	b, err := s.Create(ctx, engine.Spec{Mounts: []engine.Mount{
		{Source: a.at("shared/roots"), Target: "/shared"}, {Source: a.at("workspaces/tenant/session"), Target: "/workspace", Within: a.at("workspaces")},
		{Source: a.at("ro/dir"), Target: "/ro", ReadOnly: true},
	}})
	if err != nil {
		a.wrong("what root has allowed: %v", err)
		return
	}
	script := "echo 'by the client' > /shared/written && cp /shared/written /workspace/written && cat /ro/file"
	if r, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", script}}); err != nil || r.ExitCode != 0 {
		a.wrong("what root has allowed: %+v, %v", r, err)
	}
	if err := b.Remove(ctx); err != nil {
		a.wrong("removing a box: %v", err)
	}
}

// replaceRoot makes the names of mount roots, which are in a directory of the client's, lead
// to directories of root's.
func (a *attacker) replaceRoot() {
	if err := os.Rename(a.at("home/second"), a.at("home/was-second")); err != nil {
		panic(err)
	}
	if err := os.Rename(a.at("home/roots"), a.at("home/second")); err != nil {
		panic(err)
	}
	if err := os.Rename(a.at("home/root"), a.at("home/was-root")); err != nil {
		panic(err)
	}
	if err := os.Symlink(a.at("bait"), a.at("home/root")); err != nil {
		panic(err)
	}
}
