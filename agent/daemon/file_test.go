package daemon_test

import (
	"strings"
	"testing"

	"berth.dev/berth/agent/daemon"
)

// A file without an end is refused.
func TestReadEndless(t *testing.T) {
	t.Parallel()
	if _, err := daemon.ReadConfig("/dev/zero"); err == nil || !strings.Contains(err.Error(), "name the right file") {
		t.Errorf("read /dev/zero: %v", err)
	}
}
