package api

import (
	"io"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
)

// TestOutputs: an exec returns the files that it made or changed, and no others.
func TestOutputs(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	dir := t.TempDir()
	growTree(t, dir, "old.png old", "changed.png old", "renamed.tmp R", "touched.png T", "out/old.csv O")
	r := apitypes.ExecRequest{Cwd: dir, Outputs: []string{"*.png", "out"}, Shell: "cd " + dir + `
		printf new >new.png; printf '\377' >raw.png; printf more >>changed.png; mv renamed.tmp renamed.png; touch -d 2001-01-01 touched.png
		mkdir -p out/deep; echo 1 >out/deep/a.csv; echo no >not.txt; mkdir dir.png; ln -s new.png link.png; mkfifo pipe.png; exit 3`}
	check := func(res *apitypes.ExecResult, err error) {
		t.Helper()
		if err != nil || res.Status != 3 || res.OutputsTruncated || res.OutputsError != "" {
			t.Fatalf("%+v, %v", res, err)
		}
		var got []string
		for _, o := range res.Outputs {
			if o.Size != int64(len(o.Bytes())) || o.Omitted {
				t.Errorf("%+v", o)
			}
			got = append(got, o.Path+" "+string(o.Bytes()))
		}
		if want := "changed.png oldmore|new.png new|out/deep/a.csv 1\n|raw.png \xff|renamed.png R|touched.png T"; strings.Join(got, "|") != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	check(c.Exec(ctx, "a", r))
	for _, shell := range []string{"true", "cat new.png; ls"} { // nothing new
		if res, err := c.Exec(ctx, "a", apitypes.ExecRequest{Cwd: dir, Outputs: r.Outputs, Shell: shell}); err != nil || len(res.Outputs) != 0 {
			t.Errorf("%s: %+v, %v", shell, res, err)
		}
	}
	again := r
	again.Shell = strings.ReplaceAll(r.Shell, "mkdir dir", "mkdir -p dir")
	again.Shell = "cd " + dir + "; rm link.png pipe.png; printf old >changed.png; printf R >renamed.tmp;" + strings.ReplaceAll(again.Shell, "mv", "mv -f")
	check(c.ExecStream(ctx, "a", again, io.Discard, io.Discard))

	big, err := c.Exec(ctx, "a", apitypes.ExecRequest{Cwd: dir, Outputs: []string{"b*", "c*"}, Shell: "cd " + dir + "; head -c 5000000 /dev/zero >b1; echo x >b2; for i in $(seq 200); do echo >c$i; done"})
	if err != nil || len(big.Outputs) != 100 || !big.OutputsTruncated || !big.Outputs[0].Omitted || big.Outputs[0].Size != 5000000 || string(big.Outputs[1].Bytes()) != "x\n" {
		t.Errorf("%d outputs, %v, %v", len(big.Outputs), big.OutputsTruncated, err)
	}
	// What cannot be collected does not hide the result of a command that has run.
	gone, err := c.Exec(ctx, "a", apitypes.ExecRequest{Cwd: dir, Outputs: r.Outputs, Shell: "rm -r " + dir + "; exit 4"})
	if err != nil || gone.Status != 4 || !strings.Contains(gone.OutputsError, "no such file") {
		t.Errorf("%+v, %v", gone, err)
	}
	for _, pattern := range []string{"", "/abs", "../x", "["} {
		if _, err := c.Exec(ctx, "a", apitypes.ExecRequest{Outputs: []string{pattern}, Argv: []string{"true"}}); !client.IsCode(err, apitypes.CodeInvalid) || !strings.HasPrefix(err.(*client.Error).Detail, "outputs ") {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}
