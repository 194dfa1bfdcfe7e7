package quickrun

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func lookup(name string) (string, bool) {
	if name == "FROM_CALLER" {
		return "yes", true
	}
	return "", false
}

// TestParse: what is understood is understood completely, and everything else is left to package cli. That both
// make the same of a command line is shown in test/e2e (TestRunByDaemon).
func TestParse(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-- true", `{"argv":["true"],"box":{"cpus":1,"memory":536870912,"pids":256,"engine":"native","isolation":"namespaces","writable_root":false,"tmp_size":67108864,"user":{"uid":0,"gid":0},"hostname":"box"}}`},
		{"true -i --memory 1", `"argv":["true","-i","--memory","1"]`},
		{"--memory 64M --pids=9 --cpus 1.5 -- x", `"cpus":1.5,"memory":67108864,"pids":9`},
		{"--memory unlimited x", `"memory":-1`},
		{"--rw-rootfs x", `"writable_root":true,"tmp_size":67108864,"upper_size":268435456`},
		{"-e A=1 --env=B=x=y -e FROM_CALLER -e NOT_SET -e A=2 x", `"env":{"A":"2","B":"x=y","FROM_CALLER":"yes"}`},
		{"-w /usr --mkdir --timeout 90 --grace 500ms --output-limit 1k x", `"cwd":"/usr","mkdir":true,"timeout":90,"grace":0.5,"output_limit":1024`},
		{"--output-limit unlimited x", `{"argv":["x"],"box":{`},
		{"--shell x", `"argv":["sh","-c","x"]`},
		{"-u 7 --hostname h x", `"user":{"uid":7,"gid":7},"hostname":"h"`},
		{"--socket /s -i --interactive x", `"argv":["x"]`},
		{"", ""}, {"--", ""}, {"-i", ""}, {"--memory", ""}, {"--memory 0 x", ""}, {"--memory= x", ""}, {"--memory 1 x", ""}, {"--shell x y", ""},
		{"-iv x", ""}, {"-i=true x", ""}, {"-eA=1 x", ""}, {"--=x y", ""}, {"- x", ""}, {"--mkdir=false x", ""}, {"--workdir= x", ""}, {"-e = x", ""},
		{"--direct x", ""}, {"-t x", ""}, {"--json x", ""}, {"--receipt x", ""}, {"--explain x", ""}, {"--image a x", ""}, {"--network proxy x", ""}, {"--publish 1 x", ""},
		{"-v /a:/b x", ""}, {"--workspace / x", ""}, {"--engine native x", ""}, {"--isolation namespaces x", ""}, {"--upper-size 1M x", ""}, {"--init /i x", ""}, {"--state-dir /s x", ""},
		{"--allow-degraded x", ""}, {"--env-file f x", ""}, {"--hostname -bad- x", ""}, {"--help", ""}, {"-h", ""}, {"--unknown x", ""}, {"-e A=\xff x", ""}, {"x \xff", ""},
	} {
		got := ""
		if q, ok := Parse(strings.Fields(c.args), lookup); ok {
			b, err := json.Marshal(q)
			if err != nil {
				t.Fatal(err)
			}
			got = string(b)
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("boxd run %q: %s, want %s", c.args, got, c.want)
		}
	}
}

// TestLaunches: the program of launchers is copied ahead only when one is going to be started.
func TestLaunches(t *testing.T) {
	here := filepath.Join(t.TempDir(), "socket")
	if err := os.WriteFile(here, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env, args string
		want      bool
	}{
		{"BOXD_SOCKET=" + here, "x", false},
		{"BOXD_SOCKET=" + here, "--direct x", true},
		{"BOXD_SOCKET=" + here, "--state-dir=/s -- x", true},
		{"BOXD_SOCKET=" + here, "-- x --direct", false},
		{"BOXD_SOCKET=" + here + ".none", "x", true},
		{"BOXD_SOCKET=" + here + ".none", "-v /a:/b -- x", true},
		{"BOXD_SOCKET=" + here + ".none", "--help", false},
		{"BOXD_SOCKET=" + here + ".none", "--init /i x", false},
		{"BOXD_SOCKET=" + here + ".none", "--socket /s x", false},
		{"BOXD_STATE_DIR=/s", "x", true},
		{"BOXD_INIT=/s", "x", false},
		{"BOXD_URL=http://x", "x", false},
	} {
		name, value, _ := strings.Cut(c.env, "=")
		lookup := func(n string) (string, bool) {
			if n == name {
				return value, true
			}
			return "", false
		}
		if got := launches(strings.Fields(c.args), lookup); got != c.want {
			t.Errorf("%s boxd run %s: %v", c.env, c.args, got)
		}
	}
}
