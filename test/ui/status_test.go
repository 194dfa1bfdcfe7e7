package ui

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// The status has the doctor's checks, as far as the daemon can make them under its confinement, and says which ones
// it cannot. However often operators ask, an examination is made once in ten seconds. Viewers see none.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w := begin(t)
	ctx := t.Context()
	tab := w.page("#/status", 1280, 1200)
	w.signIn(tab, operatorToken)
	const outcome = `[...document.querySelectorAll("section[aria-labelledby=doctor-title] tbody tr")].find(r => r.cells[0].textContent === %s)?.cells[1].textContent`
	for _, name := range []string{"box", "kernel", "disk space", "kernel.pid_max"} {
		if got := w.Await(tab, fmt.Sprintf(outcome, quote(name))); got == "unknown" || got == "failed" {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := w.Await(tab, fmt.Sprintf(outcome, quote("box"))); got != "ok" {
		t.Errorf("box: %s", got)
	}
	w.awaitText(tab, "section[aria-labelledby=doctor-title]", "“boxd doctor” on the host also checks: privilege, cgroups, memory limit,")
	w.look(tab, "doctor")

	var asking sync.WaitGroup
	made := make(chan time.Time, 30)
	for range cap(made) {
		asking.Go(func() {
			d, err := w.api.Doctor(ctx)
			if err != nil || !d.OK || len(d.OnHost) == 0 {
				t.Errorf("%+v, %v", d, err)
			}
			made <- d.At
		})
	}
	asking.Wait()
	times := map[time.Time]bool{}
	for range cap(made) {
		times[<-made] = true
	}
	if len(times) > 2 { // the ten seconds of the page's may end meanwhile
		t.Errorf("%d examinations of %d requests", len(times), cap(made))
	}
	w.click(tab, "button", "Check again")
	w.awaitText(tab, "section[aria-labelledby=doctor-title] [role=status]", "as of ")

	w.click(tab, "button", "Sign out")
	w.signIn(tab, viewerToken)
	w.awaitText(tab, ".parts", "Engine works")
	if got, err := w.Eval(tab, `document.querySelector("main").innerText.includes("Doctor") ? "yes" : ""`); err != nil || got != "" {
		t.Errorf("a viewer has the doctor: %v", err)
	}
	if got := w.Await(tab, `fetch("/v1/doctor", {headers: {"X-Boxd-Page": localStorage.getItem("boxd-page")}}).then(r => "" + r.status)`); got != "403" {
		t.Errorf("a viewer asks the doctor: %s", got)
	}
}
