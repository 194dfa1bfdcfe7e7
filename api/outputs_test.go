package api

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/files"
	"github.com/boxd/boxd/internal/budget"
	"github.com/boxd/boxd/internal/testutil"
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

// TestOutputBudget: outputs wait for others, and no tenant takes all.
func TestOutputBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, ctx := budget.New(maxOutputBytes, tenantOutputBytes), t.Context()
		take := func(tenant string) error { return takeOutputs(ctx, b, tenant, files.MadeBytes) }
		most := int(tenantOutputBytes / files.MadeBytes)
		for i := range most {
			if err := take("a"); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		began := time.Now()
		if err := take("a"); err == nil || !strings.Contains(err.Error(), "outputs of the tenant's other requests take all of the 32 MiB") || time.Since(began) != outputPatience {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		waited := make(chan error, 1)
		go func() { waited <- take("a") }()
		synctest.Wait()
		if err := take("b"); err != nil {
			t.Errorf("another tenant: %v", err)
		}
		b.Give("a", files.MadeBytes-1) // not enough
		synctest.Wait()
		b.Give("a", 1)
		if err := <-waited; err != nil {
			t.Error(err)
		}
		for i := range int(maxOutputBytes/files.MadeBytes) - most - 1 {
			if err := take(fmt.Sprint(i)); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		if err := take("c"); err == nil || !strings.Contains(err.Error(), "outputs of other requests take all of the 128 MiB") {
			t.Error(err)
		}
	})
}

// Content is held until the answer has been sent, and no longer.
func TestOutputsHeld(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	dir, b := t.TempDir(), f.outputs
	for _, streamed := range []bool{false, true} {
		r := apitypes.ExecRequest{Cwd: dir, Outputs: []string{"*.png"}, Shell: "echo 1 >" + dir + "/a.png"}
		run := func() (*apitypes.ExecResult, error) { return c.Exec(ctx, "a", r) }
		if streamed {
			run = func() (*apitypes.ExecResult, error) { return c.ExecStream(ctx, "a", r, io.Discard, io.Discard) }
		}
		for range 3 {
			if res, err := run(); err != nil || len(res.Outputs) != 1 || res.OutputsError != "" {
				t.Fatalf("%+v, %v", res, err)
			}
		}
		for deadline := time.Now().Add(testutil.Patience()); ; time.Sleep(time.Millisecond) {
			held := b.Held()
			if held == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes are held", held)
			}
		}
	}
}
