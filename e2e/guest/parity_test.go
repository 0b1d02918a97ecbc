package guest

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth.dev/berth/internal/fakekernel"
)

// TestParity replays the table of writes that the fake kernel is held to and
// compares with what was recorded.
func TestParity(t *testing.T) {
	onlyOn(t, "2s4n")
	tr := openTree(t)
	got, err := fakekernel.Parity{
		Tree: tr, Dir: v2, PID: strconv.Itoa(tr.child(t, tr.base, "sleep")), Device: blockDevice(t, nullDisk),
	}.Record()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("BERTH_UPDATE") == "true" {
		for line := range strings.Lines(got) {
			t.Attr("recorded", strconv.Quote(line))
		}
		return
	}
	recorded, err := fakekernel.Recorded()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(recorded[kernelName()], got); diff != "" {
		t.Errorf("(-recorded +now):\n%s", diff)
	}
}
