package ui

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// refuseRelays answers in place of the daemon until a page has tried to attach n times, each time as the writer.
func (w *world) refuseRelays(n int) {
	w.t.Helper()
	l, err := net.Listen("tcp", strings.TrimPrefix(w.base, "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	modes := make(chan string, 100)
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/relay") {
			modes <- r.URL.Query().Get("mode")
			rw.WriteHeader(http.StatusTooManyRequests)
			return
		}
		rw.WriteHeader(http.StatusServiceUnavailable)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	late := time.After(patience)
	for range n {
		select {
		case mode := <-modes:
			if mode != "write" {
				w.t.Errorf("the page attaches with mode %q after a refusal", mode)
			}
		case <-late:
			w.t.Fatal("the page does not try to attach")
		}
	}
	srv.Close()
	<-served
}

// Somebody signs in, creates a session, works in its terminal, and goes on there after the daemon was killed:
// neither what the program has written nor what was typed is lost, or there twice.
func TestTerminalSurvivesTheDaemon(t *testing.T) {
	w := begin(t)
	tab := w.page("", 1300, 3200)
	w.Await(tab, `document.activeElement?.name === "token" ? "yes" : ""`)
	w.Type(tab, "wrong-0123456789abcdef0123456789\n")
	w.awaitText(tab, "dialog .error", "unknown token")
	w.Await(tab, `(document.querySelector("[name=token]").value = "", "yes")`)
	w.signIn(tab, operatorToken)
	w.awaitText(tab, "main", "There are no sessions.")

	w.click(tab, "button", "New session")
	w.fill(tab, "id", "demo")
	w.fill(tab, "memory", "256M")
	w.click(tab, "dialog button", "Create")
	w.awaitText(tab, "h1", "demo")
	w.awaitText(tab, ".meter", "256 MiB")
	w.click(tab, ".tabs a", "Processes")
	w.click(tab, "button", "New terminal")
	w.awaitText(tab, ".terminal .bar", "you write")
	w.Await(tab, `document.activeElement?.className.includes("xterm") ? "yes" : ""`)
	w.Await(tab, rows+`.includes("root@") ? "yes" : ""`) // what was there before is shown: input counts from now on
	w.Type(tab, "PS1='$ '; stty size; stty -echo; for i in $(seq 1 60); do echo line $i; sleep 0.05; done; read x; echo got $x\n")
	w.Await(tab, rows+`.includes("line 20") ? "yes" : ""`)
	if err := w.daemon.Kill(); err != nil {
		t.Fatal(err)
	}
	w.awaitText(tab, ".terminal .bar", "trying again")
	w.Type(tab, "typed while it was away\n")
	w.refuseRelays(2) // as a daemon that is starting, or has too many connections: nobody else became the writer
	if err := w.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	got := w.Await(tab, `(() => { const r = `+rows+`; return r.includes("got typed while it was away") && r.endsWith("$") ? r : "" })()`)
	var want strings.Builder
	for i := range 60 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	// Without an echo, which can come in pieces between the lines of the program.
	if !strings.Contains(got, want.String()) || strings.Count(got, "got typed") != 1 {
		t.Errorf("the terminal shows\n%s", got)
	}
	if strings.Contains(got, "24 80") {
		t.Errorf("the terminal has not the size of the page:\n%s", got)
	}
	list, err := w.api.Processes(t.Context(), "demo")
	if err != nil || len(list) != 1 || !list[0].TTY {
		t.Errorf("%+v, %v", list, err)
	}
}
