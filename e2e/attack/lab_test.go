package attack

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// squatLab takes the name by which labs of several users see each other.
var squatLab = newTrick("squat lab", func([]string) error {
	l, err := net.Listen("unix", "@berth-lab")
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("squatted")
	time.Sleep(time.Hour)
	return nil
})

// TestSquattedLab has a stranger take the name of labs: root's lab runs all the same,
// but a second one of root does not.
func TestSquattedLab(t *testing.T) {
	boxed(t, func(b *box) {
		b.start(stranger, squatLab.with()...).awaitText("squatted")
		lab := b.start(root, berth, "lab", "--rounds", "1", "--duration", "1s", "--results", b.TempDir())
		b.await("group of the lab's own", func() bool {
			select {
			case <-lab.done:
				b.Fatalf("the lab has ended:\n%s", lab.out)
			default:
			}
			logs, err := filepath.Glob("/run/berth/*.journal")
			return err == nil && len(logs) == 1
		}, lab.out)
		if out, code := b.run(root, berth, "lab", "--results", b.TempDir()); code == 0 || !strings.Contains(out, "another berth lab of this user") {
			b.Errorf("a second lab of root: exit status %d\n%s", code, out)
		}
		if info, err := os.Stat("/run/berth/lab.lock"); err != nil || info.Mode().Perm() != 0o600 {
			b.Errorf("the lock file: %v, %v", info, err)
		}
		lab.end(syscall.SIGINT)
	})
}
