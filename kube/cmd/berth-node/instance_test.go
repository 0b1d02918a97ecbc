package main

import (
	"testing"

	"berth.dev/berth/guard"
	"berth.dev/berth/kube/nri"
	"berth.dev/berth/watch/pods"
)

// Without an API server nothing is told, and nothing is missing.
func TestNoServer(t *testing.T) {
	t.Parallel()
	c := &cluster{}
	c.Report(guard.Report{})
	c.tell(&nri.Event{Kind: nri.Fallback})
	if got := about(guard.Party{Group: "a"}); got.Pod != "" {
		t.Errorf("somebody outside of pods: %+v", got)
	}
	p := guard.Party{Pod: &pods.Name{Namespace: "shop", Pod: "db-0", UID: "1", Container: "db"}}
	if got := about(p); got.Namespace != "shop" || got.Pod != "db-0" || got.UID != "1" || got.Container != "db" {
		t.Errorf("%+v", got)
	}
}
