package noise

import (
	"strings"
	"testing"
)

// A sender says whom it cannot reach.
func TestSenderRefuses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"nobody": "send: address", "127.0.0.1": "send: address", "[::1]:7400": "want an IPv4 address", "127.0.0.1:0": "send: connect to 127.0.0.1:0",
	} {
		w, err := newSender(Config{Address: address}, 0, 0)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", address, err, want)
		}
		if err == nil {
			_ = w.close()
		}
	}
}
