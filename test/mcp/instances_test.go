package mcp

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/mcp/gateway"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Gateways that use one daemon and the same name of a server end their own processes only: those of each other run on, and those
// of a killed daemon are ended by the next one.
func TestGatewaysAtOnce(t *testing.T) {
	s := served(t, "  one: "+fmt.Sprintf(fixture, "", "1m", "request")+"\n")
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.New(client.Options{Socket: s.Socket(), Tenant: "a"})
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	gateways := []*server{s.at("one")}
	for range 2 {
		g := gateway.New(gateway.Options{
			Servers: []gateway.Server{{Name: "one", Mode: gateway.ModeRequest, Idle: time.Minute, Argv: []string{"/usr/bin/python3", "/opt/testdata/fixture.py"},
				Box: spec.Wishes{Mounts: []spec.MountWish{{Source: testdata, Target: "/opt/testdata", ReadOnly: true}}}}},
			Caller: func(*http.Request) (gateway.Caller, error) {
				return gateway.Caller{Tenant: "a", Client: func() (*client.Client, error) {
					return client.New(client.Options{Socket: s.Socket(), Tenant: "a"})
				}}, nil
			},
		})
		door := httptest.NewServer(g)
		defer func() { g.Close(); door.Close() }()
		gateways = append(gateways, &server{url: door.URL, path: "/one"})
	}
	// waits returns the processes that answer a call which takes a minute.
	waits := func() map[string]string {
		list, err := api.Processes(t.Context(), "mcp-one", "boxd.mcp/server=one")
		if err != nil {
			t.Fatal(err)
		}
		running := map[string]string{}
		for _, p := range list {
			if p.State == "running" {
				running[p.Labels["boxd.mcp/gateway"]] = p.ID
			}
		}
		return running
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := make(chan struct{})
	for i, g := range gateways {
		c := g.connect(t, tokenA, "2026-07-28", &sdk.ClientOptions{ProgressNotificationHandler: func(context.Context, *sdk.ProgressNotificationClientRequest) { begun <- struct{}{} }})
		p := callParams("wait", args{"seconds": 1000})
		p.SetProgressToken("p")
		go c.CallTool(ctx, p) // ends with the test
		<-begun
		if got := waits(); len(got) != i+1 {
			t.Fatalf("%d gateways have a call in progress, and these processes run: %v", i+1, got)
		}
	}
	before := waits()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	s.url = "http://" + addressOf(t, s.Daemon)
	if got := waits(); len(got) != 3 {
		t.Errorf("after the daemon was killed, these processes run: %v", got)
	}
	call(t, s.at("one").connect(t, tokenA, "2026-07-28", nil), "echo", args{}, nil)
	after := waits()
	if after["daemon"] == before["daemon"] || before["daemon"] == "" {
		t.Errorf("the process of the killed daemon is left: %v", after)
	}
	for gateway, process := range before {
		if gateway != "daemon" && after[gateway] != process {
			t.Errorf("the process of gateway %s was ended: %v, before %v", gateway, after, before)
		}
	}
}
