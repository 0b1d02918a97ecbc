package daemon

import (
	"os"
	"regexp"
	"testing"
)

func TestLastingDir(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../kube/deploy/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	set := regexp.MustCompile(`--state=(\S+)`).FindSubmatch(text)
	if set == nil {
		t.Fatal("the DaemonSet names no state directory")
	}
	for _, c := range []struct {
		uid         int
		state, want string
	}{
		{0, "/run/berth/node", "/var/lib/berth/x"},
		{0, "/run/berth", "/var/lib/berth/x"},
		{0, string(set[1]), "/host/var/lib/berth/x"},
		{0, "/host/run/berth/", "/host/var/lib/berth/x"},
		{0, "/srv/berth", "/srv/berth-x"},
		{0, "/srv/prun/berth", "/srv/prun/berth-x"},
		{0, "/srv/node", "/srv/node-x"},
		{1000, "/host/run/berth", "/host/run/berth-x"},
		{1000, "/run/user/1000/berth/node", "/run/user/1000/berth/node-x"},
	} {
		if got := lastingDir(c.uid, c.state, "x"); got != c.want {
			t.Errorf("user %d, %s: %s, want %s", c.uid, c.state, got, c.want)
		}
	}
}
