package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"berth.dev/berth/agent/config"
	"berth.dev/berth/kernel"
)

// What the plugin tells is counted in the metrics of the program.
func TestEventsAreCounted(t *testing.T) {
	t.Parallel()
	root, err := kernel.Open(host(t, "1s1n4c1t"))
	must(t, err)
	c := config.Default()
	c.Agent.StateDir, c.Guard.Mode = filepath.Join(t.TempDir(), "state"), config.GuardOff
	f := nriFlags{watch: watchFlags{metrics: "127.0.0.1:0"}}
	in, err := f.open(t.Context(), root, c, slog.New(slog.NewTextHandler(io.Discard, nil)))
	must(t, err)
	t.Cleanup(func() { must(t, in.plugin.Close()) })
	address := in.watch.door.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- in.watch.run(ctx) }()
	shows := func(want string) {
		t.Helper()
		var text string
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			answer, err := http.Get("http://" + address + "/metrics")
			must(t, err)
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			must(t, err)
			if text = string(body); strings.Contains(text, want+"\n") {
				return
			}
		}
		t.Errorf("no %q in:\n%s", want, text)
	}
	shows(`berth_events_total{kind="word"} 0`)
	must(t, in.plugin.RunPodSandbox(t.Context(), &api.PodSandbox{
		Id: "p", Uid: "u", Namespace: "default", Name: "web", Annotations: map[string]string{"berth.dev/bind": "Full"},
	}))
	shows(`berth_events_total{kind="word"} 1`)
	stop()
	if err := <-done; err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
