package langbot

import (
	"maps"
	"slices"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// engineEnv are the variables with which daemons of the tests choose what builds their boxes; none: the
// native engine.
var engineEnv []string

// shortForm are the tests of LangBot's door that every engine has to pass: commands, processes and their
// relays, the network, and what a restart leaves. longForm are more of them.
var shortForm = map[string]func(*testing.T){
	"engine": func(t *testing.T) {
		b := begin(t).bot("i", "w")
		b.call("box_create_session", spec("s", nil))
		list, err := b.w.every.Sessions(t.Context())
		if err != nil || len(list) != 1 || "BOXD_ENGINES="+list[0].Engine != engineEnv[0] {
			t.Errorf("%+v, %v; want a box of %s", list, err, engineEnv[0])
		}
	},
	"streams": TestExecStreams, "ends": TestExecEnds, "mcp": TestMCPSession, "network": TestMCPNetwork, "lines": TestRelayLines, "restart": TestRestart,
}

var longForm = map[string]func(*testing.T){
	"timeout": TestTimeoutEndsTheSession, "expiry": TestExpiry, "skill": TestSkillInABox, "memory": TestProcessMemory,
	"mounts": TestExtraMounts, "bulk": TestRelayBulk, "images": TestImages,
}

// onEngine runs the short form with daemons whose boxes another engine builds.
func onEngine(t *testing.T, env ...string) {
	t.Helper()
	tests := maps.Clone(shortForm)
	if testutil.Full() {
		maps.Copy(tests, longForm)
	}
	engineEnv = env
	defer func() { engineEnv = nil }()
	t.Run("on", func(t *testing.T) { // ends when those that run in parallel have ended, too
		for _, name := range slices.Sorted(maps.Keys(tests)) {
			t.Run(name, tests[name])
		}
	})
}

func TestOnOCI(t *testing.T) {
	testutil.RequireProgram(t, "runc")
	onEngine(t, "BOXD_ENGINES=oci")
}
